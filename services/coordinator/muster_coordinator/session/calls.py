"""The group calls of one session stream: started as they come, answered as frames."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import Any, Protocol

import grpc
import structlog
from muster_core.events import GroupRequest, GroupResponse, StreamPlace
from muster_protos.muster.v1 import session_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from muster_runtime.rpc.quotas import current_connection
from muster_runtime.rpc.refusals import InvalidArgument, Refused, ResourceExhausted, Unimplemented, oversized

from muster_coordinator.api.admission import Admit, Ended, admit_all, end_later
from muster_coordinator.api.calls import LARGE_BYTES, Calls, check
from muster_coordinator.api.named import NAMED_MAX, looked_at
from muster_coordinator.api.rights import Verdict
from muster_coordinator.session.encoding import reply_message
from muster_coordinator.session.members import MemberKey
from muster_coordinator.shard.owned_shard import OwnedShard

log = structlog.get_logger()

_RETRY_MS = 100

CALL_MAX_BYTES = {
    "join_group": 2 << 20,
    "sync_group": 4 << 20,
    "offset_commit": 4 << 20,
    "offset_fetch": 4 << 20,
}
"""Largest call in bytes, as of the unary ones; of others:"""
OTHER_CALL_MAX_BYTES = 1 << 20


_FRAME_S = 0.000_2
"""How long a stream is not read for each frame above a quota; more calls than that are not even refused."""
_FRAME_BYTES = 8 << 10
"""So many bytes take as long to read as one more frame."""
_LONGEST_PAUSE_S = 0.2

_UNPARKED_AT_ONCE = 64
"""About a millisecond."""
_CANCELLED_S = 0.000_015
"""About how long it takes a call to end that waits in a task of its own, in the turn of the loop after."""

_HEARTBEAT = "heartbeat"
_OF_INCREMENTAL_MEMBER = "consumer_group_heartbeat"
_NOTHING = nullcontext()


class ProtocolBroken(Exception):
    """The client broke the protocol of the stream or a limit that ends it; says what in one sentence."""


class Host(Protocol):
    """The stream that calls come by."""

    def place(self, connection: int) -> StreamPlace:
        """Where a member of an incremental group is that makes a call on it."""
        ...

    def has_room_for(self, key: MemberKey) -> bool:
        """Whether one more member may be on it, or this one is."""
        ...

    def forget(self, key: MemberKey) -> None:
        """A member has left its group by a call on it."""
        ...


class CallWatch:
    """Watches the calls of one stream, to count and trace them. This one does nothing: telemetry is off."""

    def starting(
        self, call_id: int, kind: str, request: Any, traceparent: str
    ) -> AbstractContextManager[None]:
        """Wraps the start of a call; heartbeats are too many to be traced."""
        return _NOTHING

    def answered(self, call_id: int, response: GroupResponse) -> None:
        """It is about to be answered, unless it is refused."""

    def done(self, call_id: int) -> None:
        """It was answered or refused."""

    def cancel(self) -> None:
        """The client is gone."""

    def beat(self) -> None:
        """A beat of the stream came."""


UNWATCHED = CallWatch()
"""What a stream has while telemetry is off."""


class StreamCalls:
    """Open calls of a stream.

    Args:
        calls: answers the calls of the group protocol.
        host: address of the client.
        max_open: calls open at a time.
        stream: that they come by.
        frame: gives a frame of about so many bytes to write an answer into.
        send: takes an encoded message of the stream.
        idle: called when the last open call was answered.
        watch: counts and traces them.
        admit: counts a call, and raises what it is refused with.
    """

    def __init__(
        self,
        calls: Calls,
        host: str,
        max_open: int,
        stream: Host,
        frame: Callable[[int], session_pb2.ServerFrame],
        send: Callable[[bytes], None],
        idle: Callable[[], None],
        watch: CallWatch = UNWATCHED,
        admit: Admit = admit_all,
    ) -> None:
        self._calls = calls
        self._admit = admit
        self._connection = current_connection()
        self._over_quota = 0
        self._host = host
        self._max_open = max_open
        self._stream = stream
        self._frame = frame
        self._send = send
        self._idle = idle
        self._watch = watch
        self._open: dict[int, tuple[OwnedShard, int] | asyncio.Task[None] | None] = {}
        self._working: dict[int, int] = {}
        self._ends: dict[int, Ended] = {}
        self._given_up: dict[int, tuple[OwnedShard, int] | asyncio.Task[None]] = {}
        self._unparking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Number of open calls."""
        return len(self._open)

    def start(self, call: session_pb2.Call) -> None:
        """Starts a call; its answer comes as a frame, at once or later.

        Raises:
            ProtocolBroken: the id cannot be answered to.
        """
        call_id = call.call_id
        if call_id == 0 or call_id in self._open:
            raise ProtocolBroken(
                "call_id: must be 1 or more, and not that of a call of the stream that is still open"
            )
        kind = call.WhichOneof("request")
        request: Any = call if kind is None else getattr(call, kind)
        size_bytes = request.ByteSize()
        try:
            self._count(size_bytes)
            if kind is None:
                raise Unimplemented("request: none is set that this version knows")
            if len(self._open) >= self._max_open:
                raise ResourceExhausted(f"the stream has {self._max_open:,} open calls", _RETRY_MS)
            self._let_in(call_id, kind, request, size_bytes)
        except Refused as error:
            self._refuse(call_id, error)
            return
        if self._calls.takes_turn(request):
            with self._watch.starting(call_id, kind, request, call.traceparent):
                self._open_task(call_id, kind, partial(self._calls.answer_in_turn, request, self._host))
            return
        verdict = self._calls.rights.judge(request, self._host)
        if verdict is not None:
            if verdict.request is None:
                self._open[call_id] = None
                self._answered(call_id, kind, verdict.complete(None))
                return
            request = verdict.request
        if kind == _HEARTBEAT:
            self._start(call_id, kind, request, verdict)
            return
        with self._watch.starting(call_id, kind, request, call.traceparent):
            if kind == _OF_INCREMENTAL_MEMBER:
                self._start_of_member(call, request, verdict)
            else:
                self._start(call_id, kind, request, verdict)

    def pause_s(self, other_frames: int) -> float:
        """How long the stream is not to be read: who asks above its quota waits in its own connection.

        Args:
            other_frames: how many frames came since this was asked last that are no calls, large ones as
                several. They are never refused; above the rate of calls of the connection, or of frames of
                its caller, they take reading time from its streams.
        """
        refused, self._over_quota = self._over_quota, 0
        pause_s = min(refused * _FRAME_S, _LONGEST_PAUSE_S)
        connection = self._connection
        if other_frames and connection is not None:
            if not connection.takes_frames(other_frames):
                pause_s += other_frames * _FRAME_S * connection.open_calls
            pause_s = max(pause_s, connection.wait_for_frames_s(other_frames))
        return pause_s

    def owe(self, parts: int) -> None:
        """Counts parts of a message that has more than any may, as partitions: they had to be decoded."""
        if self._connection is not None:
            self._connection.owe_partitions(parts)

    def _let_in(self, call_id: int, kind: str, request: Any, size_bytes: int) -> None:
        """Counts what a call asks for, if it is in order.

        Raises:
            Refused: it is not, or is too much.
        """
        limit_bytes = CALL_MAX_BYTES.get(kind, OTHER_CALL_MAX_BYTES)
        if size_bytes > limit_bytes:
            if (parts := looked_at(request)) > NAMED_MAX:
                self.owe(parts)
            raise oversized(limit_bytes)
        if (ended := self._admitted(request, size_bytes)) is not None:
            self._ends[call_id] = ended
        check(request)
        if kind == _OF_INCREMENTAL_MEMBER:
            self._check_room(request)
        if self._connection is not None and (counted := self._connection.begin_work(size_bytes)):
            self._working[call_id] = counted

    def _count(self, size_bytes: int) -> None:
        """Counts a call, whatever comes of it: it had to be read."""
        if self._connection is not None:
            try:
                self._connection.take_request(size_bytes)
            except ResourceExhausted:
                self._over_quota += frames_of(size_bytes)
                raise

    def _admitted(self, request: GroupRequest, size_bytes: int) -> Ended | None:
        try:
            return self._admit(self._connection, request, size_bytes)
        except ResourceExhausted:
            self._over_quota += 1
            raise

    def cancel(self, then: Callable[[], None]) -> None:
        """The client is gone: its calls are given up. Those that the trail tells of go on (ACC-08).

        Many are given up some at a time, in the turns of their host (LIM-68).

        Args:
            then: called when none is parked any more, now or later.
        """
        calls, self._open = self._open, {}
        while self._ends:
            end_later(self._ends.popitem()[1])
        for call_id in (*self._working,):
            self._end_work(call_id)
        self._watch.cancel()
        self._given_up = {call_id: handle for call_id, handle in calls.items() if handle is not None}
        handles = self._given_up.values()
        if len(handles) > _UNPARKED_AT_ONCE or any(isinstance(one, asyncio.Task) for one in handles):
            self._unparking = asyncio.get_running_loop().create_task(self._unpark_all(then))
        else:
            self._unpark_some()
            then()

    async def _unpark_all(self, then: Callable[[], None]) -> None:
        turn = self._calls.loop_turn
        while self._given_up:
            if turn.is_over(self._host):
                await turn.another(self._host)
            began_s = turn.now_s()
            cancelled = self._unpark_some()
            turn.took(self._host, turn.now_s() - began_s + cancelled * _CANCELLED_S)
            if cancelled:
                await asyncio.sleep(0)  # they end in the next turn of the loop, and what they have parked
        then()

    def _unpark_some(self) -> int:
        """Gives some calls up; returns how many have tasks, which end in the next turn of the loop."""
        cancelled = 0
        for call_id in (*islice(self._given_up, _UNPARKED_AT_ONCE),):
            handle = self._given_up.pop(call_id, None)
            if isinstance(handle, asyncio.Task):
                cancelled += handle.cancel()
            elif handle is not None:  # one may end another
                shard, number = handle
                shard.abandon(number)
        return cancelled

    def _start(self, call_id: int, kind: str, request: Any, verdict: Verdict | None) -> None:
        shard = self._calls.at_once(request)
        if shard is None:
            self._open_task(call_id, kind, partial(self._calls.answer_judged, request, self._host, verdict))
            return
        self._open[call_id] = None
        answered = partial(self._answered, call_id, kind)
        if verdict is not None:
            answered = partial(_completed, verdict.complete, answered)
        number = shard.start(request, self._host, answered)
        if number is not None and not (verdict is not None and verdict.is_told):
            self._open[call_id] = (shard, number)

    def _check_room(self, request: ConsumerGroupHeartbeatRequest) -> None:
        if not self._stream.has_room_for((request.group_id, request.member_id)):
            raise ResourceExhausted("the stream has its limit of members; open another one", _RETRY_MS)

    def _start_of_member(
        self, call: session_pb2.Call, request: ConsumerGroupHeartbeatRequest, verdict: Verdict | None
    ) -> None:
        """Starts a heartbeat of a member of an incremental group; it waits for no load to end."""
        self._open[call.call_id] = None
        answered: Callable[[GroupResponse], None] = partial(self._answered_member, call.call_id, request)
        if verdict is not None:
            answered = partial(_completed, verdict.complete, answered)
        shard = self._calls.locate(request.group_id)
        if not isinstance(shard, OwnedShard):
            answered(self._calls.not_here(request))
            return
        number = shard.start(request, self._host, answered, self._stream.place(call.connection))
        if number is not None and not (verdict is not None and verdict.is_told):
            self._open[call.call_id] = (shard, number)

    def _answered_member(
        self, call_id: int, request: ConsumerGroupHeartbeatRequest, response: GroupResponse
    ) -> None:
        if isinstance(response, ConsumerGroupHeartbeatResponse) and response.member_epoch < 0:
            self._stream.forget((request.group_id, request.member_id))
        self._answered(call_id, _OF_INCREMENTAL_MEMBER, response)

    def _open_task(self, call_id: int, kind: str, answer: Callable[[], Awaitable[GroupResponse]]) -> None:
        self._open[call_id] = asyncio.get_running_loop().create_task(self._answer(call_id, kind, answer))

    async def _answer(self, call_id: int, kind: str, answer: Callable[[], Awaitable[GroupResponse]]) -> None:
        try:
            response = await answer()
            framed = partial(reply_message, call_id, kind)
            self._answered(call_id, kind, response, await self._calls.encoded(response, self._host, framed))
        except Refused as error:
            self._failed(call_id, error)
        except Exception:
            log.exception("call_failed", call=kind)
            self._failed(call_id, _Unforeseen("the server failed in a way it did not foresee"))

    def _answered(
        self, call_id: int, kind: str, response: GroupResponse, message: bytes | None = None
    ) -> None:
        """Sends an answer; it is encoded here unless the message of the stream with it is given."""
        if not self._is_open(call_id):
            return
        self._watch.answered(call_id, response)
        body = b"" if message is not None else response.SerializeToString()
        if len(body) > LARGE_BYTES:
            message = b"".join(reply_message(call_id, kind, [body]))
        if message is not None:
            self._send(message)
        else:
            reply = self._frame(len(body)).reply
            reply.call_id = call_id
            getattr(reply, kind).CopyFrom(response)
        self._done(call_id)

    def _is_open(self, call_id: int) -> bool:
        """Whether the client waits for the answer; else it has closed the stream, and nothing is given up."""
        self._given_up.pop(call_id, None)
        return call_id in self._open

    def _failed(self, call_id: int, error: Refused) -> None:
        if self._is_open(call_id):
            self._refuse(call_id, error)

    def _refuse(self, call_id: int, error: Refused) -> None:
        reply = self._frame(len(error.message)).reply
        reply.call_id = call_id
        reply.refused.status = error.status.value[0]
        reply.refused.message = error.message
        reply.refused.retry_after_ms = getattr(error, "retry_after_ms", 0)
        if isinstance(error, InvalidArgument) and error.violations:
            reply.refused.field = error.violations[0].field
        self._done(call_id)

    def _end_work(self, call_id: int) -> None:
        if self._connection is not None:
            self._connection.end_work(self._working.pop(call_id, 0))
        if (ended := self._ends.pop(call_id, None)) is not None:
            ended()

    def _done(self, call_id: int) -> None:
        self._open.pop(call_id, None)
        self._end_work(call_id)
        self._watch.done(call_id)
        if not self._open:
            self._idle()


def frames_of(size_bytes: int) -> int:
    """How many frames one counts as, by its size."""
    return 1 + size_bytes // _FRAME_BYTES


_Complete = Callable[[GroupResponse], GroupResponse]


def _completed(
    complete: _Complete, answered: Callable[[GroupResponse], None], response: GroupResponse
) -> None:
    answered(complete(response))


class _Unforeseen(Refused):
    status = grpc.StatusCode.INTERNAL
