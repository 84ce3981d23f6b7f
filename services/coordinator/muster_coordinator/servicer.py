"""The gRPC face of the coordinator: every call goes to the same table."""

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from muster_core.events import GroupRequest, GroupResponse
from muster_protos.muster.v1 import coordinator_pb2_grpc, session_pb2_grpc

METHOD_LIMITS = {"JoinGroup": 2 << 20, "SyncGroup": 4 << 20, "OffsetCommit": 4 << 20, "OffsetFetch": 4 << 20}
"""Largest request in bytes of the calls that may exceed the general limit. What a call brings must fit into
one record of the log (8 MiB)."""
SESSION_LIMITS = {"Session": 8 << 20}
"""Largest message of a session in bytes; its calls have the limits of the unary ones besides."""


def host_of(peer: str) -> str:
    """The address in what grpc calls a peer: `ipv4:10.0.0.7:5123` → `10.0.0.7`; empty for a local socket."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    host, _, _ = unquote(rest).rpartition(":")
    return host.strip("[]")


class GroupCoordinatorServicer(coordinator_pb2_grpc.GroupCoordinatorServiceServicer):
    """Kafka's classic group protocol over gRPC.

    Args:
        answer: answers a call from a host.
    """

    def __init__(self, answer: Callable[[GroupRequest, str], Awaitable[GroupResponse]]) -> None:
        self._answer_call = answer

    async def _answer(self, request: Any, context: Any) -> Any:
        return await self._answer_call(request, host_of(context.peer()))

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


class GroupSessionServicer(session_pb2_grpc.GroupSessionServiceServicer):
    """The group protocol on a stream, with news pushed.

    Args:
        serve: serves a stream, given the call and the client's host, until it ends.
    """

    def __init__(self, serve: Callable[[Any, str], Awaitable[None]]) -> None:
        self._serve = serve

    async def Session(  # type: ignore[override]
        self, _requests: Any, context: Any
    ) -> None:
        """Serves one stream."""
        await self._serve(context, host_of(context.peer()))
