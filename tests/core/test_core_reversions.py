"""An incremental group is a classic one again while its members work (docs/safety.md, INC-150 to INC-157)."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import pytest
from core.test_core_conversions import stable
from kit.lives.incremental_shard import NumberedMember, incremental_of, incremental_shard, settle
from kit.lives.server_assignors import SERVER_ASSIGNORS, answer_to
from kit.lives.stream_member import StreamMember, let_move
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from kit.logs.core_audit import broken_promises
from kit.logs.snapshots import check_every_cut
from muster_core import error_code
from muster_core.catalog import Catalog
from muster_core.config import GroupConfig
from muster_core.events import Assign, TopicsChanged
from muster_core.features import ALL_FEATURES, Feature
from muster_core.incremental.partitions import TopicPartition, by_topic
from muster_core.position import Position
from muster_core.protocol.incremental.kinds import reversions
from muster_core.protocol.room import Room
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import (
    common_pb2,
    coordinator_pb2,
    group_conversion_pb2,
    session_pb2,
)
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

AUTO = GroupConfig(
    convert="auto",
    incremental_assignment_interval_ms=0,
    initial_rebalance_delay_ms=0,
    convert_after_ms=86_400_000,
)
CLASSIC = group_conversion_pb2.GROUP_KIND_CLASSIC
INCREMENTAL = group_conversion_pb2.GROUP_KIND_INCREMENTAL


def both(cluster: VirtualShard, *names: str, on_streams: bool = False) -> list[NumberedMember]:
    """Members of both kinds in an incremental group, which have all their shares."""
    members: list[NumberedMember] = []
    for name in names:
        member = StreamMember(cluster, name) if on_streams else NumberedMember(cluster, name)
        member.classic_protocols = ["range"]
        members.append(member)
        assert not member.join().error_code
        if on_streams:
            let_move(*[one for one in members if isinstance(one, StreamMember)])
        else:
            settle(*members)
    return members


def convert(cluster: VirtualShard, kind: group_conversion_pb2.GroupKind.ValueType = CLASSIC) -> int:
    """What an operator who wants a kind is answered."""
    answer = cluster.ask(
        group_conversion_pb2.ConvertGroupRequest(group_id="g", kind=kind, reason="rolled back")
    )
    assert isinstance(answer, group_conversion_pb2.ConvertGroupResponse)
    return answer.error_code


class Returning(VirtualMember):
    """A member of an incremental group that goes on in a classic one, as its client does.

    Args:
        of: what it was.
        keeps: what it works on while it joins; the others it has stopped.
    """

    def __init__(self, of: NumberedMember, keeps: Iterable[TopicPartition] = ()) -> None:
        super().__init__(of.cluster, of.member_id)
        self.member_id, self.seq, self.process_id = of.member_id, of.seq, of.process_id
        kept = by_topic(keeps)
        self.protocols = [
            (
                "range",
                common_pb2.Subscription(
                    version=1, topics=["t"], owned_partitions=kept, keeps_owned=bool(kept)
                ).SerializeToString(),
            )
        ]
        self.tokens: dict[TopicPartition, Position] = {}

    def enter(self) -> "Returning":
        """Joins under the next number."""
        self.seq += 1
        self.join(member_seq=self.seq, process_id=self.process_id)
        return self

    def take(self) -> dict[TopicPartition, Position]:
        """Takes the answer to its SyncGroup."""
        response = self.synced()
        assert not response.error_code, response
        kept = {(one.topic, one.partition): one.token for one in response.kept_tokens}
        for entry in common_pb2.Assignment.FromString(response.assignment).partitions:
            for number in entry.partitions:
                token = kept.get((entry.topic, number), response.token)
                self.tokens[entry.topic, number] = Position(*map(int, token.split("-")))
        return self.tokens


def plan_of(*numbers: int) -> bytes:
    """An assignment of partitions of `t`."""
    topics = by_topic(("t", number) for number in numbers)
    return common_pb2.Assignment(version=1, partitions=topics).SerializeToString()


def test_an_operator_makes_a_group_classic_and_its_members_go_on() -> None:
    cluster = incremental_shard(4, config=AUTO)
    a, b = both(cluster, "a", "b")
    epoch = incremental_of(cluster).epoch
    assert convert(cluster) == error_code.NONE
    assert cluster.kinds()[-1] == "group_reverted"
    assert cluster.state() == "PreparingRebalance"
    group = cluster.shard.groups["g"]
    assert group.incremental is None
    assert group.generation == epoch
    assert group.owners == {
        partition: (one.member_id, token) for one in (a, b) for partition, token in one.owned.items()
    }
    assert a.beat(a.owned).error_code == error_code.GROUP_CLASSIC
    assert convert(cluster) == error_code.NONE, "it is one"
    again = [Returning(one).enter() for one in (a, b)]
    assert {one.joined().generation for one in again} == {epoch + 1}
    leader = next(one for one in again if one.members)
    for one in again:
        one.sync({"a": plan_of(0, 1), "b": plan_of(2, 3)} if one is leader else None)
    tokens = [token for one in again for token in one.take().values()]
    assert len(tokens) == 4
    assert min(tokens) > max([*a.owned.values(), *b.owned.values()])
    assert cluster.state() == "Stable"
    assert a.beat(a.owned).error_code == error_code.GROUP_CLASSIC


def test_members_on_streams_hear_it_and_are_on_none() -> None:
    cluster = incremental_shard(4, config=AUTO)
    a, b = both(cluster, "a", "b", on_streams=True)
    assert isinstance(a, StreamMember)
    assert isinstance(b, StreamMember)
    before = len(cluster.pushes)
    assert convert(cluster) == error_code.NONE
    pushed = [push.message for push in cluster.pushes[before:]]
    news = [one for one in pushed if isinstance(one, session_pb2.GroupChanged)]
    assert len(news) == len(pushed)
    assert {(one.member_id, one.error_code) for one in news} == {
        ("a", error_code.GROUP_CLASSIC),
        ("b", error_code.GROUP_CLASSIC),
    }
    assert not cluster.shard.streams
    assert a.beat().error_code == error_code.GROUP_CLASSIC


def commit(member: NumberedMember, number: int, seq: int, token: Position | None) -> tuple[int, int]:
    """What becomes of the commit of a partition; of the call, and of the partition."""
    request = coordinator_pb2.OffsetCommitRequest(
        group_id="g", member_id=member.member_id, member_epoch=member.epoch, member_seq=seq
    )
    entry = request.topics.add(name="t").partitions.add(partition=number, offset=seq)
    if token is not None:
        entry.token.CopyFrom(token.to_proto())
    answer = member.cluster.ask(request)
    assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
    return answer.error_code, answer.topics[0].partitions[0].error_code


def test_the_owners_commits_count_until_the_next_assignment() -> None:
    cluster = incremental_shard(2, config=AUTO)
    a, b = both(cluster, "a", "b")
    ((_, number),), ((_, other),) = a.has, b.has
    token = a.owned["t", number]
    assert commit(a, number, 1, token) == (0, 0)
    assert commit(a, number, 2, token) == (0, 0)
    assert convert(cluster) == error_code.NONE
    assert commit(a, number, 1, token)[0] == error_code.INVALID_REQUEST, "it was overtaken before"
    assert commit(a, number, 3, token) == (0, 0)
    assert commit(a, other, 4, b.owned["t", other])[1] == error_code.STALE_MEMBER_EPOCH
    assert commit(a, number, 4, Position(token.epoch, token.offset - 1))[1] == error_code.STALE_MEMBER_EPOCH
    assert commit(a, number, 4, None)[0] == error_code.GROUP_CLASSIC
    classic = VirtualMember(cluster, "a")
    classic.member_id, classic.generation = "a", cluster.shard.groups["g"].generation
    assert classic.commit(9, partition=number) == error_code.REBALANCE_IN_PROGRESS
    one, two = Returning(a).enter(), Returning(b).enter()
    one.joined(), two.joined()
    assert commit(a, number, 4, token) == (0, 0)
    cluster = cluster.reloaded()
    a.cluster = cluster
    assert commit(a, number, 5, token) == (0, 0)
    one.cluster = two.cluster = cluster
    for member in (one, two):
        member.sync({"a": plan_of(0), "b": plan_of(1)} if member.members else None)
    one.take(), two.take()
    assert commit(a, number, 6, token)[0] == error_code.GROUP_CLASSIC


def test_who_commits_on_the_way_back_is_heard_of() -> None:
    """A commit of a classic member prolongs its session, whatever it names, and M3 counts from it."""
    cluster = incremental_shard(2, config=replace(AUTO, incremental_session_timeout_ms=10_000))
    a, _ = both(cluster, "a", "b")
    ((_, number),) = a.has
    assert convert(cluster) == error_code.NONE
    for seq in (1, 2):
        cluster.advance(8_000)
        assert commit(a, number, seq, a.owned["t", number]) == (0, 0)
    assert list(cluster.shard.groups["g"].members) == ["a"], "b was silent"
    cluster.advance(11_000)
    assert not cluster.shard.groups["g"].members
    assert cluster.kinds().count("member_left") == 2
    assert not broken_promises(cluster)


def test_a_partition_on_its_way_stays_with_whoever_has_it() -> None:
    cluster = incremental_shard(4, config=AUTO)
    (a,) = both(cluster, "a")
    before = dict(a.owned)
    b = NumberedMember(cluster, "b")
    b.classic_protocols = ["range"]
    b.join()
    a.beat(a.owned)
    taken = before.keys() - a.owned.keys()
    assert len(taken) == 2, "it has not given them back"
    assert convert(cluster) == error_code.NONE
    owners = cluster.shard.groups["g"].owners
    assert owners == {partition: ("a", token) for partition, token in before.items()}
    keeping, other = Returning(a, keeps=before).enter(), Returning(b).enter()
    keeping.joined(), other.joined()
    for member in (keeping, other):
        member.sync({"a": plan_of(0, 1), "b": plan_of(2, 3)} if member.members else None)
    kept = keeping.take()
    assert kept == {partition: before[partition] for partition in kept}
    assert len(kept) == 2
    assert other.take() == {}, "the other one still has them"


def test_a_classic_client_brings_the_group_back() -> None:
    cluster = incremental_shard(4, config=AUTO)
    a, b = both(cluster, "a", "b")
    old = VirtualMember(cluster, "old").join()
    assert old.is_parked
    assert cluster.kinds()[-1] == "group_reverted"
    again = [Returning(one) for one in (a, b)]
    old.protocols = again[0].protocols
    for one in again:
        one.enter()
    assert old.joined().generation == again[0].joined().generation
    assert "client 'old'" in cluster.describe().cause.sentence


class Unnamed(NumberedMember):
    """A member that says that it can be in a classic group, but not with which protocols."""

    def ask(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        request.can_be_classic = True
        return super().ask(request)


@pytest.mark.parametrize("policy", ["never", "always"])
def test_else_a_classic_client_is_refused_and_nothing_changes(policy: Literal["never", "always"]) -> None:
    config = GroupConfig(convert=policy, incremental_assignment_interval_ms=0)
    cluster = incremental_shard(4, config=config)
    both(cluster, "a")
    kinds = cluster.kinds()
    answer = VirtualMember(cluster, "old").join().joined()
    assert answer.error_code == error_code.INCONSISTENT_GROUP_PROTOCOL
    assert policy in answer.error_message
    assert cluster.kinds() == kinds
    assert convert(cluster) == error_code.NONE


def test_members_that_one_record_cannot_hold_stay_incremental(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = incremental_shard(2, config=AUTO)
    both(cluster, "a", "b")
    before = len(cluster.log)
    sizes: list[int] = []

    def is_too_much(records: list[records_pb2.Record]) -> bool:
        sizes.append(len(records[0].group_reverted.members))
        return False

    monkeypatch.setattr(reversions, "is_one_append", is_too_much)
    assert convert(cluster) == error_code.INCONSISTENT_GROUP_PROTOCOL
    answer = VirtualMember(cluster, "c").join().joined()
    assert answer.error_code == error_code.INCONSISTENT_GROUP_PROTOCOL
    assert "more than the log takes" in answer.error_message
    assert sizes == [2, 2]
    unknown = VirtualMember(cluster, "d")
    unknown.member_id = "d-1"
    assert unknown.join().joined().error_code
    assert sizes == [2, 2], "whoever is refused anyway has no record made"
    assert len(cluster.log) == before


@pytest.mark.parametrize(
    ("kind", "why"),
    [(NumberedMember, "can only be in an incremental group"), (Unnamed, "did not say what it can use")],
    ids=["cannot", "does not say with what"],
)
def test_a_raw_member_that_might_not_fit_into_a_classic_group_is_not_put_out(
    kind: type[NumberedMember], why: str
) -> None:
    """INC-150: it works, so the classic client is refused, whatever assignors that has."""
    cluster = incremental_shard(4, config=AUTO)
    (both_kinds,) = both(cluster, "a")
    raw = kind(cluster, "raw")
    assert not raw.join().error_code
    settle(both_kinds, raw)
    kinds = cluster.kinds()
    answer = VirtualMember(cluster, "old").join().joined()
    assert answer.error_code == error_code.INCONSISTENT_GROUP_PROTOCOL
    assert f"member raw {why}" in answer.error_message
    assert convert(cluster) == error_code.INCONSISTENT_GROUP_PROTOCOL, "not for an operator either"
    assert cluster.kinds() == kinds
    raw.classic_protocols = ["range"]
    assert not raw.join().error_code
    assert VirtualMember(cluster, "old").join().is_parked
    assert cluster.kinds()[-1] == "group_reverted"


def saying(cluster: VirtualShard, **protocols: list[str]) -> list[NumberedMember]:
    """Members of both kinds in an incremental group that say what they can use in a classic one."""
    members = both(cluster, *protocols)
    for member in members:
        member.classic_protocols = protocols[member.member_id]
        assert not member.join().error_code
    settle(*members)
    return members


@pytest.mark.parametrize("how", ["said", "another owner", "by its classic join"])
def test_a_classic_client_that_shares_no_assignor_is_refused_and_stops_nobody(how: str) -> None:
    """INC-150: in the classic group the members would be refused, one after the other."""
    cluster = incremental_shard(4, config=AUTO)
    if how == "by its classic join":
        stable(cluster, "a", "b")
        assert convert(cluster, INCREMENTAL) == error_code.NONE
    else:
        saying(cluster, a=["range"], b=["sticky", "range"])
        check_every_cut([*cluster.log], AUTO)
    if how == "another owner":
        cluster = incremental_shard(4, cluster.log, AUTO)
    kinds = cluster.kinds()
    other = VirtualMember(cluster, "old")
    other.protocols = [("sticky", b"m"), ("cooperative-sticky", b"m")]
    answer = other.join().joined()
    assert answer.error_code == error_code.INCONSISTENT_GROUP_PROTOCOL
    assert "could use none of cooperative-sticky, sticky in a classic group" in answer.error_message
    assert cluster.kinds() == kinds
    assert VirtualMember(cluster, "older").join().is_parked
    assert cluster.kinds()[-1] == "group_reverted"


def test_members_that_share_no_assignor_stay_incremental_though_an_operator_asks() -> None:
    cluster = incremental_shard(4, config=AUTO)
    _, b = saying(cluster, a=["range"], b=["sticky"])
    assert convert(cluster) == error_code.INCONSISTENT_GROUP_PROTOCOL
    b.classic_protocols = ["range"]
    assert not b.join().error_code
    assert convert(cluster) == error_code.NONE


def test_what_a_newcomer_shares_with_each_member_but_not_with_all_is_none_in_common() -> None:
    cluster = incremental_shard(4, config=AUTO)
    saying(cluster, a=["range", "x"], b=["sticky", "x"])
    other = VirtualMember(cluster, "old")
    other.protocols = [("range", b"m"), ("sticky", b"m")]
    assert other.join().joined().error_code == error_code.INCONSISTENT_GROUP_PROTOCOL


def test_who_does_not_come_back_is_removed() -> None:
    """INC-153: not before its session, though the others wait for shorter than that."""
    cluster = incremental_shard(4, config=AUTO)
    (a,) = both(cluster, "a")
    b = NumberedMember(cluster, "b", instance="static")
    b.classic_protocols = ["range"]
    b.join()
    assert AUTO.incremental_session_timeout_ms > 31_000
    assert convert(cluster) == error_code.NONE
    member = Returning(a).enter()
    cluster.advance(31_000)
    assert member.is_parked, "the other one may not have heard of it, and works"
    cluster.advance(100_000)
    assert member.joined().members
    assert member.members == ["a"]


def test_a_leave_of_who_has_not_heard_of_it_counts() -> None:
    cluster = incremental_shard(4, config=AUTO)
    a, b = both(cluster, "a", "b")
    assert not b.join().error_code
    assert convert(cluster) == error_code.NONE
    b.seq -= 1
    assert b.leave().error_code == error_code.FENCED_MEMBER_EPOCH
    b.seq += 1
    assert b.leave().member_epoch == -1
    assert cluster.kinds()[-1] == "member_left"
    assert Returning(a).enter().joined().error_code == error_code.NONE
    late = a.leave()
    assert late.error_code == error_code.GROUP_CLASSIC


def test_a_leave_may_name_a_join_that_was_answered_group_converted() -> None:
    """INC-155: that is in no record, and its member was not heard of since; nobody need wait for it."""
    cluster = incremental_shard(4, config=AUTO)
    first, second = stable(cluster, "a", "b")
    assert convert(cluster, INCREMENTAL) == error_code.NONE
    assert second.enter().joined().error_code == error_code.GROUP_CONVERTED
    assert convert(cluster) == error_code.NONE
    leaver = second.turn()
    leaver.process_id = b"another process."
    assert leaver.leave().error_code == error_code.FENCED_MEMBER_EPOCH
    leaver.process_id = second.process_id
    assert leaver.leave().member_epoch == -1
    again = Returning(first.turn()).enter()
    assert list(cluster.shard.groups["g"].members) == [first.member_id]
    assert again.joined().error_code == error_code.NONE


@pytest.mark.parametrize("upto", [0, 1, 2])
def test_another_owner_goes_on(upto: int) -> None:
    cluster = incremental_shard(4, config=AUTO)
    a, b = both(cluster, "a", "b")
    assert convert(cluster) == error_code.NONE
    members = [Returning(one) for one in (a, b)]
    for member in members[:upto]:
        member.enter()
    cluster = cluster.reloaded()
    assert cluster.state() == ("CompletingRebalance" if upto == 2 else "PreparingRebalance")
    for member in members:
        member.cluster = cluster
        member.enter()
    if upto == 2:
        members[0].enter()
    assert {member.joined().error_code for member in members} == {error_code.NONE}


def test_a_static_member_that_is_away_does_not_hold_up_the_others_for_ever() -> None:
    """INC-153: it is in no generation before it says what it supports, static or not."""
    config = replace(AUTO, incremental_session_timeout_ms=25_000, max_session_timeout_ms=60_000)
    cluster = incremental_shard(4, config=config)
    (a,) = both(cluster, "a")
    b = NumberedMember(cluster, "b", instance="static")
    b.classic_protocols, b.session_ms = ["range"], 25_000
    b.join()
    settle(a, b)
    assert convert(cluster) == error_code.NONE
    again = Returning(b)
    again.instance = "static"
    member = Returning(a).enter()
    cluster.advance(20_000)
    again.enter()
    cluster.cancel(again.call_id)
    cluster.advance(60_000)
    assert member.joined().error_code == error_code.NONE


def test_a_static_id_passes_on_while_the_group_goes_back() -> None:
    """Its next process has its place, and what it had under new tokens; the one before commits no more."""
    cluster = incremental_shard(4, config=AUTO)
    (a,) = both(cluster, "a")
    b = NumberedMember(cluster, "b", instance="static")
    b.classic_protocols = ["range"]
    b.join()
    settle(a, b)
    number = next(number for _, number in b.has)
    token = b.owned["t", number]
    assert convert(cluster) == error_code.NONE
    later = VirtualMember(cluster, "old", instance="static").join()
    assert cluster.kinds()[-1] == "member_replaced"
    assert commit(b, number, 1, token)[0] == error_code.GROUP_ID_NOT_FOUND
    member = Returning(a)
    later.protocols = member.protocols
    member.enter()
    cluster.advance(60_000)
    assert {member.joined().error_code, later.joined().error_code} <= {error_code.NONE}


def test_it_stays_incremental_while_members_have_something_of_a_deleted_topic() -> None:
    """INC-150: also of what they are to give back; it is another topic's then."""
    cluster = incremental_shard(4, config=AUTO)
    both(cluster, "a")
    cluster.feed(TopicsChanged(frozenset({"t"}), catalog=Catalog(50, {"t": 4}, {"t": 49}, {"t": 50})))
    assert convert(cluster) == error_code.INCONSISTENT_GROUP_PROTOCOL
    assert "group_reverted" not in cluster.kinds()


