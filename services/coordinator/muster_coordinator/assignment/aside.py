"""Work that would hold up the loop, in a process of its own (docs/safety.md, INC-34)."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog
from muster_core.events import Assigned, Resolved, Work

from muster_coordinator.assignment.answers import no_answer_to
from muster_coordinator.assignment.lines import END, AnswerReader, lines_of_work

log = structlog.get_logger()

Done = Callable[[Assigned | Resolved], None]
"""Takes the result of a piece of work; called once, on the loop."""

LIMIT_MS = 10_000
"""How long a piece of work may take."""
QUEUED_MAX = 1_000
"""Pieces of work that may wait; what comes then is answered without a result."""
_ATTEMPTS = 2
_START_LIMIT_S = 30
_LINE_MAX_BYTES = 16 << 20
_PROGRAM = (sys.executable, "-m", "muster_coordinator.assignment.program")


class Aside:
    """Hands work to a process, one piece after the other. The process is spawned when there is work first.

    One that dies, or does not answer in time, is ended, and the work is begun again by another one, once.

    Args:
        limit_ms: how long a piece of work may take, the start of the process aside.
        program: what is spawned.
    """

    def __init__(self, limit_ms: int = LIMIT_MS, program: Sequence[str] = _PROGRAM) -> None:
        self._limit_ms = limit_ms
        self._program = program
        self._queue: deque[tuple[Work, Done]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        """The process; None: there is none now."""
        return None if self._process is None else self._process.pid

    def submit(self, work: Work, done: Done) -> None:
        """Queues a piece of work; `done` is called with its result, unless `stop` comes first."""
        if len(self._queue) >= QUEUED_MAX:
            asyncio.get_running_loop().call_soon(done, no_answer_to(work))
            return
        self._queue.append((work, done))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Ends the process; nothing is answered any more."""
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._end()

    async def _run(self) -> None:
        while self._queue:
            work, done = self._queue.popleft()
            done(await self._result(work))

    async def _result(self, work: Work) -> Assigned | Resolved:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if self._process is None:
                    await self._start()
                async with asyncio.timeout(self._limit_ms / 1000):
                    return await self._ask(work)
            except (TimeoutError, OSError, ValueError, LookupError, TypeError) as error:
                log.warning(
                    "work_aside_failed",
                    group_id=work.group_id,
                    work=type(work).__name__,
                    attempt=attempt,
                    error=repr(error),
                )
                await self._end()
        return no_answer_to(work)

    async def _start(self) -> None:
        """Spawns the process, and waits until it says that it is there."""
        self._process = await asyncio.create_subprocess_exec(
            *self._program, stdin=PIPE, stdout=PIPE, limit=_LINE_MAX_BYTES
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(_START_LIMIT_S):
            if await self._process.stdout.readline() != END:
                raise ConnectionResetError("the process does not begin")

    async def _ask(self, work: Work) -> Assigned | Resolved:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for line in lines_of_work(work):
            self._process.stdin.write(line)
            await self._process.stdin.drain()
            await asyncio.sleep(0)  # others have their turns: thousands of members are many lines
        self._process.stdin.write(END)
        await self._process.stdin.drain()
        reader = AnswerReader()
        while (line := await self._process.stdout.readline()) != END:
            if not line:
                raise ConnectionResetError("the process has ended")
            reader.take(line)
            await asyncio.sleep(0)
        answer = reader.answer()
        if (answer.group_id, answer.number) != (work.group_id, work.number):
            raise ValueError("the answer is to something else")
        return answer

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            assert process.stdout is not None
            await process.stdout.read()  # one that wrote much counts as running until that is read
            await process.wait()
