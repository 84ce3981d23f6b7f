"""Carries changes of the catalog to metadata, to the next instance when one fails."""

import grpc
import structlog
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_protos.muster.v1 import common_pb2
from muster_runtime.channels import Channels
from muster_runtime.view import ClusterView

log = structlog.get_logger()


class Forwarder:
    """Asks metadata to change a topic.

    Args:
        channels: to the instances of metadata.
        view: the instance that it watches is asked first.
        attempt_timeout_ms: time for one instance.
    """

    def __init__(self, channels: Channels, view: ClusterView, attempt_timeout_ms: int) -> None:
        self._channels = channels
        self._view = view
        self._attempt_timeout_s = attempt_timeout_ms / 1000

    async def change(
        self, request: metadata_pb2.ChangeTopicRequest, remaining_s: float | None
    ) -> tuple[metadata_pb2.ChangeTopicResponse, bool]:
        """Makes one change at the first instance that can.

        Args:
            request: the change.
            remaining_s: time that the caller still waits; None: no limit.

        Returns:
            The answer, COORDINATOR_NOT_AVAILABLE if nobody could; and whether an instance asked before
            may have made the change without being able to say so.
        """
        answer = metadata_pb2.ChangeTopicResponse(
            error_code=common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE,
            error_message="no metadata instance answers; try again",
        )
        share_s = self._attempt_timeout_s
        if remaining_s is not None:
            share_s = min(share_s, max(remaining_s * 0.9, 0.0) / len(self._channels))
        first = self._view.instance
        maybe_done = False
        for attempt in range(len(self._channels)):
            stub: metadata_pb2_grpc.MetadataServiceAsyncStub = metadata_pb2_grpc.MetadataServiceStub(
                self._channels.channel(first + attempt)
            )
            try:
                answer = await stub.ChangeTopic(request, timeout=share_s)
            except grpc.aio.AioRpcError as error:
                log.warning("topic_change_failed", code=error.code().name, problem=error.details())
            else:
                if answer.error_code != common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE:
                    return answer, maybe_done
            maybe_done = True
        return answer, maybe_done
