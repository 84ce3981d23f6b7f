"""The phase of a shard in this process, and the answers of a shard whose core must not be asked."""

import enum

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.events import GroupRequest
from muster_protos.muster.v1 import coordinator_pb2

NOT_SURE = "the coordinator cannot reach the log, so it is not sure that it still owns the group; try again"
_LOADING = "the coordinator is loading the group's shard; try again"
_FAILED = "the log of the group's shard cannot be served; its operator has been notified"
_MOVED = "another coordinator owns the group now"


class Phase(enum.Enum):
    """What this process does with a shard."""

    ELSEWHERE = "elsewhere"  # somebody else owns it; this process reads its log to take it over
    CLAIMING = "claiming"
    LOADING = "loading"
    SERVING = "serving"
    HANDING_OVER = "handing over"
    FAILED = "failed"
    GONE = "gone"

    @property
    def passes(self) -> bool:
        """Whether it ends by itself soon: a call may wait for that."""
        return self in (Phase.CLAIMING, Phase.LOADING, Phase.HANDING_OVER)

    def refusal_of(self, message: GroupRequest, *, successor_known: bool) -> tuple[ErrorCode, str]:
        """Code and words for a call in a phase in which nothing is served."""
        match self:
            case Phase.CLAIMING | Phase.LOADING | Phase.ELSEWHERE:
                # Clients do not expect COORDINATOR_LOAD_IN_PROGRESS from a SyncGroup (conformance GV-11).
                sync = isinstance(message, coordinator_pb2.SyncGroupRequest)
                code = error_code.REBALANCE_IN_PROGRESS if sync else error_code.COORDINATOR_LOAD_IN_PROGRESS
                return code, _LOADING
            case Phase.FAILED:
                return error_code.COORDINATOR_NOT_AVAILABLE, _FAILED
            case Phase.SERVING:
                return error_code.COORDINATOR_NOT_AVAILABLE, NOT_SURE
            case _:
                known, unknown = error_code.NOT_COORDINATOR, error_code.COORDINATOR_NOT_AVAILABLE
                return known if successor_known else unknown, _MOVED
