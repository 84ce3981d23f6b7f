"""A classic group becomes incremental while its members work (docs/safety.md, INC-70 to INC-77)."""

from collections.abc import Callable
from typing import Any

import pytest
from kit.lives.incremental_shard import NumberedMember, held_in, incremental_of, incremental_shard
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core import error_code
from muster_core.catalog import Catalog
from muster_core.config import GroupConfig
from muster_core.events import Attach, StreamPlace, TopicsChanged
from muster_core.features import ALL_FEATURES, Feature
from muster_core.incremental.partitions import TopicPartition, by_topic
from muster_core.log.incremental_items import items_of
from muster_core.position import NOWHERE, Position
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import (
    common_pb2,
    coordinator_pb2,
    group_settings_pb2,
    incremental_pb2,
    session_pb2,
)

WAIT_MS = 5_000
CONFIG = GroupConfig(convert="auto", convert_after_ms=WAIT_MS, initial_rebalance_delay_ms=0)
STREAM = 7


def metadata(*owned: int, keeps: bool = False) -> bytes:
    """A subscription to `t` of a member that keeps, or gave up, some of it."""
    topics = by_topic(("t", number) for number in owned)
    return common_pb2.Subscription(
        version=1, topics=["t"], owned_partitions=topics, keeps_owned=keeps, generation=1
    ).SerializeToString()


def plan_of(*numbers: int) -> bytes:
    """An assignment of partitions of `t`."""
    topics = by_topic(("t", number) for number in numbers)
    return common_pb2.Assignment(version=1, partitions=topics).SerializeToString()


class Changing(VirtualMember):
    """A classic member that can be incremental."""

    def __init__(self, cluster: VirtualShard, name: str, *, process: bytes | None = None) -> None:
        super().__init__(cluster, name)
        self.seq = self.weight = 0
        self.process_id = name.encode().ljust(16, b".") if process is None else process
        self.protocols = [("range", metadata())]
        self.version = NOWHERE
        self.owned: dict[TopicPartition, Position] = {}

    def enter(self) -> "Changing":
        """Joins under the next number."""
        self.seq += 1
        self.join(
            member_seq=self.seq,
            process_id=self.process_id,
            weight=self.weight,
            client_version=f"library of {self.name}",
        )
        return self

    def attach(self, stream_id: int = STREAM) -> None:
        """Comes onto a stream."""
        request = session_pb2.Attach(group_id="g", member_id=self.member_id, generation=self.generation)
        self.cluster.feed(Attach(stream_id, request))

    def synced(self) -> coordinator_pb2.SyncGroupResponse:
        """Takes the answer to its SyncGroup, and what it says."""
        response = self.cluster.answer(self.call_id)
        assert isinstance(response, coordinator_pb2.SyncGroupResponse)
        if not response.error_code:
            self.version = Position.from_proto(response.version)
            tokens = {(kept.topic, kept.partition): kept.token for kept in response.kept_tokens}
            assignment = common_pb2.Assignment.FromString(response.assignment)
            for entry in assignment.partitions:
                for number in entry.partitions:
                    token = tokens.get((entry.topic, number), response.token)
                    self.owned[entry.topic, number] = Position(*map(int, token.split("-")))
        return response

    def heartbeat_code(self) -> int:
        """What a classic heartbeat is answered."""
        request = coordinator_pb2.HeartbeatRequest(
            group_id="g", member_id=self.member_id, generation=self.generation
        )
        answer = self.cluster.ask(request)
        assert isinstance(answer, coordinator_pb2.HeartbeatResponse)
        return answer.error_code

    def turn(self, *, has_stopped: bool = False) -> NumberedMember:
        """The member as an incremental one, as the first request of such a one names it."""
        member = NumberedMember(self.cluster, self.member_id)
        member.process_id, member.seq, member.epoch = self.process_id, self.seq, self.generation
        if not has_stopped:
            member.version, member.owned = self.version, dict(self.owned)
        return member

    def commits(self, number: int, generation: int | None = None) -> int:
        """Commits a partition with its generation and no token; returns what becomes of that."""
        request = coordinator_pb2.OffsetCommitRequest(
            group_id="g",
            member_id=self.member_id,
            generation=self.generation if generation is None else generation,
            topics=[
                coordinator_pb2.OffsetCommitRequest.Topic(
                    name="t",
                    partitions=[coordinator_pb2.OffsetCommitRequest.Partition(partition=number, offset=5)],
                )
            ],
        )
        answer = self.cluster.ask(request)
        assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code


