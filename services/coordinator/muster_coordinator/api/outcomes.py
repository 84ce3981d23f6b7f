"""What became of calls of consequence, as the trail records it."""

from typing import Any

from muster_core import error_code
from muster_core.events import GroupRequest, group_of
from muster_protos.muster.v1 import common_pb2, coordinator_pb2
from muster_protos.muster.v1.coordinator_pb2 import (
    DeleteGroupsRequest,
    LeaveGroupRequest,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from muster_runtime.rpc.access.trail import LISTED_MAX

from muster_coordinator.api.named import spans_of


def outcomes_of(request: GroupRequest, answer: Any) -> tuple[list[str], dict[str, str]]:
    """What a call of consequence was about, and what of it was not done, with the name of the error."""
    match request:
        case DeleteGroupsRequest():
            codes = {f"group:{result.group_id}": result.error_code for result in answer.results}
        case LeaveGroupRequest():
            codes = _left(request.group_id, answer) or {f"group:{request.group_id}": answer.error_code}
        case OffsetDeleteRequest():
            codes = _removed_offsets(request, answer) or {f"group:{request.group_id}": answer.error_code}
        case _:
            codes = {f"group:{group_of(request)}": answer.error_code}
    return list(codes), {what: common_pb2.ErrorCode.Name(code) for what, code in codes.items() if code}


def _left(
    group_id: str, answer: coordinator_pb2.LeaveGroupResponse
) -> dict[str, common_pb2.ErrorCode.ValueType]:
    """By member; one that is named as an id and as an instance id is out if either was so."""
    codes: dict[str, common_pb2.ErrorCode.ValueType] = {}
    for one in answer.members:
        what = f"member:{group_id}/{one.member_id or one.group_instance_id}"
        if codes.get(what) != error_code.NONE:
            codes[what] = one.error_code
    return codes


def _removed_offsets(
    request: OffsetDeleteRequest, answer: OffsetDeleteResponse
) -> dict[str, common_pb2.ErrorCode.ValueType]:
    """By topic, whose partitions have one outcome: ten thousand names would fill the disk, and take long."""
    outcomes = [
        (asked, topic.partitions[0].error_code)
        for asked, topic in zip(request.topics, answer.topics, strict=False)
        if topic.partitions
    ]
    of_group = f"offsets:{request.group_id}/"
    codes = {
        f"{of_group}{asked.topic}/{spans_of(asked.partitions)}": code
        for asked, code in outcomes[: LISTED_MAX - 1]
    }
    if rest := [code for _, code in outcomes[LISTED_MAX - 1 :]]:
        codes[f"{of_group}… ({len(rest):,} topics)"] = max(rest)
    return codes
