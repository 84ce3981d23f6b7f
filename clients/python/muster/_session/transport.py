"""How a group call reaches a coordinator, and how a membership is kept alive there.

This is the seam between a member and the wire. `UnaryTransport` makes a unary call of everything;
`muster._session.sessions` has the transport that sends everything over one stream per coordinator.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc
import grpc.aio
from muster_protos.limits import REQUEST_MAX_BYTES
from muster_protos.muster.v1 import (
    common_pb2,
    coordinator_pb2,
    coordinator_pb2_grpc,
    group_conversion_pb2,
    group_settings_pb2,
    incremental_pb2,
)

from muster._backoff import Backoff
from muster._clock import boot_ms
from muster._errors import RequestRefused
from muster._session.channels import ChannelPool
from muster._session.tls import NO_TLS, not_trusted
from muster._standing.seat import Caller, MemberFields, Pulse, Seat
from muster._tracing import metadata

GroupRequest: TypeAlias = (
    coordinator_pb2.JoinGroupRequest
    | coordinator_pb2.SyncGroupRequest
    | coordinator_pb2.HeartbeatRequest
    | coordinator_pb2.LeaveGroupRequest
    | coordinator_pb2.OffsetCommitRequest
    | coordinator_pb2.OffsetFetchRequest
    | coordinator_pb2.OffsetDeleteRequest
    | coordinator_pb2.DescribeGroupsRequest
    | coordinator_pb2.ListGroupsRequest
    | coordinator_pb2.DeleteGroupsRequest
    | coordinator_pb2.GroupHistoryRequest
    | coordinator_pb2.ReleaseGroupRequest
    | group_settings_pb2.AlterGroupSettingsRequest
    | group_conversion_pb2.ConvertGroupRequest
    | incremental_pb2.ConsumerGroupHeartbeatRequest
    | incremental_pb2.ConsumerGroupDescribeRequest
)
GroupResponse: TypeAlias = (
    coordinator_pb2.JoinGroupResponse
    | coordinator_pb2.SyncGroupResponse
    | coordinator_pb2.HeartbeatResponse
    | coordinator_pb2.LeaveGroupResponse
    | coordinator_pb2.OffsetCommitResponse
    | coordinator_pb2.OffsetFetchResponse
    | coordinator_pb2.OffsetDeleteResponse
    | coordinator_pb2.DescribeGroupsResponse
    | coordinator_pb2.ListGroupsResponse
    | coordinator_pb2.DeleteGroupsResponse
    | coordinator_pb2.GroupHistoryResponse
    | coordinator_pb2.ReleaseGroupResponse
    | group_settings_pb2.AlterGroupSettingsResponse
    | group_conversion_pb2.ConvertGroupResponse
    | incremental_pb2.ConsumerGroupHeartbeatResponse
    | incremental_pb2.ConsumerGroupDescribeResponse
)
Response = TypeVar("Response", bound=GroupResponse)
LONGEST_RETRY_MS = 30_000
"""A server that is over a limit is asked again after this time at the latest."""
_PUSHBACK = "grpc-retry-pushback-ms"


class ConnectionLost(Exception):
    """No answer came: the outcome of the call is unknown. Never leaves this package."""


class Overloaded(Exception):
    """The server is over a limit and did not process the call. Never leaves this package.

    Attributes:
        retry_after_ms: when it may be repeated, as the server said; 0: it did not say.
    """

    def __init__(self, message: str, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_after_ms = min(max(retry_after_ms, 0), LONGEST_RETRY_MS)


class KeepAlive(Protocol):
    """Keeps one membership alive until it is stopped."""

    async def stop(self) -> None:
        """Stops; nothing is delivered afterwards."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """The membership to keep alive, and how often.

    Attributes:
        caller: the member.
        seat: its member id and generation.
        interval_ms: time between two Heartbeat calls.
        timeout_ms: how long to wait for an answer before the connection counts as lost.
        beat_interval_ms: time between two beats on a stream.
    """

    caller: Caller
    seat: Seat
    interval_ms: int
    timeout_ms: int
    beat_interval_ms: int

    @property
    def fields(self) -> MemberFields:
        """What a Heartbeat or an Attach carries."""
        return self.caller.fields_at(self.seat)


class HeartbeatCalls(Protocol):
    """Makes one member's Heartbeat call: finds the coordinator, calls it, reads the answer."""

    async def heartbeat(
        self, request: coordinator_pb2.HeartbeatRequest, timeout_ms: int, sent_ms: int, seat: Seat
    ) -> Pulse:
        """Makes one Heartbeat call; never raises for what a server or a network does."""


