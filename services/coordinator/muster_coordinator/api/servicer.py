"""The gRPC servicers of the coordinator: one handler for all unary calls, one for sessions."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from muster_core.events import GroupRequest, GroupResponse
from muster_protos.limits import REQUEST_MAX_BYTES
from muster_protos.muster.v1 import coordinator_pb2_grpc, session_pb2_grpc
from muster_runtime.rpc.quotas import current_connection
from muster_runtime.rpc.sizes import size_of

from muster_coordinator.api.admission import Admit, admit_all, end_later
from muster_coordinator.api.callers import Callers

METHOD_LIMITS = {
    "JoinGroup": 2 << 20,
    "SyncGroup": REQUEST_MAX_BYTES,
    "OffsetCommit": REQUEST_MAX_BYTES,
    "OffsetFetch": REQUEST_MAX_BYTES,
    "ConsumerGroupHeartbeat": 2 << 20,
}
"""Largest request in bytes of the calls that may exceed the general limit. What a call brings must fit into
one record of the log (8 MiB)."""
SESSION_LIMITS = {"Session": 8 << 20}
"""Largest message of a session in bytes; its calls have the limits of the unary ones besides."""
LARGEST_REQUEST_BYTES = max(*METHOD_LIMITS.values(), *SESSION_LIMITS.values())
"""The highest of these limits."""


class GroupCoordinatorServicer(coordinator_pb2_grpc.GroupCoordinatorServiceServicer):
    """Kafka's group protocols over gRPC: classic groups and incremental ones.

    Args:
        answer: answers a call from a host.
        encoded: encodes an answer to a host if it is large.
        callers: finds the host of a call.
        admit: counts a call, and raises what it is refused with.
    """

    def __init__(
        self,
        answer: Callable[[GroupRequest, str], Awaitable[GroupResponse]],
        encoded: Callable[[GroupResponse, str], Awaitable[bytes | None]],
        callers: Callers,
        admit: Admit = admit_all,
    ) -> None:
        self._answer_call = answer
        self._encoded = encoded
        self._admit = admit
        self._callers = callers

    async def _answer(self, request: Any, context: Any) -> Any:
        ended = self._admit(current_connection(), request, size_of(request))
        host = self._callers.host(context)
        try:
            answer = await self._answer_call(request, host)
        except asyncio.CancelledError:
            if ended is not None:
                end_later(ended)
            raise
        except BaseException:
            if ended is not None:
                ended()
            raise
        if ended is not None:
            ended()
        encoded = await self._encoded(answer, host)
        return answer if encoded is None else encoded

    JoinGroup = _answer
    SyncGroup = _answer
    Heartbeat = _answer
    LeaveGroup = _answer
    OffsetCommit = _answer
    OffsetFetch = _answer
    OffsetDelete = _answer
    DescribeGroups = _answer
    ListGroups = _answer
    DeleteGroups = _answer
    GroupHistory = _answer
    ReleaseGroup = _answer
    ConsumerGroupHeartbeat = _answer
    ConsumerGroupDescribe = _answer
    AlterGroupSettings = _answer
    ConvertGroup = _answer


class GroupSessionServicer(session_pb2_grpc.GroupSessionServiceServicer):
    """The group protocol on a stream, with news pushed.

    Args:
        serve: serves a stream, given the call and the client's host, until it ends.
        callers: finds the host of a call.
    """

    def __init__(self, serve: Callable[[Any, str], Awaitable[None]], callers: Callers) -> None:
        self._serve = serve
        self._callers = callers

    async def Session(  # type: ignore[override]  # the stubs know no servicers that are async
        self, _requests: Any, context: Any
    ) -> None:
        """Serves one stream."""
        await self._serve(context, self._callers.host(context))