def stable(
    cluster: VirtualShard, *names: str, on_streams: bool = True, partitions: int = 4, old: str = ""
) -> list[Changing]:
    """Classic members that have all of the topic, in turn."""
    members = [Changing(cluster, name, process=b"" if name == old else None) for name in names]
    for member in members:
        member.enter()
    cluster.advance(1)
    while any(member.is_parked for member in members):
        for member in [one for one in members if not one.is_parked]:
            member.enter()
    rejoin(cluster, members)
    assign(cluster, members, partitions)
    for member in members if on_streams else ():
        member.attach()
    return members


def rejoin(cluster: VirtualShard, members: list[Changing]) -> None:
    """Everybody joins again, so that all are in one generation."""
    for member in members:
        if member.call_id in cluster.answers:
            member.joined()
    if len({member.generation for member in members}) > 1 or any(m.generation < 1 for m in members):
        for member in members:
            member.protocols = [("range", metadata()), ("x", str(member.seq).encode())]
            member.enter()
        for member in members:
            member.joined()


def assign(cluster: VirtualShard, members: list[Changing], partitions: int) -> None:
    """The leader hands in the plan of the assignor `range`, and all hear it."""
    leader = next(member for member in members if member.members)
    fewest, more = divmod(partitions, len(members))
    shares, begin = {}, 0
    for place, member in enumerate(members):
        end = begin + fewest + (place < more)
        shares[member.member_id], begin = plan_of(*range(begin, end)), end
    for member in members:
        member.sync(shares if member is leader else None)
    for member in members:
        if member is not leader and member.call_id not in cluster.answers:
            member.sync()
        assert not member.synced().error_code


def converted_shard(*names: str) -> tuple[VirtualShard, list[Changing]]:
    """A group that was stable and is converted."""
    cluster = incremental_shard(config=CONFIG)
    members = stable(cluster, *names)
    cluster.advance(WAIT_MS)
    assert "group_converted" in cluster.kinds()
    return cluster, members


def test_owners_and_tokens_stay_and_nothing_else_is_written() -> None:
    """INC-70: one record, after which everybody has what it had, under the same tokens."""
    cluster, members = converted_shard("a", "b")
    assert cluster.kinds()[-1] == "group_converted"
    group = incremental_of(cluster)
    generation = members[0].generation
    assert (group.epoch, group.target_epoch) == (generation, generation)
    for member in members:
        seat = group.members[member.member_id]
        assert {one: held.token for one, held in seat.held.items()} == member.owned
        assert (seat.version, group.epoch_of(seat)) == (member.version, generation)
    before = len(cluster.log)
    for member in members:
        answer = member.turn().beat(member.owned)
        assert (answer.error_code, answer.member_epoch) == (error_code.NONE, generation)
        assert not answer.HasField("assignment"), "it knows its list"
    kinds = [record.WhichOneof("kind") for _, record in cluster.log[before:]]
    assert kinds == ["member_subscribed"] * 2, "that it was heard of, and no step"


def test_a_member_has_the_session_and_the_grace_that_its_classic_join_asked_for() -> None:
    """INC-104: it is told so, and it is removed when that is over, not before."""
    cluster = incremental_shard(config=CONFIG)
    (member,) = stable(cluster, "a")
    member.protocols = [("range", metadata()), ("x", b"again")]
    member.seq += 1
    member.session_timeout_ms = 90_000
    member.join(member_seq=member.seq, process_id=member.process_id, disconnect_grace_ms=60_000)
    cluster.advance(1)
    member.joined()
    member.sync({member.member_id: plan_of(0, 1, 2, 3)})
    assert not member.synced().error_code
    member.attach()
    cluster.advance(WAIT_MS)
    turned = member.turn()
    answer = turned.beat(member.owned)
    assert (answer.session_timeout_ms, answer.disconnect_grace_ms) == (90_000, 60_000)
    cluster.advance(89_000)
    assert member.member_id in incremental_of(cluster).members
    cluster.advance(2_000)
    assert member.member_id not in incremental_of(cluster).members


