"""Reads all numbers of a process, on its event loop, for exporters that run in threads of their own."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Sequence
from typing import Protocol

import structlog

from muster_runtime.telemetry.instruments import Sample
from muster_runtime.telemetry.metric import Metric

log = structlog.get_logger()


class Source(Protocol):
    """Something that has numbers to tell."""

    @property
    def metrics(self) -> Sequence[Metric]:
        """Every metric that it tells."""

    async def read(self) -> Sequence[Sample]:
        """The numbers now. Called on the loop; what takes long must let others run in between."""


class Collection:
    """The sources of a process.

    Reading happens on the loop, where the numbers change, so that no lock is needed where they are counted. A
    loop that hangs costs a scrape its time-out and new numbers, not the answer.

    Args:
        timeout_ms: how long an exporter waits for the loop.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self._sources: list[Source] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading = threading.Lock()
        self._last: Sequence[Sample] = ()
        self.timeouts = 0

    @property
    def metrics(self) -> list[Metric]:
        """Every metric of every source."""
        return [metric for source in self._sources for metric in source.metrics]

    def add(self, source: Source) -> None:
        """Adds a source. On the loop."""
        self._sources.append(source)

    def start(self) -> None:
        """The running loop is the one to read on."""
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """Nothing is read from now on; what was read last stays known."""
        self._loop = None

    def read(self) -> Sequence[Sample]:
        """All numbers, or those of before if the loop does not answer in time. From any other thread."""
        with self._reading:
            loop = self._loop
            if loop is None or loop.is_closed():
                return self._last
            work = self.read_here()
            try:
                future = asyncio.run_coroutine_threadsafe(work, loop)
            except RuntimeError:  # it was closed just now
                work.close()
                return self._last
            try:
                self._last = future.result(self._timeout_s)
            except TimeoutError:
                future.cancel()
                self.timeouts += 1
            except concurrent.futures.CancelledError:
                pass  # the loop ends
            return self._last

    async def read_here(self) -> list[Sample]:
        """All numbers. A source that fails is left out and logged."""
        samples: list[Sample] = []
        for source in tuple(self._sources):
            try:
                samples += await source.read()
            except Exception:
                log.exception("telemetry_source_failed", source=type(source).__name__)
        return samples
