"""One shard with its real core, on a log and a clock that the test moves."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from kit.waiting import until, until_equal
from muster_coordinator.failstop.faults import Faults
from muster_coordinator.log.loader import Loader
from muster_coordinator.log.log_client import Nonces, Step
from muster_coordinator.log.log_image import LogImage
from muster_coordinator.log.shard_log import LogStopped
from muster_coordinator.shard.asking import ask
from muster_coordinator.shard.dependencies import Claimant, Dependencies
from muster_coordinator.shard.owned_shard import OwnedShard, ShardListener
from muster_coordinator.shard.phase import Phase
from muster_core import error_code
from muster_core.catalog import Catalog
from muster_core.clock import Now
from muster_core.config import GroupConfig
from muster_core.events import Push, TopicsChanged
from muster_core.features import ALL_FEATURES
from muster_core.log.chain import BEFORE_GENESIS
from muster_core.protocol.offsets.offset_commits import OffsetCommits
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

GATHERING_MS = 1_000


class HandLog:
    """Steps are answered by hand."""

    def __init__(self) -> None:
        self.open: list[tuple[Step, asyncio.Future[metadata_pb2.LogResult]]] = []
        self.offset = 2

    def submit(self, shard: int, step: Step) -> asyncio.Future[metadata_pb2.LogResult]:
        future: asyncio.Future[metadata_pb2.LogResult] = asyncio.get_running_loop().create_future()
        self.open.append((step, future))
        return future

    async def answer(self, outcome: metadata_pb2.LogOutcome.ValueType = metadata_pb2.LOG_OUTCOME_OK) -> Step:
        await until(lambda: bool(self.open))
        step, future = self.open.pop(0)
        self.offset += len(step.records) if isinstance(step, metadata_pb2.AppendStep) else 0
        place = common_pb2.Position(epoch=1, offset=self.offset)
        end = metadata_pb2.LogEnd(position=place, hash=BEFORE_GENESIS)
        future.set_result(metadata_pb2.LogResult(outcome=outcome, end=end, epoch=1))
        return step


class EmptyLoader(Loader):
    def __init__(self) -> None:
        super().__init__(
            cast(Callable[[int], Any], None), 1, GroupConfig(initial_rebalance_delay_ms=GATHERING_MS)
        )

    async def load(self, image: LogImage, epoch: int, claim_nonce: bytes, end: metadata_pb2.LogEnd) -> None:
        """Finds nothing."""


class Bench(ShardListener):
    def __init__(self) -> None:
        self.now_ms = 1_000
        self.deadline_ms = 1_000_000
        self.log = HandLog()
        self.changes: list[Phase] = []
        self.faults = Faults.not_kept()
        loader = EmptyLoader()
        shared = Dependencies(
            claimant=Claimant("a", "s", "0"),
            log=self.log,
            nonces=Nonces(),
            loader=loader,
            now=lambda: Now(self.now_ms, self.now_ms),
            may_answer=lambda now_ms: now_ms < self.deadline_ms,
            features=lambda: ALL_FEATURES,
            faults=self.faults,
            barrier_wait_ms=200,
            handoff_wait_ms=200,
        )
        self.shard = OwnedShard(0, shared, self, Phase.CLAIMING)
        self.image = loader.image(0)

    def changed(self, shard: OwnedShard) -> None:
        self.changes.append(shard.phase)

    def pushed(self, shard: OwnedShard, push: Push) -> None:
        raise AssertionError(f"nobody is on a stream, and yet there is news: {push}")

    async def serve(self) -> None:
        claiming = asyncio.ensure_future(self.shard.claim(0, self.image))
        await self.log.answer()
        await claiming

    def commit(self, offset: int) -> "asyncio.Future[Any]":
        topic = coordinator_pb2.OffsetCommitRequest.Topic(
            name="t", partitions=[coordinator_pb2.OffsetCommitRequest.Partition(offset=offset)]
        )
        request = coordinator_pb2.OffsetCommitRequest(group_id="g", generation=-1, topics=[topic])
        return asyncio.ensure_future(ask(self.shard, request, "h"))

    def fetch(self) -> "asyncio.Future[Any]":
        topic = common_pb2.TopicPartitions(topic="t", partitions=[0])
        request = coordinator_pb2.OffsetFetchRequest(
            groups=[coordinator_pb2.OffsetFetchRequest.Group(group_id="g", topics=[topic])]
        )
        return asyncio.ensure_future(ask(self.shard, request, "h"))


def code(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


@pytest.fixture
async def bench() -> Bench:
    bench = Bench()
    await bench.serve()
    return bench


@pytest.mark.row("OC-23")
async def test_a_commit_is_answered_after_its_append(bench: Bench) -> None:
    commit = bench.commit(1)
    await until(lambda: bool(bench.log.open))
    assert not commit.done()
    await bench.log.answer()
    assert code(await commit) == error_code.NONE


async def test_the_deadline_is_checked_when_the_answer_is_built(bench: Bench) -> None:
    commit = bench.commit(1)
    await until(lambda: bool(bench.log.open))
    bench.now_ms = bench.deadline_ms
    await bench.log.answer()
    assert code(await commit) == error_code.COORDINATOR_NOT_AVAILABLE
    assert bench.shard.suspended


async def test_a_call_after_the_deadline_does_not_reach_the_core(bench: Bench) -> None:
    bench.now_ms = bench.deadline_ms
    assert code(await bench.commit(1)) == error_code.COORDINATOR_NOT_AVAILABLE
    assert not bench.log.open


async def test_what_was_in_flight_during_a_suspension_is_there_after_it(bench: Bench) -> None:
    commit = bench.commit(5)
    await until(lambda: bool(bench.log.open))
    bench.shard.suspend()
    assert code(await commit) == error_code.COORDINATOR_NOT_AVAILABLE
    bench.shard.resume()
    await bench.log.answer()
    assert bench.shard.suspended
    step = await bench.log.answer()
    assert isinstance(step, metadata_pb2.CheckStep)
    await until(lambda: not bench.shard.suspended)
    fetch = bench.fetch()
    await bench.log.answer()
    assert (await fetch).groups[0].topics[0].partitions[0].offset == 5


async def test_fenced_while_suspended_drops_the_shard(bench: Bench) -> None:
    bench.shard.suspend()
    bench.shard.resume()
    await bench.log.answer(metadata_pb2.LOG_OUTCOME_FENCED)
    await until_equal(lambda: bench.shard.phase, Phase.GONE)
    assert bench.changes == [Phase.SERVING, Phase.GONE]


async def test_a_fetch_without_its_barrier_never_says_that_nothing_was_committed(bench: Bench) -> None:
    answer = await bench.fetch()
    assert answer.groups[0].error_code == error_code.COORDINATOR_NOT_AVAILABLE
    assert not answer.groups[0].topics


async def test_who_waits_when_the_core_raises_is_told_to_try_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One turn ends the join phase of a group and then raises for another one: nobody is forgotten."""
    joining: asyncio.Future[Any] = asyncio.ensure_future(ask(bench.shard, first_join("other"), "h"))
    commit = bench.commit(1)
    await until(lambda: bench.shard.open_calls == 2)
    bench.now_ms += 10 * GATHERING_MS
    monkeypatch.setattr(OffsetCommits, "_store", raising)
    assert code(await bench.commit(2)) == error_code.COORDINATOR_NOT_AVAILABLE
    assert (await joining).error_code == error_code.COORDINATOR_NOT_AVAILABLE
    assert code(await commit) == error_code.COORDINATOR_NOT_AVAILABLE
    assert (bench.shard.phase, bench.shard.reloads) == (Phase.GONE, True)
    assert bench.changes == [Phase.SERVING, Phase.GONE]


