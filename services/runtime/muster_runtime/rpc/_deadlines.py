"""The longest deadline of a server's calls."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

AT_ONCE = 50
"""Calls that are ended before other work of the loop gets its turn."""

_PAUSE_S = 0.02


class CallOverdue(Exception):
    """A call has taken longer than the server allows."""


class Deadlines:
    """Ends calls that take too long, some at a time: thousands that are due at once hold nobody else up.

    All have the same time, so the oldest is always the next one.

    Args:
        longest_ms: how long a call may take.
    """

    def __init__(self, longest_ms: int) -> None:
        self.longest_s = longest_ms / 1000
        self._due_s: dict[asyncio.Task[Any], float] = {}
        self._overdue: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, work: Callable[[Any], Awaitable[Any]], context: Any) -> Any:
        """Does the work of a call, in the task of the call.

        Raises:
            CallOverdue: it took too long and was cancelled.
        """
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        self._due_s[task] = loop.time() + self.longest_s
        if self._timer is None:
            self._timer = loop.call_later(self.longest_s, self._expire)
        try:
            return await work(context)
        except asyncio.CancelledError:
            if task not in self._overdue or task.uncancel():
                raise  # its caller is gone
        finally:
            self._due_s.pop(task, None)
            self._overdue.discard(task)
        raise CallOverdue

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._timer = None
        for _ in range(AT_ONCE):
            task, due_s = next(iter(self._due_s.items()), (None, 0.0))
            if task is None:
                return
            if due_s > now_s:
                self._timer = loop.call_at(due_s, self._expire)
                return
            del self._due_s[task]
            self._overdue.add(task)
            task.cancel()
        self._timer = loop.call_later(_PAUSE_S, self._expire)
