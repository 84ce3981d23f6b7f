"""How a group call reaches the coordinator at an address, and how a membership is kept alive there.

This is the seam between a member and the wire. `UnaryTransport` makes a unary call of everything;
`muster._session.sessions` has the transport that sends everything over one stream per coordinator.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc
import grpc.aio
from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1 import coordinator_pb2 as pb
from muster_protos.muster.v1 import coordinator_pb2_grpc as pb_grpc

from muster._backoff import Backoff
from muster._clock import boot_ms
from muster._errors import RequestRefused
from muster._session.channels import ChannelPool
from muster._standing import Pulse, Seat
from muster._tracing import metadata

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
    | pb.ReleaseGroupRequest
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
    | pb.ReleaseGroupResponse
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
        interval_ms: how often to say so by a call of its own.
        timeout_ms: how long to wait for the answer before the connection counts as lost.
        beat_interval_ms: how often to say so on a stream.
    """

    group_id: str
    group_instance_id: str
    seat: Seat
    interval_ms: int
    timeout_ms: int
    beat_interval_ms: int


class Beats(Protocol):
    """How a transport sends the beat of one member: finds the coordinator, calls, reads the answer."""

    async def heartbeat(
        self, request: pb.HeartbeatRequest, timeout_ms: int, sent_ms: int, seat: Seat
    ) -> Pulse:
        """One beat; never raises for what a server or a network does."""


class Route(Beats, Protocol):
    """The way to the coordinator of one group, as a transport sees it (`muster._cluster.link.GroupLink`)."""

    @property
    def address(self) -> str | None:
        """Where the coordinator is; None: not known."""

    @property
    def shard_epoch(self) -> int:
        """Highest epoch of the ownership that was heard of."""

    async def locate(self) -> str:
        """Address of the coordinator; waits until discovery knows one."""

    async def ask(self) -> None:
        """Asks discovery once where the coordinator is, and goes there if that is a later owner."""

    def follow(self, coordinator: common_pb2.Coordinator) -> bool:
        """Goes to that coordinator unless a later owner is known."""

    def forget(self, address: str) -> None:
        """The coordinator at `address` is not, or no longer, the one."""

    def accept(self, shard_epoch: int) -> bool:
        """Whether news of that epoch may be believed."""

    def watch(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Calls `moved` whenever the coordinator is found at another address; gives what ends that."""


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

    def keep_alive(self, route: Route, vitals: Vitals, deliver: Callable[[Pulse], None]) -> KeepAlive:
        """Starts to keep a membership alive wherever `route` finds its coordinator.

        Every sign of life and every piece of news goes to `deliver`, in the order in which it arrived.
        """

    def shuns(self, address: str) -> bool:
        """Whether that address left a connection without an answer a moment ago."""


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
    pb.ReleaseGroupRequest: "ReleaseGroup",
}


def raise_status(error: grpc.aio.AioRpcError, what: str) -> None:
    """Raises what the layers above tell apart."""
    raise sort_status(error.code(), error.details() or "", what) from error


def sort_status(status: grpc.StatusCode, details: str, what: str) -> Exception:
    """What a gRPC status means: `ConnectionLost`, `Overloaded` or `RequestRefused`."""
    if status in _RETRIABLE:
        return ConnectionLost(_in_short(status, details))
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Overloaded(details)
    return RequestRefused(status.name, f"{what} was refused with {status.name}: {details}")


def _in_short(status: grpc.StatusCode, details: str) -> str:
    """GRPC wraps a refused connection in several sentences; the last part is the one that tells."""
    if details.startswith("failed to connect to all addresses"):
        return details.rpartition(": ")[2]
    return f"{status.name}: {details}".removesuffix(": ")


class UnaryTransport:
    """A unary call for everything, heartbeats included."""

    def __init__(self, channels: ChannelPool) -> None:
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
                response = await call(request, timeout=timeout_ms / 1_000, metadata=metadata())
            except grpc.aio.AioRpcError as error:
                raise_status(error, method)
                raise
            except grpc.aio.UsageError as error:
                raise ConnectionLost(str(error)) from error
        if not isinstance(response, response_type):
            raise TypeError(f"{method} gave {type(response).__name__}")
        return response

    def keep_alive(self, route: Route, vitals: Vitals, deliver: Callable[[Pulse], None]) -> KeepAlive:
        """See `Transport`."""
        return Heartbeats(route, vitals, deliver)

    def shuns(self, address: str) -> bool:
        """See `Transport`: a unary call has its own deadline, which says nothing about others."""
        return False


class Heartbeats:
    """A Heartbeat call per interval; after trouble sooner, with back-off.

    The first one is made at once: a new seat lives from its first acknowledged beat on, and the grace of a
    membership that hung on a stream until now runs until it is heard of.
    """

    def __init__(self, beats: Beats, vitals: Vitals, deliver: Callable[[Pulse], None]) -> None:
        self._beats = beats
        self._vitals = vitals
        self._deliver = deliver
        self._task = asyncio.get_running_loop().create_task(self._run(), name="muster-heartbeat")

    async def stop(self) -> None:
        """See `KeepAlive`."""
        self.cancel()
        await asyncio.wait((self._task,))

    def cancel(self) -> None:
        """Like `stop`, without waiting for the task."""
        self._task.cancel()

    async def _run(self) -> None:
        vitals = self._vitals
        request = pb.HeartbeatRequest(
            group_id=vitals.group_id,
            generation=vitals.seat.generation,
            member_id=vitals.seat.member_id,
            group_instance_id=vitals.group_instance_id,
        )
        backoff = Backoff()
        while True:
            pulse = await self._beats.heartbeat(request, vitals.timeout_ms, boot_ms(), vitals.seat)
            self._deliver(pulse)
            if pulse.repeat:
                await backoff.pause(connection_broken=pulse.hurry)
            else:
                backoff.reset()
                await asyncio.sleep(vitals.interval_ms / 1_000)
