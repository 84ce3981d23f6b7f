"""One session stream: reads frames, writes answers and news, and ends."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

import grpc
import structlog
from muster_core import error_code
from muster_core.events import Push, StreamBroken
from muster_protos.limits import ID_MAX_BYTES
from muster_protos.muster.v1 import session_pb2
from muster_runtime.clock import wall_ms
from muster_runtime.loop_share import LoopShare
from muster_runtime.rpc.identity import current_identity
from muster_runtime.rpc.large import read_message
from muster_runtime.rpc.refusals import Refused

from muster_coordinator.session.attachments import Attachments, is_id
from muster_coordinator.session.calls import ProtocolBroken, StreamCalls, frames_of
from muster_coordinator.session.dependencies import StreamDependencies
from muster_coordinator.session.members import StreamMembers
from muster_coordinator.session.outbox import Outbox
from muster_coordinator.shard.owned_shard import OwnedShard

log = structlog.get_logger()

BEAT_INTERVAL_MIN_MS = 100
BEAT_INTERVAL_MAX_MS = 60_000
MISSED_BEATS = 3
"""A client that missed so many beats is silent."""

_SILENT_MIN_MS = 1_000
_GOODBYE_WAIT_S = 1.0
_HALF_CLOSED_WAIT_S = 5.0
_TURN_S = 0.005
"""Frames of a message that take longer are played one message at a time."""
_MESSAGE_S = 0.000_1
"""About how long it takes to read a message and to send what it is answered with, besides its frames."""

_NEWS = {
    session_pb2.AttachResult: "attach_result",
    session_pb2.RebalanceStarted: "rebalance_started",
    session_pb2.Fenced: "fenced",
    session_pb2.GroupChanged: "group_changed",
    session_pb2.CoordinatorMoved: "coordinator_moved",
}
_ATTACHED = (error_code.NONE, error_code.REBALANCE_IN_PROGRESS)


class SessionStream:
    """A session of one client.

    The task that runs it writes; another one reads. The server ends it with `end`; if it ends in any other
    way with members on it, it broke.

    Args:
        stream_id: its number in this process, never used again.
        host: address of the client.
        around: what all streams share.
    """

    def __init__(self, stream_id: int, host: str, around: StreamDependencies) -> None:
        settings = around.settings
        self.stream_id = stream_id
        self.client_id = ""
        self.members = StreamMembers(stream_id)
        self._host = host
        self._around = around
        self._settings = settings
        self._outbox = Outbox(settings.max_queued_bytes, around.queued)
        self._peer = ""
        watch = around.watch()
        self._attachments = Attachments(self, host, around, watch, self._frame)
        self._calls = StreamCalls(
            around.calls,
            host,
            settings.max_open_calls,
            self._attachments,
            self._frame,
            self._send,
            self._outbox.wake,
            watch,
            around.admit,
        )
        self._beat_interval_ms = 0
        self._other_frames = 0
        self._moved = False
        self._opened_ms = self._heard_ms = around.boot_ms()
        self._write_began_ms: int | None = None
        spread_ms = settings.max_age_ms // 10
        self._oldest_ms = settings.max_age_ms - spread_ms + secrets.randbelow(2 * spread_ms + 1)
        self._task: asyncio.Task[Any] | None = None
        self._ended = False
        self._half_closed = False
        self._left = False
        self._reported = False
        self._overflowed = False
        self._cutting: asyncio.TimerHandle | None = None
        self._frames: dict[str, Callable[[Any], None]] = {
            "attach": self._attachments.attach,
            "detach": self._attachments.detach,
            "beat": self._attachments.beat,
            "call": self._call,
            "hello": self._second_hello,
        }

    # --- its life

    async def run(self, context: Any) -> None:
        """Serves the stream until it ends.

        Args:
            context: the call, as grpc gives it to a servicer.
        """
        self._task = asyncio.current_task()
        self._peer = context.peer()
        if (expires_ms := current_identity().expires_ms) is not None:
            self._oldest_ms = min(self._oldest_ms, expires_ms - wall_ms())
        reader = asyncio.get_running_loop().create_task(self._read(context))
        try:
            await self._write(context)
        except asyncio.CancelledError:
            if not self._ended or self._task is None:
                raise
            # Our own: the client did not take what was on its way when the server ended the stream.
            self._task.uncancel()
        finally:
            if self._cutting is not None:
                self._cutting.cancel()
            reader.cancel()
            self._leave()
            self._outbox.clear()
            self._outbox.written()

    async def _write(self, context: Any) -> None:
        outbox = self._outbox
        while True:
            while outbox:
                self._write_began_ms = self._around.boot_ms()
                await context.write(outbox.take())
                outbox.written()
            self._write_began_ms = None
            if self._ended or (self._half_closed and not self._calls):
                return
            await outbox.wait()

    async def _read(self, context: Any) -> None:
        try:
            while (message := await read_message(context)) is not grpc.aio.EOF and not self._ended:
                self._heard_ms = self._around.boot_ms()
                await self._handle(message)
        except ProtocolBroken as error:
            self.refuse(str(error))
        except Refused as error:  # bytes that are no message, or too many of them
            self.refuse(error.message)
        except Exception as error:
            log.info("session_broke", stream_id=self.stream_id, client_id=self.client_id, problem=repr(error))
            if self._task is not None:
                self._task.cancel()
        else:
            self._close()

    def _close(self) -> None:
        """The client says no more. What it asked is answered still; members that it left here are suspect."""
        if self._ended:
            return
        self._half_closed = True
        self._outbox.wake()
        asyncio.get_running_loop().call_later(
            _HALF_CLOSED_WAIT_S,
            self.end,
            session_pb2.GOODBYE_REASON_REFUSED,
            "the client closed the stream long ago",
        )
        if self.members:
            self._report_break()

    def _report_break(self) -> None:
        if not self._reported:
            self._reported = True
            self._around.broke(self)

    def end(self, reason: session_pb2.GoodbyeReason.ValueType, message: str) -> None:
        """Says goodbye and ends the stream; nobody becomes suspect.

        Args:
            reason: why.
            message: one sentence for people.
        """
        if self._ended:
            return
        self._ended = True
        goodbye = self._outbox.frame(len(message)).goodbye
        goodbye.reason = reason
        goodbye.message = message
        self._leave()
        self._outbox.wake()
        if self._task is not None:
            self._cutting = asyncio.get_running_loop().call_later(_GOODBYE_WAIT_S, self._task.cancel)

    def refuse(self, message: str) -> None:
        """Ends the stream because its client broke the protocol or a limit."""
        if not self._ended:
            log.warning(
                "session_refused",
                stream_id=self.stream_id,
                client_id=self.client_id,
                members=len(self.members),
                reason=message,
            )
            self.end(session_pb2.GOODBYE_REASON_REFUSED, message)

    def _leave(self) -> None:
        """Ends all that belongs to the stream."""
        if self._left:
            return
        self._left = True
        self._calls.cancel(self._leave_members)

    def _leave_members(self) -> None:
        """Ends what its members have with it: after their calls, which would be signs of life."""
        if self._ended:
            self.broken(suspect=False)
        elif self.members:
            self._report_break()

    def broken(self, *, suspect: bool, ago_ms: int = 0) -> None:
        """Notifies the shards of its members that the stream is over, and how long ago it ended."""
        self._attachments.broken(suspect=suspect, ago_ms=ago_ms)

    @property
    def attached(self) -> bool:
        """Whether it has members."""
        return len(self.members) > 0

    def silent(self, now_ms: int) -> bool:
        """Whether its client missed several beats."""
        patience_ms = max(MISSED_BEATS * self._beat_interval_ms, _SILENT_MIN_MS)
        return self._beat_interval_ms > 0 and now_ms - self._heard_ms > patience_ms

    def check(self, now_ms: int) -> None:
        """Ends the stream if its time is up: old, silent, without Hello, or not read. Called now and then."""
        if self._ended:
            return
        settings = self._settings
        silent_ms = now_ms - self._heard_ms
        write_began_ms = self._write_began_ms
        if self._beat_interval_ms == 0 and now_ms - self._opened_ms > settings.hello_timeout_ms:
            self.refuse(f"no Hello came within {settings.hello_timeout_ms:,} ms")
        elif write_began_ms is not None and now_ms - write_began_ms > settings.write_timeout_ms:
            self.cut_off(f"the client did not read for {settings.write_timeout_ms:,} ms")
        elif silent_ms > max(settings.max_silence_ms, MISSED_BEATS * self._beat_interval_ms):
            self.refuse(f"the client was silent for {silent_ms:,} ms")
        elif now_ms - self._opened_ms > self._oldest_ms:
            self.end(session_pb2.GOODBYE_REASON_AGE, "the stream is old; open another")

    # --- what the client says

    async def _handle(self, message: session_pb2.SessionRequest) -> None:
        turn, host = self._around.calls.loop_turn, self._host
        if turn.is_over(host):
            await turn.another(host, self._peer)  # connections have it in turn
        if self._ended:
            return
        try:
            if len(message.frames) == 1:
                began_s = turn.now_s()
                try:
                    self._play_frame(message.frames[0])
                finally:
                    self._took(turn.now_s() - began_s)
            else:
                await self._play(message)
            other_frames, self._other_frames = self._other_frames, 0
            if pause_s := self._calls.pause_s(other_frames):
                await asyncio.sleep(pause_s)
        except ProtocolBroken:
            raise
        except Exception:
            log.exception("session_failed", stream_id=self.stream_id, client_id=self.client_id)
            self.refuse("the server failed in a way it did not foresee")

    async def _play(self, message: session_pb2.SessionRequest) -> None:
        """Plays the frames of a message; if they take long, in several turns of the loop."""
        if (frames := len(message.frames)) > self._settings.max_frames:
            self._calls.owe(frames)
            raise ProtocolBroken(f"frames: a message must have at most {self._settings.max_frames:,}")
        self._other_frames += frames == 0
        played = self._play_from(message, 0)
        while played < frames:
            async with self._around.calls.large_requests.turn(self._host):
                await self._around.calls.loop_turn.rest(self._host)
                played = self._play_from(message, played)

    def _took(self, taken_s: float, *, rests: bool = False) -> None:
        """Counts how long frames of a message took: those that move members have half of the loop at most.

        Args:
            taken_s: how long, seconds.
            rests: whether they have that whatever they are.
        """
        rests, self._moved = rests or self._moved, False
        self._around.calls.loop_turn.took(self._host, taken_s, taken_s + _MESSAGE_S if rests else 0.0)

    def _play_from(self, message: session_pb2.SessionRequest, first: int) -> int:
        """Plays frames until the turn of the loop is over; returns the number of the first that is left."""
        frames, share = message.frames, LoopShare()
        try:
            for number in range(first, len(frames)):
                if self._ended:  # by a frame, or while it waited for its turn
                    break
                self._play_frame(frames[number])
                if share.taken_s > _TURN_S:
                    return number + 1
            return len(frames)
        finally:  # also where the last frame broke the protocol
            self._took(share.taken_s, rests=first > 0 or share.taken_s > _TURN_S)

    def _play_frame(self, frame: session_pb2.ClientFrame) -> None:
        kind = frame.WhichOneof("kind")
        if self._beat_interval_ms == 0:
            if kind != "hello":
                raise ProtocolBroken("the first frame must be a Hello")
            self._hello(frame.hello)
        elif kind is None:
            raise ProtocolBroken("a frame has no kind that this version knows")
        else:
            if kind != "call":
                self._other_frames += frames_of(frame.ByteSize())
                self._moved = self._moved or kind != "beat"
            self._frames[kind](getattr(frame, kind))

    def _hello(self, hello: session_pb2.Hello) -> None:
        if not BEAT_INTERVAL_MIN_MS <= hello.beat_interval_ms <= BEAT_INTERVAL_MAX_MS:
            raise ProtocolBroken(
                f"hello.beat_interval_ms: must be {BEAT_INTERVAL_MIN_MS:,} to {BEAT_INTERVAL_MAX_MS:,}"
            )
        if not is_id(hello.client_id):
            raise ProtocolBroken(f"hello.client_id: must be at most {ID_MAX_BYTES} bytes long")
        self._beat_interval_ms = hello.beat_interval_ms
        self.client_id = hello.client_id or "client"
        self._attachments.knows_unsure = hello.knows_unsure

    def _second_hello(self, _: session_pb2.Hello) -> None:
        raise ProtocolBroken("there was a Hello already")

    def _call(self, call: session_pb2.Call) -> None:
        self._calls.start(call)

    # --- what the server says

    def pushed(self, shard: OwnedShard, push: Push) -> None:
        """Passes on what a shard's core has to say to a member of the stream."""
        message = push.message
        if isinstance(message, session_pb2.MemberNews):
            who = (message.group_id, message.response.member_id, message.member_seq)
            if not self._left:  # the newest of a join takes the place of one that waits (INC-20)
                self._frame(message.ByteSize(), who).member_news.CopyFrom(message)
            return
        key = (message.group_id, message.member_id)
        if isinstance(message, session_pb2.AttachResult):
            if message.error_code in _ATTACHED:
                self._attachments.attached(shard, key)
                if self._left or self._reported:  # it was answered after the stream had broken
                    self._attachments.forget(key)
                    broken = StreamBroken(self.stream_id)
                    asyncio.get_running_loop().call_soon(shard.notify, broken)
        elif not isinstance(message, session_pb2.RebalanceStarted):
            self._attachments.forget(key)
        if not self._left:
            getattr(self._frame(message.ByteSize()), _NEWS[type(message)]).CopyFrom(message)

    def _frame(
        self, size_bytes: int, replaces: tuple[str, str, int] | None = None
    ) -> session_pb2.ServerFrame:
        if not self._takes_more():
            return session_pb2.ServerFrame()  # nobody will read it
        frame = self._outbox.frame(size_bytes, replaces)
        self._look_at_total()
        return frame

    def _send(self, message: bytes) -> None:
        if self._takes_more():
            self._outbox.add(message)
            self._look_at_total()

    def _takes_more(self) -> bool:
        if self._outbox.full and not self._overflowed:
            # Not now: this may be inside a turn of a shard, and the end of the stream is an event for it.
            self._overflowed = True
            asyncio.get_running_loop().call_soon(self._overflow)
        return not (self._ended or self._overflowed)

    def _look_at_total(self) -> None:
        if self._around.queued.bytes > self._settings.max_total_queued_bytes:
            self._around.crowded()

    def _overflow(self) -> None:
        self.cut_off(f"the client left {self._settings.max_queued_bytes:,} bytes unread")

    @property
    def unread_bytes(self) -> int:
        """What the client has not taken."""
        return self._outbox.bytes

    def cut_off(self, reason: str) -> None:
        """Ends the stream of a client that does not read, and its connection, which holds what is written."""
        unread_bytes = self._outbox.bytes
        self._outbox.clear()
        self.refuse(reason)
        if self._write_began_ms is not None:
            self._around.cuts.soon(self._peer, unread_bytes=unread_bytes)
