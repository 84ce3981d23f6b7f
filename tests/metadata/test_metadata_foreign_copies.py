"""One node has something else than the log in its place: another log, or entries under changed ids.

The answers of the node come early, so that it is one of the majority that is heard.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit.metadata.metadata_instances import MetadataCluster, Writer, metadata_cluster, records
from kit.waiting import until
from metadata.test_metadata_damage import later, write
from muster_metadata.log import damage
from muster_metadata.log.damage import damage_is_repaired, report_damage
from muster_metadata.log.snapshot_copies import SnapshotCopies
from muster_metadata.log.states import Held, Repaired
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.reply import NodeReply
from muster_protos.muster.internal.v1 import metadata_pb2
from structlog.testing import capture_logs

pytestmark = pytest.mark.cluster


@asynccontextmanager
async def two_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[MetadataCluster, Writer]]:
    """A cluster with a long log of shard 0 and a short one of shard 1; the writer of the short one."""
    async with metadata_cluster(tmp_path, 3, shards=2) as cluster:
        other, writer = Writer(0), Writer(1)
        for one, count in ((other, 30), (writer, 5)):
            await one.own(cluster[0])
            await write(cluster, one, count)
        await until(lambda: known_everywhere(cluster, writer), "all nodes know what is acknowledged")
        await until(lambda: cluster.level(0), "all nodes have the long log")
        third = cluster[0].server.metadata.quorum.nodes[2]
        for name in ("inspect", "prepare"):
            monkeypatch.setattr(third, name, partial(later, getattr(third, name)))
        yield cluster, writer


async def known_everywhere(cluster: MetadataCluster, writer: Writer) -> bool:
    end = writer.end.position
    replicas = await cluster[0].describe(writer.shard)
    return all((one.acknowledged.epoch, one.acknowledged.offset) == end for one in replicas)


async def rename(cluster: MetadataCluster) -> None:
    """The first node has the log of shard 0 under the name of shard 1."""
    async with cluster.client(0) as client:
        await client.rename("muster:{0}:log", "muster:{1}:log")


async def change_id(cluster: MetadataCluster, place: str, changed: str) -> None:
    """The first node reads one id wrong when it starts: what comes after it does not fit any more."""
    async with cluster.client(0) as client:
        entries: Any = await client.xrange("muster:{1}:log")
        async with client.pipeline(transaction=True) as pipeline:
            pipeline.delete("muster:{1}:log")
            for id_, fields in entries:
                pipeline.xadd("muster:{1}:log", fields, id=changed if id_ == place.encode() else id_)
                if id_ == place.encode():
                    break
            await pipeline.execute()


async def claimed(cluster: MetadataCluster, writer: Writer) -> bool:
    return (await writer.claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_OK


async def test_no_claim_goes_after_a_log_that_stands_under_another_ones_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is longer, and the right ones would be overwritten with it."""
    async with two_logs(tmp_path, monkeypatch) as (cluster, writer):
        await rename(cluster)
        successor = Writer(1, "c-2")
        await until(lambda: claimed(cluster, successor), "claimed")
        assert records(await cluster[0].read(1, successor)) == writer.acknowledged
        await until(lambda: cluster.level(1), "the node has the log again")
        await until(lambda: cluster.level(0), "and the one that it was taken from")
        assert records(await cluster[0].read(1, successor)) == writer.acknowledged


@pytest.mark.parametrize("changed", ["1-97", "3-4"], ids=["a-higher-offset", "a-higher-epoch"])
async def test_no_claim_goes_after_an_entry_whose_id_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    async with two_logs(tmp_path, monkeypatch) as (cluster, writer):
        await change_id(cluster, "1-4", changed)
        successor = Writer(1, "c-2")
        assert await claimed(cluster, successor)
        assert records(await cluster[0].read(1, successor)) == writer.acknowledged
        await until(lambda: cluster.level(1), "the node has the log again")


