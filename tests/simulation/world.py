"""Virtual time: everything that happens in a run, in one order that the seed decides."""

import collections
import hashlib
import heapq
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

EPOCH_S = 1_750_000_000.0
"""Wall time at which every run begins."""

TURNS_MAX = 20_000
"""Turns of loops that may follow each other while no time passes."""

Happening = tuple[float, int, Callable[..., object], tuple[Any, ...]]


class Clock(Protocol):
    """What a process takes for the time."""

    def boot_s(self) -> float:
        """Seconds since its machine was started."""

    def wall_s(self) -> float:
        """Seconds since 1970, as its machine believes."""


class World:
    """Owns time and chance.

    Attributes:
        now_s: virtual time since the beginning of the run.
        random: decides everything that is not determined; nothing else may.
        clock: of the process whose code runs now; None between two of them.
        steps: things that happened so far.
    """

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.random = random.Random(seed)
        self.clock: Clock | None = None
        self.steps = 0
        self._queue: list[Happening] = []
        self._soon: collections.deque[Callable[[], None]] = collections.deque()
        self._count = 0
        self._hash = hashlib.sha256()
        self.tell: Callable[[str], None] | None = None

    def at(self, when_s: float, do: Callable[..., object], *arguments: Any) -> None:
        """Lets something happen at a time; what is due at one time happens in the order of asking."""
        self._count += 1
        heapq.heappush(self._queue, (max(when_s, self.now_s), self._count, do, arguments))

    def after(self, delay_s: float, do: Callable[..., object], *arguments: Any) -> None:
        """Lets something happen after a while."""
        self.at(self.now_s + delay_s, do, *arguments)

    def soon(self, do: Callable[[], None]) -> None:
        """Lets something happen before time goes on."""
        self._soon.append(do)

    def run(self, until_s: float) -> None:
        """Lets time pass."""
        queue, soon = self._queue, self._soon
        while True:
            turns = 0
            while soon:
                soon.popleft()()
                turns += 1
                if turns == TURNS_MAX:
                    # Whoever waits for time in a tight circle gets some.
                    self.now_s += 0.001
                    break
            self.steps += turns
            if soon:
                continue
            if not queue or queue[0][0] > until_s:
                break
            when_s, _, do, arguments = heapq.heappop(queue)
            self.now_s = max(self.now_s, when_s)
            self.steps += 1
            do(*arguments)
        self.now_s = max(self.now_s, until_s)

    def note(self, *what: object) -> None:
        """Puts something that happened into the trace, and into its hash."""
        line = f"{self.now_s:.6f} {' '.join(map(str, what))}"
        self._hash.update(line.encode())
        if self.tell is not None:
            self.tell(line)

    def note_bytes(self, where: str, data: bytes) -> None:
        """Puts bytes that were delivered into the hash; the trace only says how many."""
        self._hash.update(where.encode())
        self._hash.update(data)
        if self.tell is not None:
            self.tell(f"{self.now_s:.6f} {where} {len(data)} bytes")

    @property
    def trace_hash(self) -> str:
        """Stands for everything that was noted so far."""
        return self._hash.hexdigest()

    # --- what processes take for the time and for chance

    def _boot_ns(self, _clock: int = 0) -> int:
        return int((self.now_s if self.clock is None else self.clock.boot_s()) * 1e9)

    def _boot_s(self) -> float:
        return self.now_s if self.clock is None else self.clock.boot_s()

    def _wall_s(self) -> float:
        return EPOCH_S + self.now_s if self.clock is None else self.clock.wall_s()

    def _wall_ns(self) -> int:
        return int(self._wall_s() * 1e9)

    def _bytes(self, count: int) -> bytes:
        return self.random.randbytes(count)

    @contextmanager
    def ruling(self) -> Iterator[None]:
        """Makes the clocks and random sources of the standard library this world's."""
        replaced: list[tuple[Any, str, Any]] = [
            (time, "monotonic", self._boot_s),
            (time, "monotonic_ns", self._boot_ns),
            (time, "perf_counter", self._boot_s),
            (time, "clock_gettime_ns", self._boot_ns),
            (time, "time", self._wall_s),
            (time, "time_ns", self._wall_ns),
            (os, "urandom", self._bytes),
            (random, "_urandom", self._bytes),
            (random, "random", self.random.random),
            (random, "uniform", self.random.uniform),
            (random, "randrange", self.random.randrange),
            (uuid, "uuid4", lambda: uuid.UUID(bytes=self._bytes(16), version=4)),
        ]
        before = [(module, name, getattr(module, name)) for module, name, _ in replaced]
        for module, name, value in replaced:
            setattr(module, name, value)
        try:
            yield
        finally:
            for module, name, value in before:
                setattr(module, name, value)
