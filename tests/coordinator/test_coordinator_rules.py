"""Rules of docs/safety.md about ownership, each at the place where it matters most."""

import asyncio
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import grpc
import pytest
from coordinator.coordinator_cluster import SHARDS, MemoryCluster, owns
from coordinator.test_coordinator_shard import Bench
from kit.metadata.metadata_in_memory import MemoryMetadata
from kit.waiting import until, until_equal
from muster_coordinator.log.loader import Loader
from muster_coordinator.log.log_image import LoadFailed
from muster_coordinator.ownership.lease import Holder, LeaseCallbacks, LeaseKeeper, LeasePace
from muster_coordinator.ownership.lease_line import Heard, Wait
from muster_coordinator.shard.phase import Phase
from muster_core.config import GroupConfig
from muster_core.position import Position
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import discovery_pb2
from muster_runtime.addresses import Address

PACE = LeasePace(lease_ms=2_000, margin_ms=400, interval_ms=400, limit_ms=300)


class HandLine:
    """A line on which renewals go step by step, on a clock that the test moves."""

    target = "m"
    problem = ""
    lock: AbstractContextManager[Any, Any] = nullcontext()

    def __init__(self) -> None:
        self.now_ms = 10_000
        self.sent: list[metadata_pb2.LeaseRequest] = []
        self.steps: Iterator[Wait] = iter(())
        self._heard: Heard | None = None

    def start(self, steps: Iterable[Wait]) -> None:
        self.steps = iter(steps)

    def wake(self) -> None:
        """Every step is asked for by the test."""

    async def ended(self) -> None:
        """They end with the test."""

    def open(self, _: str, heard: Heard) -> "HandLine":
        self._heard = heard
        return self

    def send(self, request: metadata_pb2.LeaseRequest) -> None:
        self.sent.append(request)

    def close(self) -> None:
        """Nobody is at the other end."""

    def answer(self) -> None:
        """The last renewal was good."""
        assert self._heard is not None
        self._heard(metadata_pb2.LeaseResponse(number=self.sent[-1].number, renewed=True))


async def test_the_deadline_counts_from_when_the_renewal_was_sent() -> None:
    line, called = HandLine(), list[str]()
    callbacks = LeaseCallbacks(
        lambda: called.append("suspended"),
        lambda: called.append("resumed"),
        lambda: called.append("superseded"),
    )
    keeper = LeaseKeeper(
        ["m"], line, Holder("a", "s", Address("127.0.0.1", 1), "0"), PACE, callbacks, lambda: line.now_ms
    )
    keeper.start(asyncio.get_running_loop())
    next(line.steps)
    sent_ms = line.now_ms
    line.now_ms += 250
    line.answer()
    next(line.steps)
    await until_equal(lambda: called, ["resumed"])
    deadline_ms = sent_ms + PACE.lease_ms - PACE.margin_ms
    assert keeper.may_answer(deadline_ms - 1)
    assert not keeper.may_answer(deadline_ms)


async def test_a_renewal_that_is_answered_after_the_deadline_does_not_cover_the_lapse() -> None:
    """Others may have claimed meanwhile: the shards are suspended, and resume only after they have asked."""
    line, called = HandLine(), list[str]()
    callbacks = LeaseCallbacks(
        lambda: called.append("suspended"),
        lambda: called.append("resumed"),
        lambda: called.append("superseded"),
    )
    keeper = LeaseKeeper(
        ["m"], line, Holder("a", "s", Address("127.0.0.1", 1), "0"), PACE, callbacks, lambda: line.now_ms
    )
    keeper.start(asyncio.get_running_loop())
    next(line.steps)
    line.answer()
    next(line.steps)
    await until_equal(lambda: called, ["resumed"])
    line.now_ms += PACE.lease_ms - PACE.margin_ms - 1
    next(line.steps)
    assert len(line.sent) == 2, "the second renewal is on its way before the deadline"
    line.now_ms += 100
    line.answer()
    next(line.steps)
    await until_equal(lambda: called, ["resumed", "suspended", "resumed"])
    assert keeper.lapses == 1


