"""Metrics of every process: its event loop, its build, and what telemetry itself dropped."""

import asyncio
import time
from collections.abc import Callable, Sequence

from muster_runtime.logs import ALARMS
from muster_runtime.telemetry.instruments import Counter, Histogram
from muster_runtime.telemetry.metric import SHORT_SECONDS, Kind, Metric, Sample
from muster_runtime.telemetry.telemetry import Source

TICK_S = 0.1
"""How often the loop is asked to be on time."""

LOOP_LAG = Metric(
    "muster_loop_lag",
    Kind.HISTOGRAM,
    "How late the event loop carries out what is due; every call waits so long.",
    "seconds",
    bounds=SHORT_SECONDS,
    advice="Above 0.1 s: the process has too little CPU or too much to do; give it a core, or add instances.",
)
TELEMETRY_DROPPED = Metric(
    "muster_telemetry_dropped",
    Kind.COUNTER,
    "Numbers and spans that the collector did not take or for which there was no room.",
    labels={"signal": ("metrics", "spans"), "reason": ("not_taken", "no_room")},
    advice="The collector is down, slow or refuses; Muster itself is not touched by it.",
)
COLLECT_TIMEOUTS = Metric(
    "muster_telemetry_timeouts",
    Kind.COUNTER,
    "Readings that the event loop did not answer in time; the numbers told then were old.",
    advice="Look at muster_loop_lag_seconds.",
)


ALARM_EVENTS = (
    "group_quarantined",
    "lease_too_short",
    "log_acknowledged_records_cut",
    "log_damaged",
    "log_lost",
    "log_node_damaged",
    "log_node_weakened",
    "log_not_readable",
    "log_second_may_be_missing",
    "log_waits_for_a_node",
    "memory_exhausted",
    "metadata_outdated",
    "preload_failed",
    "shard_failed",
    "snapshot_blocked",
    "snapshot_unusable",
)
ALARMS_TOLD = Metric(
    "muster_alarms",
    Kind.COUNTER,
    "Lines of the log that carry `alarm`: nothing in Muster repairs what they tell.",
    labels={"event": ALARM_EVENTS},
    advice="Read the line, then docs/failures.md.",
)


def build_info(version: str, roles: str) -> Metric:
    """The metric that says which software this is; always 1."""
    return Metric(
        "muster_build_info",
        Kind.GAUGE,
        "Always 1; its labels say which software the process runs, and which roles.",
        labels={"version": (version,), "roles": (roles,)},
        advice="Two versions for longer than a rollout: it stopped half-way.",
    )


class LoopWatch:
    """Asks the loop ten times a second whether it is on time."""

    def __init__(self) -> None:
        self.lag = Histogram(LOOP_LAG)
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins, on the running loop."""
        self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        """Ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_s = time.monotonic() + TICK_S
        self._timer = loop.call_later(TICK_S, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lag.observe(time.monotonic() - self._due_s)
        self._arm(loop)


class ProcessSource(Source):
    """The process's own numbers.

    Args:
        version: of the software.
        roles: what it runs, as one word.
        timeouts: how many readings the loop did not answer.
    """

    def __init__(self, version: str, roles: str, timeouts: Callable[[], int]) -> None:
        self.watch = LoopWatch()
        self._build = build_info(version, roles)
        self._build_labels = (version, roles)
        self._timeouts = timeouts
        self._dropped = Counter(TELEMETRY_DROPPED)
        self.metrics = (self._build, LOOP_LAG, ALARMS_TOLD, TELEMETRY_DROPPED, COLLECT_TIMEOUTS)
        self.instruments = (self.watch.lag, self._dropped)

    def lost(self, signal: str, reason: str, count: int) -> None:
        """Counts what telemetry dropped. Each kind of loss is counted by one thread."""
        self._dropped.add((signal, reason), count)

    async def read(self) -> Sequence[Sample]:
        """See `Source`."""
        return [
            Sample(self._build, 1, self._build_labels),
            *ALARMS_TOLD.samples(((event,), count) for event, count in ALARMS.items()),
            Sample(COLLECT_TIMEOUTS, self._timeouts()),
        ]
