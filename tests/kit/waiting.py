"""Waiting until something is so, by asking again and again: for what has no event of its own.

The client's tests use it, also where only the client is installed: it imports nothing of ours.
"""

import asyncio
import gc
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar, overload

T = TypeVar("T")

PATIENCE_S = 60.0
PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.1
"""Between two looks: asking costs more than what is asked for, where that takes seconds."""


class Process(Protocol):
    """What is used of a process: `asyncio.subprocess.Process` has it, and `kit.forked.Program`."""

    @property
    def stdout(self) -> asyncio.StreamReader | None: ...
    @property
    def stderr(self) -> asyncio.StreamReader | None: ...
    @property
    def returncode(self) -> int | None: ...
    def kill(self) -> None: ...
    async def wait(self) -> int: ...


@overload
async def until(
    condition: Callable[[], Awaitable[T | None]], what: str = "", patience_s: float = PATIENCE_S
) -> T: ...


@overload
async def until(condition: Callable[[], T | None], what: str = "", patience_s: float = PATIENCE_S) -> T: ...


async def until(condition: Callable[[], Any], what: str = "", patience_s: float = PATIENCE_S) -> Any:
    """Waits until a condition gives something true, and gives that.

    Raises:
        AssertionError: it did not in time; says what was waited for, and what the condition gave last.
    """
    return await _until(condition, bool, what or "the condition", patience_s)


async def until_equal(
    read: Callable[[], object], wanted: object, what: str = "", patience_s: float = PATIENCE_S
) -> None:
    """Waits until what is read equals what is wanted.

    Raises:
        AssertionError: it did not in time; says what was wanted, and what was read last.
    """
    wish = f"{what}: {wanted!r}" if what else repr(wanted)
    await _until(read, lambda value: bool(value == wanted), wish, patience_s)


async def ended(process: Process, patience_s: float = PATIENCE_S) -> int:
    """Waits for the end of a process, and returns its exit code; what it still says is dropped.

    `Process.wait` alone never returns, even for a process that was killed, where more than 128 KiB of its
    output wait to be taken: Python 3.11 waits for the end of the output, and reads no further than that.

    Raises:
        TimeoutError: it still runs.
    """
    outputs = [output for output in (process.stdout, process.stderr) if output is not None]
    async with asyncio.timeout(patience_s):
        # One that somebody reads already needs nobody else, and says so by an error.
        await asyncio.gather(*(output.read() for output in outputs), return_exceptions=True)
        return await process.wait()


async def killed(process: Process) -> None:
    """Kills a process that has not ended yet, and waits for its end."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await ended(process)


def stand_still(seconds: float) -> None:
    """Keeps the loop from turning, as in a process that is stopped."""
    time.sleep(seconds)


async def _until(read: Callable[[], Any], good: Callable[[Any], bool], wish: str, patience_s: float) -> Any:
    began_s = time.monotonic()
    while True:
        value = read()
        if isinstance(value, Awaitable):
            value = await value
        if good(value):
            return value
        waited_s = time.monotonic() - began_s
        if waited_s > patience_s:
            last = "" if value is False else f"; at last {value!r}"
            raise AssertionError(f"not within {patience_s:g} s: {wish}{last}")
        await asyncio.sleep(min(max(PAUSE_S, waited_s / 20), LONGEST_PAUSE_S))


def what_tasks_wait_for() -> str:
    """Where each task stands that has not ended, of whichever loop, outermost frame first; for people."""
    tasks = [one for one in gc.get_objects() if isinstance(one, asyncio.Task) and not one.done()]
    return "\n".join(f"{task.get_name()}\n{_stack_of(task.get_coro())}" for task in tasks)


def _stack_of(coroutine: Any) -> str:
    frames = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            frames.append((frame, frame.f_lineno))
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return "".join(traceback.StackSummary.extract(frames).format())
