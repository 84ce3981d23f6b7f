"""The coordinator's way to the log: one `Log` stream to one metadata instance at a time."""

import asyncio
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import structlog
from muster_core.numbered_messages import header
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.chance import between, one_of

log = structlog.get_logger()

REQUEST_BYTES = 4 << 20
"""A message with so much takes no further step: metadata decodes it at a stretch."""

_NONCE = struct.Struct(">8sQ")
_LOG_METHOD = f"/{metadata_pb2.DESCRIPTOR.services_by_name['MetadataService'].full_name}/Log"
_CALLS = metadata_pb2.LogRequest.DESCRIPTOR.fields_by_name["calls"].number
_STEP_FIELDS = {
    field.message_type: field.number
    for field in metadata_pb2.LogCall.DESCRIPTOR.oneofs_by_name["step"].fields
}
_FINAL = frozenset(
    {
        metadata_pb2.LOG_OUTCOME_OK,
        metadata_pb2.LOG_OUTCOME_FENCED,
        metadata_pb2.LOG_OUTCOME_NO_LOG,
        metadata_pb2.LOG_OUTCOME_TRUNCATED,
        metadata_pb2.LOG_OUTCOME_INVALID,
    }
)

Step = (
    metadata_pb2.ClaimStep
    | metadata_pb2.AppendStep
    | metadata_pb2.CheckStep
    | metadata_pb2.SnapshotStep
    | metadata_pb2.TrimStep
)


class Nonces:
    """Nonces that no other process or moment makes: 8 random bytes of the process and a counter."""

    def __init__(self) -> None:
        self._prefix = os.urandom(8)
        self._count = 0

    def next(self) -> bytes:
        """A new nonce of 16 bytes."""
        self._count += 1
        return _NONCE.pack(self._prefix, self._count)


class Log(Protocol):
    """What shards need of the log client."""

    def submit(self, shard: int, step: Step) -> "asyncio.Future[metadata_pb2.LogResult]":
        """Carries out a step; repeats it unchanged until its outcome is known."""


@dataclass(frozen=True, slots=True)
class LogPace:
    """Times of the log client, all in ms.

    Attributes:
        stall_ms: an open append or check is not answered for so long: go on with the next instance.
        claim_stall_ms: as `stall_ms`, for a claim, which takes several rounds.
        fruitless_ms: an instance answers, but has known no outcome for so long: go on with the next one,
            which may reach nodes that it does not.
        fruitless_max_ms: the longest such time. It doubles while no instance knows the outcome of anything:
            a log that no majority has is stuck at all of them, and each change interrupts other logs' steps.
        repeat_first_ms: pause before a step of unknown outcome is sent again.
        repeat_max_ms: longest such pause; it doubles from one repetition to the next.
        connect_first_ms: pause after a stream broke; the first instance after a good one is tried at once.
        connect_max_ms: longest such pause.
    """

    stall_ms: int = 2_000
    claim_stall_ms: int = 6_000
    fruitless_ms: int = 250
    fruitless_max_ms: int = 4_000
    repeat_first_ms: int = 20
    repeat_max_ms: int = 500
    connect_first_ms: int = 50
    connect_max_ms: int = 1_000

    @classmethod
    def of(cls, limit_ms: int) -> "LogPace":
        """The pace for a time limit of one step; a claim takes three steps, one after the other."""
        return cls(stall_ms=limit_ms, claim_stall_ms=3 * limit_ms)


@dataclass(slots=True, eq=False)
class _OpenStep:
    """A step whose outcome is not known yet."""

    shard: int
    step: Step
    future: "asyncio.Future[metadata_pb2.LogResult]"
    call_id: int = 0
    sent_at: float = 0.0
    repeats: int = 0


@dataclass(slots=True)
class _Stream:
    """State of one stream."""

    wake: asyncio.Event = field(default_factory=asyncio.Event)
    answered: bool = False
    fruitless_since: float | None = None


