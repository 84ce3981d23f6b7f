"""Whose commits and fetches count in an incremental group (conformance OV-01 to OV-25)."""

from collections.abc import Callable, Collection

from muster_protos.muster.v1.coordinator_pb2 import OffsetCommitRequest

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.partitions import TopicPartition
from muster_core.position import NOWHERE, Position
from muster_core.state.group import Group

JudgeOfPartition = Callable[[TopicPartition, OffsetCommitRequest.Partition], ErrorCode]
"""Why one partition of a commit is not accepted; NONE: it is."""


def is_classic(group: IncrementalGroup | None, request: OffsetCommitRequest, *, by_token: bool) -> bool:
    """Whether a commit names the generation that was converted, as a classic member does (INC-77)."""
    return (
        group is not None
        and group.converted != NOWHERE
        and request.generation == group.converted_generation
        and not request.HasField("member_epoch")
        and not by_token
    )


def fault_of_commit(
    group: Group, member_id: str, epoch: int, *, by_token: bool, classic: bool = False
) -> ErrorCode | None:
    """Why no partition of a commit is accepted; None: each is looked at.

    Args:
        group: the group.
        member_id: who commits.
        epoch: of the commit.
        by_token: whether it is judged by its tokens.
        classic: whether it is that of a classic member, before or after the conversion.
    """
    if group.incremental is None:
        member = group.members.get(member_id)
        if member is not None and member.process_id:
            return None if by_token and group.reverted else error_code.GROUP_CLASSIC
        return error_code.GROUP_ID_NOT_FOUND if epoch >= 0 else error_code.UNKNOWN_MEMBER_ID
    if by_token or classic:
        return None if member_id in group.incremental.members else error_code.UNKNOWN_MEMBER_ID
    if epoch < 0 and not group.incremental.members:
        return None  # from outside
    return _fault_of_member(group, member_id, epoch)


def judge_of(
    group: IncrementalGroup,
    member_id: str,
    deleted: Collection[str],
    *,
    by_token: bool,
    classic: bool = False,
) -> JudgeOfPartition:
    """Looks at each partition of a commit (docs/safety.md, INC-50, INC-51).

    Args:
        group: the group.
        member_id: who commits; empty: somebody from outside.
        deleted: topics whose deletion is on its way to the log.
        by_token: whether the commit is judged by its tokens.
        classic: see `is_classic`: it counts for what its member has had since before the conversion.
    """

    def judge(partition: TopicPartition, entry: OffsetCommitRequest.Partition) -> ErrorCode:
        owner = group.members.get(group.owners.get(partition, ""))
        mine = owner is not None and owner.member_id == member_id
        if by_token and not entry.HasField("token"):
            return error_code.INVALID_REQUEST
        if by_token and (
            owner is None or not mine or owner.held[partition].token != Position.from_proto(entry.token)
        ):
            return error_code.STALE_MEMBER_EPOCH
        if classic and (owner is None or not mine or owner.held[partition].token >= group.converted):
            return error_code.STALE_MEMBER_EPOCH
        if not by_token and not classic and owner is not None and owner.on_stream:
            return error_code.STALE_MEMBER_EPOCH
        if (
            owner is not None
            and mine
            and (partition[0] in deleted or owner.is_stale(partition, group.renewed))
        ):
            return error_code.UNKNOWN_TOPIC_OR_PARTITION  # its work is of the topic that was deleted
        return error_code.NONE

    return judge


def judge_of_reverted(group: Group, member_id: str) -> JudgeOfPartition:
    """Looks at each partition of a commit by tokens in a group that is classic again (INC-154).

    Args:
        group: the group, without an assignment since.
        member_id: who commits.
    """

    def judge(partition: TopicPartition, entry: OffsetCommitRequest.Partition) -> ErrorCode:
        if not entry.HasField("token"):
            return error_code.INVALID_REQUEST
        is_owner = group.owners.get(partition) == (member_id, Position.from_proto(entry.token))
        return error_code.NONE if is_owner else error_code.STALE_MEMBER_EPOCH

    return judge


def fault_of_fetch(group: Group, member_id: str | None, epoch: int) -> ErrorCode | None:
    """Why a fetch is not answered; None: it is."""
    if group.incremental is None or (member_id is None and epoch < 0):
        return None
    return _fault_of_member(group, member_id or "", epoch)


def _fault_of_member(group: Group, member_id: str, epoch: int) -> ErrorCode | None:
    assert group.incremental is not None
    member = group.incremental.members.get(member_id)
    if member is None:
        return error_code.UNKNOWN_MEMBER_ID
    return None if group.incremental.epoch_of(member) == epoch else error_code.STALE_MEMBER_EPOCH
