"""Time that passes only when nothing else can happen."""

import asyncio
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from muster._clock import Time
from muster._errors import MusterError

STUCK_AFTER_S = 10.0
"""Real time in which nothing happens, after which a test is stuck."""

LIMIT_S = 3_600.0
"""Virtual time that may pass beyond what the test has asked for."""

_NS = 1_000_000_000


class StuckTest(MusterError):
    """A test waits for something that cannot happen any more, or that took too long on its clock."""


class VirtualTime(Time):
    """The time of one event loop, and of Muster in this process.

    Where the loop would sleep until its next timer, the clock jumps to it instead. It does not jump while a
    thread runs that the loop knows of (blocking work, `asyncio.to_thread`); and where sockets are open, only
    when nothing has come for a moment.

    Args:
        io_wait_s: real time for which open sockets are waited for before each jump.
    """

    virtual = True

    def __init__(self, *, io_wait_s: float = 0.02) -> None:
        loop: Any = asyncio.get_running_loop()
        selector = getattr(loop, "_selector", None)
        if not isinstance(loop, asyncio.BaseEventLoop) or selector is None:
            raise MusterError(
                f"the clock of {type(loop).__module__}.{type(loop).__name__} cannot be controlled; run tests "
                "on an event loop of asyncio"
            )
        self._loop: Any = loop
        self._selector = selector
        self._select: Callable[[float | None], Any] = selector.select
        self._real_time: Callable[[], float] = loop.time
        self._in_executor: Callable[..., Any] = loop.run_in_executor
        self._now_ns = int(loop.time() * _NS)
        self._began_ns = self._now_ns
        self._limit_ns = 0
        self.allow(0)
        self._io_wait_s = io_wait_s
        self._busy = 0
        self._own_files = _files(selector)
        self._wall_ahead_s = time.time() - self.now_s

    # --- what Muster reads

    def boot_ms(self) -> int:
        """See `Time`."""
        return self._now_ns // 1_000_000

    def monotonic_s(self) -> float:
        """See `Time`."""
        return self.now_s

    def wall_ms(self) -> int:
        """Unix time that has passed with it."""
        return int((self.now_s + self._wall_ahead_s) * 1_000)

    @property
    def now_s(self) -> float:
        """What the event loop takes for the time."""
        return self._now_ns / _NS

    @property
    def passed_s(self) -> float:
        """How much has passed since it began."""
        return (self._now_ns - self._began_ns) / _NS

    def thread_runs(self) -> None:
        """See `Time`."""
        self._busy += 1

    def thread_rests(self) -> None:
        """See `Time`."""
        self._busy -= 1

    def allow(self, seconds: float) -> None:
        """The test lets so much time pass; an hour more makes it stuck."""
        self._limit_ns = max(self._limit_ns, self._now_ns + int((seconds + LIMIT_S) * _NS))

    # --- what it does to the loop

    def start(self) -> None:
        """Takes the clock of the loop over."""
        self._loop.time = lambda: self.now_s
        self._loop.run_in_executor = self._run_in_executor
        self._selector.select = self._wait

    def stop(self) -> None:
        """Lets real time pass again, from here on."""
        ahead_s = self.now_s - self._real_time()
        real_time = self._real_time
        self._loop.time = lambda: real_time() + ahead_s
        del self._loop.run_in_executor
        del self._selector.select

    def _run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future = self._in_executor(executor, func, *args)
        self.thread_runs()
        future.add_done_callback(lambda _: self.thread_rests())
        return future

    def _wait(self, timeout_s: float | None = None) -> Any:
        """What the loop calls to sleep."""
        if timeout_s is not None and timeout_s <= 0:
            return self._select(0)
        if events := self._select(0):
            return events
        if self._busy:
            return self._wait_for("a thread has not come back", self._threads)
        if _files(self._selector) > self._own_files and (events := self._select(self._io_wait_s)):
            return events
        if timeout_s is None:
            return self._wait_for("nothing is left that could happen", self._tasks)
        self._now_ns += max(1, round(timeout_s * _NS))
        if self._now_ns > self._limit_ns:
            self._limit_ns = sys.maxsize
            raise StuckTest(
                f"{self.passed_s:,.0f} s have passed on the test's clock, an hour more than it asked for "
                f"(`advance`, `until`), and it waits:\n{self._tasks()}"
            )
        return []

    def _wait_for(self, problem: str, where: Callable[[], str]) -> Any:
        if events := self._select(STUCK_AFTER_S):
            return events
        raise StuckTest(f"{problem}, and the test waits:\n{where()}")

    def _tasks(self) -> str:
        """Where the tasks of the loop stand, those of Muster last."""
        lines = [_place(task) for task in asyncio.all_tasks(self._loop)]
        return "\n".join(sorted(lines, key=lambda line: "/muster/" in line)) or "  no task is left"

    def _threads(self) -> str:
        frames = sys._current_frames()
        return "\n".join("".join(traceback.format_stack(frame)[-3:]) for frame in frames.values())


def _files(selector: Any) -> int:
    """How many files a loop waits for."""
    files = selector.get_map() if hasattr(selector, "get_map") else None
    return len(files or ())


def _place(task: "asyncio.Task[Any]") -> str:
    stack = task.get_stack(limit=1)
    where = f"{stack[0].f_code.co_filename}:{stack[0].f_lineno}" if stack else "its end"
    return f"  {task.get_name()} at {where}"
