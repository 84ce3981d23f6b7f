"""What failed in this process, and what is done about it: fail-stop (docs/safety.md)."""

import enum
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog
from muster_core.state.quarantine import Quarantine

from muster_coordinator.failstop.failures import Failure
from muster_coordinator.failstop.fault_folder import FaultFolder

log = structlog.get_logger()

_KNOWN_MAX = 1_000
_MINUTE_MS = 60_000
_NOBODYS_MAX = 3
_RELOADS_MAX = 3
_QUARANTINE_MAX = 10_000

PAUSE_MS = 1_000
"""How long a shard that was loaded again too often within a minute waits; doubled for each further time.

But no longer than makes its loads a twentieth of the time: its other groups wait as well.
"""

_PAUSE_MAX_MS = 15_000
_PAUSES_PER_LOAD = 19
_COUNTED = 16


class Consequence(enum.Enum):
    """What becomes of a shard whose core raised."""

    RELOAD = "reloaded"  # it is loaded again from its log
    QUARANTINE = "group quarantined"  # it is loaded again without one group
    FAIL = "failed"  # it is not served any more
    GIVEN_UP = "given up"  # it was not to be served here any more in any case


@dataclass(frozen=True, slots=True)
class Fault:
    """The last failure of a group, or of a shard where no group is to blame.

    Attributes:
        shard: the shard.
        group_id: the group; empty: none.
        failed_at_ms: when, wall clock.
        error: kind and text.
        file: what keeps the event; empty: it could not be written.
    """

    shard: int
    group_id: str
    failed_at_ms: int
    error: str
    file: str


