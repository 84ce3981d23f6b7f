"""What the work on a partition shows of itself."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from muster._clock import monotonic_s
from muster._values import Committed


@dataclass(slots=True)
class Signs:
    """Signs of life and progress of one partition; kept while this process keeps the partition.

    Attributes:
        last_s: monotonic time of the last sign of life.
        calls: calls to the cluster for which the work waits; it is not idle meanwhile.
        position: what was last read or committed here; None: nothing.
        advanced: another position was committed since the call of the work began.
        paused: `pause` was called, and `resume` not since.
        resumed: set while it is not paused.
    """

    last_s: float = 0
    calls: int = 0
    position: Committed | None = None
    advanced: bool = False
    paused: bool = False
    resumed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.resumed.set()

    def begin(self) -> None:
        """A call of the work begins."""
        self.advanced = False
        self.show()

    def show(self) -> None:
        """The work is alive. May be called from any thread."""
        self.last_s = monotonic_s()

    def read(self, position: Committed | None) -> None:
        """The work has read what is committed."""
        self.position = position

    def committed(self, position: Committed) -> None:
        """A commit of the work is stored."""
        if position != self.position:
            self.position, self.advanced = position, True

    def idle_ms(self) -> float:
        """How long the work has shown no sign of life; 0 while it waits for the cluster or is paused."""
        if self.calls or self.paused:
            return 0
        return (monotonic_s() - self.last_s) * 1_000

    @contextmanager
    def waits(self) -> Iterator[None]:
        """The work waits for the cluster."""
        self.calls += 1
        self.show()
        try:
            yield
        finally:
            self.calls -= 1
            self.show()

    def pause(self) -> None:
        """The work is to wait where it asks."""
        self.paused = True
        self.resumed.clear()

    def resume(self) -> None:
        """The work may go on."""
        self.paused = False
        self.show()
        self.resumed.set()
