"""Which events of the audit trail are kept in the cluster's log: bounded, and never in the way of a call."""

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic

import structlog
from muster_protos.muster.internal.v1 import metadata_pb2

from muster_runtime.clock import wall_ms
from muster_runtime.logs import clean_text

TrailEvent = metadata_pb2.TrailEvent

EVERY_S = 10.0
"""How long refusals and failures are gathered, in s: then each caller, verb and thing has one event."""
KINDS_MAX = 100
KINDS_OF_ONE_MAX = 20
"""How many events there are in that time of all callers, and of one, whose further calls are gathered by the
verb alone. Calls that were done, or may have been, have as many of their own: no refusal displaces them."""

DONE_BURST = 200
DONE_EVERY_S = 0.5
"""Calls that were done are recorded singly: a burst, then one in so many s. The others are gathered, too."""

WAITING_MAX = 1_000
"""How many events of each sort wait while the log cannot be reached; then the oldest are left out."""
BATCH = 100
RETRY_MAX_S = 30.0
LAST_TRY_S = 2.0
"""How long a process that ends tries to send what still waits."""

_TEXT_MAX = 256
_THINGS_BYTES = 2_800
"""What the things of an event, and their errors, take at most; a call that names more has further events."""
_FIELD_BYTES = 8
"""What a thing or an error takes there beside its text, at most."""

_DONE = frozenset({"done", "unknown"})
"""Outcomes of calls that were carried out, or may be."""

Send = Callable[[Sequence[TrailEvent]], Awaitable[bool]]
"""Sends events to the log; returns True once they are kept, or never can be."""

log = structlog.get_logger()


class _Kinds:
    """Events that are recorded together with others like them, of one sort."""

    def __init__(self) -> None:
        self.events: dict[tuple[str, str, str, str], TrailEvent] = {}
        self._of: Counter[str] = Counter()

    def counted(self, outcome: str, who: str, action: str, what: str, number: int) -> str | None:
        """Counts calls; returns what the first of its kind is recorded with (empty: nothing), else None."""
        kind = outcome, who, action, what
        if kind not in self.events and self._of[who] >= KINDS_OF_ONE_MAX:
            kind = outcome, who, action, ""
        if (known := self.events.get(kind)) is None:
            return kind[-1]
        known.count += number
        return None

    def add(self, event: TrailEvent, who: str, what: str) -> None:
        """Takes the event for the first call of a kind."""
        self._of[who] += 1
        self.events[event.outcome, who, event.action, what] = event

    def clear(self) -> None:
        """Begins anew: all events were taken."""
        self.events.clear()
        self._of.clear()


