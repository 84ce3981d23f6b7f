"""The group calls that are open on a session stream."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from muster_protos.muster.v1 import session_pb2

from muster._session.frames import call_frame, response_of
from muster._session.transport import ConnectionLost, GroupRequest, GroupResponse, Overloaded

MOST_OPEN_CALLS = 10_000
"""Limit of one stream; further calls raise `Overloaded`."""


@dataclass(slots=True)
class _Call:
    frame: session_pb2.ClientFrame
    answer: "asyncio.Future[GroupResponse]"


class PendingCalls:
    """Calls that wait for their answer. They survive the stream: each is sent again on the next one.

    Args:
        address: of the coordinator, for messages.
        due: called when there is something to send.
        fewer: called when a call has ended.
    """

    def __init__(self, address: str, due: Callable[[], None], fewer: Callable[[], None]) -> None:
        self._address = address
        self._due = due
        self._fewer = fewer
        self._calls: dict[int, _Call] = {}
        self._unsent: dict[int, None] = {}
        self._last_call_id = 0

    def __len__(self) -> int:
        """Calls without an answer."""
        return len(self._calls)

    async def call(self, request: GroupRequest, timeout_ms: int, connection: int = 0) -> GroupResponse:
        """Sends a call and returns its answer; one of a numbered connection is not sent on another stream.

        Raises:
            ConnectionLost: no answer came in time, or on the stream of its connection.
            Overloaded: too many are open.
        """
        if len(self._calls) >= MOST_OPEN_CALLS:
            raise Overloaded(f"{len(self._calls)} calls to {self._address} are open")
        loop = asyncio.get_running_loop()
        self._last_call_id = call_id = self._last_call_id + 1
        call = self._calls[call_id] = _Call(call_frame(call_id, request, connection), loop.create_future())
        self._unsent[call_id] = None
        self._due()
        timer = loop.call_later(timeout_ms / 1_000, self._time_out, call)
        try:
            return await call.answer
        finally:
            timer.cancel()
            self._calls.pop(call_id, None)
            self._unsent.pop(call_id, None)
            self._fewer()

    def begin(self) -> None:
        """A new stream was opened: every call has to be sent again, but those of a connection that ended."""
        for call_id, call in self._calls.items():
            if call.frame.call.connection and call_id not in self._unsent and not call.answer.done():
                call.answer.set_exception(ConnectionLost("the stream broke"))
        self._unsent = {call_id: None for call_id, call in self._calls.items() if not call.answer.done()}

    def frames(self) -> Iterator[session_pb2.ClientFrame]:
        """The frames of the calls to send; they count as sent then."""
        unsent, self._unsent = self._unsent, {}
        for call_id in unsent:
            if (call := self._calls.get(call_id)) is not None:  # or it ended while frames before were written
                yield call.frame

    def answered(self, reply: session_pb2.Reply) -> None:
        """Ends the call that a reply answers."""
        call = self._calls.get(reply.call_id)
        if call is None or call.answer.done():
            return
        try:
            call.answer.set_result(response_of(reply))
        except Exception as error:
            call.answer.set_exception(error)

    def fail(self, error: Exception) -> None:
        """Ends every call with an error: no answer will come."""
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(error)

    @staticmethod
    def _time_out(call: _Call) -> None:
        if not call.answer.done():
            call.answer.set_exception(ConnectionLost("no answer in time"))
