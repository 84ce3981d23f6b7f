"""Incremental groups in snapshots."""

from collections import defaultdict
from collections.abc import Iterator

from muster_protos.muster.log.v1 import incremental_pb2, snapshot_pb2

from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import Held, Member, Told
from muster_core.incremental.partitions import TopicPartition, by_topic, named_in
from muster_core.incremental.rollout import Hold
from muster_core.position import NOWHERE, Position


def items_of(group: IncrementalGroup) -> Iterator[snapshot_pb2.SnapshotItem]:
    """The items of a group, without its offsets; equal groups give equal ones."""
    yield snapshot_pb2.SnapshotItem(
        incremental=incremental_pb2.IncrementalState(
            epoch=group.epoch,
            target_epoch=group.target_epoch,
            server_assignor=group.server_assignor,
            topics_hash=group.topics_hash,
            renewed=[
                incremental_pb2.IncrementalState.Renewed(topic=topic, deleted=deleted.to_proto())
                for topic, deleted in sorted(group.renewed.items())
            ],
            converted=group.converted.to_proto() if group.converted != NOWHERE else None,
            converted_generation=group.converted_generation,
            hold=incremental_pb2.IncrementalState.Hold(**group.hold._asdict()) if group.hold else None,
        )
    )
    for member in group.in_order():
        yield snapshot_pb2.SnapshotItem(incremental_member=_state_of_member(member))
    for expression, topics in sorted(group.expressions.items()):
        yield snapshot_pb2.SnapshotItem(
            expression=incremental_pb2.ExpressionResolved(expression=expression, topics=sorted(topics))
        )


def _state_of_member(member: Member) -> incremental_pb2.IncrementalMemberState:
    state = incremental_pb2.IncrementalMemberState(
        member=member.told.to_record(),
        epoch=member.epoch,
        previous_epoch=member.previous_epoch,
        waits=member.waits,
        joined=member.joined.to_proto(),
        version=member.version.to_proto(),
        target=by_topic(member.target),
        commit_seq=member.commit_seq,
    )
    alike: defaultdict[Held, list[TopicPartition]] = defaultdict(list)
    for partition, held in member.held.items():
        alike[held].append(partition)
    for held, partitions in sorted(alike.items()):
        state.held.add(topics=by_topic(partitions), token=held.token.to_proto(), taken=held.taken.to_proto())
    return state


def state_of(state: incremental_pb2.IncrementalState) -> IncrementalGroup:
    """The group that an item begins."""
    group = IncrementalGroup(state.epoch)
    group.target_epoch, group.server_assignor = state.target_epoch, state.server_assignor
    group.topics_hash = state.topics_hash
    group.renewed = {one.topic: Position.from_proto(one.deleted) for one in state.renewed}
    group.converted = Position.from_proto(state.converted)
    group.converted_generation = state.converted_generation
    if state.HasField("hold"):
        hold = state.hold
        group.hold = Hold(hold.member_id, hold.began_ms, hold.until_ms, hold.is_start, hold.freed_epoch)
    return group


def member_of(state: incremental_pb2.IncrementalMemberState) -> Member:
    """The member of an item."""
    held = {
        partition: Held(Position.from_proto(some.token), Position.from_proto(some.taken))
        for some in state.held
        for partition in named_in(some.topics)
    }
    return Member(
        Told.of_record(state.member),
        epoch=state.epoch,
        previous_epoch=state.previous_epoch,
        waits=state.waits,
        joined=Position.from_proto(state.joined),
        version=Position.from_proto(state.version),
        held=held,
        target=frozenset(named_in(state.target)),
        commit_seq=state.commit_seq,
    )
