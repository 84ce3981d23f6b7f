"""The thread that finds out when an event loop is blocked. A process has one, while anybody wants to know."""

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from typing import Protocol

from muster._metrics.member import loop_was_blocked

log = logging.getLogger("muster")

LOOK_MS = 100
"""How often a loop is asked for a sign, unless an observer has to know sooner."""


class BlockObserver(Protocol):
    """Who has to know of blocks of one loop. Both functions are called in the thread, and must not wait."""

    look_ms: int
    """How often it wants to be called, at least, ms."""

    def blocked(self, blocked_ms: float, loop_thread: int) -> None:
        """Called again and again while a block lasts.

        Args:
            blocked_ms: how long it has lasted. Time in which the process was stopped does not count.
            loop_thread: for `stack_of`.
        """

    def over(self, blocked_ms: float) -> None:
        """Called when the loop is back."""


class _WatchedLoop:
    """Asks one loop for signs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.observers: dict[BlockObserver, None] = {}
        self._thread = threading.get_ident()
        self._asked = self._signed = 0
        self._blocked_ms = 0.0

    def _sign(self, asked: int) -> None:
        self._signed = asked

    def look(self, waited_ms: float) -> None:
        """Asks for a sign, or says that the last one has not come.

        Raises:
            RuntimeError: the loop is closed.
        """
        if self._signed < self._asked:
            self._blocked_ms += waited_ms
            self._call("blocked", self._blocked_ms, self._thread)
            return
        if self._blocked_ms:
            if self._blocked_ms >= LOOK_MS:
                loop_was_blocked(self._blocked_ms / 1_000)
            self._call("over", self._blocked_ms)
            self._blocked_ms = 0.0
        self._asked += 1
        self.loop.call_soon_threadsafe(self._sign, self._asked)

    def _call(self, what: str, *arguments: float) -> None:
        for observer in tuple(self.observers):
            try:
                getattr(observer, what)(*arguments)
            except Exception:
                log.exception("what watches the event loop failed, and is not called any more")
                self.observers.pop(observer, None)


class _Watch:
    """The loops that are watched, and the thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: dict[asyncio.AbstractEventLoop, _WatchedLoop] = {}
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, observer: BlockObserver) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            watched = self._loops.get(loop)
            if watched is None:
                watched = self._loops[loop] = _WatchedLoop(loop)
            watched.observers = {**watched.observers, observer: None}
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="muster-loop-watch", daemon=True)
                self._thread.start()

    def end(self, observer: BlockObserver) -> None:
        with self._lock:
            for loop, watched in tuple(self._loops.items()):
                if observer in watched.observers:
                    watched.observers = {o: None for o in watched.observers if o is not observer}
                if not watched.observers:
                    del self._loops[loop]
            if not self._loops:
                self._wake.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._wake.clear()
                watched = tuple(self._loops.values())
                if not watched:
                    self._thread = None
                    return
            look_ms = min((o.look_ms for w in watched for o in tuple(w.observers)), default=LOOK_MS)
            began_s = time.monotonic()
            self._wake.wait(look_ms / 1_000)
            # What this thread waited beyond that, it was stopped as well.
            waited_ms = min((time.monotonic() - began_s) * 1_000, 2 * look_ms)
            for one in watched:
                try:
                    one.look(waited_ms)
                except RuntimeError:
                    with self._lock:
                        self._loops.pop(one.loop, None)


_watch = _Watch()


def begin_watching(observer: BlockObserver) -> None:
    """Has the running loop watched on behalf of an observer."""
    _watch.begin(observer)


def end_watching(observer: BlockObserver) -> None:
    """Stops calling the observer; a call that has begun goes on."""
    _watch.end(observer)


def stack_of(loop_thread: int) -> str:
    """Where a blocked loop stands, as lines."""
    frame = sys._current_frames().get(loop_thread)
    return "".join(traceback.format_stack(frame)).rstrip() if frame else "  an unknown place"


def _forked() -> None:
    global _watch
    _watch = _Watch()  # the thread is not in the child, and its lock may be held


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)