async def test_a_core_that_gets_no_memory_blames_no_group(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the process that fails: whoever logs the error ends it."""

    def without_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(OffsetCommits, "_store", without_memory)
    with pytest.raises(MemoryError):
        await bench.commit(1)
    assert list(bench.faults) == []


def raising(*_: object) -> None:
    raise RuntimeError("planted")


def first_join(group_id: str) -> coordinator_pb2.JoinGroupRequest:
    """Of a static member: it is parked at once."""
    return coordinator_pb2.JoinGroupRequest(
        group_id=group_id,
        group_instance_id="one",
        session_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[coordinator_pb2.GroupProtocol(name="range")],
    )


@pytest.mark.parametrize("outcome", [metadata_pb2.LOG_OUTCOME_TRUNCATED, metadata_pb2.LOG_OUTCOME_NO_LOG])
async def test_a_log_that_lost_records_stops_the_shard(
    bench: Bench, outcome: metadata_pb2.LogOutcome.ValueType
) -> None:
    commit = bench.commit(1)
    await bench.log.answer(outcome)
    assert code(await commit) == error_code.COORDINATOR_NOT_AVAILABLE
    assert bench.shard.phase is Phase.FAILED
    assert code(await bench.commit(2)) == error_code.COORDINATOR_NOT_AVAILABLE


@pytest.mark.row("LD-27")
@pytest.mark.parametrize("outcome", [metadata_pb2.LOG_OUTCOME_TRUNCATED, metadata_pb2.LOG_OUTCOME_NO_LOG])
async def test_a_shard_without_its_log_is_not_served(outcome: metadata_pb2.LogOutcome.ValueType) -> None:
    bench = Bench()
    claiming = asyncio.ensure_future(bench.shard.claim(0, bench.image))
    await bench.log.answer(outcome)
    with pytest.raises(LogStopped):
        await claiming
    assert (bench.shard.phase, bench.changes) == (Phase.FAILED, [Phase.FAILED])
    assert code(await bench.commit(1)) == error_code.COORDINATOR_NOT_AVAILABLE
    assert (await bench.fetch()).groups[0].error_code == error_code.COORDINATOR_NOT_AVAILABLE
    assert not bench.log.open


@pytest.mark.row("UL-06")
@pytest.mark.row("UL-07")
@pytest.mark.parametrize("phase", [Phase.CLAIMING, Phase.ELSEWHERE])
async def test_a_shard_that_was_never_loaded_is_given_up_at_once(phase: Phase) -> None:
    bench = Bench()
    bench.shard.phase = phase
    for _ in range(2):
        bench.shard.unload(None)
        assert (bench.shard.phase, bench.changes) == (Phase.GONE, [Phase.GONE])
    assert not bench.log.open


async def test_a_hand_over_finishes_appends_then_stores_the_handoff_then_sends_callers_on(
    bench: Bench,
) -> None:
    successor = common_pb2.Coordinator(node_id="b", host="h", port=1, shard_epoch=1)
    commit = bench.commit(1)
    await until(lambda: bool(bench.log.open))
    moving = asyncio.ensure_future(bench.shard.hand_over(successor))
    await until_equal(lambda: bench.shard.phase, Phase.HANDING_OVER)
    late = bench.commit(2)
    await bench.log.answer()
    assert code(await commit) == error_code.NONE
    step = await bench.log.answer()
    assert isinstance(step, metadata_pb2.AppendStep)
    assert len(step.records) == 1
    await moving
    answer = await late
    assert code(answer) == error_code.NOT_COORDINATOR
    assert answer.coordinator == successor
    assert not bench.log.open


async def test_a_hand_over_that_is_under_way_goes_on_when_the_process_gives_all_its_shards_up(
    bench: Bench,
) -> None:
    successor = common_pb2.Coordinator(node_id="b", host="h", port=1, shard_epoch=1)
    moving = asyncio.ensure_future(bench.shard.hand_over(successor))
    await until(lambda: bool(bench.log.open))
    giving_up = asyncio.ensure_future(bench.shard.hand_over(None))
    await asyncio.sleep(0)
    assert bench.shard.phase is Phase.HANDING_OVER
    await bench.log.answer()
    await asyncio.gather(moving, giving_up)
    assert (bench.shard.phase, bench.shard.successor) == (Phase.GONE, successor)


async def test_a_hand_over_does_not_wait_for_ever_for_a_log_that_is_silent(bench: Bench) -> None:
    commit = bench.commit(1)
    await until(lambda: bool(bench.log.open))
    await bench.shard.hand_over(None)
    assert code(await commit) == error_code.NOT_COORDINATOR
    assert bench.shard.phase is Phase.GONE


async def test_nothing_is_written_behind_a_handoff(bench: Bench) -> None:
    """A topic is deleted while the record is on its way: the next owner sees to that."""
    bench.shard.notify(TopicsChanged(frozenset(), catalog=Catalog(5, {"t": 1}, {})))
    commit = bench.commit(1)
    await bench.log.answer()
    assert code(await commit) == error_code.NONE
    handing = asyncio.ensure_future(bench.shard.hand_over(None))
    await until(lambda: bool(bench.log.open))
    bench.shard.notify(TopicsChanged(frozenset(), frozenset({"t"}), Catalog(6, {}, {"t": 6})))
    step = await bench.log.answer()
    assert isinstance(step, metadata_pb2.AppendStep)
    assert [kind(new.record) for new in step.records] == ["handoff"]
    await handing
    assert not bench.log.open


def kind(record: bytes) -> str:
    return records_pb2.Record.FromString(record).WhichOneof("kind") or ""
