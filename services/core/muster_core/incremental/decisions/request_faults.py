"""What is wrong with a heartbeat by itself, whatever its group is like."""

from collections.abc import Mapping

from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

from muster_core import error_code
from muster_core.incremental.decisions.request import JOIN, Refused
from muster_core.incremental.member import AWAY
from muster_core.incremental.targets.target import ServerAssignor


def fault_of(request: ConsumerGroupHeartbeatRequest, assignors: Mapping[str, ServerAssignor]) -> str:
    """What is wrong with a request by itself, for people; empty: nothing (conformance HQ-05 to HQ-14).

    Raises:
        Refused: it asks for an assignor that there is not, which is looked at last (HQ-15).
    """
    joins = request.member_epoch == JOIN
    faults = (
        (not request.member_id, "member_id is empty"),
        (not request.group_id.strip(), "group_id is empty"),
        (
            request.HasField("group_instance_id") and not request.group_instance_id.strip(),
            "group_instance_id is empty",
        ),
        (request.HasField("rack_id") and not request.rack_id.strip(), "rack_id is empty"),
        (joins and request.rebalance_timeout_ms <= 0, "rebalance_timeout_ms is needed to join"),
        (
            joins and (not request.HasField("owned") or bool(request.owned.topics)),
            "owned must be there to join, and empty",
        ),
        (
            joins and not request.HasField("topics") and not request.HasField("topic_regex"),
            "topics or topic_regex is needed to join",
        ),
        (
            request.member_epoch == AWAY and not request.HasField("group_instance_id"),
            "only a static member leaves for a while",
        ),
        (request.member_epoch < AWAY, "member_epoch is below -2"),
        (bool(request.member_seq) is not bool(request.process_id), "member_seq and process_id go together"),
    )
    fault = next((text for is_wrong, text in faults if is_wrong), "")
    if not fault and request.server_assignor and request.server_assignor not in assignors:
        text = f"there is no assignor {request.server_assignor!r}, only {', '.join(assignors)}"
        raise Refused(error_code.UNSUPPORTED_ASSIGNOR, text)
    return fault