def test_who_waits_for_an_assignment_is_told_and_the_assignment_counts_no_more() -> None:
    """INC-152: it is for the group that was incremental."""
    cluster = incremental_shard(4, config=AUTO)
    (a,) = both(cluster, "a")
    cluster.shard.live_in(Room(assignors=SERVER_ASSIGNORS, at_once_max=0))
    b = NumberedMember(cluster, "b")
    b.seq = 1
    request = b.request(0)
    request.topics.names.append("t")
    request.rebalance_timeout_ms, request.can_be_classic = 30_000, True
    request.classic_protocols.append("range")
    request.owned.SetInParent()
    waiting = cluster.send(request)
    (work,) = cluster.work
    assert isinstance(work, Assign)
    beat = cluster.send(a.request(a.epoch))
    assert cluster.is_parked(waiting)
    assert cluster.is_parked(beat)
    assert convert(cluster) == error_code.NONE
    for call_id in (waiting, beat):
        answer = cluster.answer(call_id)
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        assert answer.error_code == error_code.GROUP_CLASSIC
    before = len(cluster.log)
    cluster.feed(answer_to(work))
    assert len(cluster.log) == before


def test_a_join_of_before_counts_no_more() -> None:
    """INC-156: a JoinGroup names a higher number than the incremental join did."""
    cluster = incremental_shard(4, config=AUTO)
    (a,) = both(cluster, "a")
    assert convert(cluster) == error_code.NONE
    late = Returning(a)
    late.seq -= 1
    assert late.enter().joined().error_code == error_code.REBALANCE_IN_PROGRESS
    late.seq -= 1
    assert late.enter().joined().error_code == error_code.REBALANCE_IN_PROGRESS
    assert Returning(a).enter().joined().error_code == error_code.NONE


