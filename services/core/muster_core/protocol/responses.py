"""Answers that say no, of the type that fits the call."""

from collections.abc import Callable
from typing import Any

from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1 import coordinator_pb2 as pb

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.events import GroupRequest, GroupResponse

Owner = common_pb2.Coordinator | None


def refusal(
    request: GroupRequest, code: ErrorCode, shard_epoch: int, message: str = "", owner: Owner = None
) -> GroupResponse:
    """The answer to a call that ends with an error.

    A call about several groups, members or partitions is refused for each of them (conformance OC-15).

    Args:
        request: the call.
        code: the error.
        shard_epoch: epoch of the ownership; 0: none.
        message: explanation for people.
        owner: the coordinator to ask instead, if it is known.
    """
    return _BUILDERS[type(request)](request, code, _Common(shard_epoch, message, owner))


class _Common:
    """Fields that every answer has."""

    def __init__(self, shard_epoch: int, message: str, owner: Owner) -> None:
        self.shard_epoch = shard_epoch
        self.message = message
        self.owner = owner

    def on(self, response: Any) -> Any:
        response.shard_epoch = self.shard_epoch
        response.error_message = self.message
        if self.owner is not None:
            response.coordinator.CopyFrom(self.owner)
        return response


def _join(request: pb.JoinGroupRequest, code: ErrorCode, common: _Common) -> pb.JoinGroupResponse:
    echoed = "" if code == error_code.UNKNOWN_SERVER_ERROR else request.member_id  # as Kafka does (JG-21)
    response: pb.JoinGroupResponse = common.on(
        pb.JoinGroupResponse(error_code=code, generation=-1, member_id=echoed)
    )
    return response


def _sync(_: pb.SyncGroupRequest, code: ErrorCode, common: _Common) -> pb.SyncGroupResponse:
    response: pb.SyncGroupResponse = common.on(pb.SyncGroupResponse(error_code=code))
    return response


def _heartbeat(_: pb.HeartbeatRequest, code: ErrorCode, common: _Common) -> pb.HeartbeatResponse:
    response: pb.HeartbeatResponse = common.on(pb.HeartbeatResponse(error_code=code))
    return response


def _leave(_: pb.LeaveGroupRequest, code: ErrorCode, common: _Common) -> pb.LeaveGroupResponse:
    response: pb.LeaveGroupResponse = common.on(pb.LeaveGroupResponse(error_code=code))
    return response


def _commit(request: pb.OffsetCommitRequest, code: ErrorCode, common: _Common) -> pb.OffsetCommitResponse:
    response: pb.OffsetCommitResponse = common.on(pb.OffsetCommitResponse())
    for topic in request.topics:
        response.topics.add(
            name=topic.name,
            partitions=[
                pb.OffsetCommitResponse.Partition(partition=entry.partition, error_code=code)
                for entry in topic.partitions
            ],
        )
    return response


def _fetch(request: pb.OffsetFetchRequest, code: ErrorCode, common: _Common) -> pb.OffsetFetchResponse:
    response = pb.OffsetFetchResponse()
    for group in request.groups:
        common.on(response.groups.add(group_id=group.group_id, error_code=code))
    return response


def _offset_delete(_: pb.OffsetDeleteRequest, code: ErrorCode, common: _Common) -> pb.OffsetDeleteResponse:
    response: pb.OffsetDeleteResponse = common.on(pb.OffsetDeleteResponse(error_code=code))
    return response


def _describe(
    request: pb.DescribeGroupsRequest, code: ErrorCode, common: _Common
) -> pb.DescribeGroupsResponse:
    response = pb.DescribeGroupsResponse()
    for group_id in request.group_ids:
        common.on(response.groups.add(group_id=group_id, error_code=code))
    return response


def _list(_: pb.ListGroupsRequest, code: ErrorCode, __: _Common) -> pb.ListGroupsResponse:
    return pb.ListGroupsResponse(error_code=code)


def _delete(request: pb.DeleteGroupsRequest, code: ErrorCode, common: _Common) -> pb.DeleteGroupsResponse:
    response = pb.DeleteGroupsResponse()
    for group_id in dict.fromkeys(request.group_ids):
        common.on(response.results.add(group_id=group_id, error_code=code))
    return response


def _history(_: pb.GroupHistoryRequest, code: ErrorCode, common: _Common) -> pb.GroupHistoryResponse:
    response: pb.GroupHistoryResponse = common.on(pb.GroupHistoryResponse(error_code=code))
    return response


def _release(_: pb.ReleaseGroupRequest, code: ErrorCode, common: _Common) -> pb.ReleaseGroupResponse:
    response: pb.ReleaseGroupResponse = common.on(pb.ReleaseGroupResponse(error_code=code))
    return response


_BUILDERS: dict[type[GroupRequest], Callable[[Any, ErrorCode, _Common], GroupResponse]] = {
    pb.JoinGroupRequest: _join,
    pb.SyncGroupRequest: _sync,
    pb.HeartbeatRequest: _heartbeat,
    pb.LeaveGroupRequest: _leave,
    pb.OffsetCommitRequest: _commit,
    pb.OffsetFetchRequest: _fetch,
    pb.OffsetDeleteRequest: _offset_delete,
    pb.DescribeGroupsRequest: _describe,
    pb.ListGroupsRequest: _list,
    pb.DeleteGroupsRequest: _delete,
    pb.GroupHistoryRequest: _history,
    pb.ReleaseGroupRequest: _release,
}
