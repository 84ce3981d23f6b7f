"""What is left to do and who does it: from the work to `muster groups describe`, metrics and doctor."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import muster
import pytest
from kit import forked
from kit.clusters.server_cluster import FAST_GROUPS, all_served, find
from kit.scrape import scrape
from kit.waiting import until
from muster import Cluster, Member, Progress, TopicPartition
from muster_protos.muster.v1 import common_pb2
from muster_server.dev.cluster import DevCluster

pytestmark = pytest.mark.cluster

TENANTS = ["acme", "globex", "initech"]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[DevCluster]:
    async with DevCluster(tmp_path, coordinators=2, settings=FAST_GROUPS, metrics=True) as cluster:
        yield cluster


async def command(cluster: DevCluster, *arguments: str) -> str:
    environment = {**os.environ, "MUSTER_SERVERS": cluster.servers, "COLUMNS": "200"}
    done = await forked.run_beside(["muster", *arguments], environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def told(cluster: DevCluster, name: str, **labels: str) -> float | None:
    """The sum of a metric over all coordinators that are alive; None: no series has these labels."""
    values: list[float] = []
    for process in cluster.coordinators:
        with suppress(OSError):
            numbers = await scrape(process.metrics_port)
            values += [
                sample.value
                for sample in numbers.samples
                if sample.name == name and labels.items() <= sample.labels.items()
            ]
    return sum(values) if values else None


@asynccontextmanager
async def at_work(cluster: DevCluster, work: Any, **settings: Any) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(muster.arun(work, group="g", servers=cluster.servers, stop=stop, **settings))
    try:
        yield
    finally:
        stop.set()
        await task


@pytest.mark.parametrize("protocol", ["classic", "incremental"])
async def test_the_lag_of_a_group_is_described_and_counted_and_survives_its_coordinator(
    cluster: DevCluster, protocol: str
) -> None:
    async def work(p: muster.Partition) -> None:
        await p.commit(5)
        p.report(10 + p.number)
        await p.ending()

    async with (
        at_work(cluster, work, topic="tenants", partitions=TENANTS, protocol=protocol),
        Cluster(cluster.servers) as connection,
    ):
        await until(lambda: has_lag(connection, 5 + 6 + 7), "all ends are known")
        first = (await connection.progress("g"))[0]
        assert first[:2] == (TopicPartition("tenants", 0), 5)
        assert (first.end, first.lag) == (10, 5)
        assert first.committed_at_ms > 1_600_000_000_000
        assert await told(cluster, "muster_group_lag", group="g") == 18
        assert await told(cluster, "muster_group_members", group="g") == 1
        assert await told(cluster, "muster_group_partitions_assigned", group="g") == 3
        assert await told(cluster, "muster_group_generation", group="g") == 1
        age_s = await told(cluster, "muster_group_last_commit_age_seconds", group="g")
        assert age_s is not None
        assert 0 <= age_s < 600

        said = await command(cluster, "groups", "describe", "g")
        assert "lag 18 over 3 partitions that report their end" in said
        assert "tenants acme globex initech" in said
        if protocol == "classic":  # incremental members do not say theirs
            assert f"muster-python/{forked_version()}" in said
        lines = [line.split() for line in said.splitlines() if line.startswith("tenants-")]
        assert [line[:2] + line[-2:] for line in lines] == [
            ["tenants-2", "(initech)", "12", "7"],
            ["tenants-1", "(globex)", "11", "6"],
            ["tenants-0", "(acme)", "10", "5"],
        ]
        described = json.loads(await command(cluster, "groups", "describe", "g", "--output", "json"))
        assert [(one["key"], one["lag"]) for one in described["progress"]] == [
            ("acme", 5),
            ("globex", 6),
            ("initech", 7),
        ]

        served_at = await find(cluster.servers, "g")
        await next(one for one in cluster.coordinators if one.address == served_at).kill()
        await until(lambda: has_lag(connection, 18), "the next coordinator was told")
        assert await told(cluster, "muster_group_lag", group="g") == 18


def forked_version() -> str:
    from importlib.metadata import version

    return version("muster-client")


async def has_lag(connection: Cluster, lag: int) -> bool:
    progress: list[Progress] = await connection.progress("g")
    return sum(one.lag or 0 for one in progress) == lag


async def test_a_thread_reports_and_a_raw_member_does(cluster: DevCluster) -> None:
    def work(p: muster.BlockingPartition) -> None:
        p.report(1_000)
        with pytest.raises(ValueError, match="0 to 2"):
            p.report(-1)
        p.wait_ending()

    async with Cluster(cluster.servers) as connection:
        async with at_work(cluster, work, topic="t", partitions=2):
            await until(lambda: has_lag(connection, 2_000), "both ends are known, without a commit")
        await connection.create_topic("raw", 1)
        async with Member(connection, group_id="g", topics="raw") as member:
            await until(lambda: member.partitions, "it has the topic")
            member.report({member.partitions[0]: 7, TopicPartition("raw", 8): 9})
            await until(lambda: has_lag(connection, 7), "the ends of others are gone, with their owner")


async def test_topics_of_an_assignment_that_nobody_can_commit_are_left_out(cluster: DevCluster) -> None:
    """A classic group may divide what it likes: its coordinator does not read assignments."""
    async with Cluster(cluster.servers) as connection, Member(connection, group_id="g", topics="t") as member:
        await until(lambda: member.generation > 0, "it is in the group")
        group = await connection.describe_group("g")
        foreign = common_pb2.Assignment(version=1)
        for topic in ("", "a\nb", "a" * 250, "an other"):
            foreign.partitions.add(topic=topic, partitions=[0])
        group.members.add(assignment=foreign.SerializeToString())
        progress = await connection.progress_of(group)
    assert [one.partition for one in progress] == [TopicPartition("an other", 0)]


async def test_tokens_that_were_kept_and_parked_names_are_described(cluster: DevCluster) -> None:
    async def work(p: muster.Partition) -> None:
        if p.key == "globex":
            raise ValueError("no such tenant")
        await p.ending()

    settings = {"topic": "tenants", "partitions": TENANTS, "retry_attempts": 1, "protocol": "classic"}
    async with at_work(cluster, work, **settings), Cluster(cluster.servers) as connection:
        await until(lambda: connection.parked("g"), "one is parked")
        before = (await connection.describe_group("g")).members[0]
        assert not before.kept_tokens
        async with at_work(cluster, work, **settings):

            async def shared() -> Any:
                members = (await connection.describe_group("g")).members
                return next((m for m in members if len(members) == 2 and m.kept_tokens), None)

            keeper = await until(shared, "one keeps some of its partitions")
            assert keeper.member_id == before.member_id
            assert {kept.token for kept in keeper.kept_tokens} == {before.token}
            assert keeper.token > before.token
            said = await command(cluster, "groups", "describe", "g")
            assert f"({len(keeper.kept_tokens)} kept, with older ones)" in said
            assert "tenants-1 (globex)" in said
            assert "tenants-1 (globex)" in await command(cluster, "partitions", "list", "g")
            released = await command(cluster, "partitions", "release", "g", "tenants", "globex")
            assert released == "tenants-1 (globex) is released\n"


async def test_doctor_says_which_clients_the_members_use(cluster: DevCluster) -> None:
    async def work(p: muster.Partition) -> None:
        await p.ending()

    classic = {"topic": "t", "partitions": 1, "protocol": "classic"}  # incremental ones do not say theirs
    async with at_work(cluster, work, **classic), Cluster(cluster.servers) as connection:

        async def has_member() -> bool:
            return bool((await connection.describe_group("g")).members)

        await until(has_member, "the worker is a member")
        await all_served(cluster.servers)
        metadata = ",".join(process.address for process in cluster.metadata)
        output = await command(cluster, "doctor", "--metadata", metadata, "--output", "json")
        findings = json.loads(output)["findings"]
    (clients,) = [one for one in findings if one["check"] == "clients"]
    assert clients["result"] == "ok"
    assert clients["detail"] == f"1 member with muster-python/{forked_version()}"
