"""Alarms on the boot clock.

The clock of asyncio stops while the machine sleeps, so its timers fire late by the length of the sleep.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from muster._clock import boot_ms

LOOK_MS = 200
"""How often the boot clock is read while an alarm is set, and so how late an alarm may be after a sleep."""


class Alarms:
    """The alarms of one event loop; they share one of its timers."""

    def __init__(self) -> None:
        self._set: dict[object, tuple[int, Callable[[], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._look_at_ms = 0

    @contextmanager
    def at(self, due_ms: int, ring: Callable[[], None]) -> Iterator[None]:
        """Calls `ring` once when the boot clock has reached `due_ms`, unless the context has ended before.

        `ring` is never called from `at` itself, even if `due_ms` has passed.
        """
        key = object()
        self._set[key] = (due_ms, ring)
        self._look_by(due_ms)
        try:
            yield
        finally:
            self._set.pop(key, None)

    @asynccontextmanager
    async def deadline(self, due_ms: int) -> AsyncIterator[asyncio.Timeout]:
        """Like `asyncio.timeout_at`, on the boot clock.

        Raises:
            TimeoutError: `due_ms` was reached.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as limit:

            def ring() -> None:
                if not limit.expired():  # somebody else has ended it, and it is about to be left
                    limit.reschedule(loop.time())

            with self.at(due_ms, ring):
                yield limit

    def _look_by(self, due_ms: int) -> None:
        now_ms = boot_ms()
        due_ms = max(now_ms, min(due_ms, now_ms + LOOK_MS))
        if self._timer is not None:
            if self._look_at_ms <= due_ms:
                return
            self._timer.cancel()
        self._look_at_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later((due_ms - now_ms) / 1_000, self._look)

    def _look(self) -> None:
        self._timer = None
        now_ms = boot_ms()
        for key, (due_ms, ring) in tuple(self._set.items()):
            if due_ms <= now_ms:
                del self._set[key]
                ring()
        if self._set:
            self._look_by(min(due_ms for due_ms, _ in self._set.values()))
