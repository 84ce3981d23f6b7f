"""The log client and a shard's log, against instances of metadata that fail on command."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from kit.metadata.metadata_in_memory import MemoryMetadata, MemoryStore
from kit.waiting import until, until_equal
from muster_coordinator.coordinator import Coordinator
from muster_coordinator.log import log_client, shard_log
from muster_coordinator.log.loader import Loader
from muster_coordinator.log.log_client import LogClient, LogPace, Nonces
from muster_coordinator.log.shard_log import LogStopped, ShardLog, TooLarge
from muster_coordinator.settings import CoordinatorSettings
from muster_core.config import GroupConfig
from muster_core.position import Position
from muster_core.record_bounds import APPEND_MAX_BYTES, APPEND_MAX_RECORDS, RECORD_MAX_BYTES
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.addresses import Address, parse_addresses
from muster_runtime.rpc.channels import open_channel
from muster_runtime.rpc.trust.tls import TlsSettings
from muster_runtime.rpc.trust.trust import Trust

pytestmark = pytest.mark.cluster

PACE = LogPace(stall_ms=400, repeat_first_ms=5, repeat_max_ms=20, connect_first_ms=5, connect_max_ms=20)


class Bench:
    """A log client on two instances."""

    def __init__(self) -> None:
        self.store = MemoryStore(4)
        self.instances: list[MemoryMetadata] = []
        self.nonces = Nonces()
        self.done: list[tuple[int, Position]] = []
        self.stopped: list[LogStopped] = []
        self.failed: list[Exception] = []

    async def start(self) -> None:
        for _ in range(2):
            self.instances.append(await MemoryMetadata(self.store).start())
        targets = [instance.target for instance in self.instances]
        self.client = LogClient(targets, grpc.aio.insecure_channel, PACE)
        self.client.start()

    async def stop(self) -> None:
        await self.client.stop()
        for instance in self.instances:
            await instance.stop()

    @property
    def used(self) -> MemoryMetadata:
        """The instance that the client is connected to."""
        return max(self.instances, key=lambda instance: instance.log_streams)

    async def claim(self, shard: int) -> ShardLog:
        nonce = self.nonces.next()
        result = await self.client.submit(
            shard, metadata_pb2.ClaimStep(node_id="a", session="s", nonce=nonce)
        )
        assert result.outcome == metadata_pb2.LOG_OUTCOME_OK
        return ShardLog(
            shard,
            result.epoch,
            nonce,
            result.end,
            self.client,
            self.nonces,
            lambda append_id, position: self.done.append((append_id, position)),
            self.stopped.append,
            self.failed.append,
        )

    def entries(self, shard: int) -> list[bytes]:
        """What follows Genesis and Claim."""
        return [entry.record for entry in self.store.logs[shard][2:]]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    await bench.start()
    yield bench
    await bench.stop()


def test_nonces_are_never_used_twice() -> None:
    one, other = Nonces(), Nonces()
    drawn = [source.next() for source in (one, other) for _ in range(1_000)]
    assert len(set(drawn)) == 2_000
    assert {len(nonce) for nonce in drawn} == {16}


async def test_steps_travel_together_until_their_message_has_megabytes() -> None:
    """Metadata decodes a message at a stretch."""
    sent: list[metadata_pb2.LogRequest] = []

    class Call:
        async def write(self, message: bytes) -> None:
            sent.append(metadata_pb2.LogRequest.FromString(message))

    client = LogClient(["nowhere"], grpc.aio.insecure_channel)
    sizes = [1, log_client.REQUEST_BYTES - 100, 1, 2 * log_client.REQUEST_BYTES, 1, 1]
    records = [metadata_pb2.NewRecord(record=bytes(size)) for size in sizes]
    steps = [metadata_pb2.AppendStep(epoch=7, records=[record]) for record in records]
    check = metadata_pb2.CheckStep(epoch=8)
    for shard, step in enumerate(steps):
        client.submit(shard, step)
    client.submit(len(sizes), check)
    writing = asyncio.create_task(client._write(Call(), log_client._Stream()))  # type: ignore[arg-type]  # a stand-in that only writes
    await until_equal(lambda: sum(len(request.calls) for request in sent), len(sizes) + 1)
    writing.cancel()
    assert [[call.shard for call in request.calls] for request in sent] == [[0, 1, 2, 3], [4, 5, 6]]
    calls = [call for request in sent for call in request.calls]
    assert [call.append for call in calls[:-1]] == steps
    assert calls[-1].check == check
    assert [call.call_id for call in calls] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.row("PT-23")
async def test_appends_of_one_turn_travel_as_one_batch(bench: Bench) -> None:
    log = await bench.claim(0)
    for number in range(50):
        log.append(number, [b"x%d" % number, b"y%d" % number])
    await until_equal(lambda: len(bench.done), 50)
    assert bench.store.batches == [100]
    assert bench.done[0] == (0, Position(1, 3))
    assert bench.done[49] == (49, Position(1, 101))
    assert bench.entries(0) == [b"%s%d" % (kind, n) for n in range(50) for kind in (b"x", b"y")]


async def test_the_steps_of_all_shards_travel_in_one_message(bench: Bench) -> None:
    logs = [await bench.claim(shard) for shard in range(4)]
    before = len(bench.store.requests)
    for log in logs:
        log.append(log.shard, [b"x"])
    await until_equal(lambda: len(bench.done), 4)
    assert bench.store.requests[before:] == [4]


@pytest.mark.row("PT-23")
async def test_one_append_at_a_time_and_what_waits_goes_together_next(bench: Bench) -> None:
    log = await bench.claim(0)
    log.append(0, [b"0"])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for number in range(1, 10):
        log.append(number, [b"%d" % number])
    await until_equal(lambda: len(bench.done), 10)
    assert bench.store.batches == [1, 9]
    assert [append_id for append_id, _ in bench.done] == list(range(10))


@pytest.mark.row("PT-25")
async def test_a_batch_keeps_the_limit_of_records_and_appends_whole(bench: Bench) -> None:
    log = await bench.claim(0)
    log.append(0, [b"x"] * (APPEND_MAX_RECORDS - 1))
    log.append(1, [b"y"] * 2)
    await until_equal(lambda: len(bench.done), 2)
    assert bench.store.batches == [APPEND_MAX_RECORDS - 1, 2]


async def test_large_appends_that_wait_go_in_steps_of_some_megabytes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_bytes = 10_000
    monkeypatch.setattr(shard_log, "STEP_BYTES", step_bytes)
    log = await bench.claim(0)
    log.append(0, [b"x"])
    log.append(1, [bytes(step_bytes // 2)])
    log.append(2, [bytes(step_bytes // 2)])
    log.append(3, [bytes(step_bytes + 1), b"y"])
    log.append(4, [b"z"])
    await until_equal(lambda: len(bench.done), 5)
    assert bench.store.batches == [2, 1, 2, 1]
    assert [append_id for append_id, _ in bench.done] == list(range(5))


async def test_what_is_joined_is_stored_in_one_step_and_carried_out_part_by_part(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_bytes = 10_000
    monkeypatch.setattr(shard_log, "STEP_BYTES", step_bytes)
    log = await bench.claim(0)
    log.append(0, [bytes(step_bytes // 2)])
    log.append(1, [bytes(step_bytes // 3)], joined=True)
    log.append(2, [bytes(step_bytes // 3), b"x"], joined=True)
    log.append(3, [bytes(step_bytes // 3)])
    log.append(4, [bytes(step_bytes // 3)])
    await until_equal(lambda: len(bench.done), 5)
    assert bench.store.batches == [1, 4, 1]
    assert bench.done == [(number, Position(1, place)) for number, place in enumerate((3, 4, 5, 7, 8))]


async def test_what_a_step_stored_is_carried_out_in_several_turns_and_before_anything_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_log, "_TURN_S", 0)
    log = await bench.claim(0)
    loop = asyncio.get_running_loop()
    turns: list[int] = []

    def count() -> None:
        turns.append(len(bench.done))
        if len(bench.done) < 6:
            loop.call_soon(count)

    for number in range(5):
        log.append(number, [b"x"])

    def done(append_id: int, place: Position) -> None:
        if not bench.done:
            count()
        bench.done.append((append_id, place))

    log._on_done = done
    confirmed = log.barrier()
    confirmed.add_done_callback(lambda _: turns.append(-len(bench.done)))
    await asyncio.sleep(0)
    log.append(5, [b"y"])
    assert log.busy
    await until_equal(lambda: len(bench.done), 6)
    await confirmed
    assert turns[:5] == [0, 1, 2, 3, 4], "others have their turn between two"
    assert -5 in turns, "a barrier is answered when all of it was carried out"
    assert bench.done == [(number, Position(1, 3 + number)) for number in range(6)]
    await log.until_idle()


@pytest.mark.parametrize("size_bytes", [shard_log._LARGE_BYTES, 1])
async def test_parts_that_take_long_are_carried_out_in_half_of_the_loops_time(
    bench: Bench, size_bytes: int
) -> None:
    """Before a small one, which may be a commit that somebody waits for, the loop has a turn, and no rest."""
    parts = 20
    log = await bench.claim(0)
    loop = asyncio.get_running_loop()
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1
        if len(bench.done) < parts:
            loop.call_soon(count)

    def done(append_id: int, place: Position) -> None:
        if not bench.done:
            count()
        bench.done.append((append_id, place))
        time.sleep(shard_log._TURN_S * 1.5)

    log._on_done = done
    for number in range(parts):
        log.append(number, [bytes(size_bytes)])
    await until_equal(lambda: len(bench.done), parts)
    if size_bytes == 1:
        assert turns < 2 * parts
    else:
        assert turns > 5 * parts, "a call of another shard needs several turns, and waits for few parts"


@pytest.mark.parametrize("size_bytes", [shard_log._DECISION_BYTES, 1])
async def test_the_answer_to_a_commit_leaves_before_an_assignment_that_was_stored_with_it_is_carried_out(
    bench: Bench, size_bytes: int
) -> None:
    """LIM-19; small ones are carried out together: each turn of the loop would take longer than they do."""
    log = await bench.claim(0)
    loop = asyncio.get_running_loop()
    happened: list[str] = []

    def done(append_id: int, place: Position) -> None:
        bench.done.append((append_id, place))
        happened.append(f"stored {append_id}")
        loop.call_soon(happened.append, f"answered {append_id}")

    log._on_done = done
    log.append(0, [b"x"])
    log.append(1, [bytes(size_bytes)])
    await until_equal(lambda: len(happened), 4)
    if size_bytes == 1:
        assert happened == ["stored 0", "stored 1", "answered 0", "answered 1"]
    else:
        assert happened == ["stored 0", "answered 0", "stored 1", "answered 1"]
    assert bench.done == [(0, Position(1, 3)), (1, Position(1, 4))]


@pytest.mark.parametrize(
    "records",
    [
        [bytes(RECORD_MAX_BYTES + 1)],
        [bytes(RECORD_MAX_BYTES)] * (APPEND_MAX_BYTES // RECORD_MAX_BYTES),
        [b"x"] * (APPEND_MAX_RECORDS + 1),
        [],
    ],
    ids=["a record", "bytes", "records", "nothing"],
)
async def test_what_the_log_does_not_take_is_not_sent_and_stops_nothing(
    bench: Bench, records: list[bytes]
) -> None:
    log = await bench.claim(0)
    with pytest.raises(TooLarge):
        log.append(0, records)
    log.append(1, [b"x"])
    await until_equal(lambda: [append_id for append_id, _ in bench.done], [1])
    assert bench.store.batches == [1]
    assert bench.stopped == []


async def test_an_unknown_outcome_is_repeated_unchanged_and_lands_once(bench: Bench) -> None:
    log = await bench.claim(0)
    bench.store.lose_answers = 1
    log.append(0, [b"once"])
    log.append(1, [b"twice"])
    await until_equal(lambda: len(bench.done), 2)
    log.append(2, [b"then"])
    await until_equal(lambda: len(bench.done), 3)
    assert bench.entries(0) == [b"once", b"twice", b"then"]
    assert bench.done[2] == (2, Position(1, 5))


async def test_an_error_that_nobody_foresaw_ends_the_stream_and_not_the_client(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await bench.claim(0)
    settled = []
    settle = LogClient._settle

    def fail_once(client: LogClient, *arguments: Any) -> None:
        settled.append(arguments)
        if len(settled) == 1:
            raise RuntimeError("unforeseen")
        settle(client, *arguments)

    monkeypatch.setattr(LogClient, "_settle", fail_once)
    log.append(0, [b"once"])
    await until_equal(lambda: len(bench.done), 1)
    assert bench.client.streams_lost == 1
    assert bench.entries(0) == [b"once"]


async def test_a_connection_that_cannot_be_made_now_ends_the_attempt_and_not_the_client(
    bench: Bench, tmp_path: Path
) -> None:
    """Its certificate is being replaced, say, or the process has no file left to read it."""
    log = await bench.claim(0)
    absent, tried = Trust(TlsSettings(ca_file=tmp_path / "absent.pem")), []

    def connect(target: str) -> grpc.aio.Channel:
        tried.append(target)
        return open_channel(target, absent if len(tried) <= 2 else None)

    bench.client._connect = connect
    await bench.used.stop()
    log.append(0, [b"x"])
    await until_equal(lambda: len(bench.done), 1)
    assert len(tried) > 2
    assert bench.entries(0) == [b"x"]


async def test_a_log_that_is_stuck_everywhere_does_not_change_streams_all_the_time(bench: Bench) -> None:
    """Nobody knows the outcome of its one step: the times between two changes grow."""
    bench.client._pace = replace(PACE, fruitless_ms=20, stall_ms=80, repeat_max_ms=5)
    bench.client._fruitless_ms = 20
    log = await bench.claim(0)
    for instance in bench.instances:
        instance.cut_off = True
    log.append(0, [b"x"])
    await until(lambda: bench.client.repeats > 500)
    assert bench.client.streams_lost <= 15
    for instance in bench.instances:
        instance.cut_off = False
    await until_equal(lambda: len(bench.done), 1)
    assert bench.client._fruitless_ms == 20


async def test_a_step_may_take_as_long_as_the_settings_say(bench: Bench) -> None:
    """Metadata may be given up to 30 s for one, and an instance that is given up never ends it."""
    bench.client._pace = LogPace.of(60_000)
    await bench.client.stop()
    bench.client.start()
    log = await bench.claim(0)
    used = bench.used
    used.silent = True
    log.append(0, [b"x"])
    await asyncio.sleep(2 * PACE.stall_ms / 1000)
    assert (bench.used, bench.client.streams_lost, bench.done) == (used, 0, [])
    settings = CoordinatorSettings(
        listen=Address("127.0.0.1", 0),
        node_id="a",
        metadata=parse_addresses(used.target),
        log_limit_ms=7_000,
    )
    coordinator = Coordinator(settings)
    await coordinator.start()
    try:
        assert coordinator._parts is not None
        pace = coordinator._parts.log_client._pace
        assert (pace.stall_ms, pace.claim_stall_ms) == (7_000, 21_000)
    finally:
        await coordinator.abort()


async def test_how_far_a_log_is_acknowledged_is_asked_until_it_is_known(bench: Bench, tmp_path: Path) -> None:
    """A coordinator with a lease serves nobody before."""
    channel = grpc.aio.insecure_channel(bench.instances[1].target)
    absent, tried = Trust(TlsSettings(ca_file=tmp_path / "absent.pem")), []

    def channels(index: int) -> grpc.aio.Channel:
        tried.append(index)
        return channel if len(tried) > 2 else open_channel(bench.instances[0].target, absent)

    async with asyncio.timeout(60):
        assert await Loader(channels, 2, GroupConfig()).acknowledged(4) == Position(0, 0)
    assert tried == [0, 1, 0]
    await channel.close()


async def test_a_refused_append_is_repeated(bench: Bench) -> None:
    log = await bench.claim(0)
    bench.store.refuse = 3
    log.append(0, [b"x"])
    await until_equal(lambda: len(bench.done), 1)
    assert bench.client.trouble == ""
    assert bench.store.steps["append"] == 4
    assert bench.entries(0) == [b"x"]


async def test_what_makes_room_takes_along_what_waits_before_it(bench: Bench) -> None:
    """Else a commit that a full log refuses would keep the deletion behind it from making room (LOG-68)."""
    log = await bench.claim(0)
    bench.store.full = True
    log.append(0, [b"commit"])
    await until(lambda: bench.store.steps["append"] > 2, "the commit to be refused, again and again")
    assert not bench.done
    log.append(1, [b"another commit"])
    log.append(2, [b"deletion"], frees=True)
    await until_equal(lambda: len(bench.done), 3)
    log.append(3, [b"x"])
    await until(lambda: bench.store.steps["append"] > 8, "a later commit to be refused")
    assert bench.entries(0) == [b"commit", b"another commit", b"deletion"]


async def test_the_next_instance_takes_over_when_one_dies(bench: Bench) -> None:
    log = await bench.claim(0)
    dead = bench.used
    await dead.stop()
    log.append(0, [b"x"])
    await until_equal(lambda: len(bench.done), 1)
    assert bench.entries(0) == [b"x"]


async def test_the_next_instance_takes_over_when_one_answers_nothing(bench: Bench) -> None:
    log = await bench.claim(0)
    bench.used.silent = True
    log.append(0, [b"x"])
    await until_equal(lambda: len(bench.done), 1)
    assert bench.entries(0) == [b"x"]


async def test_the_next_instance_takes_over_when_one_never_knows_an_outcome(bench: Bench) -> None:
    log = await bench.claim(0)
    bench.used.cut_off = True
    log.append(0, [b"x"])
    await until_equal(lambda: len(bench.done), 1)
    assert bench.entries(0) == [b"x"]


async def test_goes_on_when_the_log_answers_again(bench: Bench) -> None:
    log = await bench.claim(0)
    bench.store.stopped = True
    log.append(0, [b"x"])
    await until(lambda: bench.store.steps["append"] >= 3)
    assert not bench.done
    bench.store.stopped = False
    await until_equal(lambda: len(bench.done), 1)


async def test_fenced_stops_the_log_and_fails_its_barriers(bench: Bench) -> None:
    log = await bench.claim(0)
    bench.store.fence(0)
    log.append(0, [b"x"])
    barrier = log.barrier()
    with pytest.raises(LogStopped) as caught:
        await barrier
    assert caught.value.fenced
    assert [reason.epoch for reason in bench.stopped] == [2]
    assert not bench.done
    with pytest.raises(LogStopped):
        await log.barrier()


async def test_one_check_answers_all_barriers_of_a_turn(bench: Bench) -> None:
    log = await bench.claim(0)
    await asyncio.gather(*(log.barrier() for _ in range(20)))
    assert bench.store.steps["check"] == 1


async def test_an_append_that_follows_a_barrier_answers_it(bench: Bench) -> None:
    log = await bench.claim(0)
    log.append(0, [b"x"])
    await log.barrier()
    assert bench.store.steps["check"] == 0
    assert len(bench.done) == 1


async def test_a_barrier_is_not_answered_by_an_append_that_was_sent_before_it(bench: Bench) -> None:
    log = await bench.claim(0)
    bench.store.stopped = True
    log.append(0, [b"x"])
    await until(lambda: bench.store.steps["append"] > 0)
    barrier = log.barrier()
    bench.store.stopped = False
    await barrier
    assert bench.store.steps["check"] == 1


async def test_closing_cancels_waiters_and_repetitions(bench: Bench) -> None:
    log = await bench.claim(0)
    bench.store.stopped = True
    log.append(0, [b"x"])
    barrier = log.barrier()
    await until(lambda: bench.store.steps["append"] > 0)
    log.close()
    with pytest.raises(asyncio.CancelledError):
        await barrier
    await log.until_idle()
    bench.store.stopped = False
    steps = bench.store.steps["append"]
    other = await bench.claim(1)
    other.append(1, [b"y"])
    await until_equal(lambda: len(bench.done), 1)
    assert bench.store.steps["append"] <= steps + 2