class Route(HeartbeatCalls, Protocol):
    """The way to the coordinator of one group, as a transport sees it (`muster._cluster.link.GroupLink`)."""

    @property
    def address(self) -> str | None:
        """Address of the coordinator; None if unknown."""

    @property
    def shard_epoch(self) -> int:
        """Highest shard epoch that was seen."""

    async def locate(self) -> str:
        """Returns the coordinator's address; waits until discovery knows one."""

    async def ask(self) -> None:
        """Asks discovery once where the coordinator is, and goes there if that is a later owner."""

    def follow(self, coordinator: common_pb2.Coordinator) -> bool:
        """Switches to that coordinator unless a later owner is known; returns whether it did."""

    def forget(self, address: str) -> None:
        """Forgets the coordinator at `address`: it is not, or no longer, the owner."""

    def accept(self, shard_epoch: int) -> bool:
        """Whether news with that epoch counts: it is not from a deposed coordinator."""

    def watch(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Calls `moved` whenever the coordinator's address changes; returns a function that ends that."""


class CallPath(Protocol):
    """Makes calls to a coordinator."""

    async def call(
        self, address: str, request: GroupRequest, response_type: type[Response], *, timeout_ms: int
    ) -> Response:
        """Makes one group call and returns its answer.

        Raises:
            ConnectionLost: no answer came, or none that can be trusted.
            Overloaded: the server asks to come back later.
            RequestRefused: the request is wrong or not allowed; a retry would not help.
        """


class Transport(CallPath, Protocol):
    """The way to the coordinators."""

    def keep_alive(self, route: Route, vitals: Vitals, deliver: Callable[[Pulse], None]) -> KeepAlive:
        """Starts to keep a membership alive at the coordinator that `route` finds.

        `deliver` gets every acknowledgement and every piece of news, in the order in which they arrived.
        """

    def shuns(self, address: str) -> bool:
        """Whether the server at that address was silent a moment ago."""


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
    coordinator_pb2.JoinGroupRequest: "JoinGroup",
    coordinator_pb2.SyncGroupRequest: "SyncGroup",
    coordinator_pb2.HeartbeatRequest: "Heartbeat",
    coordinator_pb2.LeaveGroupRequest: "LeaveGroup",
    coordinator_pb2.OffsetCommitRequest: "OffsetCommit",
    coordinator_pb2.OffsetFetchRequest: "OffsetFetch",
    coordinator_pb2.OffsetDeleteRequest: "OffsetDelete",
    coordinator_pb2.DescribeGroupsRequest: "DescribeGroups",
    coordinator_pb2.ListGroupsRequest: "ListGroups",
    coordinator_pb2.DeleteGroupsRequest: "DeleteGroups",
    coordinator_pb2.GroupHistoryRequest: "GroupHistory",
    coordinator_pb2.ReleaseGroupRequest: "ReleaseGroup",
    group_settings_pb2.AlterGroupSettingsRequest: "AlterGroupSettings",
    group_conversion_pb2.ConvertGroupRequest: "ConvertGroup",
    incremental_pb2.ConsumerGroupHeartbeatRequest: "ConsumerGroupHeartbeat",
    incremental_pb2.ConsumerGroupDescribeRequest: "ConsumerGroupDescribe",
}


async def prove_and_call(
    channels: ChannelPool, call: Any, request: Any, timeout_ms: int, what: str
) -> object:
    """Makes a unary call that shows who makes it.

    Raises:
        ConnectionLost: no answer came.
        Overloaded: the server asks to come back later.
        RequestRefused: the request is wrong or not allowed.
    """
    proof = channels.proof()
    try:
        answer: object = await call(request, timeout=timeout_ms / 1_000, metadata=(*metadata(), *proof))
    except grpc.aio.AioRpcError as error:
        after_ms = _pushback_ms(error)
        raise sort_call(channels, proof, error.code(), error.details() or "", what, after_ms) from error
    except grpc.aio.UsageError as error:
        raise ConnectionLost(str(error)) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ConnectionLost("the connection was closed") from None  # not by who waits for the answer
    channels.proved()
    return answer


