"""Answers that say no, of the type that fits the call."""

from collections.abc import Callable
from typing import Any

from muster_protos.muster.v1 import (
    common_pb2,
    coordinator_pb2,
    group_conversion_pb2,
    group_settings_pb2,
    incremental_pb2,
)

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.events import GroupRequest, GroupResponse

Owner = common_pb2.Coordinator | None

IN_QUARANTINE = (
    "the group is in quarantine: serving it made the coordinator fail twice, see its log; an operator "
    "releases it with `muster groups release`, or the next version of the servers does"
)
_TEXTS: dict[ErrorCode, str] = {
    error_code.UNKNOWN_MEMBER_ID: "the group has no such member; join with an empty member id",
    error_code.ILLEGAL_GENERATION: "the group is in another generation; join again",
    error_code.COORDINATOR_NOT_AVAILABLE: "what becomes of the member is on its way to the log; try again",
    error_code.FENCED_INSTANCE_ID: "another process has the place of the group_instance_id",
    error_code.REBALANCE_IN_PROGRESS: "the group rebalances; join again",
    error_code.GROUP_CONVERTED: "the group is incremental now; go on with ConsumerGroupHeartbeat",
    error_code.GROUP_CLASSIC: "the group is classic now; go on with JoinGroup",
}
"""Messages for people, of refusals without one of their own."""


def text_of(code: ErrorCode) -> str:
    """For people, what an error means that is answered without a text of its own; empty: nothing is said."""
    return _TEXTS.get(code, "")


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


def _join(
    request: coordinator_pb2.JoinGroupRequest, code: ErrorCode, common: _Common
) -> coordinator_pb2.JoinGroupResponse:
    echoed = "" if code == error_code.UNKNOWN_SERVER_ERROR else request.member_id  # as Kafka does (JG-21)
    response: coordinator_pb2.JoinGroupResponse = common.on(
        coordinator_pb2.JoinGroupResponse(error_code=code, generation=-1, member_id=echoed)
    )
    return response


def _sync(
    _: coordinator_pb2.SyncGroupRequest, code: ErrorCode, common: _Common
) -> coordinator_pb2.SyncGroupResponse:
    response: coordinator_pb2.SyncGroupResponse = common.on(
        coordinator_pb2.SyncGroupResponse(error_code=code)
    )
    return response


def _heartbeat(
    _: coordinator_pb2.HeartbeatRequest, code: ErrorCode, common: _Common
) -> coordinator_pb2.HeartbeatResponse:
    response: coordinator_pb2.HeartbeatResponse = common.on(
        coordinator_pb2.HeartbeatResponse(error_code=code)
    )
    return response


def _leave(
    _: coordinator_pb2.LeaveGroupRequest, code: ErrorCode, common: _Common
) -> coordinator_pb2.LeaveGroupResponse:
    response: coordinator_pb2.LeaveGroupResponse = common.on(
        coordinator_pb2.LeaveGroupResponse(error_code=code)
    )
    return response


def _commit(
    request: coordinator_pb2.OffsetCommitRequest, code: ErrorCode, common: _Common
) -> coordinator_pb2.OffsetCommitResponse:
    response: coordinator_pb2.OffsetCommitResponse = common.on(
        coordinator_pb2.OffsetCommitResponse(error_code=code)
    )
    for topic in request.topics:
        refused = response.topics.add()
        refused.name = topic.name
        add = refused.partitions.add
        for entry in topic.partitions:
            outcome = add()  # as of an answer: quicker than with its fields
            outcome.partition, outcome.error_code = entry.partition, code
    return response


def _fetch(
    request: coordinator_pb2.OffsetFetchRequest, code: ErrorCode, common: _Common
) -> coordinator_pb2.OffsetFetchResponse:
    response = coordinator_pb2.OffsetFetchResponse()
    for group in request.groups:
        common.on(response.groups.add(group_id=group.group_id, error_code=code))
    return response


def _offset_delete(
    _: coordinator_pb2.OffsetDeleteRequest, code: ErrorCode, common: _Common
) -> coordinator_pb2.OffsetDeleteResponse:
    response: coordinator_pb2.OffsetDeleteResponse = common.on(
        coordinator_pb2.OffsetDeleteResponse(error_code=code)
    )
    return response


