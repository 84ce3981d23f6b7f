"""Names what blocks the event loop: commits and all async work wait for it."""

import contextlib
import logging
from collections.abc import Iterator

from muster._blocked.watch import LOOK_MS, begin_watching, end_watching, stack_of

log = logging.getLogger("muster")


class BlockNaming:
    """Logs where the event loop stands while it is blocked.

    One line when a block has lasted for `after_ms`, with the stack, another one each time that it has
    tripled, and one when it is over. Of a process that was stopped as a whole nothing is said.

    Args:
        after_ms: how long a block lasts before it is logged.
    """

    look_ms: int = LOOK_MS

    def __init__(self, after_ms: int) -> None:
        self._after_ms = after_ms
        self._next_ms = after_ms

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the running loop until the context ends."""
        begin_watching(self)
        try:
            yield
        finally:
            end_watching(self)

    def blocked(self, blocked_ms: float, loop_thread: int) -> None:
        """See `BlockObserver`."""
        if blocked_ms < self._next_ms:
            return
        self._next_ms *= 3
        log.warning(
            "the event loop has been blocked for %.1f s: commits and all async work wait; it stands at\n%s",
            blocked_ms / 1_000,
            stack_of(loop_thread),
        )

    def over(self, blocked_ms: float) -> None:
        """See `BlockObserver`."""
        if self._next_ms > self._after_ms:
            log.warning(
                "the event loop was blocked for %.1f s; put what blocks it into a thread (asyncio.to_thread)",
                blocked_ms / 1_000,
            )
        self._next_ms = self._after_ms
