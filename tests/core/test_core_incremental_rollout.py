"""Moves that are held back because members that join say that a deployment runs (INC-170 to INC-174)."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import pytest
from core.test_core_group_settings import done
from hypothesis import given
from hypothesis import strategies as st
from kit.lives.incremental_shard import (
    AWAY,
    FEATURES,
    GROUP,
    NumberedMember,
    incremental_of,
    incremental_shard,
    settle,
    tell_partitions,
)
from kit.lives.server_assignors import SERVER_ASSIGNORS
from kit.lives.stream_member import StreamMember, let_move
from kit.lives.virtual_shard import VirtualShard
from kit.logs.core_audit import broken_promises
from kit.logs.snapshots import check_every_cut
from muster_core.incremental.rollout import LONGEST_MS, Hold, held_by_join
from muster_core.protocol.room import Room
from muster_protos.muster.log.v1 import incremental_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)

HOLD_MS = 60_000
Owner: TypeAlias = Callable[[VirtualShard], VirtualShard]


def same(cluster: VirtualShard) -> VirtualShard:
    return cluster


def next_owner(cluster: VirtualShard) -> VirtualShard:
    now_ms = cluster.now.boot_ms
    return incremental_shard(12, cluster.log, cluster.config, now_ms=now_ms)


def old_fleet(cluster: VirtualShard, *names: str) -> list[StreamMember]:
    members = [StreamMember(cluster, name) for name in names]
    for number, member in enumerate(members):
        assert not member.join().error_code
        let_move(*members[: number + 1])
    return members


def new_member(cluster: VirtualShard, name: str, hold_ms: int = HOLD_MS) -> StreamMember:
    member = StreamMember(cluster, name)
    member.rollout_hold_ms = hold_ms
    assert not member.join().error_code
    return member


def live(cluster: VirtualShard, ms: int, *members: StreamMember) -> None:
    """Time passes, in which members stay alive and do what they hear."""
    end_ms = cluster.now.boot_ms + ms
    while cluster.now.boot_ms < end_ms:
        cluster.advance(min(10_000, end_ms - cluster.now.boot_ms))
        for member in members:
            member.live()
        let_move(*members)


def sizes(*members: NumberedMember) -> list[int]:
    return [len(member.owned) for member in members]


def holds(cluster: VirtualShard) -> list[incremental_pb2.MovesHeld]:
    return [record.moves_held for _, record in cluster.log if record.HasField("moves_held")]


def described(cluster: VirtualShard) -> ConsumerGroupDescribeResponse.Group:
    answer = cluster.ask(ConsumerGroupDescribeRequest(group_ids=[GROUP]))
    assert isinstance(answer, ConsumerGroupDescribeResponse)
    return answer.groups[0]


@pytest.mark.parametrize("owner", [same, next_owner])
def test_a_rolling_deployment_moves_each_partition_once(owner: Owner) -> None:
    """INC-170, INC-172: from who leaves to who is new, with each owner; what stays keeps its token."""
    cluster = incremental_shard(12)
    old = old_fleet(cluster, "a", "b", "c")
    before = {one: token for member in old for one, token in member.owned.items()}
    new: list[StreamMember] = []
    for number, gone in enumerate(tuple(old)):
        new.append(new_member(cluster, f"n{number}"))
        let_move(*old, *new)
        assert not new[-1].owned
        moved = dict(gone.owned)
        old.remove(gone)
        gone.leave()
        let_move(*old, *new)
        assert set(new[-1].owned) == set(moved)
        assert all(before[one] == token for member in old for one, token in member.owned.items())
        cluster = owner(cluster)
        for member in (*old, *new):
            if member.cluster is not cluster:
                member.move(cluster)
                member.beat(member.owned)
    assert sizes(*new) == [4, 4, 4]
    live(cluster, 2 * HOLD_MS, *new)
    assert sizes(*new) == [4, 4, 4]
    assert not incremental_of(cluster).holds_moves
    check_every_cut([*cluster.log], cluster.config)
    assert not broken_promises(cluster)


@pytest.mark.parametrize("owner", [same, next_owner])
def test_what_was_held_back_moves_when_the_time_is_over(owner: Owner) -> None:
    """INC-171, INC-172: no sooner, no later, and through a fail-over."""
    cluster = incremental_shard(12)
    a, b = old_fleet(cluster, "a", "b")
    n = new_member(cluster, "n")
    members = (a, b, n)
    live(cluster, HOLD_MS // 2, *members)
    cluster = owner(cluster)
    for member in members:
        if member.cluster is not cluster:
            member.move(cluster)
            member.beat(member.owned)
    live(cluster, HOLD_MS // 2 - 1, *members)
    assert sizes(*members) == [6, 6, 0]
    epoch = incremental_of(cluster).epoch
    live(cluster, 1, *members)
    assert sizes(*members) == [4, 4, 4]
    assert incremental_of(cluster).epoch == epoch + 1
    assert not broken_promises(cluster)


def test_what_nobody_has_is_given_out_meanwhile() -> None:
    """INC-170: of a member that was removed, and of a topic that grows."""
    cluster = incremental_shard(12)
    a, b = old_fleet(cluster, "a", "b")
    n = new_member(cluster, "n")
    b.lose_stream()
    live(cluster, 5_000, a, n)
    assert sizes(a, n) == [6, 6]
    assert len(incremental_of(cluster).members) == 2


def test_members_without_streams_are_held_and_let_go_in_their_heartbeats() -> None:
    """INC-170, INC-171."""
    cluster = incremental_shard(12)
    a, n = NumberedMember(cluster, "a"), NumberedMember(cluster, "n")
    a.join()
    settle(a)
    n.rollout_hold_ms = HOLD_MS
    n.join()
    settle(a, n)
    assert sizes(a, n) == [12, 0]
    for _ in range(HOLD_MS // 10_000):
        cluster.advance(10_000)
        settle(a, n)
    assert sizes(a, n) == [6, 6]


def test_a_group_that_starts_holds_nothing_back() -> None:
    """INC-170: neither at its first start nor after all of its members were gone."""
    cluster = incremental_shard(12)
    for _ in range(2):
        members = [new_member(cluster, name) for name in "abc"]
        settle(*members)
        let_move(*members)
        assert sizes(*members) == [4, 4, 4]
        assert [hold.is_start for hold in holds(cluster)][-1]
        assert not described(cluster).HasField("hold")
        late = new_member(cluster, "late")
        let_move(*members, late)
        assert sizes(*members, late) == [3, 3, 3, 3]
        for member in (*members, late):
            member.leave()
    assert incremental_of(cluster).hold is None
    members = [new_member(cluster, name) for name in "ab"]
    live(cluster, HOLD_MS, *members)
    later = new_member(cluster, "c")
    let_move(*members, later)
    assert sizes(*members, later) == [6, 6, 0]
    check_every_cut([*cluster.log], cluster.config)
    assert not broken_promises(cluster)


def test_joins_without_end_do_not_hold_back_for_ever() -> None:
    """INC-171: at most an hour, then everything moves once, and only then the next hold begins."""
    cluster = incremental_shard(12)
    a, b = old_fleet(cluster, "a", "b")
    n = new_member(cluster, "n", 600_000)
    members = (a, b, n)
    began_ms = cluster.now.boot_ms
    while not n.owned:
        assert cluster.now.boot_ms - began_ms <= LONGEST_MS
        crashing = new_member(cluster, "crashing", 600_000)
        live(cluster, 30_000, *members)
        crashing.leave()
        let_move(*members)
    assert cluster.now.boot_ms - began_ms >= LONGEST_MS - 30_000
    assert sizes(*members) == [4, 4, 4]
    new_member(cluster, "again", 600_000)
    let_move(*members)
    assert sizes(*members) == [4, 4, 4]
    assert not broken_promises(cluster)


def test_a_hold_that_is_over_is_followed_by_a_target_before_the_next_begins() -> None:
    """INC-171: also where the target waits for a heartbeat."""
    cluster = incremental_shard(12)
    a, n = NumberedMember(cluster, "a"), NumberedMember(cluster, "n")
    a.join()
    settle(a)
    n.rollout_hold_ms = 20_000
    n.join()
    settle(a, n)
    cluster.advance(20_000)
    assert incremental_of(cluster).epoch > incremental_of(cluster).target_epoch
    m = NumberedMember(cluster, "m")
    m.rollout_hold_ms = 20_000
    m.join()
    assert not incremental_of(cluster).holds_moves
    settle(a, n, m)
    assert sizes(a, n, m) == [4, 4, 4]


def test_a_join_that_is_made_again_makes_nothing_longer() -> None:
    """INC-171."""
    cluster = incremental_shard(12)
    a = old_fleet(cluster, "a")[0]
    n = new_member(cluster, "n")
    live(cluster, 10_000, a, n)
    n.join(again=True)
    assert len(holds(cluster)) == 1


def test_it_is_described_with_who_holds_and_until_when() -> None:
    """INC-174."""
    cluster = incremental_shard(12)
    a = old_fleet(cluster, "a")[0]
    assert not described(cluster).HasField("hold")
    wall_ms = cluster.now.wall_ms
    n = new_member(cluster, "n")
    hold = described(cluster).hold
    assert (hold.member_id, hold.began_ms, hold.until_ms) == ("n", wall_ms, wall_ms + HOLD_MS)
    live(cluster, HOLD_MS, a, n)
    assert not described(cluster).HasField("hold")
    done(cluster, hold=True)
    hold = described(cluster).hold
    assert (hold.member_id, hold.began_ms, hold.until_ms) == ("", 0, 0)


def test_an_operator_ends_it_and_allows_no_other() -> None:
    """INC-173."""
    cluster = incremental_shard(12)
    a = old_fleet(cluster, "a")[0]
    n = new_member(cluster, "n")
    let_move(a, n)
    assert sizes(a, n) == [12, 0]
    done(cluster, hold=False)
    let_move(a, n)
    assert sizes(a, n) == [6, 6]
    m = new_member(cluster, "m")
    let_move(a, n, m)
    assert sizes(a, n, m) == [4, 4, 4]
    done(cluster, "hold")
    assert not incremental_of(cluster).holds_moves
    new_member(cluster, "o")
    assert incremental_of(cluster).holds_moves
    check_every_cut([*cluster.log], cluster.config)
    assert not broken_promises(cluster)


def test_the_end_of_one_hold_is_not_that_of_the_other() -> None:
    """INC-173: the operator's outlasts the members', and theirs the operator's that is only taken back."""
    cluster = incremental_shard(12)
    a = old_fleet(cluster, "a")[0]
    done(cluster, hold=True)
    n = new_member(cluster, "n")
    live(cluster, HOLD_MS, a, n)
    assert sizes(a, n) == [12, 0]
    m = new_member(cluster, "m")
    done(cluster, "hold")
    let_move(a, n, m)
    assert sizes(a, n, m) == [12, 0, 0]
    live(cluster, HOLD_MS, a, n, m)
    assert sizes(a, n, m) == [4, 4, 4]


