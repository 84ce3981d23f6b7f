"""Sends events of the audit trail to metadata."""

from collections.abc import Sequence
from typing import Any

import grpc
import structlog
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc

from muster_runtime.rpc.access.keeper import Send
from muster_runtime.rpc.channels import Channels

ATTEMPT_S = 5.0

log = structlog.get_logger()


def sends_to(channels: Channels) -> Send:
    """What sends events to the first instance of metadata that keeps them.

    An instance of a version before the trail was kept answers UNIMPLEMENTED: then another one is asked.
    """

    async def send(events: Sequence[metadata_pb2.TrailEvent]) -> bool:
        request = metadata_pb2.RecordTrailRequest(events=events)
        for instance in range(len(channels)):
            stub: Any = metadata_pb2_grpc.MetadataServiceStub(channels.channel(instance))
            try:
                answer = await stub.RecordTrail(request, timeout=ATTEMPT_S)
            except grpc.aio.AioRpcError:
                continue
            if answer.outcome == metadata_pb2.LOG_OUTCOME_INVALID:
                log.error("audit_trail_refused", problem=answer.message, events=len(events))
                return True
            if answer.outcome == metadata_pb2.LOG_OUTCOME_OK:
                return True
        return False

    return send
