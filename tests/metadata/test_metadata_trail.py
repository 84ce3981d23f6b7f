"""The audit trail on the nodes: what a majority has stays through the loss of a minority, within bounds."""

import asyncio
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from kit.metadata.metadata_instances import Instance, Writer, metadata_cluster
from kit.waiting import until
from muster_metadata.cluster.trail import EVENT_MAX_BYTES, EVENTS_MAX
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.clock import wall_ms

pytestmark = pytest.mark.cluster

TrailEvent = metadata_pb2.TrailEvent
OK, UNKNOWN, INVALID = (
    metadata_pb2.LOG_OUTCOME_OK,
    metadata_pb2.LOG_OUTCOME_UNKNOWN,
    metadata_pb2.LOG_OUTCOME_INVALID,
)


def event(action: str, outcome: str = "done") -> TrailEvent:
    return TrailEvent(
        event_id=secrets.token_bytes(16), at_ms=wall_ms(), action=action, outcome=outcome, count=1
    )


async def record(instance: Instance, *events: TrailEvent) -> int:
    answer = await instance.stub.RecordTrail(metadata_pb2.RecordTrailRequest(events=events))
    return int(answer.outcome)


async def keep(instance: Instance, *events: TrailEvent) -> None:
    """Records, and repeats it while the outcome is not known."""

    async def kept() -> bool:
        return await record(instance, *events) == OK

    await until(kept, "a majority has them")


async def read(instance: Instance, since_ms: int = 0) -> Sequence[TrailEvent] | None:
    found: list[TrailEvent] = []
    async for page in instance.stub.ReadTrail(metadata_pb2.ReadTrailRequest(since_ms=since_ms)):
        if page.outcome != OK:
            return None
        found += page.events
    return found


async def actions(instance: Instance) -> list[str]:
    found: list[Sequence[TrailEvent]] = []

    async def readable() -> bool:
        answer = await read(instance)
        found[:] = [] if answer is None else [answer]
        return answer is not None

    await until(readable, "a majority answers")
    return [one.action for one in found[0]]


async def test_what_was_kept_is_told_once_by_each_instance_in_the_order_of_its_time(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3, instances=2) as cluster:
        first, second = event("first"), event("second", "refused")
        second.at_ms = first.at_ms + 1_000
        await keep(cluster[0], second)
        await keep(cluster[0], first)
        again = TrailEvent(event_id=first.event_id, left_out=7)
        again.MergeFrom(first)
        await keep(cluster[1], again)
        for instance in cluster.instances:
            assert await actions(instance) == ["first", "second"]
            found = await read(instance, since_ms=first.at_ms)
            assert found is not None
            assert found[0].left_out == 7
            assert await read(instance, since_ms=second.at_ms) == [second]


async def test_what_is_no_list_of_events_is_refused(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster:
        large = event("x" * EVENT_MAX_BYTES)
        nameless = TrailEvent(action="x", outcome="done")
        for wrong in ([], [event("x")] * (EVENTS_MAX + 1), [large], [nameless]):
            assert await record(cluster[0], *wrong) == INVALID
        assert await read(cluster[0]) == []


async def test_an_event_outlives_a_node_that_was_away_and_one_that_lost_its_data(tmp_path: Path) -> None:
    """Nodes 1 and 2 have it; node 1 is wiped and filled again; then node 2 is lost."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        writers = [Writer(shard) for shard in range(4)]
        for writer in writers:
            await writer.own(cluster[0])
            await writer.append(cluster[0], b"w:1")
        await cluster.nodes[2].kill()
        await keep(cluster[0], event("delete"), event("join", "refused"))
        await cluster.nodes[2].start()
        for writer in writers:
            await writer.append(cluster[0], b"w:2")
            await until(partial(cluster.level, writer.shard), "node 3 is back")
        async with cluster.client(0) as client:
            await client.flushall()
        for writer in writers:
            await writer.append(cluster[0], b"w:3")
        for shard in range(5):
            await until(partial(cluster.level, shard), "the wiped node has the logs")
        await cluster.nodes[1].kill()
        assert sorted(await actions(cluster[0])) == ["delete", "join"]
        await keep(cluster[0], event("later"))
        assert sorted(await actions(cluster[0])) == ["delete", "join", "later"]


async def test_without_a_majority_nothing_counts_as_kept_and_nothing_is_told(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        await keep(cluster[0], event("before"))
        for index in (1, 2):
            await cluster.nodes[index].kill()
        assert await record(cluster[0], event("lost")) == UNKNOWN
        assert await read(cluster[0]) is None


async def test_what_is_repeated_while_the_log_is_away_removes_nothing(tmp_path: Path) -> None:
    """Nodes 1 and 2 have an event; node 1 alone hears others again and again; then node 2 is lost."""
    async with metadata_cluster(tmp_path, 3, trail_events=100) as cluster:
        await cluster.nodes[2].kill()
        await keep(cluster[0], event("delete"))
        await cluster.nodes[1].kill()
        waiting = [event("join", "done") for _ in range(60)]
        for left_out in range(4):
            waiting[0].left_out = left_out
            assert await record(cluster[0], *waiting) == UNKNOWN
        await cluster.nodes[2].start()
        await keep(cluster[0], *waiting)
        found = await actions(cluster[0])
        assert [found.count(action) for action in ("delete", "join")] == [1, 60]


@pytest.mark.parametrize("days", [-400, 400])
async def test_the_clock_of_a_node_ends_no_event(tmp_path: Path, days: int) -> None:
    """A node whose clock is far behind would take its events for old ones at once."""
    async with metadata_cluster(tmp_path, 1, trail_days=1) as cluster:
        now_ms = wall_ms() - days * 86_400_000
        cluster[0].server.metadata.trail._stamp_ms = lambda: now_ms
        await keep(cluster[0], event("first"))
        await keep(cluster[0], event("second"))
        assert sorted(await actions(cluster[0])) == ["first", "second"]
        now_ms += 2 * 86_400_000
        await keep(cluster[0], event("third"))
        assert await actions(cluster[0]) == ["third"]


async def test_a_flood_of_refusals_removes_nothing_that_was_done(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1, trail_events=100) as cluster:
        await keep(cluster[0], event("delete"), event("create", "unknown"))
        for _ in range(5):
            await keep(cluster[0], *(event("join", "refused") for _ in range(EVENTS_MAX)))
        found = await actions(cluster[0])
        assert [found.count(action) for action in ("delete", "create", "join")] == [1, 1, 100]


async def test_old_events_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with metadata_cluster(tmp_path, 1, trail_days=1) as cluster:
        await keep(cluster[0], event("old"))
        await asyncio.sleep(0.01)
        a_day_later_ms = wall_ms() + 86_400_000
        monkeypatch.setattr(cluster[0].server.metadata.trail, "_stamp_ms", lambda: a_day_later_ms)
        await keep(cluster[0], event("new"))
        assert await actions(cluster[0]) == ["new"]


async def test_a_node_of_another_cluster_keeps_nothing_of_it(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster, cluster.client(0) as client:
        await client.hset("muster:node", "identity", "another")
        assert await record(cluster[0], event("x")) == UNKNOWN
        assert await client.exists("muster:trail") == 0
        assert await read(cluster[0]) is None
