"""The lease, renewed on a thread of its own, against instances of metadata that fail on command."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from kit.metadata.metadata_in_memory import MemoryMetadata, MemoryStore
from kit.waiting import stand_still, until, until_equal
from muster_coordinator.ownership.lease import Holder, LeaseCallbacks, LeaseKeeper, LeasePace
from muster_coordinator.ownership.lease_line import LeaseThread
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import discovery_pb2
from muster_runtime.addresses import Address
from muster_runtime.clock import boot_ms
from structlog.testing import capture_logs

pytestmark = pytest.mark.cluster

PACE = LeasePace(lease_ms=1_000, margin_ms=200, interval_ms=100, limit_ms=100, retry_ms=20)


class Bench:
    """A keeper on two instances."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.instances: list[MemoryMetadata] = []
        self.called: list[str] = []

    async def start(self) -> None:
        for _ in range(2):
            self.instances.append(await MemoryMetadata(self.store).start())
        self.line = LeaseThread(grpc.insecure_channel)
        self.keeper = LeaseKeeper(
            [instance.target for instance in self.instances],
            self.line,
            Holder("a", "session", Address("127.0.0.1", 1), "0"),
            PACE,
            LeaseCallbacks(
                lambda: self.called.append("suspended"),
                lambda: self.called.append("resumed"),
                lambda: self.called.append("superseded"),
            ),
            boot_ms,
        )
        self.keeper.start(asyncio.get_running_loop())

    async def stop(self, *, release: bool = False) -> None:
        await self.keeper.stop(release=release)
        for instance in self.instances:
            await instance.stop()

    @property
    def held(self) -> bool:
        return self.keeper.may_answer(boot_ms())


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    await bench.start()
    yield bench
    await bench.stop()


async def test_may_answer_only_once_a_renewal_went_well(bench: Bench) -> None:
    assert not bench.keeper.may_answer(boot_ms())
    await until_equal(lambda: bench.called, ["resumed"])
    assert bench.held
    assert not bench.keeper.may_answer(boot_ms() + PACE.lease_ms)


async def test_the_deadline_counts_from_when_the_renewal_was_sent_less_the_margin(bench: Bench) -> None:
    await until(lambda: bench.held)
    bench.store.stopped = True
    await asyncio.sleep(0.15)
    sent_before_ms = boot_ms()
    await until(lambda: not bench.held)
    assert boot_ms() - sent_before_ms <= PACE.lease_ms - PACE.margin_ms
    await until_equal(lambda: bench.called, ["resumed", "suspended"])
    bench.store.stopped = False
    await until_equal(lambda: bench.called, ["resumed", "suspended", "resumed"])
    assert bench.held


async def test_a_lease_below_its_margin_is_no_lease_and_an_alarm(bench: Bench) -> None:
    await until(lambda: bench.held)
    with capture_logs() as called:
        bench.keeper.set_lease_ms(PACE.margin_ms)
        bench.keeper.set_lease_ms(PACE.margin_ms)
    (line,) = called
    assert (line["event"], line["alarm"]) == ("lease_too_short", True)
    assert "MUSTER_METADATA_LEASE_MS" in line["remedy"]
    await until_equal(lambda: bench.called, ["resumed", "suspended"])
    bench.keeper.set_lease_ms(0)  # an instance that does not know it says nothing
    await asyncio.sleep(3 * PACE.interval_ms / 1000)
    assert not bench.held
    bench.keeper.set_lease_ms(PACE.lease_ms)
    await until_equal(lambda: bench.called, ["resumed", "suspended", "resumed"])


async def test_goes_on_with_the_next_instance(bench: Bench) -> None:
    await until(lambda: bench.held)
    await bench.instances[0].stop()
    await asyncio.sleep(PACE.lease_ms / 1000)
    assert bench.called == ["resumed"]
    assert bench.held


async def test_goes_on_with_the_next_instance_when_one_does_not_answer(bench: Bench) -> None:
    await until(lambda: bench.held)
    bench.instances[0].silent = True
    await asyncio.sleep(PACE.lease_ms / 1000)
    assert bench.called == ["resumed"]
    assert bench.held


class AtFirstSlow(MemoryMetadata):
    """Takes twice as long for the first renewal of a stream: it asks the nodes before it renews."""

    async def Lease(
        self, requests: AsyncIterator[metadata_pb2.LeaseRequest], context: Any
    ) -> AsyncIterator[Any]:
        left_s = 1.5 * PACE.limit_ms / 1000
        async for answer in super().Lease(requests, context):
            await asyncio.sleep(left_s)
            left_s = 0.0
            yield answer


