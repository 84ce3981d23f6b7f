"""Where the coordinator of one group is, and calls to it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from muster_protos.muster.v1 import common_pb2, coordinator_pb2, discovery_pb2
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupDescribeResponse

from muster._backoff import Backoff, Pushback, Waiting
from muster._clock import boot_ms
from muster._cluster.discovery import DiscoveryClient
from muster._cluster.lately import AnsweredLately
from muster._errors import GroupError, RequestRefused, code_name, group_error
from muster._metrics.member import MemberMetrics
from muster._reactions import CONNECTION_LOST, OVERLOADED, Call, Reaction, reaction_to
from muster._session.session_members import Key
from muster._session.sessions import SessionTransport
from muster._session.stream_calls import Listener, StreamCalls
from muster._session.transport import (
    CallPath,
    ConnectionLost,
    GroupRequest,
    GroupResponse,
    Overloaded,
    Transport,
)
from muster._standing.seat import Pulse, Seat
from muster._tracing import span

log = logging.getLogger("muster")

STEADY_LOOKUPS = 20
"""How many lookups for a coordinator follow at the shortest interval before they become rarer."""

_FOR_GOOD = (common_pb2.ERROR_CODE_INVALID_GROUP_ID, common_pb2.ERROR_CODE_GROUP_AUTHORIZATION_FAILED)
"""What discovery answers when asking again does not help."""

_FREQUENT = (Call.HEARTBEAT.value, Call.CONSUMER_HEARTBEAT.value)

Response = TypeVar("Response", bound=GroupResponse)


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Response]):
    """The outcome of a call.

    Attributes:
        code: the answer's error code, CONNECTION_LOST or OVERLOADED.
        response: the answer; None: no answer came.
        message: explanation for people.
        hurry: a retry needs no back-off: the answer named the new coordinator, or the connection was lost.
    """

    code: int
    response: Response | None
    message: str = ""
    hurry: bool = False
    sent_ms: int = 0

    def expect(self) -> Response:
        """The answer, which must have come."""
        assert self.response is not None
        return self.response


@dataclass(frozen=True, slots=True)
class _Header:
    code: int
    shard_epoch: int
    hint: common_pb2.Coordinator | None
    message: str


_OF_GROUPS = (
    coordinator_pb2.OffsetFetchResponse,
    coordinator_pb2.DescribeGroupsResponse,
    ConsumerGroupDescribeResponse,
)


def _header(response: GroupResponse) -> _Header:
    """The fields that every answer has for the group, wherever its type has them."""
    part: object = response
    if isinstance(response, _OF_GROUPS):
        part = response.groups[0] if response.groups else None
    elif isinstance(response, coordinator_pb2.DeleteGroupsResponse):
        part = response.results[0] if response.results else None
    if part is None:
        return _Header(common_pb2.ERROR_CODE_UNKNOWN_SERVER_ERROR, 0, None, "the answer is empty")
    code = (
        _commit_code(part)
        if isinstance(part, coordinator_pb2.OffsetCommitResponse)
        else int(getattr(part, "error_code", 0))
    )
    hint = getattr(part, "coordinator", None)
    return _Header(
        code,
        int(getattr(part, "shard_epoch", 0)),
        hint if hint is not None and hint.node_id and hint.host else None,
        str(getattr(part, "error_message", "")),
    )


_OF_ONE_PARTITION = frozenset(
    {
        common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
        common_pb2.ERROR_CODE_OFFSET_METADATA_TOO_LARGE,
        common_pb2.ERROR_CODE_TOPIC_AUTHORIZATION_FAILED,
        common_pb2.ERROR_CODE_INVALID_COMMIT_OFFSET_SIZE,
    }
)


def _commit_code(response: coordinator_pb2.OffsetCommitResponse) -> int:
    """An error of the group is on every partition (OC-15); an error of one partition is not the call's."""
    if response.error_code and not response.topics:
        return int(response.error_code)
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error_code and partition.error_code not in _OF_ONE_PARTITION:
                return int(partition.error_code)
    return int(common_pb2.ERROR_CODE_NONE)


