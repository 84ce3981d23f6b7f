"""Requests of members on streams that come together, or wait for the log together, are one decision."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from kit.lives.incremental_shard import JOIN, LEAVE, NumberedMember, incremental_of, incremental_shard
from kit.lives.stream_member import StreamMember, let_move, on_streams
from kit.lives.virtual_shard import VirtualShard
from muster_core import error_code, record_bounds
from muster_core.config import GroupConfig
from muster_core.events import Cancelled, Tick
from muster_core.incremental.candidate import Candidate
from muster_core.incremental.decisions.request import Outcome, Refused
from muster_core.incremental.decisions.together import Asked, decide_together
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import Held, Member, Told
from muster_core.incremental.partitions import by_topic
from muster_core.position import NOWHERE, Position
from muster_core.protocol.incremental import deadlines, heartbeats
from muster_core.record_bounds import in_appends
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

GRACE_MS = 3_000
NAMES = [f"m{number:02}" for number in range(10)]


def joining(member: NumberedMember) -> ConsumerGroupHeartbeatRequest:
    member.seq += 1
    request = member.request(JOIN)
    request.topics.names.append("t")
    request.client_version = member.client_version
    request.rebalance_timeout_ms = 30_000
    request.owned.SetInParent()
    return request


def sent(cluster: VirtualShard, members: Sequence[StreamMember]) -> list[int]:
    """Their joins, while the log acknowledges nothing."""
    cluster.auto_ack = False
    return [cluster.send(joining(member), place=member.place) for member in members]


def stored(cluster: VirtualShard) -> int:
    """Has the log acknowledge everything; returns how many appends were about members."""
    count = 0
    while cluster.waiting:
        kinds = {record.WhichOneof("kind") for record in cluster.waiting[0].records}
        count += not kinds.isdisjoint({"member_subscribed", "member_stepped"})
        cluster.acknowledge()
    cluster.auto_ack = True
    return count


def answer(cluster: VirtualShard, call_id: int) -> ConsumerGroupHeartbeatResponse:
    found = cluster.answer(call_id)
    assert isinstance(found, ConsumerGroupHeartbeatResponse)
    return found


def test_joins_that_wait_are_one_append_one_epoch_and_one_target() -> None:
    cluster = incremental_shard(30)
    members = [StreamMember(cluster, name) for name in NAMES]
    calls = sent(cluster, members)
    assert stored(cluster) == 2
    group = incremental_of(cluster)
    assert group.epoch == group.target_epoch == 2
    assert cluster.kinds().count("target_assigned") == 2
    for member, call in zip(members, calls, strict=True):
        assert not member.hear(answer(cluster, call)).error_code
    let_move(*members)
    assert {len(member.has) for member in members} == {3}
    assert len(frozenset[object]().union(*(member.has for member in members))) == 30


def test_a_replay_has_what_one_decision_made() -> None:
    cluster = incremental_shard(30)
    sent(cluster, [StreamMember(cluster, name) for name in NAMES])
    stored(cluster)
    again = incremental_of(incremental_shard(30, cluster.log))
    group = incremental_of(cluster)
    assert dict(again.members) == dict(group.members)
    assert dict(again.wanting) == dict(group.wanting)
    assert again.tally.topics == group.tally.topics == {"t": 10}
    assert {token for member in again.members.values() for token in member.held.values()}


def test_releases_that_wait_are_one_append_and_wake_who_waits_once() -> None:
    cluster = incremental_shard(30)
    givers = on_streams(cluster, *NAMES[:5])
    newest = StreamMember(cluster, "z")
    newest.join()
    cluster.auto_ack = False
    for giver in givers:
        news = cluster.pushes[-1]
        assert news
        version: Position = incremental_of(cluster).members[giver.member_id].version
        request = giver.request(giver.epoch)
        request.version.CopyFrom(version.to_proto())
        request.owned.SetInParent()
        cluster.send(request, place=giver.place)
    before = len(cluster.pushes)
    assert stored(cluster) == 2
    told = [push for push in cluster.pushes[before:] if push.stream_id == newest.stream_id]
    assert len(told) == 2  # by the release that came first, and by the four that waited
    assert len(incremental_of(cluster).members["z"].assigned) == 5


def test_what_comes_in_one_turn_of_the_loop_is_one_append() -> None:
    cluster = incremental_shard(30)
    cluster.auto_tick = False
    members = [StreamMember(cluster, name) for name in NAMES]
    calls = sent(cluster, members)
    assert not cluster.waiting
    assert cluster.deadline_ms == cluster.now_ms
    cluster.feed(Tick())
    assert stored(cluster) == 1
    group = incremental_of(cluster)
    assert group.epoch == group.target_epoch == 1
    for member, call in zip(members, calls, strict=True):
        assert not member.hear(answer(cluster, call)).error_code
        assert len(member.has) == 3


def test_releases_of_one_turn_are_one_append_and_one_list_for_who_waits() -> None:
    cluster = incremental_shard(30)
    givers = on_streams(cluster, *NAMES[:5])
    newest = StreamMember(cluster, "z")
    newest.join()
    cluster.auto_ack = cluster.auto_tick = False
    for giver in givers:
        giver.listen()
        request = giver.request(giver.epoch)
        request.owned.SetInParent()
        request.owned.topics.extend(by_topic(giver.has))
        cluster.send(request, place=giver.place)
    cluster.feed(Tick())
    assert stored(cluster) == 1
    assert len(newest.listen()) == 1
    assert len(newest.has) == 5


def test_what_comes_for_a_group_that_gathers_is_in_line_after_it() -> None:
    """Who leaves in the same breath has joined before, and is gone after."""
    cluster = incremental_shard(30)
    cluster.auto_tick = False
    member, other = StreamMember(cluster, "a"), NumberedMember(cluster, "b")
    join = cluster.send(joining(member), place=member.place)
    unary = cluster.send(joining(other))
    left = cluster.send(member.request(LEAVE), place=member.place)
    assert cluster.is_parked(unary)
    cluster.feed(Tick())
    assert [answer(cluster, call).error_code for call in (join, unary, left)] == [0, 0, 0]
    assert set(incremental_of(cluster).members) == {"b"}


def test_a_suspension_answers_what_was_gathered_and_the_group_goes_on_after_it() -> None:
    cluster = incremental_shard(30)
    cluster.auto_tick = False
    first, second = StreamMember(cluster, "a"), StreamMember(cluster, "b")
    call = cluster.send(joining(first), place=first.place)
    cluster.suspend()
    assert answer(cluster, call).error_code == error_code.COORDINATOR_NOT_AVAILABLE
    cluster.resume()
    cluster.auto_tick = True
    cluster.advance(0)
    assert not second.join().error_code
    assert set(incremental_of(cluster).members) == {"b"}


def test_a_group_that_all_have_given_up_before_it_was_decided_is_none() -> None:
    """It was made for calls that were gathered, and would stay as an empty group that no record is of."""
    cluster = incremental_shard()
    cluster.auto_tick = False
    calls = [
        cluster.send(joining(member), place=member.place)
        for member in (StreamMember(cluster, n) for n in NAMES)
    ]
    for call in calls:
        cluster.cancel(call)
    cluster.feed(Tick())
    assert not cluster.shard.groups
    assert not cluster.shard.held_bytes


def test_one_that_is_refused_holds_up_nobody() -> None:
    cluster = incremental_shard(30, config=GroupConfig(max_size=3))
    members = [StreamMember(cluster, name) for name in NAMES[:5]]
    calls = sent(cluster, members)
    stored(cluster)
    codes = [answer(cluster, call).error_code for call in calls]
    assert codes == [0, 0, 0, error_code.GROUP_MAX_SIZE_REACHED, error_code.GROUP_MAX_SIZE_REACHED]
    assert set(incremental_of(cluster).members) == set(NAMES[:3])


def test_of_one_member_only_one_request_is_in_a_decision() -> None:
    cluster = incremental_shard(30)
    first, second = StreamMember(cluster, "a"), StreamMember(cluster, "b")
    calls = sent(cluster, [first, second])
    anew = cluster.send(joining(second), place=second.place)  # a new life, which has new tokens
    assert stored(cluster) == 3
    assert [answer(cluster, call).error_code for call in (*calls, anew)] == [0, 0, 0]
    assert incremental_of(cluster).members["b"].told.member_seq == 2


def test_a_caller_that_is_gone_does_not_join() -> None:
    cluster = incremental_shard(30)
    members = [StreamMember(cluster, name) for name in NAMES[:3]]
    calls = sent(cluster, members)
    cluster.feed(Cancelled(calls[1]))
    stored(cluster)
    assert set(incremental_of(cluster).members) == {"m00", "m02"}


def test_what_the_log_does_not_take_at_a_time_is_decided_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = incremental_shard(30)
    monkeypatch.setattr(record_bounds, "in_appends", partial(in_appends, max_bytes=1_000))
    calls = sent(cluster, [StreamMember(cluster, name) for name in NAMES])
    assert stored(cluster) > 2
    assert [answer(cluster, call).error_code for call in calls] == [0] * 10
    assert set(incremental_of(cluster).members) == set(NAMES)


@pytest.mark.parametrize("place", [1, 40, 79])
@pytest.mark.parametrize("fits", ["alone", "never"])
def test_one_that_asks_for_much_has_the_others_decided_a_few_times(
    monkeypatch: pytest.MonkeyPatch, place: int, fits: str
) -> None:
    """INC-146: not once more for each that is taken before it."""
    cluster = incremental_shard(30)
    members = [StreamMember(cluster, f"m{number:02}") for number in range(80)]
    members[place].client_version = "much"
    decided = counted(monkeypatch)

    def takes(records: Iterable[records_pb2.Record]) -> Iterator[tuple[records_pb2.Record, ...]]:
        some = tuple(records)
        joined = [record.member_subscribed.member for record in some if record.HasField("member_subscribed")]
        is_much = any(member.client_version == "much" for member in joined)
        yield from [some, some] if is_much and (fits == "never" or len(joined) > 1) else [some]

    monkeypatch.setattr(record_bounds, "in_appends", takes)
    calls = sent(cluster, members)
    stored(cluster)
    refused = [answer(cluster, call).error_code for call in calls if call != calls[place]]
    assert refused == [0] * 79
    is_refused = answer(cluster, calls[place]).error_code == error_code.INVALID_REQUEST
    assert is_refused == (fits == "never")
    assert sum(decided) <= 5 * len(members)


def test_where_one_at_a_time_is_all_that_fits_few_are_tried_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """INC-146, where memory is full, say: each is refused, and has not all others decided once more."""
    cluster = incremental_shard(30)
    (there,) = on_streams(cluster, "z")
    members = [StreamMember(cluster, f"m{number:02}") for number in range(80)]
    decided = counted(monkeypatch)
    calls = sent(cluster, members)
    monkeypatch.setattr(type(cluster.shard._context.bounds), "too_much", lambda *_, **__: "it is full")
    stored(cluster)
    codes = {answer(cluster, call).error_code for call in calls[1:]}
    assert codes == {error_code.COORDINATOR_NOT_AVAILABLE}
    assert sum(decided) <= 5 * len(members)
    assert not there.beat(there.owned).error_code


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Takes how many requests each decision is of from now on."""
    sizes: list[int] = []

    def decide(group: IncrementalGroup, asked: Sequence[Asked], *others: Any) -> list[Outcome | Refused]:
        sizes.append(len(asked))
        return decide_together(group, asked, *others)

    monkeypatch.setattr(heartbeats, "decide_together", decide)
    return sizes