async def test_nodes_that_are_slow_keep_nobody_from_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "MemoryMetadata", AtFirstSlow)
    bench = Bench()
    await bench.start()
    await until(lambda: bench.held, "the lease is held")
    await bench.stop()


def willing(
    requests: Iterator[metadata_pb2.LeaseRequest], _context: Any
) -> Iterator[metadata_pb2.LeaseResponse]:
    """Renews every lease, on a thread of its own."""
    for request in requests:
        yield metadata_pb2.LeaseResponse(number=request.number, renewed=True)


async def test_a_loop_that_hangs_loses_its_lease_and_one_that_is_busy_does_not() -> None:
    server = grpc.server(ThreadPoolExecutor(4))
    lease = grpc.stream_stream_rpc_method_handler(
        willing, metadata_pb2.LeaseRequest.FromString, metadata_pb2.LeaseResponse.SerializeToString
    )
    service = metadata_pb2.DESCRIPTOR.services_by_name["MetadataService"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Lease": lease}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    called: list[str] = []
    callbacks = LeaseCallbacks(
        lambda: called.append("suspended"),
        lambda: called.append("resumed"),
        lambda: called.append("superseded"),
    )
    holder = Holder("a", "session", Address("127.0.0.1", 1), "0")
    line = LeaseThread(grpc.insecure_channel)
    keeper = LeaseKeeper([f"127.0.0.1:{port}"], line, holder, PACE, callbacks, boot_ms)
    keeper.start(asyncio.get_running_loop())
    try:
        await until_equal(lambda: called, ["resumed"])
        stand_still(0.3)
        assert keeper.may_answer(boot_ms())
        await asyncio.sleep(0.2)
        assert called == ["resumed"]
        stand_still(1.2)
        assert not keeper.may_answer(boot_ms())
        await until_equal(lambda: called, ["resumed", "suspended", "resumed"])
    finally:
        await keeper.stop(release=False)
        server.stop(None).wait()


async def test_says_at_once_what_it_serves_and_that_it_drains(bench: Bench) -> None:
    await until(lambda: bench.held)
    bench.store.owners[2] = discovery_pb2.ShardOwner(shard=2, shard_epoch=5, node_id="a")
    bench.keeper.announce([(2, 5)], draining=True)
    await until(lambda: bench.store.owners[2].serving)
    assert bench.store.nodes["a"].state == discovery_pb2.COORDINATOR_STATE_DRAINING


async def test_a_released_lease_is_given_up(bench: Bench) -> None:
    await until(lambda: bench.held)
    await bench.stop(release=True)
    assert "a" not in bench.store.nodes
    assert not bench.held


async def test_stops_when_another_run_took_the_name(bench: Bench) -> None:
    await until(lambda: bench.held)
    bench.store.sessions["a"] = "another"
    with capture_logs() as lines:
        await until_equal(lambda: bench.called, ["resumed", "suspended", "superseded"])
    assert not bench.held
    (told,) = [line for line in lines if line["event"] == "lease_superseded"]
    assert (told["node_id"], told["reason"]) == ("a", "another took it")
    assert "MUSTER_COORDINATOR_NODE_ID" in told["meaning"]


async def test_a_renewal_names_the_run_that_the_last_one_was_answered_with(bench: Bench) -> None:
    """By it a process is told on a new stream, too, that a later one of its name has the lease."""
    bench.store.run = 3
    await until(lambda: bench.store.runs[-1:] == [3])
    assert bench.store.runs[0] == 0
    bench.store.run = 0  # an instance that does not know it
    bench.keeper._drop_stream()
    seen = len(bench.store.runs)
    await until(lambda: len(bench.store.runs) >= seen + 3)
    assert set(bench.store.runs[seen:]) == {3}


@pytest.mark.parametrize("error", [OSError("no more files"), RuntimeError("can't start new thread")])
async def test_a_keeper_that_fails_ends_its_process_instead_of_keeping_quiet(
    bench: Bench, error: Exception
) -> None:
    """Nobody else would notice that the lease is not renewed any more."""
    await until(lambda: bench.held)

    def broken(target: str) -> grpc.Channel:
        raise error

    bench.line._connect = broken
    bench.keeper._drop_stream()
    await until(lambda: "superseded" in bench.called)
    assert not bench.held
