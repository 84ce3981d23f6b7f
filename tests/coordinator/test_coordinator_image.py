"""What was read of a log: runs of entries as metadata sends them."""

import gc
from collections.abc import Iterator

import pytest
from kit.log_builder import LogBuilder
from muster_coordinator.log_image import LogImage
from muster_core.config import GroupConfig
from muster_core.replay import Entry, LogDamaged
from muster_protos.muster.internal.v1 import metadata_pb2 as pb


def run_of(entry: Entry) -> bytes:
    run = pb.EntryRun(epoch=entry.position.epoch, first_offset=entry.position.offset, records=[entry.record])
    run.nonces, run.hashes = entry.nonce, entry.hash
    return run.SerializeToString()


@pytest.fixture(params=[True, False], ids=["collecting", "not collecting"])
def collecting(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the process collects garbage when a read begins."""
    before, wanted = gc.isenabled(), bool(request.param)
    (gc.enable if wanted else gc.disable)()
    yield wanted
    (gc.enable if before else gc.disable)()


def test_garbage_is_collected_after_a_run_as_before_it(collecting: bool) -> None:
    built = LogBuilder()
    built.genesis()
    built.claim()
    image = LogImage(built.shard, GroupConfig())
    image.take(run_of(built.entries[0]))
    assert gc.isenabled() is collecting
    built.change(1, nonce=bytes(16))
    with pytest.raises(LogDamaged):
        image.take(run_of(built.entries[1]))
    assert gc.isenabled() is collecting
    assert image.records == 1
