"""How long to wait between two attempts."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from muster._clock import boot_ms

FIRST_MS = 100
LONGEST_MS = 1_000
JITTER = 0.2
WORTH_A_LINE_MS = 2_000


class Backoff:
    """100 ms, doubling to 1,000 ms, each ±20 %. The first retry after a broken connection is immediate.

    Args:
        steady: how many pauses of 100 ms come before the doubling.
    """

    def __init__(self, steady: int = 0) -> None:
        self._steady = steady
        self.reset()

    def reset(self) -> None:
        """Starts from the beginning, after a success."""
        self.attempts = 0
        self._next_ms = FIRST_MS
        self._may_hurry = True

    def next_ms(self, *, connection_broken: bool = False) -> float:
        """How long to wait before the next attempt, ms."""
        self.attempts += 1
        if connection_broken and self._may_hurry:
            self._may_hurry = False
            return 0
        wait_ms = self._next_ms * between(1 - JITTER, 1 + JITTER)
        if self.attempts > self._steady:
            self._next_ms = min(2 * self._next_ms, LONGEST_MS)
        return wait_ms

    async def pause(self, *, connection_broken: bool = False) -> None:
        """Waits before the next attempt."""
        await asyncio.sleep(self.next_ms(connection_broken=connection_broken) / 1_000)


def between(low: float, high: float) -> float:
    """A number drawn anew each time, so that many clients do not act at the same moment."""
    return random.uniform(low, high)  # noqa: S311 - no secret


class Pushback:
    """Calls of a kind wait for as long as the server said when it refused one of them."""

    def __init__(self) -> None:
        self._until_ms: dict[type, float] = {}

    def said(self, kind: type, after_ms: int) -> None:
        """The server refused a call, which may be repeated then; up to a fifth later, at random."""
        if after_ms > 0:
            self._until_ms[kind] = boot_ms() + after_ms * between(1, 1 + JITTER)

    async def over(self, kind: type) -> None:
        """Waits until calls of this kind may be made."""
        until_ms = self._until_ms.get(kind, 0)
        if until_ms:
            await asyncio.sleep(max(0.0, until_ms - boot_ms()) / 1_000)
            if self._until_ms.get(kind) == until_ms:
                del self._until_ms[kind]


class Waiting:
    """Says when a wait is worth a line in the log: after 2 s, then each time that it has tripled."""

    def __init__(self) -> None:
        self._began_ms = boot_ms()
        self._next_ms = WORTH_A_LINE_MS

    @property
    def is_worth_a_line(self) -> bool:
        """Whether it has lasted long enough since it was last said."""
        if boot_ms() - self._began_ms < self._next_ms:
            return False
        self._next_ms *= 3
        return True

    @contextmanager
    def saying(self, say: Callable[[], None]) -> Iterator[None]:
        """Calls `say` whenever it is worth a line while the enclosed code waits, whatever that waits for.

        A server that hangs lets one attempt last for seconds: looking at the clock after each is not enough.
        """
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def ring() -> None:
            if self.is_worth_a_line:
                say()
            arm(1)

        def arm(least_ms: int) -> None:
            nonlocal timer
            left_ms = self._began_ms + self._next_ms - boot_ms()
            timer = loop.call_later(max(left_ms, least_ms) / 1_000, ring)

        arm(WORTH_A_LINE_MS)  # a wait that began in an earlier attempt does not begin with a line
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