def sort_call(
    channels: ChannelPool,
    proof: tuple[tuple[str, str], ...],
    status: grpc.StatusCode,
    details: str,
    what: str,
    retry_after_ms: int = 0,
) -> Exception:
    """`sort_status` for a call or stream that showed a proof: another one may come yet."""
    if status is not grpc.StatusCode.UNAUTHENTICATED:
        return sort_status(status, details, what, retry_after_ms)
    return channels.refused(proof, what, details) or ConnectionLost(f"{status.name}: {details}")


def _pushback_ms(error: grpc.aio.AioRpcError) -> int:
    """When the server wants the call to be repeated (gRFC A6); 0: it did not say."""
    for key, value in error.trailing_metadata() or ():
        if key == _PUSHBACK and str(value).isdecimal():
            return int(value)
    return 0


def sort_status(status: grpc.StatusCode, details: str, what: str, retry_after_ms: int = 0) -> Exception:
    """The exception for a gRPC status: `ConnectionLost`, `Overloaded` or `RequestRefused`."""
    if status in _RETRIABLE:
        return ConnectionLost(_in_short(status, details))
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Overloaded(details, retry_after_ms)
    return RequestRefused(status.name, f"{what} was refused with {status.name}: {details}")


def _in_short(status: grpc.StatusCode, details: str) -> str:
    """The status and its details; of gRPC's long text for a failed connection only what it comes to."""
    if "WRONG_VERSION_NUMBER" in details:
        return NO_TLS
    if "CERTIFICATE_VERIFY_FAILED" in details or "Verification Check failed" in details:
        reason = details.rpartition("CERTIFICATE_VERIFY_FAILED: ")[2].removesuffix(": OK")
        return not_trusted(reason)
    if details.startswith("failed to connect to all addresses"):
        return details.rpartition(": ")[2]
    return f"{status.name}: {details}".removesuffix(": ")


class UnaryTransport:
    """Makes a unary call of everything, heartbeats included."""

    def __init__(self, channels: ChannelPool) -> None:
        self._channels = channels

    async def call(
        self, address: str, request: GroupRequest, response_type: type[Response], *, timeout_ms: int
    ) -> Response:
        """See `Transport`."""
        method = _METHODS[type(request)]
        size_bytes = request.ByteSize()
        if size_bytes > REQUEST_MAX_BYTES:  # gRPC would refuse it as a busy server does
            text = f"{method} has {size_bytes:,} bytes, at most {REQUEST_MAX_BYTES:,} are allowed"
            raise RequestRefused(grpc.StatusCode.INVALID_ARGUMENT.name, text)
        async with self._channels.use(address) as channel:
            stub = coordinator_pb2_grpc.GroupCoordinatorServiceStub(channel)
            call: Any = getattr(stub, method)
            response = await prove_and_call(self._channels, call, request, timeout_ms, method)
        if not isinstance(response, response_type):
            raise TypeError(f"{method} gave {type(response).__name__}")
        return response

    def keep_alive(self, route: Route, vitals: Vitals, deliver: Callable[[Pulse], None]) -> KeepAlive:
        """See `Transport`."""
        return Heartbeats(route, vitals, deliver)

    def shuns(self, address: str) -> bool:
        """See `Transport`; always False: a call's own deadline says nothing about others."""
        return False


class Heartbeats:
    """Makes a Heartbeat call per interval; after a failure sooner, with back-off.

    The first call is made at once: a new seat lives from its first acknowledged beat on, and the grace of a
    membership that was on a stream until now is running.
    """

    def __init__(self, calls: HeartbeatCalls, vitals: Vitals, deliver: Callable[[Pulse], None]) -> None:
        self._calls = calls
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
        request = coordinator_pb2.HeartbeatRequest(**vitals.fields)
        backoff = Backoff()
        while True:
            pulse = await self._calls.heartbeat(request, vitals.timeout_ms, boot_ms(), vitals.seat)
            self._deliver(pulse)
            if pulse.repeat:
                await backoff.pause(connection_broken=pulse.hurry)
            else:
                backoff.reset()
                await asyncio.sleep(vitals.interval_ms / 1_000)
