"""Upkeep of a log that goes on through another instance: it costs the nodes next to nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kit.metadata.metadata_instances import MetadataCluster, Writer, metadata_cluster
from kit.waiting import until
from metadata.test_metadata_snapshots import fill, snapshot, trim, trimmed
from muster_core.position import Position
from muster_metadata.log import upkeep as upkeep_module
from muster_metadata.log.states import Held, Repaired
from muster_metadata.log.upkeep import Upkeep
from muster_metadata.nodes.entries import LogEnd
from muster_metadata.nodes.node import Answer, Node
from muster_metadata.nodes.reply import LOST, NodeReply, Status
from muster_protos.muster.internal.v1 import metadata_pb2

pytestmark = pytest.mark.cluster

OK = metadata_pb2.LOG_OUTCOME_OK


class Asked:
    """What nodes were asked to acknowledge, and how they answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nodes: tuple[Node, ...]) -> None:
        self.answers: list[tuple[int, str, Status]] = []
        self.lost: set[int] = set()
        for node in nodes:
            monkeypatch.setattr(node, "acknowledge", self._noting(node))

    def _noting(self, node: Node) -> Any:
        send = node.acknowledge

        def acknowledge(shard: int, epoch: int, nonce: bytes, id_: str, hash_: bytes) -> Answer:
            async def answer() -> NodeReply:
                if node.index in self.lost:
                    self.lost.discard(node.index)
                    return LOST
                reply = await send(shard, epoch, nonce, id_, hash_)
                if shard == 0:
                    self.answers.append((node.index, id_, reply.status))
                return reply

            return asyncio.ensure_future(answer())

        return acknowledge

    def of(self, end: LogEnd) -> list[Status]:
        """How the nodes answered about one end."""
        return [status for _, id_, status in self.answers if id_ == end.position.stream_id]


async def trim_through_another_instance(cluster: MetadataCluster, writer: Writer) -> None:
    """Goes on through the first instance until what the second one wrote is trimmed."""
    await fill(cluster, writer, 20)
    older, marker = await snapshot(cluster, writer, [b"older"])
    assert (await trim(cluster, writer, older, marker)).outcome == OK
    await fill(cluster, writer, 20)
    newer, marker = await snapshot(cluster, writer, [b"newer"])
    cut = {"previous_upto": older.to_proto(), "before": older.to_proto()}
    assert (await trim(cluster, writer, newer, marker, **cut)).outcome == OK
    await fill(cluster, writer, 1)
    await until(lambda: trimmed(cluster, older), "all nodes have trimmed the log")


async def test_an_end_that_was_trimmed_through_another_instance_begins_no_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOG-69: who wrote it does not hear of that, and goes on acknowledging it."""
    monkeypatch.setattr(upkeep_module, "_RECHECK_S", 0.2)
    async with metadata_cluster(tmp_path, 3, instances=2) as cluster:
        writer = Writer(0)
        await writer.own(cluster[1])
        assert (await writer.append(cluster[1], b"w:1")).outcome == OK
        known, other = writer.end, cluster[1].server.metadata
        asked = Asked(monkeypatch, other.quorum.nodes)
        await until(lambda: Status.OK in asked.of(known), "it acknowledges what it wrote")
        await trim_through_another_instance(cluster, writer)
        await until(lambda: asked.of(known)[-3:] == [Status.DUP] * 3, "all nodes have it trimmed")
        repairs = other.upkeep.repairs.copy()
        before = len(asked.of(known))
        await until(lambda: len(asked.of(known)) >= before + 12, "it asks four times more")
        assert set(asked.of(known)[before:]) == {Status.DUP}
        assert other.upkeep.repairs == repairs


class StoppedClock:
    """Shows one time until it is set; counts how often it is looked at."""

    def __init__(self) -> None:
        self.now_s, self.looks = 10.0, 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now_s

    async def is_looked_at(self) -> None:
        """Waits until it has been looked at often, so that whatever is due at this time was done."""
        before = self.looks
        await until(lambda: self.looks > before + 10, "upkeep looks at the clock")


@asynccontextmanager
async def upkeep_of(
    cluster: MetadataCluster, held: Held, end: LogEnd
) -> AsyncIterator[tuple[Upkeep, StoppedClock]]:
    """The upkeep of one log alone, on a clock of its own, which shows that the log has been quiet."""
    metadata = cluster[0].server.metadata
    await metadata._patrol.stop()
    await metadata.upkeep.stop()
    clock = StoppedClock()
    upkeep = Upkeep(metadata.quorum, metadata.upkeep._repairer, clock)
    upkeep.wrote(held, end)
    clock.now_s += 1
    upkeep.start()
    try:
        yield upkeep, clock
    finally:
        await upkeep.stop()


async def are_level(upkeep: Upkeep, repairs: int) -> None:
    """Waits for so many repairs that found nothing missing."""
    await until(lambda: upkeep.repairs[Repaired.LEVEL] >= repairs, "nodes are found level")


async def test_a_repair_that_found_nothing_missing_waits_until_the_log_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOG-69: also where the nodes do not have the end at all, as when a majority forgot it (LOG-53)."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        asked = Asked(monkeypatch, cluster[0].server.metadata.quorum.nodes)
        gone = LogEnd(Position(writer.epoch, 1_000), bytes(32))
        async with upkeep_of(cluster, Held(0, writer.epoch, writer.nonce), gone) as (upkeep, clock):
            for repaired in (3, 6, 9):
                await are_level(upkeep, repaired)
                await clock.is_looked_at()
                assert upkeep.repairs == {Repaired.LEVEL: repaired}
                assert asked.of(gone) == [Status.MISMATCH] * repaired
                clock.now_s += 5


async def test_an_end_is_acknowledged_again_at_once_where_the_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOG-24: the node had all of the log, so the repair found nothing missing; the position it may lack."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        asked = Asked(monkeypatch, cluster[0].server.metadata.quorum.nodes)
        asked.lost = {3}
        async with upkeep_of(cluster, Held(0, writer.epoch, writer.nonce), writer.end):
            await until(lambda: asked.of(writer.end).count(Status.OK) >= 5, "all nodes are asked again")
        assert 3 in {index for index, _, status in asked.answers if status is Status.OK}
