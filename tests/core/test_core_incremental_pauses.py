"""When the targets of groups with members on streams come about (docs/safety.md, INC-106 to INC-109)."""

from itertools import count, pairwise
from typing import Any

import pytest
from kit.lives.incremental_shard import (
    FEATURES,
    GROUP,
    NumberedMember,
    incremental_of,
    joined,
    settle,
    tell_partitions,
)
from kit.lives.server_assignors import SERVER_ASSIGNORS, answer_to
from kit.lives.stream_member import StreamMember, let_move, on_streams
from kit.lives.virtual_shard import VirtualShard
from muster_core import error_code, record_bounds
from muster_core.config import GroupConfig
from muster_core.events import Assign, Assigned
from muster_core.position import Position
from muster_core.protocol.incremental.pauses import TURN_KEPT_MS, Pauses
from muster_core.protocol.room import Room
from muster_protos.muster.v1.coordinator_pb2 import DeleteGroupsRequest
from muster_protos.muster.v1.group_settings_pb2 import AlterGroupSettingsRequest, GroupSettings
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatResponse

ADAPTIVE, NONE = -1, 0


def shard(
    interval_ms: int = ADAPTIVE, at_once_max: int = 1_000, partitions: int = 8, factor: int = 1
) -> VirtualShard:
    cluster = VirtualShard(
        GroupConfig(incremental_assignment_interval_ms=interval_ms, incremental_session_timeout_ms=300_000),
        features=FEATURES,
    )
    room = Room(assignors=SERVER_ASSIGNORS, at_once_max=at_once_max, alike_factor=factor)
    cluster.shard.live_in(room)
    tell_partitions(cluster, partitions, frozenset())
    return cluster


def served_at(cluster: VirtualShard, members: int, every_ms: int) -> list[int]:
    """When targets were stored while members join, one after the other; in ms since the first of them."""
    began_ms, stored = cluster.now_ms, 0
    times: list[int] = []
    joins = count(1)
    while len(incremental_of(cluster).members) < members if times else True:
        if not (cluster.now_ms - began_ms) % every_ms:
            assert not StreamMember(cluster, f"m{next(joins):03}").join().error_code
        if (now := cluster.kinds().count("target_assigned")) > stored:
            stored = now
            times.append(cluster.now_ms - began_ms)
        cluster.advance(1)
    return times


def epochs(cluster: VirtualShard) -> tuple[int, int]:
    group = incremental_of(cluster)
    return group.epoch, group.target_epoch


def parked_join(member: StreamMember) -> int:
    """A join that is not answered yet."""
    member.seq += 1
    request = member.request(0)
    request.topics.names.append("t")
    request.rebalance_timeout_ms = 30_000
    request.owned.SetInParent()
    call = member.cluster.send(request, place=member.place)
    assert member.cluster.is_parked(call)
    return call


def asked(cluster: VirtualShard) -> Assign:
    """The one assignment that is being computed."""
    (work,) = cluster.work
    cluster.work.clear()
    assert isinstance(work, Assign)
    return work


def settled(
    *names: str, interval_ms: int = NONE, partitions: int = 8
) -> tuple[VirtualShard, list[StreamMember]]:
    """Stream members that have their shares; from now on the test says when targets are computed."""
    cluster = shard(interval_ms, at_once_max=0, partitions=partitions)
    cluster.works = answer_to
    members = [StreamMember(cluster, name) for name in names]
    for member in members:
        member.join()
        let_move(*[one for one in members if one.seq])
        cluster.advance(2_000)
        let_move(*[one for one in members if one.seq])
    cluster.works = None
    return cluster, members


# --- pauses