async def test_while_two_copies_contradict_each_other_the_third_node_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_logs(tmp_path, monkeypatch) as (cluster, writer):
        right = (await cluster.ends(1))[1]
        cluster.nodes[2].pause()
        await rename(cluster)
        successor = Writer(1, "c-2")
        for _ in range(3):
            assert (await successor.claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
        cluster.nodes[2].resume()
        assert (await cluster.ends(1))[1] == right
        await until(lambda: claimed(cluster, successor), "claimed when the third is back")
        assert records(await cluster[0].read(1, successor)) == writer.acknowledged


async def test_a_copy_that_lags_behind_what_is_acknowledged_is_the_log_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_logs(tmp_path, monkeypatch) as (cluster, writer):
        cluster.nodes[0].pause()
        await write(cluster, writer, 3)
        cluster.nodes[1].pause()
        cluster.nodes[0].resume()
        successor = Writer(1, "c-2")
        await until(lambda: claimed(cluster, successor), "claimed by the first and the third")
        cluster.nodes[1].resume()
        assert records(await cluster[0].read(1, successor)) == writer.acknowledged


async def test_no_node_is_filled_from_a_log_that_stands_under_another_ones_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last entry has the epoch of the claim, so it looks like the longest copy of it."""
    async with two_logs(tmp_path, monkeypatch) as (cluster, writer):
        metadata = cluster[0].server.metadata
        await rename(cluster)
        for node in metadata.quorum.nodes[1:]:
            repairer = metadata.membership._repairer
            assert await repairer.repair(node, Held(1, writer.epoch, writer.nonce)) is not Repaired.DONE
        await write(cluster, writer, 3)
        await until(lambda: cluster.level(1), "the node has the log again")
        assert records(await cluster[0].read(1, writer)) == writer.acknowledged


async def change_acknowledged(cluster: MetadataCluster, writer: Writer) -> None:
    """The first node reads a later position than it stored."""
    async with cluster.client(0) as client:
        shard = "catalog" if writer.shard == 2 else writer.shard
        end = writer.end.position
        await client.set(f"muster:{{{shard}}}:acknowledged", f"{end.epoch}-{end.offset + 70}")


async def test_a_position_that_one_node_reads_wrong_keeps_no_log_from_being_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_logs(tmp_path, monkeypatch) as (cluster, writer):
        await change_acknowledged(cluster, writer)
        successor = Writer(1, "c-2")
        assert await claimed(cluster, successor)
        assert records(await cluster[0].read(1, successor)) == writer.acknowledged


async def test_a_log_is_read_where_one_node_has_a_wrong_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the catalog is, by those who do not claim it."""
    async with two_logs(tmp_path, monkeypatch) as (cluster, writer):
        await change_acknowledged(cluster, writer)
        request = metadata_pb2.ReadLogRequest(shard=1)
        pages = [page async for page in cluster[0].stub.ReadLog(request)]
        assert [page.outcome for page in pages] == [metadata_pb2.LOG_OUTCOME_OK] * len(pages)
        assert sum(len(page.entries) for page in pages) == writer.end.position.offset


async def test_a_log_whose_end_two_nodes_lost_is_claimed_where_the_third_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers after them, and they know that something is missing."""
    async with two_logs(tmp_path, monkeypatch) as (cluster, writer):
        for index in (0, 1):
            async with cluster.client(index) as client:
                assert await client.xdel("muster:{1}:log", "1-6", "1-7") == 2
        successor = Writer(1, "c-2")
        assert await claimed(cluster, successor)
        assert records(await cluster[0].read(1, successor)) == writer.acknowledged


async def test_a_node_is_filled_also_while_its_log_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever a copy is made, there is more by the time it is put in the log's place."""
    async with two_logs(tmp_path, monkeypatch) as (cluster, writer):
        copy_missing = SnapshotCopies.copy_missing

        async def then_written(*arguments: Any, **options: Any) -> bool:
            await write(cluster, writer, 1)
            return await copy_missing(*arguments, **options)

        monkeypatch.setattr(SnapshotCopies, "copy_missing", then_written)
        async with cluster.client(1) as client:
            await client.delete("muster:{1}:log")

            async def filled() -> bool:
                return bool(await client.exists("muster:{1}:log"))

            await until(filled, "the node has the log again", 20)
        monkeypatch.undo()
        await until(lambda: cluster.level(1), "and what was written since")
        assert records(await cluster[0].read(1, writer)) == writer.acknowledged


async def test_damage_that_is_met_again_and_again_is_said_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 1
    monkeypatch.setattr(damage, "boot_ms", lambda: now_ms)
    node = Node(1, "redis://127.0.0.1:1", 100)

    def said(shard: int, *, snapshot: bool = False) -> int:
        with capture_logs() as logs:
            for place in range(50):
                report_damage(node, shard, f"an entry after 1-{place} was changed", snapshot=snapshot)
        return len(logs)

    assert [said(1), said(1), said(2), said(1, snapshot=True)] == [1, 0, 1, 1]
    damage_is_repaired(node, 1)
    assert [said(1), said(2), said(1, snapshot=True)] == [1, 0, 0]
    now_ms += 600_000
    assert [said(1), said(2)] == [1, 1]


async def test_a_copy_that_another_instance_has_put_in_place_accuses_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with metadata_cluster(tmp_path, 3, shards=1) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await write(cluster, writer, 5)
        first = cluster[0].server.metadata.quorum.nodes[0]
        copied, taken = first.copied, list[str]()

        async def answer(shard: int, id_: str) -> NodeReply:
            if not taken:
                async with cluster.client(0) as client:
                    await client.delete(f"muster:{{{shard}}}:copy")
                taken.append(id_)
            return await copied(shard, id_)

        monkeypatch.setattr(first, "copied", answer)
        with capture_logs() as said:
            async with cluster.client(0) as client:
                await client.flushall()
            await until(lambda: taken, "the node is filled")
            await until(lambda: cluster.level(0), "it has the log again")
        assert [one for one in said if one["event"] == "log_node_damaged"] == []