def test_classic_calls_are_told_and_change_nothing() -> None:
    """INC-73: joins, syncs and heartbeats of a member, and who comes to it on a stream."""
    cluster, (first, second) = converted_shard("a", "b")
    changes = [push.message for push in cluster.pushes if isinstance(push.message, session_pb2.GroupChanged)]
    assert {news.member_id for news in changes} == {first.member_id, second.member_id}
    assert {news.error_code for news in changes} == {error_code.GROUP_CONVERTED}
    before = len(cluster.log)
    assert first.heartbeat_code() == error_code.GROUP_CONVERTED
    assert first.enter().joined().error_code == error_code.GROUP_CONVERTED
    first.sync({first.member_id: plan_of(0, 1, 2, 3)})
    assert first.synced().error_code == error_code.GROUP_CONVERTED
    cluster.pushes.clear()
    first.attach()
    (push,) = cluster.pushes
    assert isinstance(push.message, session_pb2.AttachResult)
    assert push.message.error_code == error_code.GROUP_CONVERTED
    assert len(cluster.log) == before
    newcomer = Changing(cluster, "c").enter()
    assert newcomer.joined().error_code == error_code.GROUP_CONVERTED
    never = group_settings_pb2.GroupSettings(convert="never")
    cluster.ask(group_settings_pb2.AlterGroupSettingsRequest(group_id="g", set=never))
    old = VirtualMember(cluster, "old").join()
    assert old.joined().error_code == error_code.INCONSISTENT_GROUP_PROTOCOL
    stranger = coordinator_pb2.HeartbeatRequest(group_id="g", member_id="x", generation=1)
    answer = cluster.ask(stranger)
    assert isinstance(answer, coordinator_pb2.HeartbeatResponse)
    assert answer.error_code == error_code.UNKNOWN_MEMBER_ID


def test_a_join_that_was_answered_so_is_the_last_one_that_counts() -> None:
    """INC-74: the number of a join that no record has counts once, and for its own process alone."""
    cluster, (first, second) = converted_shard("a", "b")
    first.enter()
    turned = first.turn()
    assert not turned.beat(first.owned).error_code
    assert incremental_of(cluster).members[first.member_id].told.member_seq == first.seq
    turned.seq += 1
    assert turned.beat(first.owned).error_code == error_code.FENCED_MEMBER_EPOCH, "it was heard of"
    other = second.turn()
    other.process_id = b"another process."
    assert other.beat(second.owned).error_code == error_code.FENCED_MEMBER_EPOCH


def test_a_static_member_whose_join_was_stored_and_not_answered_hears_its_id() -> None:
    """INC-73: under an id of its own it would wait for itself; nobody else hears it."""
    cluster = incremental_shard(config=CONFIG)
    member = Changing(cluster, "a")
    member.instance = "i"
    join: dict[str, Any] = {"request_id": "1", "member_seq": 1, "process_id": member.process_id}
    member.join(**join)
    cluster.advance(1)
    member_id = member.joined().member_id
    member.sync({member_id: plan_of(0, 1, 2, 3)}).synced()
    member.attach()
    cluster.advance(WAIT_MS)
    assert cluster.kinds()[-1] == "group_converted"

    def told(**changes: Any) -> str:
        member.member_id = ""
        answer = member.join(**{**join, **changes}).joined()
        assert answer.error_code == error_code.GROUP_CONVERTED
        return answer.member_id

    assert told(request_id="2") == ""
    assert told() == member_id
    entered = NumberedMember(cluster, member_id, instance="i")
    entered.process_id, entered.seq = member.process_id, 1
    assert not entered.join().error_code


def preparing(cluster: VirtualShard, members: list[Changing]) -> None:
    """One of them joins again and waits for the others."""
    members[0].protocols = [("range", metadata()), ("x", b"other")]
    members[0].enter()
    assert members[0].is_parked


def completing(cluster: VirtualShard, members: list[Changing]) -> None:
    """All of them have joined again, and the leader has not assigned."""
    preparing(cluster, members)
    for member in members[1:]:
        member.enter()
    for member in members:
        member.joined()
        if not member.members:
            member.sync()
    members[0].attach()


Phase = Callable[[VirtualShard, list[Changing]], None]