@given(
    st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, LONGEST_MS), st.booleans()), max_size=60),
    st.booleans(),
)
def test_holds_beside_a_plain_computation(joins: list[tuple[int, int, bool]], starts: bool) -> None:
    """INC-171: a hold lasts for the longest of its joins' wishes, at most an hour; targets part them."""
    hold, wall_ms, epoch, target = None, 1_000, 5, 5
    span: tuple[int, int] | None = None
    start_until = -1
    is_first = starts
    for gap_ms, wish_ms, computes in joins:
        wall_ms += gap_ms
        if hold is not None and hold.is_on and hold.until_ms <= wall_ms:
            hold, span, epoch = Hold(freed_epoch=epoch + 1), None, epoch + 1
        if computes:
            target = epoch
        made = held_by_join(hold, "m", wish_ms, wall_ms, target, is_first=is_first)
        if is_first:
            start_until, is_first = wall_ms + wish_ms, False
        elif span is not None:
            span = span[0], max(span[1], min(wall_ms + wish_ms, span[0] + LONGEST_MS))
        elif wall_ms >= start_until and target == epoch:
            span = wall_ms, wall_ms + wish_ms
        hold = made or hold
        held = (hold.began_ms, hold.until_ms) if hold is not None and hold.is_on else None
        assert held == span