async def test_a_shard_does_not_resume_when_the_lease_ran_out_again() -> None:
    bench = Bench()
    await bench.serve()
    bench.shard.suspend()
    bench.shard.resume()
    await until(lambda: bool(bench.log.open))
    bench.now_ms = bench.deadline_ms
    await bench.log.answer()

    def asks_again() -> bool:
        bench.shard.resume()
        return bool(bench.log.open)

    await until(asks_again)
    assert bench.shard.suspended
    bench.deadline_ms += 1_000
    await bench.log.answer()
    await until(lambda: not bench.shard.suspended)


async def test_a_shard_does_not_resume_by_what_it_asked_before_the_lease_ran_out_again() -> None:
    """Another owner may have claimed it between the answer, which is late, and the renewal."""
    bench = Bench()
    await bench.serve()
    bench.shard.suspend()
    bench.shard.resume()
    await until(lambda: bool(bench.log.open))
    bench.shard.suspend()
    bench.shard.resume()
    await bench.log.answer()
    await until(lambda: bool(bench.log.open))
    assert bench.shard.suspended
    await bench.log.answer()
    await until(lambda: not bench.shard.suspended)


@pytest.mark.cluster
async def test_a_row_that_names_another_owner_is_only_a_hint(cluster: MemoryCluster) -> None:
    only = await cluster.add("a")
    await owns(only, SHARDS)
    shard, checks = only.shards[1], cluster.store.steps["check"]
    cluster.store.owners[1] = discovery_pb2.ShardOwner(shard=1, shard_epoch=9, node_id="another")
    cluster.store.changed()
    await until(lambda: cluster.store.steps["check"] > checks)
    cluster.store.owners[1] = discovery_pb2.ShardOwner(shard=1, shard_epoch=shard.epoch, node_id="a")
    cluster.store.changed()
    cluster.store.fence(2)
    cluster.store.owners[2] = discovery_pb2.ShardOwner(shard=2, shard_epoch=9, node_id="another")
    before = only.shards[2]
    cluster.store.changed()
    await until_equal(lambda: before.phase, Phase.GONE)
    assert (only.shards[1], shard.phase, only.serving[1]) == (shard, Phase.SERVING, 1)


@pytest.mark.cluster
async def test_a_log_that_ends_with_a_foreign_claim_is_not_served(cluster: MemoryCluster) -> None:
    store, [instance] = cluster.store, cluster.instances
    nonces = [os.urandom(16), os.urandom(16)]
    record = records_pb2.Record(claim=records_pb2.Claim(node_id="x", previous=store.logs[1][-1].position))
    store.write(store.logs[1], Position(1, 2), record.SerializeToString(), nonces[0])
    async with grpc.aio.insecure_channel(instance.target) as channel:
        loader = Loader(lambda _: channel, 1, GroupConfig())
        store.promises[1] = (1, nonces[0])
        await loader.load(loader.image(1), 1, nonces[0], store.end(1))
        store.promises[1] = (1, nonces[1])
        with pytest.raises(LoadFailed, match="not with this owner's claim"):
            await loader.load(loader.image(1), 1, nonces[1], store.end(1))


@pytest.mark.cluster
async def test_loads_that_fail_together_go_on_with_the_next_instance(cluster: MemoryCluster) -> None:
    """Each of them would go one further, and all of them come back to where they were."""
    cut_off = await MemoryMetadata(cluster.store).start()
    cut_off.cut_off = True
    targets = [cut_off.target, cluster.instances[0].target]
    asked: list[str] = []
    async with (
        grpc.aio.insecure_channel(targets[0]) as first,
        grpc.aio.insecure_channel(targets[1]) as second,
    ):

        def channel(number: int) -> grpc.aio.Channel:
            asked.append(targets[number % 2])
            return (first, second)[number % 2]

        loader = Loader(channel, 2, GroupConfig())
        async with asyncio.timeout(30):
            await asyncio.gather(*(loader.preload(loader.image(shard)) for shard in range(SHARDS)))
    assert (asked.count(targets[0]), asked.count(targets[1])) == (SHARDS, SHARDS)
    await cut_off.stop()
