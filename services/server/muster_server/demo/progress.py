"""The workers' progress, from their reports."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from muster_runtime.clock import boot_ms

from muster_server.demo.workload import FULL, Store

_WAIT_MS = 200
_GATE_SECONDS = 0.1
HELD_AT = 0.9


@dataclass(frozen=True, slots=True)
class Commit:
    """An acknowledged commit.

    Attributes:
        at_ms: boot time at which the worker had the answer.
        sent_ms: boot time at which it asked.
        worker: who.
        partition: of what.
        position: up to where.
    """

    at_ms: int
    sent_ms: int
    worker: str
    partition: int
    position: int


@dataclass(frozen=True, slots=True)
class Start:
    """Work on a partition began.

    Attributes:
        at_ms: boot time.
        worker: who began.
        partition: what.
        before: who worked on it last; empty: nobody did.
    """

    at_ms: int
    worker: str
    partition: int
    before: str


@dataclass
class Progress:
    """Follows the workers' reports.

    Args:
        store: the workload's server.
        sizes: lines of each partition.
    """

    store: Store
    sizes: list[int]
    commits: list[Commit] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    owners: dict[int, str] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    refused: int = 0
    ended: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def done(self) -> int:
        """Lines that are counted and committed."""
        return sum(self.positions.values())

    @property
    def total(self) -> int:
        """Lines in all."""
        return sum(self.sizes)

    @property
    def finished(self) -> bool:
        """Whether every partition is committed to its end."""
        return all(self.positions.get(number, 0) >= size for number, size in enumerate(self.sizes))

    def partitions_of(self, worker: str) -> set[int]:
        """The partitions that a worker owns, according to its last report."""
        return {partition for partition, owner in self.owners.items() if owner == worker}

    async def follow(self) -> None:
        """Reads reports until `ended` is set; a cancellation could get lost in the Redis client."""
        after = "0"
        while not self.ended:
            for event_id, event in await self.store.events(after, _WAIT_MS):
                after = event_id
                self._take(event)
            self._changed.set()

    def _take(self, event: dict[str, str]) -> None:
        partition, position = int(event["partition"]), int(event["position"])
        if event["event"] == "refused":
            self.refused += 1
            return
        if event["event"] == "owned":
            before = self.owners.get(partition, "")
            self.starts.append(Start(int(event["at_ms"]), event["worker"], partition, before))
        self.owners[partition] = event["worker"]
        if event["event"] == "commit":
            self.positions[partition] = max(position, self.positions.get(partition, 0))
            self.commits.append(
                Commit(int(event["at_ms"]), int(event["sent_ms"]), event["worker"], partition, position)
            )

    def starts_since(self, since_ms: int) -> list[Start]:
        """Where work began since then, in the order of the reports."""
        return [start for start in self.starts if start.at_ms >= since_ms]

    async def until(self, condition: Callable[[], bool], timeout_seconds: float) -> bool:
        """Waits until a condition holds; returns False if it did not in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        return condition()

    def longest_gap_ms(self, from_ms: int, to_ms: int) -> int:
        """The longest time between two commits of any worker in a span of time, ms."""
        times = sorted(c.at_ms for c in self.commits if from_ms <= c.at_ms <= to_ms)
        marks = [from_ms, *times, to_ms]
        return max(later - earlier for earlier, later in pairwise(marks))

    def first_commit_after(self, killed_ms: int) -> Commit | None:
        """The first acknowledged one that was asked for after the kill, so not of the dead process."""
        later = [commit for commit in self.commits if commit.sent_ms >= killed_ms]
        return min(later, key=lambda commit: commit.at_ms, default=None)

    def taken_over_ms(self, partitions: set[int], worker: str, since_ms: int) -> int | None:
        """When the last of these partitions was committed by another worker; None: not yet."""
        firsts = []
        for partition in partitions:
            times = [
                c.at_ms
                for c in self.commits
                if c.partition == partition and c.worker != worker and c.at_ms > since_ms
            ]
            if not times:
                return None
            firsts.append(min(times))
        return max(firsts, default=since_ms)


class Gate:
    """Opens the work bit by bit, so that it is really under way whenever something is killed.

    Args:
        store: the workload's server.
        seconds: how long the whole work would take if it were never released.
    """

    def __init__(self, store: Store, seconds: float) -> None:
        self._store = store
        self._seconds = seconds
        self._released = False
        self.ended = False
        self.started_ms = boot_ms()

    async def run(self) -> None:
        """Opens until `ended` is set; holds at `HELD_AT` until `release` is called."""
        while not self.ended:
            share = (
                1.0 if self._released else min((boot_ms() - self.started_ms) / 1000 / self._seconds, HELD_AT)
            )
            await self._store.allow(int(share * FULL))
            await asyncio.sleep(_GATE_SECONDS)

    def release(self) -> None:
        """Lets the work run to its end, as fast as it can."""
        self._released = True