def on_one_stream(cluster: VirtualShard, members: int) -> list[StreamMember]:
    """Members of a process; their stream is about to break."""
    process = on_streams(cluster, *NAMES[:members])
    for member in process:
        member.connect(process[0].stream_id)
        member.beat(member.owned)
    return process


def test_members_that_are_gone_with_their_process_are_removed_by_one_decision() -> None:
    cluster = incremental_shard(30)
    (stays,) = on_streams(cluster, "z")
    process = on_one_stream(cluster, 5)
    let_move(stays, *process)
    stays.beat(stays.owned)
    let_move(stays, *process)
    assert [len(member.has) for member in (stays, *process)] == [5] * 6
    cluster.advance(1_000)
    stays.live()
    before, appends = incremental_of(cluster).epoch, len(cluster.appends)
    process[0].lose_stream()
    cluster.advance(GRACE_MS)
    assert len(cluster.appends) == appends + 1
    group = incremental_of(cluster)
    assert set(group.members) == {"z"}
    assert group.epoch == group.target_epoch == before + 1
    stays.listen()
    assert len(stays.has) == 30
    removed = [record.member_removed for _, record in cluster.log if record.HasField("member_removed")]
    assert [one.member_id for one in removed] == NAMES[:5]
    assert {(one.cause.member_id == one.member_id, one.cause.silence_ms) for one in removed} == {
        (True, GRACE_MS)
    }
    cause = cluster.shard.groups["g"].cause
    assert cause is not None
    assert cause.sentence.endswith("was removed, and 4 others with it.")