class Keeper:
    """Gathers events and sends them, in a task of its own.

    To note one costs a look into a dictionary, waits for nothing, and never fails.

    Args:
        server: the role and name of this process.
        now_s: a clock that never goes back.
    """

    def __init__(self, server: str, now_s: Callable[[], float] = monotonic) -> None:
        self._server = server
        self._now_s = now_s
        self._allowance = float(DONE_BURST)
        self._allowed_at_s = now_s()
        self._kinds = {True: _Kinds(), False: _Kinds()}
        self._done: deque[TrailEvent] = deque()
        self._refused: deque[TrailEvent] = deque()
        self._left_out = 0
        self._noted = asyncio.Event()
        self._interval: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def done(
        self,
        action: str,
        who: str,
        proof: str,
        what: Sequence[str],
        where: str,
        reason: str,
        errors: Mapping[str, str],
        outcome: str = "done",
    ) -> None:
        """Notes a call that was done, and what of it failed; outcome `unknown`: perhaps it was not done."""
        now_s = self._now_s()
        self._allowance = min(DONE_BURST, self._allowance + (now_s - self._allowed_at_s) / DONE_EVERY_S)
        self._allowed_at_s = now_s
        parts = _parts(what, errors)
        if self._allowance < len(parts):
            self.gather_each(outcome, action, who, proof, what, where, reason)
            return
        self._allowance -= len(parts)
        for part in parts:
            event = self._event(outcome, action, who, proof, part, where, reason)
            for name in part:
                if name in errors:
                    event.errors[clean_text(name, _TEXT_MAX)] = errors[name]
            self._put(self._done, event)

    def gather_each(
        self, outcome: str, action: str, who: str, proof: str, what: Sequence[str], where: str, why: str
    ) -> None:
        """As `gather`, for each thing of a call; of very many the first, and the number of the others."""
        first = what[:KINDS_OF_ONE_MAX]
        for one in first:
            self.gather(outcome, action, who, proof, one, where, lambda: why)
        if more := len(what) - len(first):
            self.gather(outcome, action, who, proof, "", where, lambda: why, more)

    def gather(
        self,
        outcome: str,
        action: str,
        who: str,
        proof: str,
        what: str,
        where: str,
        why: Callable[[], str],
        number: int = 1,
    ) -> None:
        """Notes a call that is recorded together with others like it.

        Args:
            outcome: `refused` or `failed`; `done` or `unknown`, of which there were too many.
            action: the verb or call.
            who: name of the caller's identity.
            proof: how it was proved.
            what: with what.
            where: the address that it came from.
            why: says why; asked once for all that are recorded together.
            number: how many they are.
        """
        kinds = self._kinds[outcome in _DONE]
        told = kinds.counted(outcome, who, action, what, number)
        if told is None:
            return
        if len(kinds.events) >= KINDS_MAX:
            self._left_out += number
        else:
            event = self._event(outcome, action, who, proof, [told] if told else [], where, why())
            event.count = number
            kinds.add(event, who, told)
            self._noted.set()

    def start(self, send: Send) -> None:
        """Begins to send what is noted, in a task of its own."""
        self._task = asyncio.create_task(self._run(send), name="audit-trail")
        self._send = send

    async def stop(self, *, flush: bool = True) -> None:
        """Stops; with `flush` it sends what waits before, but not for long."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self._end_interval()
        if not flush:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_TRY_S):
                while (batch := self._batch()) and await self._sends(self._send, batch):
                    self._sent(batch)

    async def _run(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._noted.wait()
            self._noted.clear()
            if self._interval is None and any(kinds.events for kinds in self._kinds.values()):
                self._interval = loop.call_later(EVERY_S, self._end_interval)
            wait_s = 0.0
            while batch := self._batch():
                if await self._sends(send, batch):
                    self._sent(batch)
                    wait_s = 0.0
                    continue
                if not wait_s:
                    log.warning("audit_trail_waits", waiting=len(self._done) + len(self._refused))
                wait_s = min(max(wait_s * 2, 1.0), RETRY_MAX_S)
                await asyncio.sleep(wait_s)

    @staticmethod
    async def _sends(send: Send, batch: Sequence[TrailEvent]) -> bool:
        try:
            return await send(batch)
        except Exception:
            log.exception("audit_trail_not_sent")
            return False

    def _end_interval(self) -> None:
        """Puts what was gathered among the events that wait to be sent."""
        if self._interval is not None:
            self._interval.cancel()
            self._interval = None
        for is_done, kinds in self._kinds.items():
            for event in kinds.events.values():
                self._put(self._done if is_done else self._refused, event)
            kinds.clear()

    def _batch(self) -> list[TrailEvent]:
        """The oldest events that wait, with the number of those that were left out."""
        batch = [*self._done, *self._refused][:BATCH]
        if batch and self._left_out:
            batch[0].left_out += self._left_out
            self._left_out = 0
        return batch

    def _sent(self, batch: Sequence[TrailEvent]) -> None:
        """Forgets events that are kept; others may have been left out or noted meanwhile."""
        sent = {event.event_id for event in batch}
        for waiting in (self._done, self._refused):
            while waiting and waiting[0].event_id in sent:
                waiting.popleft()

    def _put(self, waiting: "deque[TrailEvent]", event: TrailEvent) -> None:
        if len(waiting) >= WAITING_MAX:
            lost = waiting.popleft()
            self._left_out += lost.count + lost.left_out
        waiting.append(event)
        self._noted.set()

    def _event(
        self, outcome: str, action: str, who: str, proof: str, what: Sequence[str], where: str, reason: str
    ) -> TrailEvent:
        return TrailEvent(
            event_id=secrets.token_bytes(16),
            at_ms=wall_ms(),
            server=clean_text(self._server, _TEXT_MAX),
            action=action,
            who=clean_text(who, 2 * _TEXT_MAX),
            proof=proof,
            what=[clean_text(one, _TEXT_MAX) for one in what],
            where=clean_text(where, _TEXT_MAX),
            outcome=outcome,
            reason=clean_text(reason, _TEXT_MAX),
            count=1,
        )


def _parts(what: Sequence[str], errors: Mapping[str, str]) -> Sequence[Sequence[str]]:
    """What a call was about, in parts that have room in an event each, with their errors; at least one."""
    parts: list[list[str]] = [[]]
    size_bytes = 0
    for one in what:
        text_bytes = len(clean_text(one, _TEXT_MAX).encode()) + _FIELD_BYTES
        one_bytes = text_bytes + (text_bytes + len(errors[one]) + _FIELD_BYTES if one in errors else 0)
        if parts[-1] and size_bytes + one_bytes > _THINGS_BYTES:
            parts.append([])
            size_bytes = 0
        parts[-1].append(one)
        size_bytes += one_bytes
    return parts
