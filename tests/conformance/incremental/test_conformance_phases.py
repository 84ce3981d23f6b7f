"""What a coordinator answers about incremental groups of a shard that it does not serve (rows HQ)."""

import pytest
from muster_coordinator.shard.phase import Phase
from muster_core.error_code import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    NOT_COORDINATOR,
)
from muster_core.protocol.responses import refusal
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


@pytest.mark.row("HQ-04")
@pytest.mark.row("HQ-22")
@pytest.mark.parametrize(
    ("phase", "known", "code"),
    [
        (Phase.FAILED, False, COORDINATOR_NOT_AVAILABLE),
        (Phase.SERVING, False, COORDINATOR_NOT_AVAILABLE),
        (Phase.GONE, False, COORDINATOR_NOT_AVAILABLE),
        (Phase.GONE, True, NOT_COORDINATOR),
        (Phase.HANDING_OVER, True, NOT_COORDINATOR),
        (Phase.CLAIMING, False, COORDINATOR_LOAD_IN_PROGRESS),
        (Phase.LOADING, False, COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_a_shard_that_is_not_served_looks_at_no_field(phase: Phase, known: bool, code: int) -> None:
    request = ConsumerGroupHeartbeatRequest(member_epoch=-7)
    found, text = phase.refusal_of(request, successor_known=known)
    assert found == code
    answer = refusal(request, found, 3, text)
    assert answer == ConsumerGroupHeartbeatResponse(error_code=found, shard_epoch=3, error_message=text)
