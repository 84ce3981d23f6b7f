"""What a request says of its member counts unless a later one of the same join was heard (INC-164)."""

from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

from muster_core.position import NOWHERE, Position


def in_order(request: ConsumerGroupHeartbeatRequest, named: Position) -> ConsumerGroupHeartbeatRequest:
    """The request, without what it says of its member if that was said before what is known.

    The versions that a member names grow, but for none at all: that it has stopped everything. A join that is
    made again is as old as the join.

    Args:
        request: belongs to the present join of its member, and is not the one that began it; one that names
            no join is left as it is.
        named: the newest version that a request of its member has named; nowhere: none did.
    """
    is_join = request.member_epoch == 0
    is_late = is_join or NOWHERE < Position.from_proto(request.version) < named
    if not is_late or not request.member_seq:
        return request
    rest = ConsumerGroupHeartbeatRequest()
    rest.CopyFrom(request)
    for field in ("topics", "topic_regex", "server_assignor", "rack_id", "rebalance_timeout_ms", "weight"):
        rest.ClearField(field)
    return rest
