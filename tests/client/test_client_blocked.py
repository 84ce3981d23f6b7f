"""While the event loop is blocked a thread beats: what that counts for, and where it ends."""

import logging
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass

import grpc
import pytest
from kit.waiting import stand_still, until
from muster._blocked import stand_in
from muster._blocked.stand_in import StandIn, Ward
from muster._blocked.watch import begin_watching, end_watching
from muster._clock import boot_ms
from muster._session.channels import ChannelPool
from muster._session.transport import Vitals
from muster._standing.life import Life
from muster._standing.seat import Caller, Seat
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, coordinator_pb2_grpc

REBALANCES = common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS
UNKNOWN = common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID
SECRET = b"a member's secret"


@dataclass
class Route:
    """The part of a route that a thread reads."""

    address: str | None = None
    shard_epoch: int = 7


def ward_of(life: Life, route: Route | None = None, limit_ms: int = 60_000) -> Ward:
    caller = Caller("g", secret=SECRET)
    vitals = Vitals(caller, Seat("m", 3), interval_ms=100, timeout_ms=1_000, beat_interval_ms=100)
    return Ward(vitals, route or Route(), life, limit_ms)


def answer(
    code: common_pb2.ErrorCode.ValueType = common_pb2.ERROR_CODE_NONE, epoch: int = 7
) -> coordinator_pb2.HeartbeatResponse:
    return coordinator_pb2.HeartbeatResponse(error_code=code, shard_epoch=epoch)


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time of the boot clock, as the thread reads it."""
    now = [10_000]
    monkeypatch.setattr(stand_in, "boot_ms", lambda: now[0])
    return now


# What it counts for


def test_a_heartbeat_of_the_thread_counts_for_a_grace_from_when_it_was_sent() -> None:
    life = Life(45_000, 3_000)
    life.renew(5_000)
    life.spare.hear(7_000, rebalancing=False)
    assert life.ends_at_ms == 7_000 + 2_997
    life.spare.hear(6_500, rebalancing=False)
    assert life.ends_at_ms == 7_000 + 2_997
    life.renew(8_000)
    assert life.ends_at_ms == 8_000 + 2_997


def test_unsure_does_not_extend_what_the_thread_has_heard() -> None:
    """The loop may read an `unsure` later that was said before the Heartbeat was answered."""
    life = Life(45_000, 3_000)
    life.renew(10_000)
    life.spare.hear(12_000, rebalancing=False)
    life.extend(12_500)
    assert life.ends_at_ms == 10_000 + 44_955


def test_heartbeats_within_a_join_phase_do_not_prolong_a_life_beyond_its_end() -> None:
    for heard_by_loop in (False, True):
        life = Life(10_000, 3_000, 6_000)
        life.renew(5_000)
        life.spare.hear(6_000, rebalancing=False)
        life.rebalancing = heard_by_loop
        assert life.ends_at_ms == 6_000 + 2_997
        for sent_ms in range(7_000, 20_000, 1_000):
            life.spare.hear(sent_ms, rebalancing=True)
        assert life.ends_at_ms == 6_000 + 5_994


def test_heartbeats_do_not_prolong_the_wait_for_a_release() -> None:
    life = Life(10_000, 0, 6_000)
    life.renew(5_000)
    life.go_on(5_000)
    for sent_ms in range(6_000, 20_000, 1_000):
        life.spare.hear(sent_ms, rebalancing=False)
    assert life.ends_at_ms == 5_000 + 5_994


def test_what_the_thread_hears_of_a_seat_counts_for_no_other(at: list[int]) -> None:
    life = Life(45_000, 3_000)
    for changes, ends_ms in ((life.end, 0), (lambda: life.go_on(9_500), 12_697), (life.restart, 0)):
        life.renew(9_700)
        ward = ward_of(life)
        ward.answered(9_900, answer())
        assert life.ends_at_ms == 9_900 + 2_997
        changes()
        assert life.ends_at_ms == ends_ms
        assert not ward.is_due(1_000)
        ward.answered(11_000, answer())
        assert life.ends_at_ms == ends_ms


# Where it ends


def test_a_life_that_is_over_is_not_brought_back_by_the_thread(at: list[int]) -> None:
    life = Life(45_000, 3_000)
    life.renew(10_000)
    ward = ward_of(life)
    at[0] = 12_996
    assert ward.is_due(3_000)
    at[0] = 12_997
    assert not ward.is_due(3_000)
    ward.answered(12_900, answer())
    assert life.ends_at_ms == 12_997


def test_the_thread_stops_when_a_block_has_lasted_too_long(at: list[int]) -> None:
    life = Life(45_000, 3_000)
    life.renew(10_000)
    ward = ward_of(life, limit_ms=1_000)
    assert not ward.is_due(99), "the loop may be busy for a beat"
    assert ward.is_due(100)
    assert not ward.gives_up(999)
    at[0] = 10_400
    assert [ward.gives_up(1_000), ward.gives_up(1_100)] == [True, False]
    assert life.spare.gave_up_ms == 10_400
    at[0] = 10_500
    assert not ward.is_due(1_500)
    ward.is_back()
    assert ward.is_due(500), "the next block"
    too_long = [life.blocked_too_long]
    life.renew(10_600)
    assert [*too_long, life.blocked_too_long] == [True, False]


def test_only_what_the_coordinator_of_today_acknowledges_counts(at: list[int]) -> None:
    life = Life(45_000, 3_000)
    life.renew(10_000)
    ward = ward_of(life)
    at[0] = 11_000
    for response in (None, answer(epoch=6), answer(common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE)):
        ward.answered(10_900, response)
        assert life.ends_at_ms == 12_997
        assert ward.is_due(200)
    ward.answered(10_900, answer())
    assert life.ends_at_ms == 10_900 + 2_997
    ward.answered(10_950, answer(UNKNOWN))
    at[0] = 12_000
    assert not ward.is_due(1_000), "it is no member any more; the loop hears so when it is back"


# The thread


class Counting(coordinator_pb2_grpc.GroupCoordinatorServiceServicer):
    """Acknowledges Heartbeats, and counts them."""

    def __init__(self) -> None:
        self.beats = 0

    def Heartbeat(
        self, request: coordinator_pb2.HeartbeatRequest, context: object
    ) -> coordinator_pb2.HeartbeatResponse:
        assert (request.group_id, request.member_id, request.generation) == ("g", "m", 3)
        assert request.member_secret == SECRET
        self.beats += 1
        return answer()


@pytest.fixture
def server() -> Iterator[tuple[Counting, str]]:
    counting = Counting()
    running = grpc.server(futures.ThreadPoolExecutor(2))
    coordinator_pb2_grpc.add_GroupCoordinatorServiceServicer_to_server(counting, running)
    port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    yield counting, f"127.0.0.1:{port}"
    running.stop(None).wait()


def watchers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "muster-loop-watch"]


async def test_a_thread_beats_while_the_loop_is_blocked(server: tuple[Counting, str]) -> None:
    counting, address = server
    pool = ChannelPool()
    stands_in = StandIn(pool)
    lives = [Life(45_000, 700), Life(45_000, 700), Life(45_000, 700)]
    limits = (60_000, 200, 0)
    wards = [ward_of(life, Route(address), limit) for life, limit in zip(lives, limits, strict=True)]
    for life, ward in zip(lives, wards, strict=True):
        life.renew(boot_ms())
        stands_in.add(ward)
    for _ in range(2):  # this is what it is about
        stand_still(0.8)
    assert [life.remaining_ms(boot_ms()) > 0 for life in lives] == [True, False, False]
    assert [life.blocked_too_long for life in lives] == [False, True, False]
    for ward in wards:
        stands_in.remove(ward)
    await pool.close()
    assert counting.beats > 3
    beats = counting.beats
    await until(lambda: not watchers(), "no thread is left")
    stand_still(0.3)
    assert counting.beats == beats


async def test_one_that_fails_leaves_the_thread_to_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class Observer:
        look_ms = 20

        def __init__(self, *, fails: bool) -> None:
            self.fails, self.calls = fails, 0

        def blocked(self, blocked_ms: float, loop_thread: int) -> None:
            self.calls += 1
            if self.fails:
                raise ValueError("unforeseen")

        def over(self, blocked_ms: float) -> None:
            self.fails = True

    bad, good = Observer(fails=True), Observer(fails=False)
    for observer in (bad, good):
        begin_watching(observer)
    assert len(watchers()) == 1
    stand_still(0.5)
    await until(lambda: good.fails, "the block is over")
    assert (bad.calls, good.calls > 1) == (1, True)
    assert [r.levelno for r in caplog.records] == [logging.ERROR]
    for observer in (bad, good):
        end_watching(observer)
    await until(lambda: not watchers(), "no thread is left")
