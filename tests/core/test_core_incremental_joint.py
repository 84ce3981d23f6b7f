"""Decisions of many requests, which are made in several turns (docs/safety.md, INC-146)."""

from collections.abc import Sequence

import pytest
from core.test_core_incremental_commits import remade
from core.test_core_incremental_together import answer, joining
from kit.lives.incremental_shard import incremental_of, incremental_shard
from kit.lives.stream_member import StreamMember
from kit.lives.virtual_shard import VirtualShard
from muster_core import error_code
from muster_core.events import Tick
from muster_core.incremental.decisions.together import Asked, Together
from muster_core.protocol.incremental.heartbeats import _AT_A_TIME, _TOGETHER

STEPS = 3
"""As many turns as a decision of these requests takes."""
MEMBERS = STEPS * _AT_A_TIME - 3


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests were entered into a decision at a time."""
    sizes: list[int] = []
    enter = Together.enter

    def counting(together: Together, asked: Sequence[Asked]) -> None:
        sizes.append(len(asked))
        enter(together, asked)

    monkeypatch.setattr(Together, "enter", counting)
    return sizes


def begun(members: int = MEMBERS) -> tuple[VirtualShard, list[StreamMember], list[int]]:
    """As many members have joined in one turn, and the first of them are in the decision."""
    cluster = incremental_shard(30)
    cluster.auto_tick = cluster.auto_ack = False
    there = [StreamMember(cluster, f"m{number:03}") for number in range(members)]
    calls = [cluster.send(joining(member), place=member.place) for member in there]
    cluster.feed(Tick())
    return cluster, there, calls


def concluded(cluster: VirtualShard, steps: int = STEPS) -> None:
    for _ in range(steps - 1):
        assert not cluster.waiting
        assert cluster.deadline_ms is not None
        cluster.now_ms = max(cluster.now_ms, cluster.deadline_ms)
        cluster.feed(Tick())


def finished(cluster: VirtualShard) -> None:
    """All that is under way has come to its end."""
    cluster.auto_ack = cluster.auto_tick = True
    while cluster.waiting:
        cluster.acknowledge()
        cluster.advance(20)


def test_a_decision_of_many_is_made_in_several_turns_and_is_one_append(entered: list[int]) -> None:
    cluster, members, calls = begun()
    concluded(cluster)
    assert entered == [_AT_A_TIME, _AT_A_TIME, _AT_A_TIME - 3]
    joins = [sum(record.HasField("member_subscribed") for record in one.records) for one in cluster.waiting]
    assert [count for count in joins if count] == [MEMBERS]
    finished(cluster)
    assert [answer(cluster, call).error_code for call in calls] == [0] * MEMBERS
    group = incremental_of(cluster)
    assert group.epoch == group.target_epoch == 1
    assert len(group.members) == len(members)


def test_what_comes_meanwhile_is_in_line_behind_it_and_has_a_turn_of_its_own(entered: list[int]) -> None:
    cluster, _, _ = begun(_TOGETHER)
    late = StreamMember(cluster, "late")
    call = cluster.send(joining(late), place=late.place)
    concluded(cluster, _TOGETHER // _AT_A_TIME)
    while cluster.waiting:
        cluster.acknowledge()
    assert sum(entered) == _TOGETHER  # this turn carries out and answers a hundred
    finished(cluster)
    cluster.advance(20)
    assert sum(entered) == _TOGETHER + 1
    assert not answer(cluster, call).error_code


def test_one_who_gives_up_between_two_turns_takes_nobody_with_it() -> None:
    cluster, _, calls = begun()
    cluster.cancel(calls[0])  # decided
    cluster.cancel(calls[-1])  # not yet
    concluded(cluster)
    finished(cluster)
    assert {answer(cluster, call).error_code for call in calls[1:-1]} == {0}
    assert f"m{MEMBERS - 1:03}" not in incremental_of(cluster).members


def test_of_those_who_have_all_given_up_nothing_is_stored() -> None:
    cluster, _, calls = begun()
    for call in calls:
        cluster.cancel(call)
    cluster.advance(10)
    assert not cluster.waiting
    assert not cluster.shard.groups


def test_a_suspension_between_two_turns_ends_the_decision() -> None:
    """OWN-12: who is told to try again has joined nothing."""
    cluster, members, calls = begun()
    cluster.suspend()
    assert {answer(cluster, call).error_code for call in calls} == {error_code.COORDINATOR_NOT_AVAILABLE}
    cluster.advance(100)
    cluster.resume()
    cluster.advance(100)
    assert not any(record.HasField("member_subscribed") for one in cluster.waiting for record in one.records)
    finished(cluster)
    again = cluster.send(joining(members[0]), place=members[0].place)
    cluster.advance(10)
    assert not answer(cluster, again).error_code
    assert list(incremental_of(cluster).members) == ["m000"]


def test_a_topic_that_is_deleted_between_two_turns_has_the_decision_made_anew(entered: list[int]) -> None:
    """INC-50: else it would be of the group as it was, and give what is of the topic before."""
    cluster = incremental_shard(30)
    members = [StreamMember(cluster, f"m{number:03}") for number in range(_AT_A_TIME + 5)]
    for member in members[:3]:
        assert not member.join().error_code
    entered.clear()
    cluster.auto_tick = False
    calls = [cluster.send(joining(member), place=member.place) for member in members]
    cluster.feed(Tick())
    before = incremental_of(cluster).renewed
    remade(cluster, 30)
    assert incremental_of(cluster).renewed != before
    cluster.auto_tick = True
    cluster.advance(10)
    assert entered == [_AT_A_TIME, _AT_A_TIME, 5]
    assert {answer(cluster, call).error_code for call in calls} == {0}
    group = incremental_of(cluster)
    stale = {member_id for member_id, member in group.members.items() if member.stale(group.renewed)}
    assert not stale


def test_a_decision_that_is_too_much_is_made_of_the_first_half_and_the_others_follow(
    entered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, _, calls = begun()
    bounds = cluster.shard._context.bounds
    monkeypatch.setattr(
        type(bounds), "too_much", lambda _, size_bytes, **__: "it is full" if size_bytes > LARGE_BYTES else ""
    )
    cluster.auto_ack = cluster.auto_tick = True
    cluster.advance(100)
    assert [answer(cluster, call).error_code for call in calls] == [0] * MEMBERS
    assert len(incremental_of(cluster).members) == MEMBERS
    assert MEMBERS < sum(entered) <= 5 * MEMBERS


LARGE_BYTES = 4_000
