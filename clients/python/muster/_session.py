"""One session stream to one coordinator, shared by all members of the process that it serves."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias

import grpc
import grpc.aio
from muster_protos.muster.v1 import common_pb2, session_pb2
from muster_protos.muster.v1 import session_pb2_grpc as pb_grpc

from muster._backoff import Backoff
from muster._channels import Channels
from muster._clock import boot_ms
from muster._frames import call_frame, messages, response_of
from muster._transport import (
    ConnectionLost,
    GroupRequest,
    GroupResponse,
    Overloaded,
    sort_status,
)

log = logging.getLogger("muster")

ACK_TIMEOUT_MS = 1_000
"""A beat that is not acknowledged for so long means that the connection is lost (or two intervals)."""
LINGER_MS = 5_000
"""How long a stream without members and calls stays open."""
CLOSE_TIMEOUT_MS = 500
"""How long the last frames may take."""
LONG_MS = 5_000
"""A stream that lasted so long was well received."""
CALM_MS = 200
"""A stream that the server ended in order is left or opened again within this time, not by all at once."""
MOST_OPEN_CALLS = 10_000
"""Limit of one stream; what is above it is told to come back later."""
DEFAULT_BEAT_MS = 500
"""How often a stream beats that has calls, but no members yet."""
HELLO_INTERVALS_MS = (100, 60_000)
CLIENT_ID = "muster-python"


class SessionEnded(Exception):
    """The server takes no stream: make a unary call. Never leaves this package."""


Key: TypeAlias = tuple[str, str]
"""A member as a stream knows it: group and member id."""


class Passenger(Protocol):
    """A membership that hangs on a session stream. Nothing of this raises or waits."""

    @property
    def attach(self) -> session_pb2.Attach:
        """What puts it on the stream."""

    @property
    def beat_interval_ms(self) -> int:
        """How often a beat is needed."""

    def attached(self, result: session_pb2.AttachResult, sent_ms: int) -> None:
        """Its `Attach`, which was sent then, was answered."""

    def alive(self, sent_ms: int) -> None:
        """A beat that was sent then counts for it."""

    def unheard(self, code: int) -> None:
        """A beat did not count for it."""

    def rebalance(self, news: session_pb2.RebalanceStarted) -> None:
        """It has to rejoin."""

    def fenced(self, news: session_pb2.Fenced) -> None:
        """It is no member any more, and off the stream."""

    def moved(self, coordinator: common_pb2.Coordinator) -> None:
        """Its group is served elsewhere, and it is off the stream."""

    def adrift(self, end: "End") -> None:
        """The stream is gone for good."""


class How(Enum):
    """How a stream ended."""

    IDLE = "nobody needed it any more"
    BROKEN = "it broke; another one may stand at once"
    AGED = "the server wants another one"
    UNREACHED = "there is no way to the server"
    SILENT = "the server accepts, and does not answer"
    DRAINED = "the server stops"
    UNSUPPORTED = "the server has no streams"
    REFUSED = "the server has no room for it, or did not like it"
    DENIED = "the server does not allow it"


_AGAIN = (How.BROKEN, How.AGED)
_STATUS = {
    grpc.StatusCode.OK: How.BROKEN,
    grpc.StatusCode.UNIMPLEMENTED: How.UNSUPPORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: How.REFUSED,
}
_GOODBYES = {
    session_pb2.GOODBYE_REASON_DRAINING: How.DRAINED,
    session_pb2.GOODBYE_REASON_AGE: How.AGED,
    session_pb2.GOODBYE_REASON_REFUSED: How.REFUSED,
}


@dataclass(frozen=True, slots=True)
class End:
    """The end of a stream.

    Attributes:
        how: what it means.
        error: what calls on it are told.
    """

    how: How
    error: Exception


@dataclass(slots=True)
class _Call:
    frame: session_pb2.ClientFrame
    answer: "asyncio.Future[GroupResponse]"


class Session:
    """A stream, opened again when it breaks, for as long as somebody needs it.

    Who needs it: calls that are not answered, and members that hang on it. When the server cannot be reached
    it ends; then its calls fail and its members look for their coordinator.

    Args:
        address: the coordinator.
        channels: connections.
        ended: called at its end.

    Attributes:
        stands: the server has answered on the present stream.
        open: it takes members and calls.
    """

    def __init__(self, address: str, channels: Channels, ended: Callable[["Session", End], None]) -> None:
        self.address = address
        self.stands = False
        self.open = True
        self._channels = channels
        self._ended = ended
        # Members: who hangs on it, whose Attach or Detach is due, whose answer is awaited, who is on it.
        self._passengers: dict[Key, Passenger] = {}
        self._due: dict[Key, None] = {}
        self._boarding: dict[Key, deque[tuple[Passenger, int]]] = {}
        self._aboard: dict[Key, Passenger] = {}
        # Calls: all open ones, and those that wait to be sent.
        self._calls: dict[int, _Call] = {}
        self._unsent: dict[int, None] = {}
        self._last_call_id = 0
        # Beats: those without an answer.
        self._beats: deque[tuple[int, int]] = deque()
        self._last_beat = 0
        self._beat_due = False
        self._beat_timer: asyncio.TimerHandle | None = None
        self._promised_ms = self._beating_ms = DEFAULT_BEAT_MS
        self._opening: session_pb2.ClientFrame | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._silent: asyncio.Future[None] | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"muster-session-{address}")

    # For members

    def attach(self, key: Key, passenger: Passenger) -> None:
        """Puts a member on the stream, now and whenever it is opened again. Answered by `attached`."""
        self._passengers[key] = passenger
        self._aboard.pop(key, None)
        self._post(key)
        if self._beat_timer is not None and passenger.beat_interval_ms < self._beating_ms:
            self._beat()

    def detach(self, key: Key, passenger: Passenger) -> None:
        """Takes a member off, unless another membership took its place. Nothing is told to it any more."""
        if self._passengers.get(key) is passenger:
            del self._passengers[key]
            self._aboard.pop(key, None)
            self._post(key)

    def carries(self, key: Key, passenger: Passenger) -> bool:
        """Whether a member is on the stream, or on its way there."""
        return self._passengers.get(key) is passenger

    def is_aboard(self, key: Key, passenger: Passenger) -> bool:
        """Whether beats count for a member."""
        return self._aboard.get(key) is passenger

    def _post(self, key: Key) -> None:
        self._due[key] = None
        self._news.set()
        self._reconsider()

    # For calls

    async def call(self, request: GroupRequest, timeout_ms: int) -> GroupResponse:
        """Makes a call. If the stream breaks it is repeated on the next one.

        Raises:
            ConnectionLost: no answer came.
            Overloaded: too many calls are open here, or the server asks to come back later.
            RequestRefused: the request is wrong or not allowed.
            SessionEnded: the server takes no stream.
        """
        if len(self._calls) >= MOST_OPEN_CALLS:
            raise Overloaded(f"{len(self._calls)} calls to {self.address} are open")
        loop = asyncio.get_running_loop()
        self._last_call_id = call_id = self._last_call_id + 1
        call = self._calls[call_id] = _Call(call_frame(call_id, request), loop.create_future())
        self._unsent[call_id] = None
        self._news.set()
        self._reconsider()
        timer = loop.call_later(timeout_ms / 1_000, self._time_out, call)
        try:
            return await call.answer
        finally:
            timer.cancel()
            self._calls.pop(call_id, None)
            self._unsent.pop(call_id, None)
            self._reconsider()

    @staticmethod
    def _time_out(call: _Call) -> None:
        if not call.answer.done():
            call.answer.set_exception(ConnectionLost("no answer in time"))

    # Its own life

    async def close(self) -> None:
        """Ends it in order: what waits to be sent goes out first."""
        self._retire()
        await asyncio.wait((self._task,), timeout=CLOSE_TIMEOUT_MS / 1_000)
        self._task.cancel()
        await asyncio.wait((self._task,))

    def _reconsider(self) -> None:
        if self._passengers or self._calls:
            if self._linger is not None:
                self._linger.cancel()
                self._linger = None
        elif self._linger is None and self.open:
            self._linger = asyncio.get_running_loop().call_later(LINGER_MS / 1_000, self._retire)

    def _retire(self) -> None:
        self.open = False
        self._news.set()

    async def _run(self) -> None:
        end = End(How.UNREACHED, ConnectionLost("the connection was closed"))
        backoff = Backoff()
        try:
            while True:
                began_ms = boot_ms()
                end = await self._ride()
                if not self.open:
                    break
                if end.how is How.REFUSED and boot_ms() - began_ms >= LONG_MS:
                    # It was good until now. A client that was held up for long is refused so.
                    end = End(How.BROKEN, end.error)
                log.debug("session with %s: %s (%s)", self.address, end.how.value, end.error)
                if end.how in (How.AGED, How.DRAINED):
                    await asyncio.sleep(random.uniform(0, CALM_MS) / 1_000)  # noqa: S311 - no secret
                if end.how not in _AGAIN:
                    break
                if boot_ms() - began_ms >= LONG_MS:
                    backoff.reset()
                if end.how is How.BROKEN:
                    await backoff.pause(connection_broken=True)
        except Exception:
            log.exception("session with %s: an unexpected error", self.address)
        finally:
            self._finish(end)

    def _finish(self, end: End) -> None:
        self.open = False
        if self._linger is not None:
            self._linger.cancel()
        self._ended(self, end)
        error = SessionEnded() if end.how in (How.UNSUPPORTED, How.REFUSED) else end.error
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(error)
        passengers, self._passengers = list(self._passengers.values()), {}
        for passenger in passengers:
            passenger.adrift(end)

    # One stream

    async def _ride(self) -> End:
        loop = asyncio.get_running_loop()
        async with self._channels.use(self.address) as channel:
            try:
                stream = pb_grpc.GroupSessionServiceStub(channel).Session()
            except grpc.aio.UsageError as error:
                return End(How.UNREACHED, ConnectionLost(str(error)))
            self._begin()
            self._silent = loop.create_future()
            reader = loop.create_task(self._read(stream))
            writer = loop.create_task(self._write(stream))
            try:
                await asyncio.wait((reader, self._silent), return_when=asyncio.FIRST_COMPLETED)
                if reader.done():
                    return reader.result()
                self._channels.give_up(self.address)
                return End(How.SILENT, ConnectionLost("the coordinator does not answer"))
            finally:
                self.stands = False
                if self._beat_timer is not None:
                    self._beat_timer.cancel()
                    self._beat_timer = None
                self._silent.cancel()
                reader.cancel()
                writer.cancel()
                stream.cancel()
                await asyncio.wait((reader, writer))

    def _begin(self) -> None:
        """Everybody and everything goes onto a new stream: members first, then calls, then a beat."""
        low, high = HELLO_INTERVALS_MS
        self._promised_ms = max(low, min(high, self._interval_ms()))
        hello = session_pb2.Hello(client_id=CLIENT_ID, beat_interval_ms=self._promised_ms)
        self._opening = session_pb2.ClientFrame(hello=hello)
        self._boarding.clear()
        self._aboard.clear()
        self._due = dict.fromkeys(self._passengers)
        self._unsent = dict.fromkeys(self._calls)
        self._beats.clear()
        self._last_beat = 0
        self._beat()

    def _interval_ms(self) -> int:
        return min((p.beat_interval_ms for p in self._passengers.values()), default=DEFAULT_BEAT_MS)

    def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        self._beating_ms = min(self._interval_ms(), self._promised_ms)
        self._beat_due = True
        self._news.set()
        self._beat_timer = loop.call_later(
            self._beating_ms / 1_000, self._beat_again, boot_ms() + self._beating_ms
        )

    def _beat_again(self, due_ms: int) -> None:
        late_ms = boot_ms() - due_ms
        timeout_ms = max(ACK_TIMEOUT_MS, 2 * self._beating_ms)
        waiting = boot_ms() - self._beats[0][1] if self._beats else 0
        # Whoever was held up here himself has answers to read before he may call the server silent.
        if waiting > timeout_ms + late_ms and late_ms < timeout_ms // 2:
            if self._silent is not None and not self._silent.done():
                self._silent.set_result(None)
            return
        self._beat()

    async def _write(self, stream: Any) -> None:
        """What one turn of the loop produces goes out together."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                for message in messages(self._take()):
                    await stream.write(message)
                if not self.open:
                    await stream.done_writing()
                    return
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            return  # the reader hears why

    def _take(self) -> Iterator[session_pb2.ClientFrame]:
        if self._opening is not None:
            yield self._opening
            self._opening = None
        due, self._due = self._due, {}
        now_ms = boot_ms()
        for key in due:
            passenger = self._passengers.get(key)
            if passenger is None:
                detach = session_pb2.Detach(group_id=key[0], member_id=key[1])
                yield session_pb2.ClientFrame(detach=detach)
            else:
                awaited = self._boarding.setdefault(key, deque())
                awaited.append((passenger, now_ms))
                yield session_pb2.ClientFrame(attach=passenger.attach)
        unsent, self._unsent = self._unsent, {}
        for call_id in unsent:
            yield self._calls[call_id].frame
        if self._beat_due:
            self._beat_due = False
            self._last_beat += 1
            self._beats.append((self._last_beat, boot_ms()))
            yield session_pb2.ClientFrame(beat=session_pb2.Beat(number=self._last_beat))

    async def _read(self, stream: Any) -> End:
        try:
            while True:
                message = await stream.read()
                if message is grpc.aio.EOF:
                    return self._ended_with(await stream.code(), await stream.details() or "")
                self.stands = True
                for frame in message.frames:
                    kind = frame.WhichOneof("kind")
                    if kind == "goodbye":
                        return _parted(frame.goodbye)
                    if kind is not None:
                        _HANDLERS[kind](self, getattr(frame, kind))
        except grpc.aio.AioRpcError as error:
            return self._ended_with(error.code(), error.details() or "")

    def _ended_with(self, status: grpc.StatusCode, details: str) -> End:
        if not self.open:
            return End(How.IDLE, ConnectionLost("the connection was closed"))
        error = ConnectionLost(details or "the stream ended")
        sorted_out = error if status is grpc.StatusCode.OK else sort_status(status, details, "the session")
        if status in _STATUS:
            how = _STATUS[status]
        elif isinstance(sorted_out, ConnectionLost):
            how = How.BROKEN
        else:
            how = How.DENIED
        if how is How.BROKEN and not self.stands:
            how = How.UNREACHED
        return End(how, sorted_out)

    # What the server says

    def _on_attach_result(self, result: session_pb2.AttachResult) -> None:
        key = (result.group_id, result.member_id)
        awaited = self._boarding.get(key)
        if not awaited:
            return
        passenger, sent_ms = awaited.popleft()
        if not awaited:
            del self._boarding[key]
        if self._passengers.get(key) is not passenger:
            return
        if result.error_code in (common_pb2.ERROR_CODE_NONE, common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS):
            self._aboard[key] = passenger
        else:
            self._put_off(key)
        passenger.attached(result, sent_ms)

    def _on_beat_ack(self, ack: session_pb2.BeatAck) -> None:
        sent_ms = 0
        while self._beats and self._beats[0][0] <= ack.number:
            number, sent_ms = self._beats.popleft()
            if number < ack.number:
                sent_ms = 0
        if not sent_ms:
            return
        unheard = {(member.group_id, member.member_id): int(member.error_code) for member in ack.unheard}
        for key, passenger in tuple(self._aboard.items()):
            if key in unheard:
                passenger.unheard(unheard[key])
            else:
                passenger.alive(sent_ms)

    def _on_reply(self, reply: session_pb2.Reply) -> None:
        call = self._calls.get(reply.call_id)
        if call is None or call.answer.done():
            return
        try:
            call.answer.set_result(response_of(reply))
        except Exception as error:
            call.answer.set_exception(error)

    def _on_rebalance_started(self, news: session_pb2.RebalanceStarted) -> None:
        if (passenger := self._passengers.get((news.group_id, news.member_id))) is not None:
            passenger.rebalance(news)

    def _on_fenced(self, news: session_pb2.Fenced) -> None:
        key = (news.group_id, news.member_id)
        # While an Attach is on its way its answer decides: the news may be of the generation before.
        if key in self._aboard:
            self._put_off(key).fenced(news)

    def _on_coordinator_moved(self, news: session_pb2.CoordinatorMoved) -> None:
        key = (news.group_id, news.member_id)
        if key in self._passengers:
            self._put_off(key).moved(news.coordinator)

    def _put_off(self, key: Key) -> Passenger:
        """The server has taken the member off the stream: no Detach is needed."""
        self._aboard.pop(key, None)
        self._due.pop(key, None)
        passenger = self._passengers.pop(key)
        self._reconsider()
        return passenger


_HANDLERS: dict[str, Callable[[Session, Any], None]] = {
    "attach_result": Session._on_attach_result,
    "beat_ack": Session._on_beat_ack,
    "reply": Session._on_reply,
    "rebalance_started": Session._on_rebalance_started,
    "fenced": Session._on_fenced,
    "coordinator_moved": Session._on_coordinator_moved,
}


def _parted(goodbye: session_pb2.Goodbye) -> End:
    how = _GOODBYES.get(goodbye.reason, How.BROKEN)
    return End(how, ConnectionLost(goodbye.message or how.value))