def test_who_is_heard_of_while_its_removal_is_in_line_stays() -> None:
    cluster = incremental_shard(30)
    (stays,) = on_streams(cluster, "z")
    process = on_one_stream(cluster, 3)
    process[0].lose_stream()
    cluster.advance(GRACE_MS - 1)
    stays.live()
    newcomer = StreamMember(cluster, "y")
    sent(cluster, [newcomer])  # holds the line
    process[1].connect()
    call = cluster.send(process[1].request(process[1].epoch), place=process[1].place)
    cluster.advance(1)
    stored(cluster)
    assert answer(cluster, call).error_code == 0
    assert set(incremental_of(cluster).members) == {"z", "y", "m01"}


def test_many_that_are_gone_at_once_are_removed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_TOGETHER", 2)
    cluster = incremental_shard(30)
    process = on_one_stream(cluster, 5)
    let_move(*process)
    appends = len(cluster.appends)
    process[0].lose_stream()
    cluster.advance(GRACE_MS)
    assert len(cluster.appends) == appends + 3
    assert not incremental_of(cluster).members


@pytest.mark.parametrize(
    "wanted",
    [["t"], ["t", "t"], ["t", "u"], ["t", "tu"], ["tu", "tu"], ["", "t"], ["", ""], ["tu", "t", "u"]],
)
def test_whether_all_want_the_same_is_seen_by_how_many_name_a_topic(wanted: list[str]) -> None:
    group = IncrementalGroup()
    for number, topics in enumerate(wanted):
        group.put(Member(Told(f"m{number}", topics=frozenset(topics))))
    assert group.wants_alike == (len(set(map(frozenset, wanted))) == 1)
    group.put(group.members["m0"].with_told(Told("m0", topics=frozenset("v"))))
    assert group.wants_alike == (len(wanted) == 1)


