"""One session stream to one coordinator, shared by all members of the process that it serves."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc.aio
from muster_protos.muster.v1 import common_pb2, session_pb2, session_pb2_grpc

from muster._backoff import Backoff, between
from muster._clock import boot_ms
from muster._session.callers import Callers, CallingMember
from muster._session.calls import PendingCalls
from muster._session.channels import ChannelPool
from muster._session.end import How, SessionEnded, StreamEnd, by_goodbye, by_status, closed
from muster._session.frames import messages
from muster._session.session_members import DEFAULT_BEAT_MS, Key, SessionMember, SessionMembers
from muster._session.transport import ConnectionLost, GroupRequest, GroupResponse, sort_call

log = logging.getLogger("muster")

ACK_TIMEOUT_MS = 1_000
"""A beat without an acknowledgement for this long, or two intervals if longer: the connection is lost."""
LINGER_MS = 5_000
"""How long a stream without members and calls stays open."""
CLOSE_TIMEOUT_MS = 500
"""How long the last frames may take to be sent at a close."""
LONG_MS = 5_000
"""A stream that lasted this long was accepted: the back-off begins anew after it."""
CALM_MS = 200
"""After an orderly end, clients leave or reopen at a random moment within this time, not all at once."""
HELLO_INTERVALS_MS = (100, 60_000)
CLIENT_ID = "muster-python"


_AGAIN = (How.BROKEN, How.AGED)

Response = TypeVar("Response", bound=GroupResponse)


class Session:
    """A stream that is opened again when it breaks, for as long as it has members or unanswered calls.

    When the server cannot be reached it ends: its calls fail and its members look for their coordinator.

    Args:
        address: of the coordinator.
        channels: connections.
        ended: called at its end.

    Attributes:
        established: whether the server has answered on the current stream.
        open: whether it takes members and calls.
    """

    def __init__(
        self, address: str, channels: ChannelPool, ended: Callable[["Session", StreamEnd], None]
    ) -> None:
        self.address: str = address
        self.established: bool = False
        self.open: bool = True
        self._channels = channels
        self._ended = ended
        self._members = SessionMembers(self._send, self._reconsider)
        self._callers = Callers(self._send)
        self._calls = PendingCalls(address, self._send, self._reconsider)
        # Beats: those without an answer.
        self._beats: deque[tuple[int, int]] = deque()
        self._last_beat = 0
        self._acknowledged = 0
        self._beat_due = False
        self._beat_timer: asyncio.TimerHandle | None = None
        self._promised_ms = self._beating_ms = DEFAULT_BEAT_MS
        self._opening: session_pb2.ClientFrame | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._proof: tuple[tuple[str, str], ...] = ()
        self._news = asyncio.Event()
        self._silent: asyncio.Future[None] | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"muster-session-{address}")

    # For members

    def attach(self, key: Key, member: SessionMember) -> None:
        """Puts a member on the stream, now and whenever it is reopened; its `attached` gets the answer."""
        self._members.attach(key, member)
        if self._beat_timer is not None and member.beat_interval_ms < self._beating_ms:
            self._beat()

    def detach(self, key: Key, member: SessionMember) -> None:
        """Takes a member off, unless another membership took its place. It is not called any more."""
        self._members.detach(key, member)

    def carries(self, key: Key, member: SessionMember) -> bool:
        """Whether a member is on the stream, or on its way there."""
        return self._members.carries(key, member)

    def is_attached(self, key: Key, member: SessionMember) -> bool:
        """Whether beats count for a member."""
        return self._members.is_attached(key, member)

    def carry(self, key: Key, member: CallingMember) -> None:
        """A member of an incremental group makes its calls here, from now on."""
        self._callers.add(key, member)
        if self._beat_timer is not None and member.beat_interval_ms < self._beating_ms:
            self._beat()

    def drop(self, key: Key, member: CallingMember) -> None:
        """A member of an incremental group makes its calls elsewhere. It is not told anything any more."""
        self._callers.remove(key, member)

    def is_carrying(self, key: Key, member: CallingMember) -> bool:
        """Whether a member of an incremental group makes its calls here."""
        return self._callers.carries(key, member)

    # For calls

    async def call(
        self, request: GroupRequest, response_type: type[Response], timeout_ms: int, connection: int = 0
    ) -> Response:
        """Makes a call and returns its answer. If the stream breaks it is repeated on the next one.

        Args:
            request: the call.
            response_type: of its answer.
            timeout_ms: how long it may take.
            connection: number of the member's connection; such a call ends with its stream. 0: it has none.

        Raises:
            ConnectionLost: no answer came.
            Overloaded: too many calls are open here, or the server asks to come back later.
            RequestRefused: the request is wrong or not allowed.
            SessionEnded: the server takes no stream.
            TypeError: the answer is one to another kind of call.
        """
        response = await self._calls.call(request, timeout_ms, connection)
        if not isinstance(response, response_type):
            raise TypeError(f"{type(request).__name__} was answered {type(response).__name__}")
        return response

    # Its own life

    async def close(self) -> None:
        """Ends the stream after sending what is waiting to be sent."""
        self._retire()
        try:
            await asyncio.wait((self._task,), timeout=CLOSE_TIMEOUT_MS / 1_000)
        finally:
            self._task.cancel()
        await asyncio.wait((self._task,))

    def _send(self) -> None:
        """Wakes the writer."""
        self._news.set()
        self._reconsider()

    def _reconsider(self) -> None:
        """Starts or stops the linger timer after members or calls came or went."""
        if self._members or self._callers or self._calls:
            if self._linger is not None:
                self._linger.cancel()
                self._linger = None
        elif self._linger is None and self.open:
            self._linger = asyncio.get_running_loop().call_later(LINGER_MS / 1_000, self._retire)

    def _retire(self) -> None:
        self.open = False
        self._news.set()

    async def _run(self) -> None:
        end = StreamEnd(How.UNREACHED, ConnectionLost("the connection was closed"))
        backoff = Backoff()
        try:
            while True:
                began_ms = boot_ms()
                end = await self._run_stream()
                if not self.open:
                    break
                if end.how is How.REFUSED and boot_ms() - began_ms >= LONG_MS:
                    # It was accepted before: a client that was stopped for long is refused in this way.
                    end = StreamEnd(How.BROKEN, end.error)
                log.debug("session with %s: %s (%s)", self.address, end.how.value, end.error)
                if end.how in (How.AGED, How.DRAINED):
                    await asyncio.sleep(between(0, CALM_MS) / 1_000)
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

    def _finish(self, end: StreamEnd) -> None:
        self.open = False
        if self._linger is not None:
            self._linger.cancel()
        self._ended(self, end)
        error = SessionEnded() if end.how in (How.UNSUPPORTED, How.REFUSED) else end.error
        self._calls.fail(error)
        self._members.abandon(end)
        self._callers.abandon(end)

    # One stream

    async def _run_stream(self) -> StreamEnd:
        loop = asyncio.get_running_loop()
        async with self._channels.use(self.address) as channel:
            try:
                self._proof = self._channels.proof()
                stream = session_pb2_grpc.GroupSessionServiceStub(channel).Session(metadata=self._proof)
            except grpc.aio.UsageError as error:
                return StreamEnd(How.UNREACHED, ConnectionLost(str(error)))
            self._begin()
            self._silent = loop.create_future()
            reader = loop.create_task(self._read(stream))
            writer = loop.create_task(self._write(stream))
            try:
                await asyncio.wait((reader, writer, self._silent), return_when=asyncio.FIRST_COMPLETED)
                if writer.done():
                    writer.result()  # raises what is unexpected: nothing would be sent any more
                    await asyncio.wait((reader, self._silent), return_when=asyncio.FIRST_COMPLETED)
                if reader.done():
                    return reader.result()
                self._channels.give_up(self.address)
                return StreamEnd(How.SILENT, ConnectionLost("the coordinator does not answer"))
            finally:
                self.established = False
                if self._beat_timer is not None:
                    self._beat_timer.cancel()
                    self._beat_timer = None
                self._silent.cancel()
                reader.cancel()
                writer.cancel()
                stream.cancel()
                await asyncio.wait((reader, writer))

    def _begin(self) -> None:
        """Queues everything for a new stream: members first, then calls, then a beat."""
        low, high = HELLO_INTERVALS_MS
        self._promised_ms = max(low, min(high, self._wished_ms))
        hello = session_pb2.Hello(client_id=CLIENT_ID, beat_interval_ms=self._promised_ms, knows_unsure=True)
        self._opening = session_pb2.ClientFrame(hello=hello)
        self._members.begin()
        self._calls.begin()
        self._callers.begin()
        self._beats.clear()
        self._last_beat = 0
        self._acknowledged = 0
        self._beat()

    @property
    def _wished_ms(self) -> int:
        callers_ms = self._callers.beat_interval_ms
        if callers_ms is None:
            return self._members.beat_interval_ms
        return min(callers_ms, self._members.beat_interval_ms) if self._members else callers_ms

    def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        self._beating_ms = min(self._wished_ms, self._promised_ms)
        self._beat_due = True
        self._news.set()
        self._beat_timer = loop.call_later(
            self._beating_ms / 1_000, self._beat_again, boot_ms() + self._beating_ms
        )

    def _beat_again(self, due_ms: int) -> None:
        late_ms = boot_ms() - due_ms
        timeout_ms = max(ACK_TIMEOUT_MS, 2 * self._beating_ms)
        waiting = boot_ms() - self._beats[0][1] if self._beats else 0
        # A process that was held up itself has answers to read before it may call the server silent.
        if waiting > timeout_ms + late_ms and late_ms < timeout_ms // 2:
            if self._silent is not None and not self._silent.done():
                self._silent.set_result(None)
            return
        self._beat()

    async def _write(self, stream: Any) -> None:
        """Sends together what one turn of the event loop produces."""
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
            return  # the reader gets the reason

    def _take(self) -> Iterator[session_pb2.ClientFrame]:
        if self._opening is not None:
            yield self._opening
            self._opening = None
        yield from self._members.frames()
        yield from self._callers.frames()
        yield from self._calls.frames()
        if self._beat_due:
            self._beat_due = False
            self._last_beat += 1
            self._beats.append((self._last_beat, boot_ms()))
            beat = session_pb2.Beat(number=self._last_beat, acknowledged=self._acknowledged)
            yield session_pb2.ClientFrame(beat=beat)

    async def _read(self, stream: Any) -> StreamEnd:
        heard: dict[str, Callable[[Any], None]] = {
            "attach_result": self._attach_result,
            "beat_ack": self._beat_ack,
            "reply": self._calls.answered,
            "rebalance_started": self._members.rebalance_started,
            "fenced": self._fenced,
            "coordinator_moved": self._coordinator_moved,
            "group_changed": self._group_changed,
            "member_news": self._callers.member_news,
        }
        try:
            while True:
                message = await stream.read()
                if message is grpc.aio.EOF:
                    return self._ended_with(await stream.code(), await stream.details() or "")
                if not self.established:
                    self.established = True
                    self._channels.proved()
                for frame in message.frames:
                    kind = frame.WhichOneof("kind")
                    if kind == "goodbye":
                        return by_goodbye(frame.goodbye)
                    if kind is not None:
                        heard[kind](getattr(frame, kind))
        except grpc.aio.AioRpcError as error:
            return self._ended_with(error.code(), error.details() or "")

    def _ended_with(self, status: grpc.StatusCode, details: str) -> StreamEnd:
        if not self.open:
            return closed()
        sort = partial(sort_call, self._channels, self._proof)
        return by_status(status, details, established=self.established, sort=sort)

    def _attach_result(self, result: session_pb2.AttachResult) -> None:
        if not self._callers.attach_result(result):
            self._members.attach_result(result)

    def _fenced(self, news: session_pb2.Fenced) -> None:
        if not self._callers.fenced(news):
            self._members.fenced(news)

    def _group_changed(self, news: session_pb2.GroupChanged) -> None:
        """Of a member that has heard of it by an answer, the member of the other kind has the place here."""
        if news.error_code == common_pb2.ERROR_CODE_GROUP_CLASSIC:
            self._callers.became_classic(news)
        else:
            self._members.became_incremental(news)

    def _coordinator_moved(self, news: session_pb2.CoordinatorMoved) -> None:
        if not self._callers.coordinator_moved(news):
            self._members.coordinator_moved(news)

    def _beat_ack(self, ack: session_pb2.BeatAck) -> None:
        sent_ms = 0
        while self._beats and self._beats[0][0] <= ack.number:
            number, sent_ms = self._beats.popleft()
            if number < ack.number:
                sent_ms = 0
        if sent_ms:
            self._acknowledged = ack.number
            self._members.beat_ack(ack, sent_ms)
            self._callers.beat_ack(ack, sent_ms)