def _describe(
    request: coordinator_pb2.DescribeGroupsRequest, code: ErrorCode, common: _Common
) -> coordinator_pb2.DescribeGroupsResponse:
    response = coordinator_pb2.DescribeGroupsResponse()
    for group_id in request.group_ids:
        common.on(response.groups.add(group_id=group_id, error_code=code))
    return response


def _list(
    _: coordinator_pb2.ListGroupsRequest, code: ErrorCode, __: _Common
) -> coordinator_pb2.ListGroupsResponse:
    return coordinator_pb2.ListGroupsResponse(error_code=code)


def _delete(
    request: coordinator_pb2.DeleteGroupsRequest, code: ErrorCode, common: _Common
) -> coordinator_pb2.DeleteGroupsResponse:
    response = coordinator_pb2.DeleteGroupsResponse()
    for group_id in dict.fromkeys(request.group_ids):
        common.on(response.results.add(group_id=group_id, error_code=code))
    return response


def _history(
    _: coordinator_pb2.GroupHistoryRequest, code: ErrorCode, common: _Common
) -> coordinator_pb2.GroupHistoryResponse:
    response: coordinator_pb2.GroupHistoryResponse = common.on(
        coordinator_pb2.GroupHistoryResponse(error_code=code)
    )
    return response


def _release(
    _: coordinator_pb2.ReleaseGroupRequest, code: ErrorCode, common: _Common
) -> coordinator_pb2.ReleaseGroupResponse:
    response: coordinator_pb2.ReleaseGroupResponse = common.on(
        coordinator_pb2.ReleaseGroupResponse(error_code=code)
    )
    return response


def _alter_settings(
    _: group_settings_pb2.AlterGroupSettingsRequest, code: ErrorCode, common: _Common
) -> group_settings_pb2.AlterGroupSettingsResponse:
    response: group_settings_pb2.AlterGroupSettingsResponse = common.on(
        group_settings_pb2.AlterGroupSettingsResponse(error_code=code)
    )
    return response


def _convert(
    _: group_conversion_pb2.ConvertGroupRequest, code: ErrorCode, common: _Common
) -> group_conversion_pb2.ConvertGroupResponse:
    response: group_conversion_pb2.ConvertGroupResponse = common.on(
        group_conversion_pb2.ConvertGroupResponse(error_code=code)
    )
    return response


def _incremental_heartbeat(
    _: incremental_pb2.ConsumerGroupHeartbeatRequest, code: ErrorCode, common: _Common
) -> incremental_pb2.ConsumerGroupHeartbeatResponse:
    response: incremental_pb2.ConsumerGroupHeartbeatResponse = common.on(
        incremental_pb2.ConsumerGroupHeartbeatResponse(error_code=code)
    )
    return response


def _incremental_describe(
    request: incremental_pb2.ConsumerGroupDescribeRequest, code: ErrorCode, common: _Common
) -> incremental_pb2.ConsumerGroupDescribeResponse:
    response = incremental_pb2.ConsumerGroupDescribeResponse()
    for group_id in request.group_ids:
        common.on(response.groups.add(group_id=group_id, error_code=code))
    return response


_BUILDERS: dict[type[GroupRequest], Callable[[Any, ErrorCode, _Common], GroupResponse]] = {
    coordinator_pb2.JoinGroupRequest: _join,
    coordinator_pb2.SyncGroupRequest: _sync,
    coordinator_pb2.HeartbeatRequest: _heartbeat,
    coordinator_pb2.LeaveGroupRequest: _leave,
    coordinator_pb2.OffsetCommitRequest: _commit,
    coordinator_pb2.OffsetFetchRequest: _fetch,
    coordinator_pb2.OffsetDeleteRequest: _offset_delete,
    coordinator_pb2.DescribeGroupsRequest: _describe,
    coordinator_pb2.ListGroupsRequest: _list,
    coordinator_pb2.DeleteGroupsRequest: _delete,
    coordinator_pb2.GroupHistoryRequest: _history,
    coordinator_pb2.ReleaseGroupRequest: _release,
    group_settings_pb2.AlterGroupSettingsRequest: _alter_settings,
    group_conversion_pb2.ConvertGroupRequest: _convert,
    incremental_pb2.ConsumerGroupHeartbeatRequest: _incremental_heartbeat,
    incremental_pb2.ConsumerGroupDescribeRequest: _incremental_describe,
}
