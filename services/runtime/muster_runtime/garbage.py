"""Keeps garbage collection from stopping a process that remembers much.

A full collection looks at every object that there is: for a million of them the process stops for a
third of a second. Almost all of what a coordinator has are groups and offsets, which stay. So what survived
a collection that took long is not looked at again (`gc.freeze`), nor is what a load has made, nor what was
there before the process served. What becomes garbage of that all the same, and only the collector could
find, is swept up when the process has come to twice the size that it had after the last sweep, and seldom.
A sweep looks at all that there is in one turn, four microseconds for each group. So what is known to be in
use is hidden from it before, and shown to the collector again after it, some at a time.
"""

import asyncio
import ctypes
import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import structlog

log = structlog.get_logger()

LONG_S = 0.005
"""After a full collection that took longer, what survived it is set aside."""

SWEEP_CHECK_S = 60.0
"""How often to look whether a sweep is due."""

_GROWTH = 2
_SHARE = 1_000
"""A sweep takes at most this part of the time since the last one."""

_TURN_S = 0.002
"""What is in use is hidden, and shown again, for so long at a time."""

_SHOWN_AT_ONCE = 500
_FULL = 2

_track = ctypes.pythonapi.PyObject_GC_Track
_untrack = ctypes.pythonapi.PyObject_GC_UnTrack
for _function in (_track, _untrack):
    _function.argtypes = [ctypes.py_object]
    _function.restype = None


def nothing() -> Iterator[Sequence[object]]:
    """For a process that does not know what is in use."""
    return iter(())


class Collector:
    """The garbage collector of a process; there is one.

    Args:
        now_s: a clock that never jumps.
        blocks: how much memory the process has taken, in any unit.
    """

    def __init__(
        self,
        now_s: Callable[[], float] = time.monotonic,
        blocks: Callable[[], int] = sys.getallocatedblocks,
    ) -> None:
        self._now_s = now_s
        self._blocks = blocks
        self._running = False
        self._reads = 0
        self._wanted = False
        self._began_s = 0.0
        self._set_aside = False
        self._size_then = 0
        self._not_before_s = 0.0
        self._checker: asyncio.TimerHandle | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self.in_use: Callable[[], Iterator[Sequence[object]]] = nothing
        """Goes through objects that are in use, in short portions, while others change them.

        They are hidden as they come. Only such whose types bear that: exact containers and instances of
        classes that are written in Python.
        """

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keeps full collections short during a block, in the running event loop."""
        self._running = True
        self._size_then = self._blocks()
        gc.callbacks.append(self._collected)
        self._check_later()
        try:
            yield
        finally:
            self._running = False
            gc.callbacks.remove(self._collected)
            for pending in (self._checker, self._sweeping):
                if pending is not None:
                    pending.cancel()
            gc.unfreeze()

    def set_aside(self) -> None:
        """What there is now, such as what is imported, is not looked at again; what is garbage of it goes.

        Else the first full collection would look at it, for 36 ms, once somebody makes enough to keep.
        """
        gc.collect()
        gc.freeze()
        self._set_aside = True
        self._size_then = self._blocks()

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """Runs a block without garbage collection: a read of a log, during which other work goes on.

        A read makes a great many objects without cycles; collections meanwhile would look at all of them for
        nothing.
        """
        if not self._reads:
            self._wanted = gc.isenabled()
            gc.disable()
        self._reads += 1
        try:
            yield
        finally:
            self._reads -= 1
            self._read_ended()

    def sweep_if_due(self, more_s: float = 0) -> bool:
        """Collects everything that is not hidden, if that is worth its time; returns whether it did.

        Args:
            more_s: how long it took to hide what is in use.
        """
        if not self._is_due():
            return False
        now_s = self._now_s()
        gc.unfreeze()
        found = gc.collect()
        took_s = self._now_s() - now_s
        gc.freeze()
        self._size_then = self._blocks()
        self._not_before_s = self._now_s() + _SHARE * (took_s + 2 * more_s)
        log.info("garbage_swept", objects=found, took_ms=round(took_s * 1000))
        return True

    def _is_due(self) -> bool:
        return (
            self._set_aside
            and not self._reads
            and self._now_s() >= self._not_before_s
            and self._blocks() >= _GROWTH * self._size_then
        )

    def _read_ended(self) -> None:
        if self._running:
            # Even the youngest collection would look at all that the read has made.
            gc.freeze()
            self._set_aside = True
        elif self._wanted and self._reads:
            gc.collect(0)  # reads that overlap must not put it off for ever
        if self._wanted and not self._reads:
            gc.enable()

    def _collected(self, phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] != _FULL:
            return
        if phase == "start":
            self._began_s = self._now_s()
        elif self._now_s() - self._began_s > LONG_S:
            gc.freeze()
            self._set_aside = True

    def _check_later(self) -> None:
        self._checker = asyncio.get_running_loop().call_later(SWEEP_CHECK_S, self._check)

    def _check(self) -> None:
        if self._is_due() and (self._sweeping is None or self._sweeping.done()):
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())
        self._check_later()

    async def _sweep(self) -> None:
        """Sweeps without what is in use: what only that refers to counts as used."""
        hidden: list[object] = []
        _untrack(hidden)  # it becomes as long as there are objects
        try:
            hiding_s = await self._hide(hidden)
            self.sweep_if_due(hiding_s)
            while hidden:
                began_s = self._now_s()
                while hidden and self._now_s() - began_s < _TURN_S:
                    _show(hidden[-_SHOWN_AT_ONCE:])
                    del hidden[-_SHOWN_AT_ONCE:]
                gc.freeze()  # they count as young again
                await asyncio.sleep(0)
        finally:
            _show(hidden)

    async def _hide(self, hidden: list[object]) -> float:
        """Hides what is in use, some at a time, and puts it in a list; returns how many seconds that took."""
        took_s = 0.0
        began_s = self._now_s()
        for portion in self.in_use():
            for one in portion:
                _untrack(one)
            hidden += portion
            if (now_s := self._now_s()) - began_s >= _TURN_S:
                took_s += now_s - began_s
                await asyncio.sleep(0)
                began_s = self._now_s()
        return took_s + self._now_s() - began_s


def _show(hidden: Iterable[object]) -> None:
    """Lets the collector look at objects again, as far as it does not do so already."""
    for one in hidden:
        if not gc.is_tracked(one):  # a dict is looked at again when a container is put in
            _track(one)


COLLECTOR = Collector()
"""The one of this process."""
