"""What was read of a log: runs of entries as metadata sends them."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest
from coordinator.coordinator_cluster import SHARDS, MemoryCluster
from kit.logs.log_builder import LogBuilder
from muster_coordinator.log.loader import Loader
from muster_coordinator.log.log_image import LogImage
from muster_core.config import GroupConfig
from muster_core.log.replay import Entry, LogDamaged
from muster_core.position import Position
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.garbage import COLLECTOR


def run_of(entry: Entry) -> bytes:
    run = metadata_pb2.EntryRun(
        epoch=entry.position.epoch, first_offset=entry.position.offset, records=[entry.record]
    )
    run.nonces, run.hashes = entry.nonce, entry.hash
    return run.SerializeToString()


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
    real, seen = LogImage.take, list[bool]()

    def take(image: LogImage, run: bytes) -> None:
        seen.append(gc.isenabled())
        real(image, run)

    monkeypatch.setattr(LogImage, "take", take)
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