class LogClient:
    """Sends the steps of all shards in one stream, and knows the outcome of each in the end.

    What is submitted in one turn of the loop travels in one message. A step whose outcome is unknown, refused
    for now, or lost with its stream, is sent again unchanged, through this or the next metadata instance,
    until it is known or its future is cancelled. There is no other end: a step that was sent may have been
    carried out (docs/safety.md, "The log").

    Args:
        targets: addresses of the metadata instances.
        connect: makes a channel to one of them.
        pace: its times.

    Attributes:
        repeats: how often a step was sent again because its outcome was not known or refused for now.
        streams_lost: how often a stream broke, or was given up for the next instance.
        trouble: which nodes took no records of the last append, as metadata says it; empty: it was stored, or
            is not for another reason.
    """

    def __init__(
        self, targets: Sequence[str], connect: Callable[[str], grpc.aio.Channel], pace: LogPace | None = None
    ) -> None:
        self.repeats = 0
        self.streams_lost = 0
        self.trouble = ""
        self._targets = tuple(targets)
        self._connect = connect
        self._pace = LogPace() if pace is None else pace
        self._open: dict[int, _OpenStep] = {}
        self._waiting: list[_OpenStep] = []
        self._call_ids = 0
        self._current = one_of(len(self._targets))
        self._stream: _Stream | None = None
        self._task: asyncio.Task[None] | None = None
        self._timers: set[asyncio.TimerHandle] = set()
        self._fruitless_ms = self._pace.fruitless_ms

    def start(self) -> None:
        """Begins to connect."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="log-client")

    async def stop(self) -> None:
        """Ends the stream. Steps that are still open are cancelled: their outcome stays unknown."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for timer in self._timers:
            timer.cancel()
        for entry in (*self._waiting, *self._open.values()):
            entry.future.cancel()
        self._open.clear()
        self._waiting.clear()

    def submit(self, shard: int, step: Step) -> "asyncio.Future[metadata_pb2.LogResult]":
        """Carries out a step on a shard's log.

        Args:
            shard: the log. Not more than one claim or append of a shard may be open at a time.
            step: what to do.

        Returns:
            Its outcome: OK, FENCED, NO_LOG, TRUNCATED or INVALID. Cancel it to stop the repetitions; the step
            may have been carried out nevertheless.
        """
        entry = _OpenStep(shard, step, asyncio.get_running_loop().create_future())
        self._enqueue(entry)
        return entry.future

    def _enqueue(self, entry: _OpenStep) -> None:
        self._waiting.append(entry)
        if self._stream is not None:
            self._stream.wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            target = self._targets[self._current]
            stream = _Stream()
            self._stream = stream
            reason = await self._serve(target, stream)
            self._stream = None
            self._waiting[:0] = [entry for entry in self._open.values() if not entry.future.done()]
            self._open.clear()
            self.streams_lost += 1
            failures = 1 if stream.answered else failures + 1
            self._current = (self._current + 1) % len(self._targets)
            pause_ms = min(self._pace.connect_first_ms << min(failures - 1, 10), self._pace.connect_max_ms)
            log.warning("log_stream_lost", instance=target, reason=reason, retry_in_ms=pause_ms)
            if failures > 1 or len(self._targets) == 1:
                until = loop.time() + pause_ms / 1000 * between(0.8, 1.2)
                await asyncio.sleep(until - loop.time())

    async def _serve(self, target: str, stream: _Stream) -> str:
        """Runs one stream until it breaks; returns why."""
        parts: list[asyncio.Future[str]] = []
        channel = call = None
        try:
            channel = self._connect(target)
            # Without a serializer: a step is encoded once, by `_put`.
            log_method: Any = channel.stream_stream(
                _LOG_METHOD, response_deserializer=metadata_pb2.LogResponse.FromString
            )
            call = log_method()
            parts = [
                asyncio.ensure_future(part)
                for part in (self._write(call, stream), self._read(call, stream), self._watch(stream))
            ]
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        except (asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            return str(error)
        except Exception as error:  # a client that ended would leave every step open, and the lease held
            log.exception("log_stream_failed", instance=target)
            return repr(error)
        finally:
            for part in parts:
                part.cancel()
            if call is not None:
                call.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            if channel is not None:
                await channel.close()

    async def _write(
        self,
        call: "grpc.aio.StreamStreamCall[bytes, metadata_pb2.LogResponse]",
        stream: _Stream,
    ) -> str:
        loop = asyncio.get_running_loop()
        while True:
            while self._waiting:
                request: list[bytes] = []
                size_bytes = taken = 0
                now = loop.time()
                for entry in self._waiting:
                    taken += 1
                    if not entry.future.done():
                        size_bytes += self._put(request, entry, now)
                        if size_bytes >= REQUEST_BYTES:
                            break
                del self._waiting[:taken]
                if request:
                    await call.write(b"".join(request))
            stream.wake.clear()
            await stream.wake.wait()

    def _put(self, request: list[bytes], entry: _OpenStep, now: float) -> int:
        """Adds a call, encoded, to a `LogRequest`; returns the size of its step, in bytes."""
        self._call_ids += 1
        entry.call_id, entry.sent_at = self._call_ids, now
        self._open[entry.call_id] = entry
        step = entry.step.SerializeToString()
        call = metadata_pb2.LogCall(call_id=entry.call_id, shard=entry.shard).SerializeToString()
        call += header(_STEP_FIELDS[entry.step.DESCRIPTOR], len(step))
        request += (header(_CALLS, len(call) + len(step)), call, step)
        return len(step)

    async def _read(
        self,
        call: "grpc.aio.StreamStreamCall[bytes, metadata_pb2.LogResponse]",
        stream: _Stream,
    ) -> str:
        while True:
            response = await call.read()
            if not isinstance(response, metadata_pb2.LogResponse):
                code = await call.code()
                return f"{code.name}: the stream was ended"
            stream.answered = True
            for result in response.results:
                self._settle(result, stream)

    def _settle(self, result: metadata_pb2.LogResult, stream: _Stream) -> None:
        if result.outcome in _FINAL:
            stream.fruitless_since = None
            self._fruitless_ms = self._pace.fruitless_ms
        elif result.outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN and stream.fruitless_since is None:
            stream.fruitless_since = asyncio.get_running_loop().time()
        entry = self._open.pop(result.call_id, None)
        if entry is None or entry.future.done():
            return
        if isinstance(entry.step, metadata_pb2.AppendStep):
            is_full = result.outcome not in _FINAL and result.refusing_nodes > 0
            self.trouble = result.message if is_full else ""
        if result.outcome in _FINAL:
            entry.future.set_result(result)
            return
        pause_ms = min(self._pace.repeat_first_ms << min(entry.repeats, 10), self._pace.repeat_max_ms)
        entry.repeats += 1
        self.repeats += 1
        level = log.warning if entry.repeats in {1, 10} else log.debug
        level(
            "log_step_repeated",
            shard=entry.shard,
            outcome=metadata_pb2.LogOutcome.Name(result.outcome),
            reason=result.message,
            repeats=entry.repeats,
        )
        self._later(pause_ms, entry)

    def _later(self, pause_ms: float, entry: _OpenStep) -> None:
        def again() -> None:
            self._timers.discard(timer)
            if not entry.future.done():
                self._enqueue(entry)

        timer = asyncio.get_running_loop().call_later(pause_ms / 1000, again)
        self._timers.add(timer)

    async def _watch(self, stream: _Stream) -> str:
        """Gives up on an instance that takes steps and answers none, or never knows their outcome."""
        loop = asyncio.get_running_loop()
        pace = self._pace
        while True:
            await asyncio.sleep(pace.stall_ms / 8_000)
            now = loop.time()
            since = stream.fruitless_since
            limit_ms = self._fruitless_ms
            if len(self._targets) > 1 and since is not None and (now - since) * 1_000 > limit_ms:
                self._fruitless_ms = min(2 * limit_ms, pace.fruitless_max_ms)
                return f"no outcome was known for {limit_ms} ms"
            for call_id, entry in tuple(self._open.items()):
                limit_ms = (
                    pace.claim_stall_ms if isinstance(entry.step, metadata_pb2.ClaimStep) else pace.stall_ms
                )
                if entry.future.done():
                    del self._open[call_id]
                elif (now - entry.sent_at) * 1_000 > limit_ms:
                    return f"no answer for {limit_ms} ms"
