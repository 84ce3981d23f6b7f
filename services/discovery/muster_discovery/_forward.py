"""Forwards changes of the catalog to the instance of metadata that writes it."""

import hashlib
import secrets
import time

import grpc
import structlog
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_protos.muster.v1 import common_pb2
from muster_runtime.cluster.view import ClusterView
from muster_runtime.rpc.channels import Channels

log = structlog.get_logger()

_CHANGE_ID_BYTES = 16
_PATIENCE_S = 30.0


def change_id(request_id: str) -> bytes:
    """The id of a change, 16 bytes: a hash of the caller's request id, or random without one."""
    if not request_id:
        return secrets.token_bytes(_CHANGE_ID_BYTES)
    return hashlib.sha256(request_id.encode()).digest()[:_CHANGE_ID_BYTES]


class Forwarder:
    """Asks metadata to change a topic.

    The last writer is asked first, then the other instances, each only if it is the writer. If none is, one
    of those that answered takes the catalog over. The change has an id, so it is carried out once however
    many instances were asked.

    Args:
        channels: to the instances of metadata.
        view: while no writer is known, the instance that the view comes from is asked first.
        attempt_timeout_ms: time for one instance.
    """

    def __init__(self, channels: Channels, view: ClusterView, attempt_timeout_ms: int) -> None:
        self._channels = channels
        self._view = view
        self._attempt_timeout_s = attempt_timeout_ms / 1000
        self._writer: int | None = None

    async def change(
        self, request: metadata_pb2.ChangeTopicRequest, remaining_s: float | None
    ) -> metadata_pb2.ChangeTopicResponse:
        """Asks for one change.

        Args:
            request: the change, with an id.
            remaining_s: time that the caller still waits; None: no limit.

        Returns:
            The answer; COORDINATOR_NOT_AVAILABLE if no instance could: the change may then have been made.
        """
        answer = metadata_pb2.ChangeTopicResponse(
            error_code=common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE,
            error_message="no metadata instance answers; try again",
        )
        share_s = self._attempt_timeout_s
        until_s = time.monotonic() + (_PATIENCE_S if remaining_s is None else 0.7 * remaining_s - share_s)
        if remaining_s is not None:
            share_s = min(share_s, max(remaining_s * 0.9, 0.0) / len(self._channels))
        first = self._view.instance if self._writer is None else self._writer
        instances = [(first + step) % len(self._channels) for step in range(len(self._channels))]
        for only_writer in (True, False):
            request.only_writer = only_writer
            others = []
            for instance in instances:
                found = await self._ask(instance, request, share_s)
                while found is not None and found.pending and time.monotonic() < until_s:
                    answer, found = found, await self._ask(instance, request, share_s)
                if found is None:
                    continue
                if found.not_writer:
                    others.append(instance)
                    continue
                answer = found
                if answer.pending or answer.error_code != common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE:
                    self._writer = instance
                    return answer
            instances = others
        self._writer = None
        return answer

    async def _ask(
        self, instance: int, request: metadata_pb2.ChangeTopicRequest, timeout_s: float
    ) -> metadata_pb2.ChangeTopicResponse | None:
        """Asks one instance; returns None if it does not answer in time."""
        stub: metadata_pb2_grpc.MetadataServiceAsyncStub = metadata_pb2_grpc.MetadataServiceStub(
            self._channels.channel(instance)
        )
        try:
            answer: metadata_pb2.ChangeTopicResponse = await stub.ChangeTopic(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            log.warning("topic_change_failed", code=error.code().name, problem=error.details())
            return None
        return answer
