"""How a group call reaches the coordinator at an address, and how a membership is kept alive there.

This is the seam between a member and the wire. `UnaryTransport` makes a unary call of everything; a transport
over one session stream per coordinator can take its place without a change above this file.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc
import grpc.aio
from muster_protos.muster.v1 import coordinator_pb2 as pb
from muster_protos.muster.v1 import coordinator_pb2_grpc as pb_grpc

from muster._backoff import Backoff
from muster._channels import Channels
from muster._clock import boot_ms
from muster._errors import RequestRefused
from muster._standing import Pulse, Seat

GroupRequest: TypeAlias = (
    pb.JoinGroupRequest
    | pb.SyncGroupRequest
    | pb.HeartbeatRequest
    | pb.LeaveGroupRequest
    | pb.OffsetCommitRequest
    | pb.OffsetFetchRequest
    | pb.OffsetDeleteRequest
    | pb.DescribeGroupsRequest
    | pb.ListGroupsRequest
    | pb.DeleteGroupsRequest
    | pb.GroupHistoryRequest
)
GroupResponse: TypeAlias = (
    pb.JoinGroupResponse
    | pb.SyncGroupResponse
    | pb.HeartbeatResponse
    | pb.LeaveGroupResponse
    | pb.OffsetCommitResponse
    | pb.OffsetFetchResponse
    | pb.OffsetDeleteResponse
    | pb.DescribeGroupsResponse
    | pb.ListGroupsResponse
    | pb.DeleteGroupsResponse
    | pb.GroupHistoryResponse
)
Response = TypeVar("Response", bound=GroupResponse)


class ConnectionLost(Exception):
    """No answer: the outcome of the call is not known. Never leaves this package."""


class Overloaded(Exception):
    """The server is over a limit: the call was not looked at. Never leaves this package."""


class KeepAlive(Protocol):
    """Keeps one membership alive until it is stopped."""

    async def stop(self) -> None:
        """Ends it; nothing is delivered afterwards."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """What is to be kept alive.

    Attributes:
        group_id: the group.
        group_instance_id: static id of the member; empty: dynamic.
        seat: its id and generation.
        interval_ms: how often to say so.
        timeout_ms: how long to wait for an answer before the connection counts as lost.
    """

    group_id: str
    group_instance_id: str
    seat: Seat
    interval_ms: int
    timeout_ms: int


class Beats(Protocol):
    """How a transport sends the beat of one member: finds the coordinator, calls, reads the answer."""

    async def heartbeat(
        self, request: pb.HeartbeatRequest, timeout_ms: int, sent_ms: int, seat: Seat
    ) -> Pulse:
        """One beat; never raises for what a server or a network does."""


class Transport(Protocol):
    """The way to the coordinators."""

    async def call(
        self, address: str, request: GroupRequest, response_type: type[Response], *, timeout_ms: int
    ) -> Response:
        """Makes one group call and gives its answer.

        Raises:
            ConnectionLost: no answer came, or none that can be trusted.
            Overloaded: the server asks to come back later.
            RequestRefused: the request is wrong or not allowed; a retry would not help.
        """

    def keep_alive(self, link: Beats, vitals: Vitals, deliver: Callable[[Pulse], None]) -> KeepAlive:
        """Starts to keep a membership alive wherever `link` finds its coordinator.

        Every sign of life and every piece of news goes to `deliver`, in the order in which it arrived.
        """


_RETRIABLE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.DATA_LOSS,
    }
)
_METHODS = {
    pb.JoinGroupRequest: "JoinGroup",
    pb.SyncGroupRequest: "SyncGroup",
    pb.HeartbeatRequest: "Heartbeat",
    pb.LeaveGroupRequest: "LeaveGroup",
    pb.OffsetCommitRequest: "OffsetCommit",
    pb.OffsetFetchRequest: "OffsetFetch",
    pb.OffsetDeleteRequest: "OffsetDelete",
    pb.DescribeGroupsRequest: "DescribeGroups",
    pb.ListGroupsRequest: "ListGroups",
    pb.DeleteGroupsRequest: "DeleteGroups",
    pb.GroupHistoryRequest: "GroupHistory",
}


def raise_status(error: grpc.aio.AioRpcError, what: str) -> None:
    """Sorts a gRPC status into what the layers above tell apart."""
    status = error.code()
    if status in _RETRIABLE:
        raise ConnectionLost(_in_short(status, error.details() or "")) from error
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
        raise Overloaded(error.details()) from error
    raise RequestRefused(status.name, f"{what} was refused with {status.name}: {error.details()}") from error


def _in_short(status: grpc.StatusCode, details: str) -> str:
    """GRPC wraps a refused connection in several sentences; the last part is the one that tells."""
    if details.startswith("failed to connect to all addresses"):
        return details.rpartition(": ")[2]
    return f"{status.name}: {details}".removesuffix(": ")


class UnaryTransport:
    """A unary call for everything, heartbeats included."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    async def call(
        self, address: str, request: GroupRequest, response_type: type[Response], *, timeout_ms: int
    ) -> Response:
        """See `Transport`."""
        method = _METHODS[type(request)]
        async with self._channels.use(address) as channel:
            stub = pb_grpc.GroupCoordinatorServiceStub(channel)
            call: Any = getattr(stub, method)
            try:
                response = await call(request, timeout=timeout_ms / 1_000)
            except grpc.aio.AioRpcError as error:
                raise_status(error, method)
                raise
            except grpc.aio.UsageError as error:
                raise ConnectionLost(str(error)) from error
        if not isinstance(response, response_type):
            raise TypeError(f"{method} gave {type(response).__name__}")
        return response

    def keep_alive(self, link: Beats, vitals: Vitals, deliver: Callable[[Pulse], None]) -> KeepAlive:
        """See `Transport`."""
        return _Heartbeats(link, vitals, deliver)


class _Heartbeats:
    """A Heartbeat call per interval; after trouble sooner, with back-off."""

    def __init__(self, link: Beats, vitals: Vitals, deliver: Callable[[Pulse], None]) -> None:
        self._link = link
        self._vitals = vitals
        self._deliver = deliver
        self._task = asyncio.get_running_loop().create_task(self._run(), name="muster-heartbeat")

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _run(self) -> None:
        vitals = self._vitals
        request = pb.HeartbeatRequest(
            group_id=vitals.group_id,
            generation=vitals.seat.generation,
            member_id=vitals.seat.member_id,
            group_instance_id=vitals.group_instance_id,
        )
        backoff = Backoff()
        await asyncio.sleep(vitals.interval_ms / 1_000)
        while True:
            pulse = await self._link.heartbeat(request, vitals.timeout_ms, boot_ms(), vitals.seat)
            self._deliver(pulse)
            if pulse.repeat:
                await backoff.pause(connection_broken=pulse.hurry)
            else:
                backoff.reset()
                await asyncio.sleep(vitals.interval_ms / 1_000)