def test_a_member_that_steps_is_shown_as_the_one_that_it_is() -> None:
    member = Member(Told("a", host="h"), held={("t", 0): Held(NOWHERE)}, target=frozenset({("t", 0)}))
    assert (member.assigned, member.is_within_target) == (frozenset({("t", 0)}), True)
    aimed = member.aimed_at(frozenset(), 3)
    assert (member.candidate.before, aimed.candidate.before) == (member.target, frozenset())
    assert (aimed.epoch, aimed.assigned, aimed.is_within_target) == (3, frozenset({("t", 0)}), False)
    place = Position(1, 9)
    stepped = aimed.stepped(4, {("t", 0): Held(NOWHERE, place)}, place, waits=True)
    assert (stepped.epoch, stepped.previous_epoch, stepped.waits, stepped.version) == (4, 3, True, place)
    assert (stepped.assigned, stepped.pending) == (frozenset(), frozenset({("t", 0)}))
    assert stepped.candidate == Candidate("a", "", "", frozenset(), frozenset())
    assert stepped == replace(stepped)
    assert (member.epoch, member.target) == (0, frozenset({("t", 0)}))


def test_those_whom_the_history_shows_are_listed_in_order_and_shared_by_steps() -> None:
    group = IncrementalGroup()
    for member_id in ("c", "a", "b"):
        group.put(Member(Told(member_id, host="h")))
    listed = group.tally.participants.copy()
    assert listed == [("a", "", "", "h"), ("b", "", "", "h"), ("c", "", "", "h")]
    group.put(group.members["b"].stepped(5, {}, Position(1, 9), waits=False))
    assert group.tally.participants[1] is listed[1]
    draft = group.draft()
    draft.put(draft.members["b"].with_told(Told("b", client_id="client")))
    draft.remove("a")
    assert draft.tally.participants == [("b", "", "client", ""), listed[2]]
    assert [one.member_id for one in draft.in_order()] == ["b", "c"]
    assert group.tally.participants == listed