def test_the_first_change_is_served_at_once_and_the_pause_doubles_while_changes_come() -> None:
    """INC-106."""
    cluster = shard(partitions=1)
    times = served_at(cluster, 1_680 // 15, 15)
    assert times[0] == 0
    assert [later - earlier for earlier, later in pairwise(times)] == [20, 40, 80, 160, 320, 500, 500]
    cluster.advance(500)
    assert epochs(cluster)[0] == epochs(cluster)[1]


def test_what_comes_in_the_pause_is_served_together_though_nobody_asks() -> None:
    """INC-106."""
    cluster = shard()
    (first,) = on_streams(cluster, "a")
    others = [StreamMember(cluster, name) for name in "bcd"]
    for member in others:
        assert not member.join().error_code
        assert member.epoch == 1
        assert not member.owned
    assert epochs(cluster) == (4, 1)
    assert not first.listen()
    cluster.advance(19)
    assert epochs(cluster) == (4, 1)
    cluster.advance(1)
    assert epochs(cluster) == (4, 4)
    let_move(first, *others)
    assert [len(member.owned) for member in (first, *others)] == [2, 2, 2, 2]
    assert cluster.kinds().count("target_assigned") == 2


def test_what_a_leaver_had_waits_for_the_end_of_the_pause_and_no_longer() -> None:
    """INC-106."""
    cluster = shard()
    first, second = on_streams(cluster, "a")[0], StreamMember(cluster, "b")
    second.join()
    cluster.advance(20)
    let_move(first, second)
    assert len(second.owned) == 4
    second.leave()
    assert len(first.owned) == 4
    cluster.advance(39)
    assert not first.listen()
    cluster.advance(1)
    first.listen()
    assert len(first.owned) == 8


@pytest.mark.parametrize(("quiet_ms", "pause_ms"), [(81, 20), (79, 80)])
def test_the_pause_is_short_again_when_it_was_quiet_for_as_long_again(quiet_ms: int, pause_ms: int) -> None:
    """INC-106."""
    cluster = shard()
    for name in "ab":
        StreamMember(cluster, name).join()
    cluster.advance(20)  # the second one is served, and the pause is of 40 ms
    assert epochs(cluster) == (2, 2)
    cluster.advance(quiet_ms)
    StreamMember(cluster, "c").join()
    assert epochs(cluster) == (3, 3)
    StreamMember(cluster, "d").join()
    cluster.advance(pause_ms - 1)
    assert epochs(cluster) == (4, 3)
    cluster.advance(1)
    assert epochs(cluster) == (4, 4)


def test_a_setting_fixes_the_pause_or_takes_it_away() -> None:
    """INC-106."""
    fixed = served_at(shard(70, partitions=1), 100, 5)
    assert {later - earlier for earlier, later in pairwise(fixed)} == {70}
    assert served_at(shard(NONE, partitions=1), 10, 5) == list(range(0, 50, 5))


def test_members_that_make_calls_alone_have_no_pause_unless_one_is_set() -> None:
    """INC-106."""
    cluster = shard()
    members = joined(cluster, "a", "b", "c")
    assert epochs(cluster) == (3, 3)
    settle(*members)
    assert {len(member.owned) for member in members} == {2, 3}


def test_a_pause_that_is_taken_away_ends_once_while_members_make_calls_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INC-126: one setting, set to adaptive, kept the loop for ever."""
    ended, numbers = Pauses.ended, count(1)

    def counted(pauses: Pauses, pause: Any) -> None:
        assert next(numbers) <= 3, "it ends again and again in one turn"
        ended(pauses, pause)

    monkeypatch.setattr(Pauses, "ended", counted)
    cluster = shard(60_000)
    first, second = joined(cluster, "a"), NumberedMember(cluster, "b")
    second.join()
    cluster.auto_ack = False
    adaptive = GroupSettings(assignment_interval_ms=ADAPTIVE)
    cluster.send(AlterGroupSettingsRequest(group_id=GROUP, set=adaptive))
    cluster.acknowledge()
    assert epochs(cluster) == (2, 1), "the target is on its way to the log"
    cluster.auto_ack = True
    cluster.acknowledge()
    settle(*first, second)
    assert epochs(cluster) == (2, 2)


def test_a_group_of_a_deleted_one_s_name_has_a_pause_of_its_own() -> None:
    """INC-106."""
    cluster = shard()
    (first,) = on_streams(cluster, "a")
    first.leave()
    cluster.ask(DeleteGroupsRequest(group_ids=[GROUP]))
    second, third = StreamMember(cluster, "b"), StreamMember(cluster, "c")
    second.join()
    assert len(second.owned) == 8
    third.join()
    cluster.advance(20)
    let_move(second, third)
    assert len(third.owned) == 4


# --- turns


class Turns:
    """Who asked for a turn, with how much, and what assignments left alone; each waits for `wait_ms`."""

    def __init__(self, cluster: VirtualShard, at_once_max: int = 1_000) -> None:
        self.asked: list[tuple[str, int]] = []
        self.left: list[int] = []
        self.wait_ms = 0
        cluster.shard.live_in(
            Room(
                assignors=SERVER_ASSIGNORS,
                at_once_max=at_once_max,
                turn_ms=self._turn_ms,
                left_alone=self._left_alone,
            )
        )

    def _turn_ms(self, group_id: str, size: int) -> int:
        self.asked.append((group_id, size))
        return self.wait_ms

    def _left_alone(self, group_id: str, number: int) -> None:
        assert group_id == GROUP
        self.left.append(number)


def test_an_assignment_waits_for_its_turn_and_comes_then_though_nobody_asks() -> None:
    """LIM-69."""
    cluster = shard()
    turns = Turns(cluster)
    (first,) = on_streams(cluster, "a")
    assert turns.asked == [(GROUP, 1 + 8)]
    cluster.advance(100)
    turns.wait_ms = 5_000
    second = StreamMember(cluster, "b")
    second.join()
    cluster.advance(4_999)
    assert epochs(cluster) == (2, 1)
    assert turns.asked[1:] == [(GROUP, 2 + 8)], "a turn is asked for once"
    cluster.advance(1)
    assert epochs(cluster) == (2, 2)
    let_move(first, second)
    assert len(second.owned) == 4
    assert turns.left == [1, 10 - 2 * 4], "what did not move takes less"


def test_members_that_make_calls_alone_are_answered_by_the_target_before_while_their_group_waits() -> None:
    """LIM-69."""
    cluster = shard(NONE)
    turns = Turns(cluster)
    (first,) = joined(cluster, "a")
    turns.wait_ms = 300
    second = NumberedMember(cluster, "b")
    second.join()
    assert not second.owned
    assert epochs(cluster) == (2, 1)
    cluster.advance(300)
    assert epochs(cluster) == (2, 2)
    settle(first, second)
    assert len(second.owned) == 4
    assert len(turns.asked) == 2


def test_a_group_asks_for_a_turn_again_for_the_next_assignment_and_when_it_did_not_use_one() -> None:
    """LIM-69."""
    cluster = shard(NONE)
    turns = Turns(cluster)
    members = on_streams(cluster, "a")
    turns.wait_ms = 300
    for name in "bc":
        members.append(StreamMember(cluster, name))
        members[-1].join()
        cluster.advance(300)
    assert epochs(cluster) == (3, 3)
    assert len(turns.asked) == 3
    members.append(StreamMember(cluster, "d"))
    members[-1].join()
    members.pop().leave()
    for member in members:
        member.leave()
    cluster.advance(300 + TURN_KEPT_MS)
    assert len(turns.asked) == 4
    StreamMember(cluster, "e").join()
    assert len(turns.asked) == 5


def test_a_turn_is_for_one_assignment() -> None:
    """LIM-69."""
    cluster = shard()
    turns = Turns(cluster)
    joined(cluster, "a")
    turns.wait_ms = 300
    NumberedMember(cluster, "b").join()
    cluster.advance(300)
    NumberedMember(cluster, "c").join()
    assert epochs(cluster) == (3, 2)
    assert len(turns.asked) == 3


def about_to_have_its_turn() -> tuple[VirtualShard, Turns, list[StreamMember]]:
    """A second member has come to a group that is assigned aside; a millisecond later that has its turn."""
    cluster, members = settled("a")
    turns = Turns(cluster, at_once_max=0)
    turns.wait_ms = 300
    members.append(StreamMember(cluster, "b"))
    members[-1].join()
    cluster.advance(299)
    return cluster, turns, members


def test_a_large_group_is_assigned_aside_when_it_has_its_turn() -> None:
    """LIM-69."""
    cluster, turns, members = about_to_have_its_turn()
    assert not cluster.work
    cluster.advance(1)
    work = asked(cluster)
    cluster.feed(answer_to(work))
    let_move(*members)
    assert [len(member.owned) for member in members] == [4, 4]
    assert len(turns.asked) == 1


def test_what_grows_while_its_group_waits_for_a_turn_counts_too() -> None:
    """LIM-69. A caller waited with little and had much assigned: its other groups never waited."""
    cluster = shard()
    turns = Turns(cluster)
    (first,) = on_streams(cluster, "a")
    cluster.advance(100)
    turns.wait_ms = 300
    second = StreamMember(cluster, "b")
    second.join()
    tell_partitions(cluster, 200, frozenset({"t"}))
    cluster.advance(300)
    assert epochs(cluster) == (3, 3)
    assert turns.asked[1:] == [(GROUP, 2 + 8), (GROUP, 200 - 8)]
    let_move(first, second)
    assert len(second.owned) == 100
    assert turns.left[1:] == [2 + 200 - (200 - 8)]


def test_no_more_than_was_counted_is_left_alone() -> None:
    """LIM-69. What grew while one was computed took time off that others of its caller had taken."""
    cluster = shard(at_once_max=0)
    turns = Turns(cluster, at_once_max=0)
    parked_join(StreamMember(cluster, "a"))
    work = asked(cluster)
    tell_partitions(cluster, 200, frozenset({"t"}))
    cluster.feed(answer_to(work))
    assert turns.asked[:1] == [(GROUP, 1 + 8)]
    assert turns.left == [1 + 8 - 8]


def test_a_turn_is_not_over_before_what_is_due_has_begun() -> None:
    """LIM-69. While the line of a large group took longer than a turn was kept it had no target, ever."""
    cluster, turns, members = about_to_have_its_turn()
    cluster.auto_ack = False
    members.append(StreamMember(cluster, "c"))
    join = parked_join(members[-1])
    cluster.advance(1 + 3 * TURN_KEPT_MS)
    assert not cluster.work
    cluster.auto_ack = True
    while cluster.is_parked(join):
        cluster.acknowledge()
    assert len(cluster.work) == 1
    assert len(turns.asked) == 1 + 1, "what has grown counts"


def test_nothing_that_is_set_makes_a_wait_for_a_turn_shorter() -> None:
    """LIM-69."""
    cluster = shard(60_000)
    turns = Turns(cluster)
    on_streams(cluster, "a")
    cluster.advance(60_000)
    turns.wait_ms = 300
    StreamMember(cluster, "b").join()
    shorter = AlterGroupSettingsRequest(group_id=GROUP, set=GroupSettings(assignment_interval_ms=0))
    cluster.ask(shorter)
    cluster.advance(299)
    assert epochs(cluster) == (2, 1)
    cluster.advance(1)
    assert epochs(cluster) == (2, 2)


# --- aside


def test_who_joins_a_large_group_is_answered_at_once_and_hears_of_its_share() -> None:
    """INC-107."""
    cluster, (first,) = settled("a")
    second = StreamMember(cluster, "b")
    answer = second.join()
    assert not answer.error_code
    assert answer.member_epoch == 1
    assert not second.owned
    assert epochs(cluster) == (2, 1)
    cluster.feed(answer_to(asked(cluster)))
    let_move(first, second)
    assert (len(first.owned), len(second.owned)) == (4, 4)


def test_who_joins_first_waits_for_the_first_target_and_is_never_told_the_epoch_of_a_join() -> None:
    """INC-107."""
    cluster = shard(at_once_max=0)
    member = StreamMember(cluster, "a")
    call = parked_join(member)
    cluster.advance(cluster.config.incremental_assignment_wait_ms)
    answer = cluster.answer(call)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    assert answer.error_code == error_code.COORDINATOR_NOT_AVAILABLE
    member.seq -= 1
    call = parked_join(member)  # the same join again
    cluster.feed(answer_to(asked(cluster)))
    answer = cluster.answer(call)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    member.hear(answer)
    assert member.epoch == 1
    assert len(member.owned) == 8


def test_a_late_result_is_told_to_members_on_streams_and_the_next_is_begun_at_once() -> None:
    """INC-30, INC-108."""
    cluster, (first,) = settled("a")
    second, third = StreamMember(cluster, "b"), StreamMember(cluster, "c")
    second.join()
    work = asked(cluster)
    third.join()
    assert not cluster.work
    cluster.feed(answer_to(work))
    assert epochs(cluster) == (3, 2)
    following = asked(cluster)
    assert set(following.question.candidates) == {"a", "b", "c"}
    let_move(first, second)
    assert (len(first.owned), len(second.owned), len(third.owned)) == (4, 4, 0)
    cluster.feed(answer_to(following))
    let_move(first, second, third)
    assert sorted(len(one.owned) for one in (first, second, third)) == [2, 3, 3]
    moves = {entry.generation: len(entry.moves) for entry in cluster.shard.groups[GROUP].history}
    assert moves == {1: 8, 2: 4, 3: 2}


def test_a_member_that_left_meanwhile_gets_nothing_and_its_share_is_given_out() -> None:
    """INC-31, INC-32, INC-108."""
    cluster, (first, second) = settled("a", "b")
    third = StreamMember(cluster, "c")
    third.join()
    work = asked(cluster)
    third.leave()
    second.leave()
    cluster.feed(answer_to(work))
    cluster.feed(answer_to(asked(cluster)))
    let_move(first)
    assert len(first.owned) == 8


def test_who_waits_keeps_nobody_on_a_stream_waiting() -> None:
    """INC-18: what a new life frees is given in the decision that stores it."""
    cluster, (first,) = settled("a", partitions=2)
    cluster.works = answer_to
    caller = NumberedMember(cluster, "u")
    caller.seq = 1
    request = caller.request(0)
    request.topics.names.append("t")
    request.rebalance_timeout_ms = 30_000
    request.owned.SetInParent()
    cluster.send(request)
    let_move(first)
    second = StreamMember(cluster, "b")
    assert len(first.owned) == 1
    first.leave()
    cluster.send(caller.request(incremental_of(cluster).members["u"].epoch))
    second.join()
    member = incremental_of(cluster).members["u"]
    cluster.send(caller.request(member.epoch))
    assert incremental_of(cluster).members["u"].pending  # one of the two is to go to the newcomer
    cluster.works = None
    third = StreamMember(cluster, "c")
    third.join()
    asked(cluster)
    caller.seq = 2
    request.member_seq = 2
    assert cluster.is_parked(cluster.send(request))
    second.listen()
    assert len(second.owned) == 1


def test_what_is_due_is_begun_again_after_a_suspension() -> None:
    """INC-108."""
    cluster, (first,) = settled("a")
    second = StreamMember(cluster, "b")
    second.join()
    late = asked(cluster)
    cluster.suspend()
    cluster.feed(answer_to(late))
    cluster.resume()
    assert epochs(cluster) == (2, 1)
    cluster.feed(answer_to(asked(cluster)))
    let_move(first, second)
    assert len(second.owned) == 4


def test_what_is_due_is_begun_by_whoever_loads() -> None:
    """INC-16, INC-108."""
    cluster, (first,) = settled("a")
    second = StreamMember(cluster, "b")
    second.join()
    other = cluster.reloaded()
    other.shard.live_in(Room(assignors=SERVER_ASSIGNORS, at_once_max=0))
    tell_partitions(other, 8, frozenset())
    for member in (first, second):
        member.move(other)
        assert not member.beat().error_code
    other.feed(answer_to(asked(other)))
    let_move(first, second)
    assert len(second.owned) == 4


def test_what_could_not_be_computed_is_begun_again_though_nobody_asks() -> None:
    """INC-34, INC-108."""
    cluster, _ = settled("a")
    StreamMember(cluster, "b").join()
    work = asked(cluster)
    cluster.feed(Assigned(work.group_id, work.number, None))
    cluster.advance(999)
    assert not cluster.work
    cluster.advance(1)
    cluster.feed(answer_to(asked(cluster)))
    assert epochs(cluster) == (2, 2)


def test_nothing_is_stored_of_a_target_that_the_log_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """INC-109."""
    cluster, _ = settled("a")
    StreamMember(cluster, "b").join()
    work = asked(cluster)
    with monkeypatch.context() as patch:
        patch.setattr(record_bounds, "APPEND_MAX_RECORDS", 1)
        cluster.feed(answer_to(work))
    assert epochs(cluster) == (2, 1)
    cluster.advance(1_000)
    cluster.feed(answer_to(asked(cluster)))
    assert epochs(cluster) == (2, 2)


def test_a_target_and_the_steps_by_it_are_one_append() -> None:
    """INC-109, INC-18."""
    cluster, (first,) = settled("a")
    StreamMember(cluster, "b").join()
    before = len(cluster.appends)
    cluster.feed(answer_to(asked(cluster)))
    (append,) = cluster.appends[before:]
    assert [record.WhichOneof("kind") for record in append.records] == ["target_assigned", "member_stepped"]
    assert first.listen()


def test_members_that_want_the_same_are_shared_out_in_a_turn_where_others_are_not() -> None:
    """INC-34."""
    cluster = shard(NONE, at_once_max=4, factor=4)
    members = on_streams(cluster, "a", "b")
    assert [len(member.owned) for member in members] == [4, 4]
    assert not cluster.work
    other = StreamMember(cluster, "c")
    request = other.request(0)
    other.seq = request.member_seq = 1
    request.topics.names.extend(["t", "u"])
    request.rebalance_timeout_ms = 30_000
    request.owned.SetInParent()
    assert not other.hear(other.ask(request)).error_code
    assert asked(cluster).group_id == GROUP
    assert Position.from_proto(request.version) < other.version
