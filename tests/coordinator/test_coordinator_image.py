"""What was read of a log: runs of entries as metadata sends them."""

import asyncio
import gc
import itertools
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from coordinator.coordinator_cluster import SHARDS, MemoryCluster, group_of, owns
from kit.logs.log_builder import LogBuilder
from muster_coordinator.log import log_image
from muster_coordinator.log.loader import Loader
from muster_coordinator.log.log_image import LogImage
from muster_core import error_code
from muster_core.config import GroupConfig
from muster_core.log.replay import Entry, LogDamaged
from muster_core.position import Position
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.garbage import COLLECTOR
from muster_runtime.loop_share import LoopShare


def run_of(*entries: Entry, more: bytes = b"") -> bytes:
    """Entries as metadata sends them; `more`: what is too much in the columns."""
    first = entries[0].position
    run = metadata_pb2.EntryRun(
        epoch=first.epoch, first_offset=first.offset, records=[entry.record for entry in entries]
    )
    run.nonces = b"".join(entry.nonce for entry in entries) + more
    run.hashes = b"".join(entry.hash for entry in entries)
    return run.SerializeToString()


def long_log(commits: int) -> LogBuilder:
    """A log with commits of a kilobyte."""
    built = LogBuilder()
    built.genesis()
    built.claim()
    for number in range(commits):
        built.commit(-1, "", metadata=f"{number}" + "m" * 1_000)
    return built


@pytest.fixture(params=[True, False], ids=["collecting", "not collecting"])
def collecting(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the process collects garbage when a read begins."""
    before, wanted = gc.isenabled(), bool(request.param)
    (gc.enable if wanted else gc.disable)()
    yield wanted
    (gc.enable if before else gc.disable)()


@pytest.mark.cluster
async def test_no_garbage_is_collected_while_logs_are_read(
    collecting: bool, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = LogImage.take_in_parts, list[bool]()

    def take(image: LogImage, run: bytes) -> Iterator[None]:
        seen.append(gc.isenabled())
        return real(image, run)

    monkeypatch.setattr(LogImage, "take_in_parts", take)
    async with grpc.aio.insecure_channel(cluster.instances[0].target) as channel:
        loader = Loader(lambda _: channel, 1, GroupConfig())
        await asyncio.gather(*(loader.preload(loader.image(shard)) for shard in range(SHARDS)))
        assert len(seen) >= SHARDS
        assert set(seen) == {False}
        assert gc.isenabled() is collecting


class Ring:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


def test_a_read_that_ends_while_others_go_on_collects_and_leaves_the_collector_off(collecting: bool) -> None:
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(COLLECTOR.left_alone())
        second.enter_context(COLLECTOR.left_alone())
        left = weakref.ref(Ring())
        assert left() is not None
        first.close()
        assert not gc.isenabled()
        assert (left() is None) is collecting
        second.close()
        assert gc.isenabled() is collecting


def test_a_read_that_fails_leaves_the_collector_as_it_was(collecting: bool) -> None:
    with pytest.raises(LogDamaged), COLLECTOR.left_alone():
        raise LogDamaged(Position(1, 1), "its record cannot be decoded")
    assert gc.isenabled() is collecting


def test_of_a_run_that_does_not_follow_nothing_is_taken() -> None:
    built = LogBuilder()
    built.genesis()
    built.claim()
    image = LogImage(built.shard, GroupConfig())
    image.take(run_of(built.entries[0]))
    built.change(1, nonce=bytes(16))
    with pytest.raises(LogDamaged):
        image.take(run_of(built.entries[1]))
    assert image.records == 1


def test_a_long_run_is_taken_some_at_a_time_with_the_same_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIM-56."""
    built = long_log(10)
    whole, image = LogImage(built.shard, GroupConfig()), LogImage(built.shard, GroupConfig())
    for one in (whole, image):
        one.take(run_of(built.entries[0]))
    run = run_of(*built.entries[1:])
    whole.take(run)
    monkeypatch.setattr(log_image, "PART_BYTES", 3_000)
    parts = [image.records for _ in image.take_in_parts(run)]
    assert parts == [3, 6, 9, 12]
    assert (image.chain.end, image.chain.end_hash) == (whole.chain.end, whole.chain.end_hash)
    assert (image.records, image.size_bytes, image.written_at_ms) == (
        whole.records,
        whole.size_bytes,
        whole.written_at_ms,
    )
    assert [*image.core.groups[built.group].offsets] == [*whole.core.groups[built.group].offsets]


def test_of_decisions_fewer_are_taken_at_a_time_than_of_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIM-56: they take longer, byte by byte and one by one."""
    built = long_log(20)
    for number in range(1, 21):
        built.generation(number, "a")
    image = LogImage(built.shard, GroupConfig())
    image.take(run_of(built.entries[0]))
    monkeypatch.setattr(log_image, "PART_BYTES", 10_000)
    ends = [image.records for _ in image.take_in_parts(run_of(*built.entries[1:]))]
    assert max(after - before for before, after in itertools.pairwise([*ends, 42]) if before >= 22) <= 5
    assert max(after - before for before, after in itertools.pairwise(ends)) >= 9


def test_of_a_run_with_too_much_in_a_column_the_last_part_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    built = long_log(4)
    image = LogImage(built.shard, GroupConfig())
    image.take(run_of(built.entries[0]))
    monkeypatch.setattr(log_image, "PART_BYTES", 2_000)
    with pytest.raises(LogDamaged, match="another length"):
        image.take(run_of(*built.entries[1:], more=bytes(16)))
    assert image.records == 4


@pytest.mark.cluster
async def test_loads_take_one_part_in_a_turn_of_the_loop(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LIM-56: however many shards are loaded at once."""
    before = await cluster.add("a", join_delay_ms=0)
    await owns(before, SHARDS)
    caller = cluster.caller(before)
    for number in range(3):
        for shard in range(SHARDS):
            assert await caller.commit(group_of(shard), number) == error_code.NONE
    monkeypatch.setattr(log_image, "PART_BYTES", 1)
    real, loop, seen, turn = LogImage._take_records, asyncio.get_running_loop(), list[int](), 0

    def count() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count)

    def take(*arguments: Any) -> None:
        seen.append(turn)
        real(*arguments)

    monkeypatch.setattr(LogImage, "_take_records", take)
    async with grpc.aio.insecure_channel(cluster.instances[0].target) as channel:
        loader = Loader(lambda _: channel, 1, GroupConfig())
        count()
        await asyncio.gather(*(loader.preload(loader.image(shard)) for shard in range(SHARDS)))
    assert len(seen) >= 4 * SHARDS
    assert sorted(set(seen)) == seen


@pytest.mark.cluster
async def test_others_have_the_loop_three_times_as_long_while_a_log_is_read_that_nobody_waits_for(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LIM-63."""
    before = await cluster.add("a", join_delay_ms=0)
    await owns(before, SHARDS)
    for number in range(3):
        assert await cluster.caller(before).commit(group_of(0), number) == error_code.NONE
    monkeypatch.setattr(log_image, "PART_BYTES", 1)
    rests = list[int]()

    async def rest(share: LoopShare) -> None:
        rests.append(share.others)

    monkeypatch.setattr(LoopShare, "rest", rest)
    async with grpc.aio.insecure_channel(cluster.instances[0].target) as channel:
        loader = Loader(lambda _: channel, 1, GroupConfig())
        await loader.preload(loader.image(0))
        assert not rests, "a take-over waits for it"
        image = loader.image(0)
        await loader.preload(image, gently=True)
    assert len(rests) >= image.records > 3
    assert set(rests) == {3}
