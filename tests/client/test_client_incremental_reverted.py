"""What a member of an incremental group does when that is a classic one again, and for how long it lives."""

import pytest
from muster._blocked.stand_in import IncrementalWard
from muster._clock import boot_ms
from muster._incremental.membership import Asked, Membership, Phase, Way
from muster._incremental.requests import Identity, Place
from muster._reactions import Call, Reaction
from muster._session.transport import Vitals
from muster._standing.life import Life
from muster._standing.seat import Caller, Pulse, Seat
from muster._standing.standing import Standing
from muster._values import TopicPartition
from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatResponse

CLASSIC = common_pb2.ERROR_CODE_GROUP_CLASSIC
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
START_MS, SESSION_MS, GRACE_MS, REBALANCE_MS = 100_000, 45_000, 3_000, 20_000


def answer(version: int, *partitions: TopicPartition) -> ConsumerGroupHeartbeatResponse:
    message = ConsumerGroupHeartbeatResponse(member_epoch=4, version=Place(1, version).to_proto())
    message.assignment.SetInParent()
    for topic, number in partitions:
        message.assignment.given.add(topic=topic, partitions=[number], token=Place(1, 5).to_proto())
    return message


def is_classic() -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=CLASSIC, error_message="the group is classic")


def working(rebalance_ms: int = REBALANCE_MS) -> Membership:
    """A member on a stream that works on A and B since `START_MS`."""
    life = Life(SESSION_MS, GRACE_MS, back_within_ms=rebalance_ms)
    one = Membership(Identity("g", "m", ("t",), rebalance_ms), life, patience_ms=9_000)
    one.hear(one.ask(START_MS), answer(10, A, B), START_MS)
    move = one.next_move(START_MS)
    assert move is not None
    one.begun(move.partitions)
    return one


def hear(one: Membership, now_ms: int, response: ConsumerGroupHeartbeatResponse) -> Asked:
    asked = one.ask(now_ms)
    assert one.hear(asked, response, now_ms) is Reaction.DONE
    return asked


@pytest.mark.parametrize("how", ["answer", "push", "order"])
def test_it_begins_and_gives_back_nothing_any_more_and_asks_nothing(how: str) -> None:
    """INC-180: what it was told counts no more, nor what answers later."""
    one = working()
    late = one.ask(START_MS + 100)
    hear(one, START_MS + 200, answer(11, A))
    if how == "answer":
        hear(one, START_MS + 300, is_classic())
    elif how == "push":
        one.push(1, is_classic(), START_MS + 300)
    else:
        one.revert(START_MS + 300)
    assert one.phase is Phase.CLASSIC
    one.hear(late, answer(12, B), START_MS + 400)
    one.push(1, answer(13, B), START_MS + 400)
    one.fence(common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID, "late")
    assert one.next_move(START_MS + 400) is None
    assert set(one.runs) == {A, B}
    assert not one.may_ask()


def test_an_answer_to_what_it_asked_before_prolongs_nothing() -> None:
    """INC-180."""
    one = working()
    late = one.ask(START_MS + 200)
    hear(one, START_MS + 300, is_classic())
    ends_ms = one.life.ends_at_ms
    one.hear(late, answer(10, A, B), START_MS + 400)
    one.beat_counted(START_MS + 500, START_MS + 500)
    assert one.life.ends_at_ms == ends_ms


@pytest.mark.parametrize(("rebalance_ms", "lives_ms"), [(REBALANCE_MS, REBALANCE_MS), (300_000, SESSION_MS)])
def test_it_lives_for_its_session_or_as_long_as_the_group_waits(rebalance_ms: int, lives_ms: int) -> None:
    """INC-183: counted from when it sent the last beat that was acknowledged."""
    one = working(rebalance_ms)
    one.beat_counted(START_MS + 1_000, START_MS + 1_000)
    hear(one, START_MS + 2_000, is_classic())
    assert one.life.ends_at_ms == START_MS + 1_000 + lives_ms - lives_ms // 1_000
    one.look(one.life.ends_at_ms)
    move = one.next_move(one.life.ends_at_ms)
    assert move is not None
    assert (move.way, move.partitions) == (Way.LOSE, (A, B))


