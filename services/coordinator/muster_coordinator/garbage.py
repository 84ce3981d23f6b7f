"""Keeps the garbage collector off while logs are read."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


class _Collector:
    """The collector of this process: off while at least one read runs.

    Attributes:
        reads: how many run.
        wanted: whether it was on before the first of them.
    """

    def __init__(self) -> None:
        self.reads = 0
        self.wanted = False

    def begin(self) -> None:
        if not self.reads:
            self.wanted = gc.isenabled()
            gc.disable()
        self.reads += 1

    def end(self) -> None:
        self.reads -= 1
        if not self.wanted:
            return
        if self.reads:
            gc.collect(0)  # reads that overlap must not put it off for ever
        else:
            gc.enable()


_COLLECTOR = _Collector()


@contextmanager
def garbage_left_alone() -> Iterator[None]:
    """Runs a block without garbage collection: a read of a log, during which other work goes on.

    A read makes a great many objects without cycles; collections meanwhile would look at all of them for
    nothing. What the other work leaves is collected at the end of the block.
    """
    _COLLECTOR.begin()
    try:
        yield
    finally:
        _COLLECTOR.end()