def test_it_is_not_converted_before_it_has_an_assignment() -> None:
    """INC-151: what members had is theirs until then."""
    cluster = incremental_shard(4, config=AUTO)
    a, b = both(cluster, "a", "b")
    assert convert(cluster) == error_code.NONE
    members = [Returning(one).enter() for one in (a, b)]
    assert convert(cluster, INCREMENTAL) == error_code.INCONSISTENT_GROUP_PROTOCOL
    for member in members:
        member.joined()
    assert convert(cluster, INCREMENTAL) == error_code.INCONSISTENT_GROUP_PROTOCOL
    for member in members:
        member.sync({"a": plan_of(0, 1), "b": plan_of(2, 3)} if member.members else None)
    owned = [member.take() for member in members]
    assert convert(cluster, INCREMENTAL) == error_code.NONE
    group = incremental_of(cluster)
    assert [{p: held.token for p, held in group.members[m.member_id].held.items()} for m in members] == owned
    assert group.epoch == members[0].generation


@pytest.mark.parametrize("kind", [CLASSIC, INCREMENTAL, group_conversion_pb2.GROUP_KIND_UNSPECIFIED])
def test_the_verb_says_why_not(kind: group_conversion_pb2.GroupKind.ValueType) -> None:
    """INC-157: nothing is written, and the group is what it was."""
    cluster = incremental_shard(4, config=AUTO)
    assert convert(cluster, kind) == (error_code.GROUP_ID_NOT_FOUND if kind else error_code.INVALID_REQUEST)
    raw = NumberedMember(cluster, "raw")
    raw.join()
    before = len(cluster.log)
    expected = {CLASSIC: error_code.INCONSISTENT_GROUP_PROTOCOL, INCREMENTAL: error_code.NONE}
    assert convert(cluster, kind) == expected.get(kind, error_code.INVALID_REQUEST)
    assert len(cluster.log) == before
    raw.leave()
    if kind:
        assert convert(cluster, kind) == error_code.INCONSISTENT_GROUP_PROTOCOL, "it has no members"


