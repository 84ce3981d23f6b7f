"""How the client reacts to each outcome of each call (conformance list, section 2.2)."""

from enum import Enum

from muster_protos.muster.v1 import common_pb2

CONNECTION_LOST = -1_000
"""Used like an error code where no answer came: the outcome is unknown."""

OVERLOADED = -1_001
"""Used like an error code where the server is over a limit: try again later."""


class Call(Enum):
    """The calls of a member."""

    JOIN = "JoinGroup"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    CONSUMER_HEARTBEAT = "ConsumerGroupHeartbeat"
    COMMIT = "OffsetCommit"
    FETCH = "OffsetFetch"


class Reaction(Enum):
    """What to do next."""

    DONE = "use the answer"
    RETRY = "back off, repeat the call at the same coordinator"
    REDISCOVER = "look the coordinator up, back off, repeat the call; the membership lasts"
    TAKE_ID = "join again with the member id of the answer"
    REJOIN = "join again with member id and generation; give partitions up in order"
    CONVERT = "go on as a member of an incremental group; nothing is given up or lost"
    REVERT = "go on as a member of a classic group; what runs ends as before any of its rebalances"
    REJOIN_KEEP_ID = "join again with the member id, without a generation; partitions are lost"
    REJOIN_RESET_ID = "join again as a new member; partitions are lost"
    RAISE = "raise an error; the membership lasts"
    FATAL = "the member stops"


_R = Reaction
_EVERYWHERE = {
    common_pb2.ERROR_CODE_NONE: _R.DONE,
    CONNECTION_LOST: _R.REDISCOVER,
    OVERLOADED: _R.RETRY,
    common_pb2.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS: _R.RETRY,
    common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE: _R.REDISCOVER,
    common_pb2.ERROR_CODE_NOT_COORDINATOR: _R.REDISCOVER,
}
_MEMBERSHIP = {
    common_pb2.ERROR_CODE_GROUP_CONVERTED: _R.CONVERT,
    common_pb2.ERROR_CODE_ILLEGAL_GENERATION: _R.REJOIN_KEEP_ID,
    common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID: _R.REJOIN_RESET_ID,
    common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS: _R.REJOIN,
    common_pb2.ERROR_CODE_GROUP_QUARANTINED: _R.RETRY,  # until an operator releases the group
}
TABLE: dict[Call, dict[int, Reaction]] = {
    Call.JOIN: _EVERYWHERE | _MEMBERSHIP | {common_pb2.ERROR_CODE_MEMBER_ID_REQUIRED: _R.TAKE_ID},
    # A sync is repeated, not turned into a join as in Kafka: the generation is stored, so the next
    # coordinator knows it, and a leader's second join would start a rebalance.
    # A leader that read the topics before a partition was removed reads them again.
    Call.SYNC: _EVERYWHERE | _MEMBERSHIP | {common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION: _R.REJOIN},
    Call.HEARTBEAT: _EVERYWHERE | _MEMBERSHIP,
    # That another process has the place of a static member is fatal, unless it joins (`Membership`).
    Call.CONSUMER_HEARTBEAT: _EVERYWHERE
    | {
        common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID: _R.REJOIN_KEEP_ID,
        common_pb2.ERROR_CODE_FENCED_MEMBER_EPOCH: _R.REJOIN_KEEP_ID,
        common_pb2.ERROR_CODE_GROUP_ID_NOT_FOUND: _R.REJOIN_KEEP_ID,
        common_pb2.ERROR_CODE_GROUP_CLASSIC: _R.REVERT,
        common_pb2.ERROR_CODE_GROUP_QUARANTINED: _R.RETRY,
    },
    Call.COMMIT: _EVERYWHERE
    | _MEMBERSHIP
    | {
        common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION: _R.RETRY,
        common_pb2.ERROR_CODE_STALE_MEMBER_EPOCH: _R.RETRY,  # the next heartbeat brings the epoch
        common_pb2.ERROR_CODE_GROUP_CLASSIC: _R.REVERT,
        common_pb2.ERROR_CODE_FENCED_MEMBER_EPOCH: _R.REJOIN_KEEP_ID,
        common_pb2.ERROR_CODE_GROUP_ID_NOT_FOUND: _R.REJOIN_KEEP_ID,
        common_pb2.ERROR_CODE_OFFSET_METADATA_TOO_LARGE: _R.RAISE,
        common_pb2.ERROR_CODE_INVALID_COMMIT_OFFSET_SIZE: _R.RAISE,
        common_pb2.ERROR_CODE_TOPIC_AUTHORIZATION_FAILED: _R.RAISE,
        common_pb2.ERROR_CODE_INVALID_REQUEST: _R.RAISE,
        common_pb2.ERROR_CODE_UNKNOWN_SERVER_ERROR: _R.RAISE,
    },
    Call.FETCH: _EVERYWHERE,
}
_OTHERWISE = {Call.FETCH: _R.RAISE}


def reaction_to(call: Call, code: int) -> Reaction:
    """The reaction to an error code. A code that is not in the table is fatal; of a fetch it is raised."""
    return TABLE[call].get(code, _OTHERWISE.get(call, _R.FATAL))