@pytest.mark.parametrize("phase", [preparing, completing])
@pytest.mark.parametrize("crash", [False, True])
def test_any_phase_ends_with_the_last_stored_assignment(phase: Phase, crash: bool) -> None:
    """INC-70, INC-73: parked calls are told, and who stopped everything to join gets its whole list."""
    cluster = incremental_shard(config=CONFIG)
    members = stable(cluster, "a", "b", "c")
    phase(cluster, members)
    cluster.advance(WAIT_MS + 1_000)
    assert "group_converted" in cluster.kinds()
    parked = [member for member in members if member.call_id in cluster.answers]
    assert parked
    for member in parked:
        answer = cluster.answer(member.call_id)
        assert isinstance(answer, coordinator_pb2.JoinGroupResponse | coordinator_pb2.SyncGroupResponse)
        assert answer.error_code == error_code.GROUP_CONVERTED
    if crash:
        cluster = cluster.reloaded()
        cluster.feed(TopicsChanged(frozenset(), catalog=Catalog(6, {"t": 4}, {}, {"t": 2})))
        for member in members:
            member.cluster = cluster
    for member in members:
        turned = member.turn(has_stopped=True)
        answer = turned.beat(())
        assert not answer.error_code, answer.error_message
        assert held_in(answer) == member.owned


def test_what_nobody_has_is_given_with_the_same_decision() -> None:
    """A member that left in a join phase leaves partitions, which a target of the next epoch gives out."""
    cluster = incremental_shard(config=CONFIG)
    members = stable(cluster, "a", "b", "c")
    leave = coordinator_pb2.LeaveGroupRequest(
        group_id="g", members=[coordinator_pb2.LeaveGroupRequest.Member(member_id=members[2].member_id)]
    )
    cluster.ask(leave)
    cluster.advance(WAIT_MS + 1_000)
    kinds = cluster.kinds()
    assert kinds[kinds.index("group_converted") + 1 :][:2] == ["epoch_raised", "target_assigned"]
    owners = incremental_of(cluster).owners
    assert sorted(owners) == [("t", number) for number in range(4)]
    for member in members[:2]:
        for partition, token in member.owned.items():
            assert owners[partition] == member.member_id
            assert incremental_of(cluster).members[member.member_id].held[partition].token == token


@pytest.mark.parametrize("fault", ["old", "no stream", "never", "feature"])
def test_a_group_stays_classic(fault: str) -> None:
    """INC-71: one member that cannot be incremental, or policy, or the feature, keep it as it is."""
    config = GroupConfig(convert="never", initial_rebalance_delay_ms=0) if fault == "never" else CONFIG
    cluster = incremental_shard(config=config)
    if fault == "feature":
        cluster = VirtualShard(CONFIG, features=ALL_FEATURES - {Feature.INCREMENTAL_GROUPS})
    members = stable(cluster, "a", "b", on_streams=fault != "no stream", old="b" if fault == "old" else "")
    for _ in range(4):
        for member in members:
            member.heartbeat_code()
        cluster.advance(WAIT_MS)
    assert "group_converted" not in cluster.kinds()
    loaded = [record.generation_started.members for _, record in cluster.log]
    written = {one.process_id for entry in loaded for one in entry}
    assert (written == {b""}) == (fault == "feature")


def test_what_is_kept_and_not_given_is_released_first() -> None:
    """INC-72: a member works on what it keeps, whoever the last assignment gives it to."""
    cluster = incremental_shard(config=CONFIG)
    members = stable(cluster, "a", "b")
    first, second = members
    first.protocols = [("range", metadata(0, 1, keeps=True))]
    second.protocols = [("range", metadata(2, 3, keeps=True))]
    for member in members:
        member.enter()
    for member in members:
        member.joined()
    leader = next(member for member in members if member.members)
    shares = {first.member_id: plan_of(0), second.member_id: plan_of(1, 2, 3)}
    for member in members:
        member.sync(shares if member is leader else None)
    for _ in range(3):
        for member in members:
            member.heartbeat_code()
        cluster.advance(WAIT_MS)
    assert "group_converted" not in cluster.kinds(), "a works on t/1"


def test_a_classic_commit_counts_for_what_its_member_has_had_since_before() -> None:
    """INC-77: it names the generation that was converted, and nothing that came later."""
    cluster, (first, second) = converted_shard("a", "b")
    assert first.commits(0) == error_code.NONE
    assert first.commits(2) == error_code.STALE_MEMBER_EPOCH, "it is b's"
    assert first.commits(0, first.generation + 1) != error_code.NONE
    turned = first.turn()
    turned.beat(first.owned)
    assert first.commits(0) == error_code.NONE
    leave = second.turn()
    assert not leave.leave().error_code
    turned.beat(turned.owned)
    assert incremental_of(cluster).owners["t", 2] == first.member_id
    assert first.commits(2) == error_code.STALE_MEMBER_EPOCH, "it got that later"
    assert first.commits(0) == error_code.NONE