class GroupLink:
    """Finds the coordinator of a group, follows it when it moves, and drops answers of a deposed one.

    Args:
        group_id: the group.
        discovery: looks coordinators up.
        transport: how calls travel.
        lately: what the links of the connection know of coordinators; None: this one knows nothing.

    Attributes:
        metrics: of the member whose link it is; None: nobody counts.
    """

    def __init__(
        self,
        group_id: str,
        discovery: DiscoveryClient,
        transport: Transport,
        lately: AnsweredLately | None = None,
    ) -> None:
        self.group_id = group_id
        self.metrics: MemberMetrics | None = None
        self.shard_epoch: int = 0
        self.address: str | None = None
        self.trouble: str = "the coordinator did not answer"
        self._discovery = discovery
        self._transport = transport
        self._lately = AnsweredLately() if lately is None else lately
        self._found: str | None = None
        self._left: tuple[str | None, int] | None = None
        self._locating = asyncio.Lock()
        self._moving: asyncio.Future[None] | None = None
        self._watchers: list[Callable[[], None]] = []
        self._pushback = Pushback()

    def numbered_calls(self, key: Key, beat_interval_ms: int, listener: Listener) -> StreamCalls | None:
        """How a member of an incremental group makes its calls on streams; None: this client uses none."""
        streams = self._transport
        if not isinstance(streams, SessionTransport):
            return None
        return StreamCalls(streams, self, key, beat_interval_ms, listener)

    @property
    def transport(self) -> Transport:
        """How calls travel."""
        return self._transport

    async def locate(self) -> str:
        """Returns the coordinator's address; waits until discovery knows one."""
        if (known := self._known_address()) is not None:
            return known
        async with self._locating:
            # A lookup is cheap, and a fail-over takes moments: it is asked often at first.
            backoff = Backoff(steady=STEADY_LOOKUPS)
            trouble = "discovery has not answered yet"

            def say() -> None:
                log.warning("no coordinator for group %r yet (%s); trying again", self.group_id, trouble)

            with Waiting().saying(say):
                while self.address is None:
                    trouble, broken = await self._look_up()
                    self.trouble = trouble or self.trouble
                    if trouble:
                        await backoff.pause(connection_broken=broken)
                return self.address

    def _known_address(self) -> str | None:
        """The coordinator's address; a new link goes where a call for its group was answered lately."""
        answered = self._lately.of(self.group_id) if self._found is None else None
        if answered is not None and not self._transport.shuns(answered.address):
            self.shard_epoch = answered.shard_epoch
            self._go_to(answered.address)
        return self.address

    async def ask(self) -> None:
        """Asks discovery once where the coordinator is, and goes there if that is a later owner."""
        trouble, _ = await self._look_up()
        self.trouble = trouble or self.trouble

    async def _look_up(self) -> tuple[str, bool]:
        try:
            found = await self._discovery.find(self.group_id, self.shard_epoch)
        except ConnectionLost as error:
            return str(error), True
        before = self._left
        trouble = self._take(found.result)
        if trouble or before == (self.address, self.shard_epoch):
            # Another discovery server may know more; if none does, each is asked in turn.
            self._discovery.doubt(found.server)
        return trouble, False

    def _take(self, result: discovery_pb2.FindCoordinatorResponse.Result) -> str:
        """Switches to the coordinator that discovery found; returns why not, or an empty string."""
        if result.error_code == common_pb2.ERROR_CODE_NONE:
            found = result.coordinator
            if found.shard_epoch == self.shard_epoch and self._transport.shuns(
                address_of(found.host, found.port)
            ):
                return "discovery still names a coordinator that does not answer"
            return "" if self.follow(found) else "discovery still names an earlier owner"
        if result.error_code in _FOR_GOOD:
            raise group_error(self.group_id, int(result.error_code), result.error_message)
        return result.error_message or code_name(int(result.error_code))

    def follow(self, coordinator: common_pb2.Coordinator) -> bool:
        """Switches to that coordinator unless a later owner is known; returns whether it did."""
        if not coordinator.host or coordinator.shard_epoch < self.shard_epoch:
            return False
        self.shard_epoch = coordinator.shard_epoch
        self._go_to(address_of(coordinator.host, coordinator.port))
        return True

    def forget(self, address: str) -> None:
        """Forgets the coordinator at `address`: it is not, or no longer, the owner."""
        if self.address == address:
            self._left = (address, self.shard_epoch)
            self._lately.forget(self.group_id, address)
            self._go_to(None)

    def _go_to(self, address: str | None) -> None:
        if address != self.address:
            self.address = address
            if address is None and self.metrics is not None:
                self.metrics.contact(reached=False)
            if address is not None:
                if address != self._found:
                    log.info("group %r: its coordinator is %s", self.group_id, address)
                self._found = address
                if self._moving is not None and not self._moving.done():
                    self._moving.set_result(None)
                self._moving = None
                for watcher in tuple(self._watchers):
                    watcher()

    def watch(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Calls `moved` whenever the coordinator's address changes; returns a function that ends that."""
        self._watchers.append(moved)
        return lambda: self._watchers.remove(moved)

    def accept(self, shard_epoch: int) -> bool:
        """Whether news with that epoch counts; a deposed coordinator's does not. 0: no epoch was given."""
        if 0 < shard_epoch < self.shard_epoch:
            log.debug("dropped an answer of epoch %d, %d was seen", shard_epoch, self.shard_epoch)
            return False
        self.shard_epoch = max(self.shard_epoch, shard_epoch)
        return True

    async def call(
        self,
        request: GroupRequest,
        response_type: type[Response],
        *,
        timeout_ms: int,
        follow_moves: bool = False,
        via: CallPath | None = None,
    ) -> Outcome[Response]:
        """Makes one call to the current coordinator.

        With `follow_moves` a parked call is given up when another call finds a new coordinator, so that it
        can be repeated there. `via` makes the call in the place of the transport.

        Raises:
            RequestRefused: the request is wrong or not allowed.
            GroupError: discovery refuses the group id.
        """
        calling = self._call(
            request, response_type, timeout_ms, via or self._transport, follow_moves=follow_moves
        )
        name = type(request).__name__.removesuffix("Request")
        # Heartbeats are too frequent to be traced.
        with nullcontext() if name in _FREQUENT else span(f"muster {name}", self.group_id):
            outcome = await calling
        if self.metrics is not None:
            reached = reaction_to(Call.HEARTBEAT, outcome.code) not in (Reaction.RETRY, Reaction.REDISCOVER)
            self.metrics.contact(reached=reached)
            if not reached:
                self.metrics.unanswered(name, outcome.code)
        return outcome

    async def _call(
        self,
        request: GroupRequest,
        response_type: type[Response],
        timeout_ms: int,
        caller: CallPath,
        *,
        follow_moves: bool,
    ) -> Outcome[Response]:
        await self._pushback.over(type(request))
        address = await self.locate()
        epoch_before = self.shard_epoch
        sent_ms = boot_ms()
        try:
            calling = caller.call(address, request, response_type, timeout_ms=timeout_ms)
            response = await (self._unless_moved(calling) if follow_moves else calling)
        except ConnectionLost as error:
            self.forget(address)
            return Outcome(CONNECTION_LOST, None, str(error), hurry=True)
        except Overloaded as error:
            self._pushback.said(type(request), error.retry_after_ms)
            return Outcome(OVERLOADED, None, str(error))
        header = _header(response)
        if header.code == common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE:
            self.trouble = header.message or self.trouble
        if not self.accept(header.shard_epoch):
            self.forget(address)
            return Outcome(CONNECTION_LOST, None, "the answer came from a deposed coordinator")
        followed = False
        if header.code == common_pb2.ERROR_CODE_NONE and self.address == address:
            self._lately.note(self.group_id, address, self.shard_epoch)
        if reaction_to(Call.HEARTBEAT, header.code) is Reaction.REDISCOVER:
            if header.hint is not None and self.follow(header.hint):
                # Two coordinators that name each other must not be asked in a tight loop.
                followed = self.shard_epoch > epoch_before
            else:
                self.forget(address)
        return Outcome(header.code, response, header.message, hurry=followed, sent_ms=sent_ms)

    async def _unless_moved(self, calling: Coroutine[Any, Any, Response]) -> Response:
        """The answer to a call, which is given up when the coordinator's address changes."""
        if self._moving is None:
            self._moving = asyncio.get_running_loop().create_future()
        call = asyncio.ensure_future(calling)
        try:
            await asyncio.wait((call, self._moving), return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return await call
            raise ConnectionLost("the coordinator moved")
        finally:
            if not call.done():
                call.cancel()
                await asyncio.wait((call,))

    async def heartbeat(
        self, request: coordinator_pb2.HeartbeatRequest, timeout_ms: int, sent_ms: int, seat: Seat
    ) -> Pulse:
        """See `muster._session.transport.HeartbeatCalls`."""
        try:
            outcome = await self.call(request, coordinator_pb2.HeartbeatResponse, timeout_ms=timeout_ms)
        except (RequestRefused, GroupError) as error:
            return Pulse(seat, common_pb2.ERROR_CODE_UNKNOWN_SERVER_ERROR, sent_ms, message=str(error))
        response = outcome.response
        return Pulse(
            seat=seat,
            code=outcome.code,
            sent_ms=sent_ms,
            cause=response.cause if response is not None and response.HasField("cause") else None,
            message=outcome.message,
            repeat=reaction_to(Call.HEARTBEAT, outcome.code) in (Reaction.RETRY, Reaction.REDISCOVER),
            hurry=outcome.hurry,
        )


def address_of(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