def test_a_clock_that_was_set_makes_no_hold_longer_than_it_was() -> None:
    """INC-172."""
    hold = Hold("n", 1_000_000, 1_060_000)
    remaining: Mapping[int, int] = {0: 60_000, 1_000_000: 60_000, 1_030_000: 30_000, 9_000_000: 0}
    assert {wall_ms: hold.remaining_ms(wall_ms) for wall_ms in remaining} == remaining


def test_a_hold_lasts_when_another_process_takes_the_place_of_the_only_member() -> None:
    """INC-172: the group is not without members then, neither for its owner nor for the audit (I10)."""
    cluster = incremental_shard(12)
    one = NumberedMember(cluster, "one", instance="i")
    assert not one.join().error_code
    one.rollout_hold_ms = HOLD_MS
    assert not one.join().error_code
    assert incremental_of(cluster).holds_moves
    one.leave(AWAY)
    place = incremental_of(cluster).members["one"].joined
    two = NumberedMember(cluster, "two", instance="i")
    assert not two.join(replaces=place).error_code
    for _ in range(2):
        assert incremental_of(cluster).holds_moves
        cluster.advance(HOLD_MS // 2)
        two.beat(two.owned)
    assert not incremental_of(cluster).holds_moves
    assert len(holds(cluster)) == 2
    check_every_cut([*cluster.log], cluster.config)
    assert not broken_promises(cluster)


def test_a_hold_that_ends_before_an_owner_knows_the_topics_takes_nothing_from_anybody() -> None:
    before = incremental_shard(12)
    old_fleet(before, "a", "b")
    new_member(before, "n")
    late_ms = before.now.boot_ms + 2 * HOLD_MS
    room = Room(assignors=SERVER_ASSIGNORS)
    cluster = VirtualShard(before.config, before.log, FEATURES, now_ms=late_ms, room=room)
    cluster.advance(10)
    assert not incremental_of(cluster).holds_moves
    tell_partitions(cluster, 12, frozenset())
    assert sorted(len(one.target) for one in incremental_of(cluster).members.values()) == [4, 4, 4]
