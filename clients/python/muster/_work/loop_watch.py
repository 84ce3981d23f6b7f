"""Names what blocks the event loop: beats, commits and all async work wait for it."""

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator

log = logging.getLogger("muster")

LOOK_MS = 100
"""How often the loop is asked for a sign."""


class LoopWatch:
    """Asks the event loop for signs from a thread, and logs where it stands when none comes.

    One line when a block has lasted for `after_ms`, with the stack, another one each time that it has
    tripled, and one when it is over. Of a process that was stopped as a whole nothing is said: then the
    thread stood still too.

    Args:
        after_ms: how long a block lasts before it is logged.
    """

    def __init__(self, after_ms: int) -> None:
        self._after_s = after_ms / 1_000
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._sign_s = 0.0
        self._over = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the loop until the context ends."""
        thread = threading.Thread(target=self._watch, name="muster-loop-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()

    def _sign(self) -> None:
        self._sign_s = time.monotonic()

    def _watch(self) -> None:
        while not self._over.is_set():
            asked_s = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._sign)
            except RuntimeError:
                return  # the loop is closed
            self._await_sign(asked_s)
            self._over.wait(LOOK_MS / 1_000)

    def _await_sign(self, asked_s: float) -> None:
        """Waits until the loop has given the sign that it was asked for."""
        blocked_s, next_s, said = 0.0, self._after_s, False
        while self._sign_s < asked_s and not self._over.is_set():
            looked_s = time.monotonic()
            self._over.wait(LOOK_MS / 1_000)
            # What this thread slept beyond its wait, it was stopped as well.
            blocked_s += min(time.monotonic() - looked_s, 2 * LOOK_MS / 1_000)
            if blocked_s < next_s or self._sign_s >= asked_s:
                continue
            next_s, said = 3 * next_s, True
            frame = sys._current_frames().get(self._loop_thread)
            log.warning(
                "the event loop has been blocked for %.1f s: beats, commits and all async work wait; "
                "it stands at\n%s",
                blocked_s,
                "".join(traceback.format_stack(frame)).rstrip() if frame else "  an unknown place",
            )
        if said and not self._over.is_set():
            log.warning(
                "the event loop was blocked for %.1f s; put what blocks it into a thread (asyncio.to_thread)",
                self._sign_s - asked_s,
            )
