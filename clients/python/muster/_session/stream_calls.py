"""The calls of a member of an incremental group, on the stream to whichever coordinator serves the group."""

from contextlib import suppress
from typing import Protocol, TypeVar

from muster_protos.muster.v1 import common_pb2, session_pb2

from muster._session.end import SessionEnded, StreamEnd
from muster._session.session import Session
from muster._session.session_members import Key
from muster._session.transport import GroupRequest, GroupResponse, Route, Transport

Response = TypeVar("Response", bound=GroupResponse)


class Streams(Transport, Protocol):
    """A transport that has streams."""

    def at(self, address: str) -> Session | None:
        """The stream to a coordinator, opened if necessary; None if it takes unary calls only."""


class Listener(Protocol):
    """What a member hears beside answers. None of these raises or waits."""

    def beat_counted(self, sent_ms: int) -> None:
        """Prolongs the life: a beat that was sent at `sent_ms` (boot time) has been acknowledged."""

    def coordinator_unsure(self) -> None:
        """The coordinator is unsure of its lease: nobody else gets anything while the session lasts."""

    def told(self, news: session_pb2.MemberNews) -> None:
        """News that it did not ask for."""

    def fenced(self, news: session_pb2.Fenced) -> None:
        """A join of its own has ended."""

    def became_classic(self) -> None:
        """Its group is a classic one now; it is not on a stream any more."""

    def went_off(self) -> None:
        """It is not on a stream any more, until its next call."""


class StreamCalls:
    """Makes a member's calls on a stream, which puts the member there, and numbers its connections.

    A coordinator without streams gets unary calls.

    Args:
        streams: where streams come from.
        route: finds the coordinator.
        key: the member.
        beat_interval_ms: longest time between two beats.
        listener: hears what comes beside answers.

    Attributes:
        attached: whether beats count for the member.
    """

    def __init__(
        self, streams: Streams, route: Route, key: Key, beat_interval_ms: int, listener: Listener
    ) -> None:
        self.attached: bool = False
        self._streams = streams
        self._route = route
        self._key = key
        self._beat_interval_ms = beat_interval_ms
        self._listener = listener
        self._session: Session | None = None
        self._connection = 0

    async def call(
        self, address: str, request: GroupRequest, response_type: type[Response], *, timeout_ms: int
    ) -> Response:
        """See `Transport`."""
        session = self._streams.at(address)
        if session is not None:
            if session is not self._session or not session.is_carrying(self._key, self):
                self.leave()
                self._session = session
                self._connection += 1
                session.carry(self._key, self)
            with suppress(SessionEnded):
                return await session.call(request, response_type, timeout_ms, self._connection)
        self.leave()
        return await self._streams.call(address, request, response_type, timeout_ms=timeout_ms)

    def leave(self) -> None:
        """Hears nothing any more, until the next call."""
        self.attached = False
        if self._session is not None:
            self._session.drop(self._key, self)
            self._session = None

    # What the stream calls (`muster._session.callers.CallingMember`)

    @property
    def beat_interval_ms(self) -> int:
        """See `CallingMember`."""
        return self._beat_interval_ms

    def began(self) -> None:
        """See `CallingMember`."""
        self.attached = False
        self._connection += 1
        self._listener.went_off()

    def on_stream(self) -> None:
        """See `CallingMember`."""
        self.attached = True

    def alive(self, sent_ms: int) -> None:
        """See `CallingMember`."""
        self._listener.beat_counted(sent_ms)

    def unheard(self, missed: session_pb2.UnheardMember) -> None:
        """See `CallingMember`."""
        if missed.unsure and self._route.accept(missed.shard_epoch):
            self._listener.coordinator_unsure()
        else:
            self._go()

    def told(self, news: session_pb2.MemberNews) -> None:
        """See `CallingMember`."""
        if self._route.accept(news.response.shard_epoch):
            self._listener.told(news)
        else:
            self._go()

    def fenced(self, news: session_pb2.Fenced) -> None:
        """See `CallingMember`."""
        self.attached = False
        if self._route.accept(news.shard_epoch):
            self._listener.fenced(news)

    def changed(self, news: session_pb2.GroupChanged) -> None:
        """See `CallingMember`."""
        self.attached, self._session = False, None
        if self._route.accept(news.shard_epoch):
            self._listener.became_classic()
        else:
            self._listener.went_off()

    def moved(self, coordinator: common_pb2.Coordinator) -> None:
        """See `CallingMember`."""
        if not self._route.follow(coordinator) and self._route.address is not None:
            self._route.forget(self._route.address)
        self._go()

    def stream_ended(self, end: StreamEnd) -> None:
        """See `CallingMember`."""
        if self._route.address is not None:
            self._route.forget(self._route.address)
        self._session = None
        self._go()

    def _go(self) -> None:
        self.leave()
        self._listener.went_off()