def test_a_session_that_the_coordinator_gave_counts() -> None:
    """INC-183."""
    one = working()
    given = answer(10, A, B)
    given.session_timeout_ms = 10_000
    hear(one, START_MS + 1_000, given)
    hear(one, START_MS + 2_000, is_classic())
    assert one.life.ends_at_ms == START_MS + 1_000 + 9_990


def test_the_news_brings_no_life_back() -> None:
    """INC-183."""
    one = working()
    hear(one, START_MS + GRACE_MS + 1, is_classic())
    assert one.life.remaining_ms(START_MS + GRACE_MS + 2) == 0
    move = one.next_move(START_MS + GRACE_MS + 2)
    assert move is not None
    assert move.way is Way.LOSE
    one.ended(move.partitions)
    assert (one.phase, one.next_move(START_MS + GRACE_MS + 3)) == (Phase.CLASSIC, None)


def test_one_that_joins_goes_on_as_a_classic_one_with_nothing() -> None:
    """INC-181: its join was stored, but not answered."""
    life = Life(SESSION_MS, GRACE_MS, back_within_ms=REBALANCE_MS)
    one = Membership(Identity("g", "m", ("t",), REBALANCE_MS), life, patience_ms=9_000)
    hear(one, START_MS, is_classic())
    assert (one.phase, one.seq, one.runs) == (Phase.CLASSIC, 1, {})


def test_a_refused_commit_says_it_too() -> None:
    """INC-180: the order loses nothing, and is dropped for another seat."""
    standing = Standing(Caller("g"), Life(SESSION_MS), seat=Seat("m", 4, 1))
    standing.react(Call.COMMIT, int(CLASSIC), Seat("m", 3, 1), "late")
    assert standing.order is None
    standing.react(Call.COMMIT, int(CLASSIC), standing.seat, "now")
    order = standing.take_order()
    assert order is not None
    assert (order.reaction, order.loses) == (Reaction.REVERT, False)


class Coordinator:
    """What a thread knows of the way to a coordinator."""

    address = "here"
    shard_epoch = 1


def test_a_blocked_loop_whose_thread_hears_it_lives_for_its_session() -> None:
    """INC-183, SES-51."""
    one = working()
    beat_ms = boot_ms()
    one.life.renew(beat_ms)
    ward = IncrementalWard(
        Vitals(Caller("g"), Seat("m", 4, 1), 500, 1_000, 500),
        Coordinator(),
        one.life,
        SESSION_MS,
        request=one.sign_of_life,
        back=lambda: None,
    )
    ward.answered(beat_ms + 100, is_classic())
    assert one.life.ends_at_ms == beat_ms + REBALANCE_MS - REBALANCE_MS // 1_000
    assert not ward.is_due(10_000), "there is nothing more to be said"


def test_each_heartbeat_in_the_join_phase_counts_until_that_goes_on_without_it() -> None:
    """INC-183: for the session that the coordinator gave before, for a rebalance time-out in all."""
    now_ms = boot_ms()
    before = Life(10_000, GRACE_MS, back_within_ms=REBALANCE_MS)
    before.allow(8_000, 2_000)
    before.renew(now_ms - 1_000)
    before.last_until(before.changed_end_ms)
    life = Life(10_000, GRACE_MS, REBALANCE_MS)
    life.go_back(before)
    assert life.ends_at_ms == before.ends_at_ms == now_ms - 1_000 + 7_992
    for sent_ms in (now_ms + 2_000, now_ms + 15_000):
        life.renew(sent_ms)
        assert life.ends_at_ms == min(sent_ms + 7_992, now_ms - 1_000 + REBALANCE_MS - REBALANCE_MS // 1_000)
    life.go_on(now_ms + 16_000)
    life.settle_in(now_ms + 16_000)
    life.renew(now_ms + 16_500)
    assert life.ends_at_ms == now_ms + 16_500 + 9_990, "it is as long as its join asked for"


def test_a_heartbeat_brings_a_life_that_has_ended_not_back() -> None:
    """INC-183."""
    before = Life(SESSION_MS, GRACE_MS, back_within_ms=REBALANCE_MS)
    before.renew(boot_ms() - SESSION_MS)
    standing = Standing(Caller("g"), Life(SESSION_MS, GRACE_MS, REBALANCE_MS), seat=Seat("m", 4, 1))
    standing.life.go_back(before)
    standing.holding = True
    standing.hear(Pulse(standing.seat, common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS, boot_ms()))
    assert not standing.alive
