"""The end of one shard's log, as its owner knows it: batches appends, answers barriers."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from muster_core.position import Position
from muster_core.record_bounds import (
    APPEND_MAX_BYTES,
    APPEND_MAX_RECORDS,
    RECORD_MAX_BYTES,
    RECORD_OVERHEAD_BYTES,
)
from muster_protos.muster.internal.v1 import metadata_pb2

from muster_coordinator.log.log_client import Log, Nonces, Step
from muster_coordinator.log.watch import Watch

log = structlog.get_logger()

STEP_BYTES = 1 << 20
"""Appends that wait go together in steps of at most so many bytes; a larger one goes alone. A step occupies
metadata and the nodes at a stretch, and this process when it is acknowledged: those of other shards wait."""

_TURN_S = 0.002
"""How long stored records are carried out before other work of the loop has its turn: a call of somebody else
needs several turns, and waits in each for as long."""

_LONG_S = 0.000_5
"""Of what takes longer, the loop has as much time to itself before the next large one is carried out."""

_LARGE_BYTES = 8 << 10
"""Appends from here on may be such; smaller ones are commits and decisions, whose callers wait."""

_DECISION_BYTES = 2 << 10
"""Appends from here on may take milliseconds: an assignment of a thousand partitions, and what follows it.
The answers to what was carried out before leave first."""


class TooLarge(ValueError):
    """Records that the log would not take: whoever made them must make less of them."""


class LogStopped(Exception):
    """Nothing can be written to the log any more, and the owner must not go on.

    Attributes:
        outcome: FENCED: somebody else has the shard. Else the log is damaged, and `message` says how.
        epoch: with FENCED the epoch that was promised, if known.
    """

    def __init__(self, outcome: metadata_pb2.LogOutcome.ValueType, message: str, epoch: int = 0) -> None:
        super().__init__(f"{metadata_pb2.LogOutcome.Name(outcome)}: {message}")
        self.outcome = outcome
        self.message = message
        self.epoch = epoch

    @property
    def fenced(self) -> bool:
        """Whether another claim took the shard; everything else is damage."""
        return self.outcome == metadata_pb2.LOG_OUTCOME_FENCED

    @property
    def missing(self) -> bool:
        """Whether a majority of the nodes has no such log."""
        return self.outcome == metadata_pb2.LOG_OUTCOME_NO_LOG


@dataclass(slots=True)
class _Batch:
    append_id: int
    records: Sequence[bytes]
    size_bytes: int
    joined: bool
    ends_step: bool
    frees: bool


class ShardLog:
    """Writes under one claim, one step at a time.

    All appends that wait when a step ends go together in the next one. A barrier is answered by the first
    step that was begun after it and went well: an append proves the same as a `check`, that a majority
    still holds this claim's promise.

    Args:
        shard: the shard.
        epoch: epoch of the claim.
        claim_nonce: its nonce.
        end: end of the log; at first the Claim record.
        log: the log client.
        nonces: source of nonces.
        on_done: called for each append, in order, with the position of its first record.
        on_stopped: called once, when nothing can be written any more.
        on_failed: called when this raised: what it holds may be half sent, so it must be closed.
        watch: notified of the steps that carry appends; absent: nobody is.

    Attributes:
        end: the last entry that is acknowledged.
        written_bytes: about how much was written after the Claim.
        confirmed: number of steps that a majority confirmed.
    """

    def __init__(
        self,
        shard: int,
        epoch: int,
        claim_nonce: bytes,
        end: metadata_pb2.LogEnd,
        log: Log,
        nonces: Nonces,
        on_done: Callable[[int, Position], None],
        on_stopped: Callable[[LogStopped], None],
        on_failed: Callable[[Exception], None],
        watch: Watch | None = None,
    ) -> None:
        self.shard = shard
        self.epoch = epoch
        self.claim_nonce = claim_nonce
        self.end = end
        self.written_bytes = 0
        self.confirmed = 0
        self._log = log
        self._nonces = nonces
        self._on_done = on_done
        self._on_stopped = on_stopped
        self._on_failed = on_failed
        self._watch = watch
        self._queue: deque[_Batch] = deque()
        self._sent: deque[_Batch] = deque()
        self._step: asyncio.Future[metadata_pb2.LogResult] | None = None
        self._open: metadata_pb2.AppendStep | None = None
        self._barriers: list[asyncio.Future[None]] = []
        self._barriers_of_step: list[asyncio.Future[None]] = []
        self._idle: list[asyncio.Future[None]] = []
        self._scheduled = False
        self._stopped: LogStopped | None = None
        self._ended = False
        self._closed = False

    def append(
        self,
        append_id: int,
        records: Sequence[bytes],
        *,
        joined: bool = False,
        ends_step: bool = False,
        ends_log: bool = False,
        frees: bool = False,
    ) -> None:
        """Stores records, all or nothing, after everything that was given before.

        They wait for the end of the loop turn, so that what one turn brings travels together.

        Args:
            append_id: passed to `on_done`.
            records: their bytes.
            joined: what is given next, in this turn, is stored together with them, all or nothing. Together
                that is no more than the log takes at a time.
            ends_step: nothing is sent after them in their step, so that `end` is their end in `on_done`.
            ends_log: nothing is written after them: what is given later is dropped.
            frees: they make room: they may use the reserve of nodes that are out of memory, and so may what
                is on its way before them.

        Raises:
            TooLarge: they are above the bounds of a record, or of what is stored at a time. None is stored.
        """
        size_bytes = sum(map(len, records)) + RECORD_OVERHEAD_BYTES * len(records)
        if (
            size_bytes > APPEND_MAX_BYTES
            or not 0 < len(records) <= APPEND_MAX_RECORDS
            or max(map(len, records)) > RECORD_MAX_BYTES
        ):
            text = f"shard {self.shard}: {len(records)} records of {size_bytes} bytes are no step of the log"
            raise TooLarge(text)
        if self._ended:
            return
        self._ended = ends_log
        self._queue.append(_Batch(append_id, records, size_bytes, joined, ends_step, frees))
        if frees and self._open is not None:
            self._open.frees = True  # from its next repetition on
        self._schedule()

    def barrier(self) -> "asyncio.Future[None]":
        """Done when a majority has confirmed, after now, that the claim is still the last one.

        It fails with `LogStopped` when it does not; it is cancelled when the log is closed.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._stopped is not None:
            future.set_exception(self._stopped)
        elif self._closed:
            future.cancel()
        else:
            self._barriers.append(future)
            self._schedule()
        return future

    @property
    def busy(self) -> bool:
        """Whether records wait or are on their way."""
        return bool(self._queue or self._sent)

    async def until_idle(self) -> None:
        """Waits until no records wait or are on their way, or the log is closed or stopped."""
        while self.busy and not self._closed and self._stopped is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(future)
            await future

    def close(self) -> None:
        """Drops the log: repetitions end, waiters are cancelled. What is on its way may still land."""
        self._closed = True
        if self._step is not None:
            self._step.cancel()
            self._step = None
        self._queue.clear()
        self._sent.clear()
        for barrier in (*self._barriers, *self._barriers_of_step):
            barrier.cancel()
        self._barriers, self._barriers_of_step = [], []
        self._wake_idle()

    def _schedule(self) -> None:
        if self._may_step and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._guarded, self._pump)

    def _guarded(self, work: Callable[..., None], *args: Any) -> None:
        """Does what nobody waits for: where it raises, the shard fails instead of waiting for ever."""
        try:
            work(*args)
        except Exception as error:
            log.exception("shard_log_failed", shard=self.shard)
            self._on_failed(error)

    @property
    def _may_step(self) -> bool:
        """Whether the step before is over, and what it stored carried out."""
        return self._step is None and not self._sent and not self._closed and self._stopped is None

    def _pump(self) -> None:
        self._scheduled = False
        if not self._may_step:
            return
        self._barriers = [barrier for barrier in self._barriers if not barrier.done()]
        step: Step
        if self._queue:
            step = self._open = self._next_batch()
            if self._watch is not None:
                self._watch.sending(step, [batch.append_id for batch in self._sent])
        elif self._barriers:
            step = metadata_pb2.CheckStep(epoch=self.epoch, claim_nonce=self.claim_nonce)
        else:
            return
        self._barriers_of_step, self._barriers = self._barriers, []
        self._step = self._log.submit(self.shard, step)
        self._step.add_done_callback(partial(self._guarded, self._stepped))

    def _next_batch(self) -> metadata_pb2.AppendStep:
        step = metadata_pb2.AppendStep(epoch=self.epoch, claim_nonce=self.claim_nonce, end=self.end)
        count = size_bytes = 0
        while self._queue:
            joined = self._next_joined()
            more = sum([len(batch.records) for batch in joined])
            more_bytes = sum([batch.size_bytes for batch in joined])
            if self._sent and (count + more > APPEND_MAX_RECORDS or size_bytes + more_bytes > STEP_BYTES):
                break
            count += more
            size_bytes += more_bytes
            for batch in joined:
                self._sent.append(self._queue.popleft())
                for record in batch.records:
                    step.records.add(record=record, nonce=self._nonces.next())
            if joined[-1].ends_step:
                break
        step.frees = any(batch.frees for batch in (*self._sent, *self._queue))
        self.written_bytes += size_bytes
        return step

    def _next_joined(self) -> list[_Batch]:
        """What is at the head of the queue and is stored together."""
        joined = [self._queue[0]]
        while joined[-1].joined:
            joined.append(self._queue[len(joined)])
        return joined

    def _stepped(self, future: "asyncio.Future[metadata_pb2.LogResult]") -> None:
        if future.cancelled() or self._closed:
            return
        self._step = self._open = None
        if self._watch is not None:
            self._watch.settled()
        result = future.result()
        if result.outcome != metadata_pb2.LOG_OUTCOME_OK:
            self._stop(LogStopped(result.outcome, result.message, result.epoch))
            return
        self.confirmed += 1
        place = Position(self.epoch, self.end.position.offset + 1)
        if self._sent:
            self.end = result.end
        self._carry_out(place)

    def _carry_out(self, place: Position) -> None:
        """Passes on what was stored, in several turns of the loop if it takes long (LIM-19).

        A call of another shard needs a dozen turns of the loop: with a part of a large removal in each, it
        would take a dozen parts longer. So half of the time is for others; not where small appends are passed
        on, as under load, which would wait for nothing but each other. Before one that is not small the loop
        has a turn: a commit that was stored with an assignment of its group is answered first.

        Args:
            place: position of the first record.
        """
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        ends_s = before_s + _TURN_S
        long_s = 0.0
        while self._sent:
            batch = self._sent[0]
            self._on_done(batch.append_id, place)
            if self._closed:
                return
            self._sent.popleft()
            place = place.after(len(batch.records))
            now_s = loop.time()
            if (took_s := now_s - before_s) > _LONG_S:
                long_s += took_s
            before_s = now_s
            if self._sent and (now_s > ends_s or self._sent[0].size_bytes >= _DECISION_BYTES):
                rest_s = min(long_s, 2 * _TURN_S) if self._sent[0].size_bytes >= _LARGE_BYTES else 0
                loop.call_later(rest_s, self._guarded, self._carry_out, place)
                return
        barriers, self._barriers_of_step = self._barriers_of_step, []
        for barrier in barriers:
            if not barrier.done():
                barrier.set_result(None)
        self._schedule_rest()

    def _schedule_rest(self) -> None:
        if self._queue or self._barriers:
            self._schedule()
        if not self.busy:
            self._wake_idle()

    def _stop(self, reason: LogStopped) -> None:
        self._stopped = reason
        self._queue.clear()
        self._sent.clear()
        for barrier in (*self._barriers, *self._barriers_of_step):
            if not barrier.done():
                barrier.set_exception(reason)
        self._barriers, self._barriers_of_step = [], []
        self._wake_idle()
        self._on_stopped(reason)

    def _wake_idle(self) -> None:
        waiting, self._idle = self._idle, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
