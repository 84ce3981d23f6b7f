"""One script on a cluster in the test's process and on one of real servers: what members see is the same."""

from collections.abc import Awaitable
from pathlib import Path

import muster
import pytest
from kit.clusters.server_cluster import running
from kit.waiting import until
from muster.testing import LocalCluster

PARTITIONS = 4


def _numbers(member: muster.Member) -> list[int]:
    return sorted(partition.number for partition in member.partitions)


async def _script(cluster: muster.Cluster) -> list[object]:
    """What two members of a group see of topics, shares, commits, tokens and errors."""
    seen: list[object] = []

    def note(*what: object) -> None:
        seen.append(what)

    async def refused(doing: Awaitable[object]) -> None:
        try:
            await doing
        except muster.MusterError as error:
            note(type(error).__name__)
        else:
            note("done")

    await refused(cluster.create_topic("t", PARTITIONS))
    await refused(cluster.create_topic("t", PARTITIONS))
    note([(topic.name, topic.partitions) for topic in await cluster.topics()])
    first = muster.Member(cluster, group_id="g", topics="t")
    second = muster.Member(cluster, group_id="g", topics="t")
    await first.start()
    await until(lambda: len(first.partitions) == PARTITIONS)
    note("alone", first.generation, _numbers(first))
    tokens = {partition: first.token(partition) for partition in first.partitions}
    for partition in first.partitions:
        await first.commit({partition: partition.number + 10})
    await second.start()
    await until(lambda: len(first.partitions) == len(second.partitions) == PARTITIONS // 2)
    await until(lambda: first.generation == second.generation)  # told by the answer to what was given back
    note("two", len({*_numbers(first), *_numbers(second)}))
    moved = second.partitions[0]
    note("token grew", second.token(moved) > tokens[moved])
    note("went on at", (await second.committed([moved]))[moved].offset - moved.number)
    await refused(first.commit({moved: 99}))
    await refused(cluster.delete_group("g"))
    await first.close()
    await until(lambda: len(second.partitions) == PARTITIONS)
    note("left", _numbers(second))
    found = await cluster.committed("g")
    note(sorted((partition.number, at.offset) for partition, at in found.items()))
    await second.close()
    await refused(cluster.delete_topic("t"))
    note(await cluster.topics())
    return seen


@pytest.mark.cluster
async def test_members_see_the_same(tmp_path: Path) -> None:
    async with (
        running(tmp_path, redis_nodes=1, coordinators=1) as servers,
        muster.Cluster(servers.servers) as cluster,
    ):
        real = await _script(cluster)
    async with LocalCluster() as local:
        assert await _script(local.connect()) == real
    assert ("two", PARTITIONS) in real
