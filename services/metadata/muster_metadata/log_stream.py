"""One coordinator's log stream: carries out its calls independently, and merges answers per loop turn."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import structlog
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.loop_share import LoopShare
from muster_runtime.turns import Turns

from muster_metadata.log import verdicts
from muster_metadata.log.logs import Logs
from muster_metadata.log.snapshots import Snapshots
from muster_metadata.log.states import Held
from muster_metadata.log.verdicts import Verdict
from muster_metadata.nodes.entries import LogEnd
from muster_metadata.off import Measures
from muster_metadata.readers import Reader

log = structlog.get_logger()

MAX_OPEN_CALLS = 4_096
MAX_CALLS = 16 * MAX_OPEN_CALLS
"""Of one message; a coordinator has a few for each shard."""
_STEP_CALLS = 256
"""So many are begun at a stretch; of messages with more one at a time is gone through, in all streams."""
_CALL_BYTES = 128
"""What a call of a message takes besides its bytes."""
_FULL = Verdict(
    metadata_pb2.LOG_OUTCOME_UNKNOWN,
    message=f"a stream has at most {MAX_OPEN_CALLS} open calls; repeat the step unchanged",
)
_BUSY = Verdict(
    metadata_pb2.LOG_OUTCOME_UNKNOWN,
    message="the last step on this log is still under way, perhaps one that its caller gave up; repeat the "
    "step unchanged",
)
_WRITING = ("claim", "append")


class LogStream:
    """Serves one stream.

    Args:
        logs: carries out the steps on logs.
        snapshots: carries out those on snapshots.
        log_count: number of logs, the catalog's included.
        reader: is sent the results.
        large: in turn messages with many calls are gone through.
        measures: times and traces the steps.
    """

    def __init__(
        self,
        logs: Logs,
        snapshots: Snapshots,
        log_count: int,
        reader: Reader,
        large: Turns,
        measures: Measures,
    ) -> None:
        self._logs = logs
        self._snapshots = snapshots
        self._log_count = log_count
        self._reader = reader
        self._large = large
        self._measures = measures
        self._results: list[metadata_pb2.LogResult] = []
        self._wake = asyncio.Event()
        self._taken = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        self._writing: set[int] = set()
        self._ended = False

    async def serve(self, requests: AsyncIterator[metadata_pb2.LogRequest], stopping: asyncio.Event) -> bool:
        """Runs until the caller ends the stream, or this server stops and the open calls have ended.

        Returns:
            False: it ended with a message of more than `MAX_CALLS` calls, which is to be refused.
        """
        reading = asyncio.create_task(self._read(requests), name="log-stream-read")
        halt = asyncio.create_task(stopping.wait(), name="log-stream-halt")
        reading.add_done_callback(lambda _: self._wake.set())
        halt.add_done_callback(lambda _: self._wake.set())
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                results, self._results = self._results, []
                self._taken.set()
                if results:
                    await self._reader.write(metadata_pb2.LogResponse(results=results))
                if (reading.done() or halt.done()) and not self._open and not self._results:
                    break
            return not reading.done() or reading.result()
        finally:
            tasks: list[asyncio.Task[Any]] = [reading, halt, *self._open]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[metadata_pb2.LogRequest]) -> bool:
        """Begins what comes; returns whether that was all, or a message had too many calls."""
        async for request in requests:
            if len(request.calls) > MAX_CALLS:
                return False
            if len(request.calls) > _STEP_CALLS:
                await self._begin_many(request)
            else:
                for call in request.calls:
                    self._begin(call)
            await self._results_taken(request)
        return True

    async def _begin_many(self, request: metadata_pb2.LogRequest) -> None:
        """Begins the calls of a message in turns of the loop."""
        for first in range(0, len(request.calls), _STEP_CALLS):
            async with self._large.turn(self._reader.host):
                share = LoopShare()
                for call in request.calls[first : first + _STEP_CALLS]:
                    self._begin(call)
                await share.rest()
            await self._results_taken(request)

    async def _results_taken(self, request: metadata_pb2.LogRequest) -> None:
        """Waits where as many results as a stream has open calls have not been taken (LIM-67)."""
        if len(self._results) < MAX_OPEN_CALLS:
            return
        with self._reader.keeping(request.ByteSize() + _CALL_BYTES * len(request.calls)):
            while len(self._results) >= MAX_OPEN_CALLS:
                self._taken.clear()
                await self._taken.wait()

    def _begin(self, call: metadata_pb2.LogCall) -> None:
        kind = call.WhichOneof("step")
        problem = ""
        if kind is None:
            problem = "a call needs one of claim, append, check, snapshot and trim"
        elif call.shard >= self._log_count:
            problem = f"there is no shard {call.shard}"
        if problem:
            self._end(call, Verdict(metadata_pb2.LOG_OUTCOME_INVALID, message=problem), None, 0)
            return
        # Nothing is done, and what earlier attempts at the step did is not known.
        if len(self._open) >= MAX_OPEN_CALLS:
            self._end(call, _FULL, None, 0)
            return
        if kind in _WRITING and call.shard in self._writing:
            self._end(call, _BUSY, None, 0)
            return
        if kind in _WRITING:
            self._writing.add(call.shard)
        task = asyncio.create_task(self._run(call, kind or ""))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _run(self, call: metadata_pb2.LogCall, kind: str) -> None:
        with self._measures.carrying_out(call):
            await self._carry_out(call, kind)

    async def _carry_out(self, call: metadata_pb2.LogCall, kind: str) -> None:
        end: LogEnd | None
        held: Held | None = None
        ended = self._measures.step_begins(kind)
        try:
            if kind == "append":
                verdict, end = await self._logs.append(call.shard, call.append)
            elif kind == "check":
                verdict, end = await self._logs.check(call.shard, call.check)
            elif kind == "snapshot":
                verdict, end = await self._snapshots.store(call.shard, call.snapshot), None
            elif kind == "trim":
                verdict, end = await self._snapshots.trim(call.shard, call.trim), None
            else:
                verdict, held, end = await self._logs.claim(call.shard, call.claim)
        except Exception:
            log.exception("log_step_failed", shard=call.shard, step=kind)
            verdict, end = verdicts.UNKNOWN, None
        ended(verdict.outcome)
        if kind in _WRITING:
            self._writing.discard(call.shard)
        self._end(call, verdict, end, held.epoch if held is not None else verdict.epoch)

    def _end(self, call: metadata_pb2.LogCall, verdict: Verdict, end: LogEnd | None, epoch: int) -> None:
        self._results.append(
            metadata_pb2.LogResult(
                call_id=call.call_id,
                outcome=verdict.outcome,
                end=None if end is None else end.to_proto(),
                epoch=epoch,
                message=verdict.message,
                refusing_nodes=verdict.refusing_nodes,
            )
        )
        self._wake.set()
