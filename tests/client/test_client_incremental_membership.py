"""The client's member of an incremental group: alone, and against the real core over a bad network."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.lives.incremental_fleet import Fleet
from muster._incremental.membership import Asked, Membership, Phase, Way
from muster._incremental.requests import Identity, Place, add_list
from muster._reactions import CONNECTION_LOST, Call, Reaction, reaction_to
from muster._standing.life import Life
from muster._values import TopicPartition
from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

A, B, C = (TopicPartition("t", number) for number in range(3))
SESSION_MS, REBALANCE_MS, PATIENCE_MS = 6_000, 20_000, 9_000
START_MS = 100_000


def answer(
    version: int, *partitions: TopicPartition, token: int = 5, epoch: int = 1
) -> ConsumerGroupHeartbeatResponse:
    """An answer with the whole list."""
    message = ConsumerGroupHeartbeatResponse(member_epoch=epoch, version=Place(1, version).to_proto())
    message.assignment.SetInParent()
    for topic, number in partitions:
        message.assignment.given.add(topic=topic, partitions=[number], token=Place(1, token).to_proto())
    return message


def unchanged(version: int) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(member_epoch=1, version=Place(1, version).to_proto())


def refusal(code: common_pb2.ErrorCode.ValueType, holder: int = 0) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=code, error_message="why", holder=Place(1, holder).to_proto()
    )


def member() -> Membership:
    life = Life(SESSION_MS)
    life.on_stream = False
    return Membership(Identity("g", "m", ("t",), REBALANCE_MS), life, PATIENCE_MS)


def working(*partitions: TopicPartition) -> Membership:
    """A member that works on partitions since `START_MS`, by the list of version 10."""
    one = member()
    one.hear(one.ask(START_MS), answer(10, *partitions), START_MS)
    carry_out(one, START_MS)
    return one


def carry_out(one: Membership, now_ms: int) -> list[tuple[Way, tuple[TopicPartition, ...]]]:
    """Does all that is to be done; returns what that was."""
    done = []
    while (move := one.next_move(now_ms)) is not None:
        done.append((move.way, move.partitions))
        if move.way is Way.BEGIN:
            one.begun(move.partitions)
        else:
            one.ended(move.partitions, still_run=move.still_run)
    return done


def listed(request: ConsumerGroupHeartbeatRequest) -> set[TopicPartition] | None:
    """What a request says that the member works on; None: it does not say."""
    if not request.HasField("owned"):
        return None
    return {TopicPartition(one.topic, number) for one in request.owned.topics for number in one.partitions}


def again(one: Membership, now_ms: int, *answers: ConsumerGroupHeartbeatResponse) -> Asked:
    """Makes a request and hears answers to it."""
    asked = one.ask(now_ms)
    for response in answers:
        one.hear(asked, response, now_ms)
    return asked


@pytest.mark.row("CL-12")
@pytest.mark.row("CR-04")
def test_only_what_changes_is_touched() -> None:
    one = working(A, B)
    again(one, START_MS + 1_000, answer(11, B, C))
    assert carry_out(one, START_MS + 1_000) == [(Way.GIVE_BACK, (A,)), (Way.BEGIN, (C,))]
    assert set(one.runs) == {B, C}


@pytest.mark.row("TM-19")
@pytest.mark.row("CL-03")
@pytest.mark.row("CL-04")
@pytest.mark.row("CL-05")
def test_a_join_says_everything_and_what_follows_only_what_changes() -> None:
    life = Life(SESSION_MS)
    life.on_stream = False
    identity = Identity(
        "g", "m", ("t", "u"), REBALANCE_MS, "i", "rack", "client", "range", weight=4, rollout_hold_ms=90_000
    )
    one = Membership(identity, life, PATIENCE_MS)
    asked = one.ask(START_MS)
    join = asked.request
    assert (join.member_epoch, join.rebalance_timeout_ms, join.rack_id) == (0, REBALANCE_MS, "rack")
    assert (join.weight, join.rollout_hold_ms) == (4, 90_000)
    assert (list(join.topics.names), join.server_assignor, listed(join)) == (["t", "u"], "range", set())
    assert join.group_instance_id == "i"
    one.hear(asked, answer(10), START_MS)
    beat = one.ask(START_MS + 10).request
    assert (beat.HasField("topics"), beat.HasField("rebalance_timeout_ms")) == (False, False)
    assert (beat.HasField("rack_id"), beat.server_assignor, beat.group_instance_id) == (False, "", "i")


def test_one_that_comes_back_is_no_deployment() -> None:
    """INC-170: whoever was removed joins again, and holds nothing back by that."""
    identity = Identity("g", "m", ("t",), REBALANCE_MS, rollout_hold_ms=90_000)
    one = Membership(identity, Life(SESSION_MS), PATIENCE_MS)
    first = one.ask(START_MS)
    one.hear(first, answer(10), START_MS)
    again(one, START_MS + 100, refusal(common_pb2.ERROR_CODE_FENCED_MEMBER_EPOCH))
    second = one.ask(START_MS + 200).request
    assert (first.request.rollout_hold_ms, second.member_seq, second.rollout_hold_ms) == (90_000, 2, 0)


def test_older_news_is_dropped() -> None:
    one = working(A)
    late = one.ask(START_MS + 1_000)
    again(one, START_MS + 1_100, answer(12))
    assert carry_out(one, START_MS + 1_100) == [(Way.GIVE_BACK, (A,))]
    one.hear(late, answer(11, A), START_MS + 1_200)
    assert carry_out(one, START_MS + 1_200) == []
    assert one.version == Place(1, 12)


def test_what_answers_an_earlier_join_changes_nothing() -> None:
    one = working(A)
    early = one.ask(START_MS + 1_000)
    again(one, START_MS + 1_100, refusal(common_pb2.ERROR_CODE_FENCED_MEMBER_EPOCH))
    assert carry_out(one, START_MS + 1_100) == [(Way.LOSE, (A,))]
    assert again(one, START_MS + 1_200, answer(20, B)).request.member_seq == 2
    for stale in (answer(30, A), refusal(common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID)):
        one.hear(early, stale, START_MS + 1_300)
    one.push(1, answer(31, A), START_MS + 1_300)
    assert carry_out(one, START_MS + 1_300) == [(Way.BEGIN, (B,))]


def test_a_push_is_taken_like_an_answer() -> None:
    one = working(A)
    one.push(1, answer(11, A, B), START_MS + 10)
    assert carry_out(one, START_MS + 10) == [(Way.BEGIN, (B,))]
    one.push(1, refusal(common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID), START_MS + 20)
    assert carry_out(one, START_MS + 20) == [(Way.LOSE, (A, B))]


def test_another_token_is_another_ownership() -> None:
    one = working(A, B)
    again(one, START_MS + 1_000, answer(11, A, B, token=11))
    assert carry_out(one, START_MS + 1_000) == [(Way.LOSE, (A, B)), (Way.BEGIN, (A, B))]


@pytest.mark.row("CL-13")
def test_epochs_without_a_list_touch_nothing() -> None:
    one = working(A)
    again(one, START_MS + 1_000, unchanged(10))
    assert carry_out(one, START_MS + 1_000) == []
    assert one.confirmed


@pytest.mark.row("CR-08")
def test_the_list_has_what_still_runs() -> None:
    one = working(A, B)
    again(one, START_MS + 1_000, answer(11, B))
    move = one.next_move(START_MS + 1_000)
    assert move is not None
    assert listed(one.ask(START_MS + 1_500).request) == {A, B}
    one.ended(move.partitions)
    request = one.ask(START_MS + 1_600).request
    assert listed(request) == {B}
    assert Place.of(request.version) == Place(1, 11)


@pytest.mark.row("CL-08")
def test_it_is_sent_again_until_it_is_heard() -> None:
    one = working(A, B)
    again(one, START_MS + 1_000, answer(11, B))
    carry_out(one, START_MS + 1_000)
    again(one, START_MS + 1_100)
    assert listed(one.ask(START_MS + 1_150).request) == {B}
    again(one, START_MS + 1_200, unchanged(11))
    assert listed(one.ask(START_MS + 1_300).request) is None
    one.resume()
    assert listed(one.ask(START_MS + 1_400).request) == {B}


@pytest.mark.parametrize("pushed", [True, False], ids=["pushed", "answered"])
def test_a_list_is_owed_that_the_coordinator_waits_for_though_nothing_has_to_end(*, pushed: bool) -> None:
    """INC-48: B was given and taken before it was heard of."""
    one = working(A)
    again(one, START_MS + 1_000, unchanged(10))
    assert not one.owes_list()
    news = answer(12, A)
    news.awaits_owned = True
    if pushed:
        one.push(1, news, START_MS + 2_000)
    else:
        again(one, START_MS + 2_000, news)
    assert one.owes_list()
    assert carry_out(one, START_MS + 2_000) == []
    asked = one.ask(START_MS + 2_000)
    assert listed(asked.request) == {A}
    assert Place.of(asked.request.version) == Place(1, 12)
    assert not one.owes_list(), "it is sent once for each version, or again where nothing answers"


def test_a_list_that_is_owed_is_sent_when_what_has_to_end_has_ended() -> None:
    one = working(A, B)
    news = answer(12, B)
    news.awaits_owned = True
    one.push(1, news, START_MS + 1_000)
    assert not one.owes_list()
    assert carry_out(one, START_MS + 1_000) == [(Way.GIVE_BACK, (A,))]
    assert one.owes_list()
    assert listed(one.ask(START_MS + 1_000).request) == {B}


def test_what_did_not_end_in_time_is_never_acknowledged() -> None:
    one = working(A, B)
    again(one, START_MS + 5_000, answer(11, B))
    move = one.next_move(START_MS + 5_000)
    assert move is not None
    assert START_MS + 19_000 < move.until_ms < START_MS + REBALANCE_MS, "counted from the join"
    for second in range(6, 20):
        again(one, START_MS + second * 1_000, unchanged(11))
    assert carry_out(one, move.until_ms) == [(Way.LOSE, (A,))]
    assert listed(one.ask(move.until_ms + 10).request) == {A, B}


def test_its_end_stops_everything_and_forgets_what_was_heard() -> None:
    one = working(A)
    early = one.ask(START_MS + 5_900)
    over_ms = START_MS + SESSION_MS
    assert carry_out(one, over_ms) == [(Way.LOSE, (A,))]
    one.hear(early, unchanged(10), over_ms)
    assert carry_out(one, over_ms) == []
    asked = one.ask(over_ms + 10)
    assert Place.of(asked.request.version) == Place(0, 0)
    assert listed(asked.request) == set()
    one.hear(asked, answer(10, A), over_ms + 20)
    assert carry_out(one, over_ms + 20) == [(Way.BEGIN, (A,))]


def test_nothing_runs_by_an_answer_that_was_too_long_under_way() -> None:
    one = member()
    one.hear(one.ask(START_MS), answer(10, A), START_MS + SESSION_MS)
    assert carry_out(one, START_MS + SESSION_MS) == []


@pytest.mark.row("MI-01")
@pytest.mark.parametrize(
    "code", [common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID, common_pb2.ERROR_CODE_FENCED_MEMBER_EPOCH]
)
@pytest.mark.row("CR-12")
@pytest.mark.row("CR-13")
@pytest.mark.row("CE-04")
def test_work_that_is_lost_ends_before_a_join(code: common_pb2.ErrorCode.ValueType) -> None:
    one = working(A)
    again(one, START_MS + 100, refusal(code))
    assert not one.may_ask()
    carry_out(one, START_MS + 100)
    assert one.may_ask()
    request = one.ask(START_MS + 200).request
    assert (request.member_epoch, request.member_id, request.member_seq) == (0, "m", 2)
    assert listed(request) == set()


def test_the_coordinator_may_give_less_time() -> None:
    one = member()
    short = answer(10, A)
    short.session_timeout_ms = 2_000
    one.hear(one.ask(START_MS), short, START_MS)
    assert one.life.ends_at_ms == START_MS + 1_998


@pytest.mark.row("CE-08")
def test_a_place_of_another_process_is_asked_for_in_its_name_until_the_time_is_over() -> None:
    one = member()
    taken = refusal(common_pb2.ERROR_CODE_UNRELEASED_INSTANCE_ID, holder=7)
    assert one.hear(one.ask(START_MS), taken, START_MS) is Reaction.RETRY
    asked = one.ask(START_MS + 1_000)
    assert asked.request.member_seq == 1
    assert Place.of(asked.request.replaces) == Place(1, 7)
    assert one.hear(asked, taken, START_MS + PATIENCE_MS) is Reaction.DONE
    assert one.phase is Phase.OVER


def test_who_was_replaced_stops_for_good() -> None:
    one = working(A)
    again(one, START_MS + 100, refusal(common_pb2.ERROR_CODE_FENCED_INSTANCE_ID))
    assert carry_out(one, START_MS + 100) == [(Way.LOSE, (A,))]
    assert one.phase is Phase.OVER
    assert not one.may_ask()


def test_a_leave_names_the_join() -> None:
    one = working(A)
    one.ended((A,))
    request = one.leave(for_a_while=True)
    assert request is not None
    assert (request.member_epoch, request.member_seq) == (-2, 1)
    assert one.leave(for_a_while=False) is None


@pytest.mark.row("CL-07")
def test_a_list_is_said_again_for_each_version() -> None:
    one = working(A)
    again(one, START_MS + 100, unchanged(10))
    again(one, START_MS + 200, unchanged(10))
    assert listed(one.ask(START_MS + 300).request) is None
    again(one, START_MS + 400, answer(11, A))  # given, taken and given again, for all that it knows
    assert listed(one.ask(START_MS + 500).request) == {A}


@pytest.mark.row("CL-09")
def test_the_interval_is_that_of_the_last_answer() -> None:
    one = member()
    assert one.may_ask()
    for interval_ms in (5_000, 7_000):
        message = answer(10, A)
        message.heartbeat_interval_ms = interval_ms
        again(one, START_MS, message)
        assert one.beat_within_ms == interval_ms


@pytest.mark.row("CL-13")
def test_the_same_list_again_is_nothing_to_do() -> None:
    one = working(A, B)
    again(one, START_MS + 100, answer(12, A, B))
    assert carry_out(one, START_MS + 100) == []
    assert set(one.runs) == {A, B}


@pytest.mark.row("CL-15")
@pytest.mark.row("CL-16")
@pytest.mark.row("CR-14")
@pytest.mark.parametrize("code", [0, common_pb2.ERROR_CODE_FENCED_MEMBER_EPOCH])
def test_whoever_leaves_hears_nothing_any_more(code: common_pb2.ErrorCode.ValueType) -> None:
    one = working(A)
    late = one.ask(START_MS + 100)
    one.ended((A,))
    assert one.leave(for_a_while=False) is not None
    message = refusal(code) if code else answer(20, B)
    one.hear(late, message, START_MS + 200)
    one.push(1, message, START_MS + 200)
    assert carry_out(one, START_MS + 200) == []
    assert (one.phase, one.may_ask(), one.runs) == (Phase.OVER, False, {})


@pytest.mark.row("CL-17")
@pytest.mark.row("CR-15")
def test_a_leave_is_for_good_or_for_a_while_and_after_the_work() -> None:
    for for_a_while, epoch in ((False, -1), (True, -2)):
        one = working(A)
        with pytest.raises(AssertionError):
            one.leave(for_a_while=for_a_while)
        one.ended((A,))
        request = one.leave(for_a_while=for_a_while, reason="deployment")
        assert request is not None
        assert (request.member_epoch, request.member_seq) == (epoch, 1)
        assert request.leave_reason == ("" if for_a_while else "deployment")


@pytest.mark.row("CR-01")
def test_of_what_comes_while_a_list_is_carried_out_the_latest_is_next() -> None:
    one = working(A, B)
    again(one, START_MS + 100, answer(11, B))
    move = one.next_move(START_MS + 100)
    assert move is not None
    assert (move.way, move.partitions) == (Way.GIVE_BACK, (A,))
    again(one, START_MS + 200, answer(12))
    again(one, START_MS + 300, answer(13, B, C))
    one.ended(move.partitions)
    assert carry_out(one, START_MS + 400) == [(Way.BEGIN, (C,))]
    assert set(one.runs) == {B, C}


@pytest.mark.row("CR-11")
def test_what_ends_after_a_fence_is_acknowledged_to_nobody() -> None:
    one = working(A, B)
    again(one, START_MS + 100, answer(11, B))
    move = one.next_move(START_MS + 100)
    assert move is not None
    again(one, START_MS + 200, refusal(common_pb2.ERROR_CODE_FENCED_MEMBER_EPOCH))
    one.ended(move.partitions)
    assert carry_out(one, START_MS + 300) == [(Way.LOSE, (B,))]
    request = one.ask(START_MS + 400).request
    assert (request.member_epoch, request.member_seq, listed(request)) == (0, 2, set())


REACTIONS = [
    ("CE-01", 15, Reaction.REDISCOVER),
    ("CE-01", 16, Reaction.REDISCOVER),
    ("CE-02", 14, Reaction.RETRY),
    ("CE-03", CONNECTION_LOST, Reaction.REDISCOVER),
    ("CE-04", 25, Reaction.REJOIN_KEEP_ID),
    ("CE-04", 110, Reaction.REJOIN_KEEP_ID),
    ("CE-06", 69, Reaction.REJOIN_KEEP_ID),
    ("CE-07", 30, Reaction.FATAL),
    ("CE-07", 42, Reaction.FATAL),
    ("CE-07", 81, Reaction.FATAL),
    ("CE-07", 112, Reaction.FATAL),
    ("CE-08", 82, Reaction.FATAL),
    ("CE-09", 128, Reaction.FATAL),
    ("CE-10", 35, Reaction.FATAL),
    ("CE-11", 9_999, Reaction.FATAL),
]


@pytest.mark.parametrize(
    ("code", "reaction"),
    [pytest.param(code, what, marks=pytest.mark.row(row), id=str(code)) for row, code, what in REACTIONS],
)
def test_reactions_to_a_heartbeat(code: int, reaction: Reaction) -> None:
    assert reaction_to(Call.CONSUMER_HEARTBEAT, code) is reaction


@pytest.mark.row("CE-14")
def test_reactions_to_a_commit() -> None:
    codes = {3: Reaction.RETRY, 14: Reaction.RETRY, 15: Reaction.REDISCOVER, 16: Reaction.REDISCOVER}
    assert {code: reaction_to(Call.COMMIT, code) for code in codes} == codes


def test_lists_are_sorted_by_topic_and_number() -> None:
    request = ConsumerGroupHeartbeatRequest()
    add_list(request, [C, A, TopicPartition("s", 4)])
    assert [(one.topic, list(one.partitions)) for one in request.owned.topics] == [
        ("s", [4]),
        ("t", [0, 2]),
    ]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_one_owner_at_a_time_whatever_is_lost_doubled_or_late(seed: int) -> None:
    fleet = Fleet(seed)
    fleet.add()
    fleet.add()
    for _ in range(250):
        fleet.step()
    fleet.settle()
    runs = [partition for worker in fleet.workers for partition in worker.state.runs]
    assert len(runs) == len(set(runs)), "two owners"
    inside = [worker.state for worker in fleet.workers if worker.state.phase is not Phase.OVER]
    if inside:
        assert len(runs) == fleet.partitions, "a partition has no owner"
        assert all(state.confirmed for state in inside)