class Faults:
    """Remembers what failed here, and decides what follows.

    It is forgotten with the process, so a new version tries every group again. A shard that goes to another
    coordinator takes nothing of it along: there the same group fails again, twice at most.

    Args:
        folder: keeps events that failed.

    Attributes:
        count: number of failures in the life of the process.
    """

    def __init__(self, folder: FaultFolder) -> None:
        self.folder = folder
        self._faults: dict[tuple[int, str], Fault] = {}
        self._quarantine: defaultdict[int, dict[str, None]] = defaultdict(dict)
        self._unreadable: defaultdict[int, set[str]] = defaultdict(set)
        self._reloads: defaultdict[int, deque[int]] = defaultdict(lambda: deque(maxlen=_RELOADS_MAX + 1))
        self._failures: defaultdict[int, deque[int]] = defaultdict(lambda: deque(maxlen=_COUNTED))
        self._not_before_ms: dict[int, int] = {}
        self._nobodys: defaultdict[int, deque[int]] = defaultdict(lambda: deque(maxlen=_NOBODYS_MAX))
        self.count = 0

    @classmethod
    def not_kept(cls) -> "Faults":
        """Faults whose events are kept in no file."""
        return cls(FaultFolder(Path(), 0, 0))

    def __iter__(self) -> Iterator[Fault]:
        """The last failure of each group, oldest first."""
        return iter(self._faults.values())

    def quarantine(self, shard: int) -> Quarantine:
        """The groups of a shard that are in quarantine."""
        return Quarantine(
            frozenset(self._quarantine.get(shard, ())), frozenset(self._unreadable.get(shard, ()))
        )

    def suspects(self, shard: int) -> frozenset[str]:
        """The groups of a shard that failed once and are served."""
        failed = {group_id for number, group_id in self._faults if number == shard and group_id}
        return frozenset(failed) - self.quarantine(shard).groups

    def not_before_ms(self, shard: int) -> int:
        """The boot time before which a shard is not to be loaded again; 0: at any time.

        So whoever finds many groups that fail, one after the other, has the shard loaded only a few times a
        minute.
        """
        return self._not_before_ms.get(shard, 0)

    def judge(self, shard: int, failure: Failure, now_ms: int, load_ms: int = 0) -> tuple[Consequence, Fault]:
        """Notes a failure, keeps its event, and decides.

        A group is put in quarantine when it fails again; at once where its shard was loaded again three times
        within the last minute, so that many groups that fail cost the others no more than a few. Of one in
        quarantine the offsets are not read any more either.

        Args:
            shard: the shard.
            failure: what happened.
            now_ms: the boot clock.
            load_ms: how long the last load of the shard took.
        """
        group_id = failure.group_id
        known = (shard, group_id) in self._faults
        fault = self.note(shard, failure)
        self._space_out(shard, now_ms, load_ms)
        if group_id and group_id not in self._quarantine[shard]:
            restless = _within_a_minute(self._reloads[shard], now_ms) > _RELOADS_MAX
            if not known and not restless:
                return Consequence.RELOAD, fault
            self._put_in_quarantine(shard, group_id)
            return Consequence.QUARANTINE, fault
        if group_id and group_id not in self._unreadable[shard]:
            self._unreadable[shard].add(group_id)
            return Consequence.QUARANTINE, fault
        if _within_a_minute(self._nobodys[shard], now_ms) >= _NOBODYS_MAX:
            return Consequence.FAIL, fault
        return Consequence.RELOAD, fault

    def _space_out(self, shard: int, now_ms: int, load_ms: int) -> None:
        too_many = _within_a_minute(self._failures[shard], now_ms) - _RELOADS_MAX
        if too_many > 0:
            most_ms = max(PAUSE_MS, min(load_ms * _PAUSES_PER_LOAD, _PAUSE_MAX_MS))
            pause_ms = min(PAUSE_MS << (too_many - 1), most_ms)
            self._not_before_ms[shard] = now_ms + pause_ms

    def _put_in_quarantine(self, shard: int, group_id: str) -> None:
        """A group beyond the bound is forgotten: it would fail again, and come back."""
        groups = self._quarantine[shard]
        groups[group_id] = None
        if len(groups) > _QUARANTINE_MAX:
            oldest = next(iter(groups))
            del groups[oldest]
            self._unreadable[shard].discard(oldest)

    def note(self, shard: int, failure: Failure) -> Fault:
        """Notes a failure and keeps its event."""
        self.count += 1
        key = (shard, failure.group_id)
        self._faults.pop(key, None)
        while len(self._faults) >= _KNOWN_MAX:
            del self._faults[next(iter(self._faults))]
        file = self.folder.keep(failure.kept)
        fault = Fault(shard, failure.group_id, failure.kept.failed_at_ms, failure.error, file)
        self._faults[key] = fault
        return fault

    def release(self, shard: int, group_id: str) -> bool:
        """Forgets that a group failed; returns whether it was in quarantine."""
        self._faults.pop((shard, group_id), None)
        if group_id not in self._quarantine.get(shard, ()):
            return False
        del self._quarantine[shard][group_id]
        self._unreadable[shard].discard(group_id)
        return True

    def forget(self, shard: int) -> None:
        """Forgets the failures of a shard: another process owns it from now on."""
        self._quarantine.pop(shard, None)
        self._unreadable.pop(shard, None)
        self._reloads.pop(shard, None)
        self._failures.pop(shard, None)
        self._not_before_ms.pop(shard, None)
        self._nobodys.pop(shard, None)
        for key in [key for key in self._faults if key[0] == shard]:
            del self._faults[key]


def log_failure(epoch: int, failure: Failure, fault: Fault, verdict: Consequence) -> dict[str, object]:
    """Writes the line about a core that raised; returns its fields without verdict and traceback.

    Args:
        epoch: of the ownership.
        failure: what happened.
        fault: what was noted of it.
        verdict: what becomes of the shard.
    """
    fields: dict[str, object] = {
        "shard": fault.shard,
        "epoch": epoch,
        "group_id": failure.group_id,
        "core_event": failure.event,
        "error": failure.error,
        "file": fault.file,
    }
    log.error("core_failed", **fields, verdict=verdict.value, traceback=failure.kept.traceback)
    return fields


def _within_a_minute(times_ms: deque[int], now_ms: int) -> int:
    """Notes a time; returns how many of those noted are of the last minute."""
    times_ms.append(now_ms)
    return sum(now_ms - time_ms < _MINUTE_MS for time_ms in times_ms)
