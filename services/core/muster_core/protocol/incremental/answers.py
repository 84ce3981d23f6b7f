"""What a member of an incremental group is told, in an answer and as news."""

from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatResponse

from muster_core.incremental.member import Held, Member
from muster_core.position import NOWHERE, Position
from muster_core.protocol.context import ShardContext
from muster_core.protocol.incremental.settings import grace_ms_of, session_ms_of
from muster_core.state.group import Group
from muster_core.state.group_settings import heartbeat_ms_of


def answer_of(
    context: ShardContext, group: Group, member: Member, *, whole_list: bool
) -> ConsumerGroupHeartbeatResponse:
    """What a member is told now.

    Args:
        context: the shard.
        group: its group, an incremental one.
        member: the member.
        whole_list: whether it is told its list, or that this is as it was.
    """
    config, incremental = context.config, group.incremental
    assert incremental is not None
    session_ms = session_ms_of(config, group.settings, member)
    interval_ms = heartbeat_ms_of(group.settings, config)
    if member.told.session_timeout_ms or member.told.is_numbered:  # often enough for its own session
        interval_ms = min(interval_ms, max(1, session_ms // 3))
    answer = ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=incremental.epoch_of(member),
        heartbeat_interval_ms=interval_ms,
        session_timeout_ms=session_ms,
        disconnect_grace_ms=grace_ms_of(config, group.settings, member),
        version=member.version.to_proto(),
        shard_epoch=context.epoch,
        awaits_owned=bool(member.pending),
    )
    if whole_list:
        answer.assignment.CopyFrom(assignment_of(member))
        of_target = (one for one in reversed(group.history) if one.generation == incremental.target_epoch)
        if (entry := next(of_target, None)) is not None:
            answer.cause.CopyFrom(entry.cause)
    return answer


def assignment_of(member: Member) -> ConsumerGroupHeartbeatResponse.Assignment:
    """All that a member may work on, with its tokens."""
    numbers: dict[tuple[str, Position], list[int]] = {}
    of: tuple[str, Held] | None = None
    some: list[int] = []
    for (topic, number), held in member.held.items():
        if held.taken != NOWHERE:
            continue
        if of is None or held is not of[1] or topic != of[0]:  # mostly as the one before
            of = topic, held
            some = numbers.setdefault((topic, held.token), [])
        some.append(number)
    assignment = ConsumerGroupHeartbeatResponse.Assignment()
    for (topic, token), some in sorted(numbers.items()):
        assignment.given.add(topic=topic, partitions=sorted(some), token=token.to_proto())
    return assignment