def test_a_leave_counts_until_the_member_is_heard_of() -> None:
    """INC-76: then it leaves with a heartbeat, which names its join."""
    cluster, (first, second) = converted_shard("a", "b")
    turned = second.turn()
    assert not turned.beat(second.owned).error_code

    def leaves(member: Changing) -> int:
        leaver = coordinator_pb2.LeaveGroupRequest.Member(member_id=member.member_id)
        answer = cluster.ask(coordinator_pb2.LeaveGroupRequest(group_id="g", members=[leaver]))
        assert isinstance(answer, coordinator_pb2.LeaveGroupResponse)
        return answer.members[0].error_code

    assert leaves(second) == error_code.UNKNOWN_MEMBER_ID
    assert leaves(first) == error_code.NONE
    assert set(incremental_of(cluster).members) == {second.member_id}
    assert cluster.log[-1][1].WhichOneof("kind") == "member_stepped", "b is given what a had"


@pytest.mark.parametrize("crash", [False, True])
def test_a_member_that_is_not_heard_of_lives_for_its_classic_session(crash: bool) -> None:
    """INC-75: it may work on for so long, and its log says so."""
    cluster = incremental_shard(config=CONFIG)
    members = [Changing(cluster, "a")]
    members[0].session_timeout_ms = 60_000
    members[0].enter()
    cluster.advance(1)
    members[0].joined()
    assign(cluster, members, 4)
    members[0].attach()
    cluster.advance(WAIT_MS)
    assert "group_converted" in cluster.kinds()
    if crash:
        cluster = cluster.reloaded()
    cluster.advance(59_000)
    assert incremental_of(cluster).members
    cluster.advance(2_000)
    assert not incremental_of(cluster).members


def test_a_replay_and_a_snapshot_say_the_same() -> None:
    """INC-12, INC-70."""
    cluster, (first, _) = converted_shard("a", "b")
    again = cluster.reloaded()
    assert list(items(again)) == list(items(cluster))
    entry = again.shard.groups["g"].history[-1]
    assert entry.cause.kind == common_pb2.REBALANCE_CAUSE_KIND_CONVERTED
    assert incremental_of(again).converted == incremental_of(cluster).converted != NOWHERE
    first.cluster = again
    assert first.heartbeat_code() == error_code.GROUP_CONVERTED


def items(cluster: VirtualShard) -> list[bytes]:
    """The group in a snapshot."""
    return [item.SerializeToString() for item in items_of(incremental_of(cluster))]


def test_a_record_that_names_others_is_not_loaded() -> None:
    """INC-70: a conversion names all members of the generation."""
    cluster, _ = converted_shard("a", "b")
    for change in ("member", "generation"):
        log = []
        for position, record in cluster.log:
            copy = records_pb2.Record.FromString(record.SerializeToString())
            if copy.HasField("group_converted") and change == "member":
                del copy.group_converted.members[0]
            elif copy.HasField("group_converted"):
                copy.group_converted.generation += 1
            log.append((position, copy))
        with pytest.raises(ValueError, match="group 'g'"):
            VirtualShard(CONFIG, log)


def test_a_converted_group_empties_and_is_classic_again() -> None:
    """INC-11: numbers go on."""
    cluster, members = converted_shard("a", "b")
    generation = members[0].generation
    for member in members:
        turned = member.turn()
        turned.beat(member.owned)
        assert not turned.leave().error_code
    again = Changing(cluster, "c", process=b"").enter()
    cluster.advance(1)
    assert again.joined().generation > generation


def test_the_first_request_may_come_by_a_stream() -> None:
    """A member is told that it is on the stream, and its news go there."""
    cluster, (first, _) = converted_shard("a", "b")
    request = first.turn().request(first.generation)
    request.owned.topics.extend(by_topic(first.owned))
    request.owned.SetInParent()
    call_id = cluster.send(request, place=StreamPlace(STREAM, 1, True))
    answer = cluster.answer(call_id)
    assert isinstance(answer, incremental_pb2.ConsumerGroupHeartbeatResponse)
    assert not answer.error_code
    assert isinstance(cluster.pushes[-1].message, session_pb2.AttachResult)
    assert incremental_of(cluster).members[first.member_id].told.on_session