def test_the_verb_needs_a_member_that_is_in_a_generation() -> None:
    """INC-157: who waits for its first one is no member yet, and a conversion names all that are."""
    cluster = incremental_shard(4, config=replace(AUTO, initial_rebalance_delay_ms=3_000))
    (member,) = both(cluster, "a")
    member.leave()
    waiting = Returning(member)
    waiting.member_id = ""
    assert waiting.enter().is_parked
    assert convert(cluster, INCREMENTAL) == error_code.INCONSISTENT_GROUP_PROTOCOL
    assert "group_converted" not in cluster.kinds()


def test_the_verb_needs_the_feature() -> None:
    cluster = VirtualShard(AUTO, features=ALL_FEATURES - {Feature.INCREMENTAL_GROUPS})
    assert convert(cluster) == error_code.UNSUPPORTED_VERSION


def test_an_operators_reason_is_in_the_history() -> None:
    cluster = incremental_shard(4, config=AUTO)
    (a,) = both(cluster, "a")
    assert convert(cluster) == error_code.NONE
    Returning(a).enter().joined()
    answer = cluster.ask(coordinator_pb2.GroupHistoryRequest(group_id="g"))
    assert isinstance(answer, coordinator_pb2.GroupHistoryResponse)
    newest = max(answer.generations, key=lambda one: one.generation)
    assert newest.cause.kind == common_pb2.REBALANCE_CAUSE_KIND_CONVERTED
    assert newest.cause.reason == "rolled back"


def test_a_record_that_names_others_is_not_loaded() -> None:
    """INC-150: it names all members, in the group's epoch."""
    cluster = incremental_shard(4, config=AUTO)
    both(cluster, "a", "b")
    assert convert(cluster) == error_code.NONE
    assert not broken_promises(cluster)
    for change in ("members", "generation"):
        log = list(cluster.log)
        position, record = log[-1]
        other = records_pb2.Record()
        other.CopyFrom(record)
        if change == "members":
            del other.group_reverted.members[0]
        else:
            other.group_reverted.generation += 1
        log[-1] = position, other
        with pytest.raises(ValueError, match=r"members of group|is in epoch"):
            VirtualShard(cluster.config, log)
