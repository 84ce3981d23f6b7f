"""What the members of a process count."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from muster._clock import monotonic_s
from muster._metrics.instruments import (
    CALLS_REPEATED,
    COMMIT_DURATION,
    COMMITS,
    COMMITS_REFUSED,
    LOOP_BLOCKS,
    MOST_GROUPS,
    MOST_TOPICS,
    OTHER,
    OWNED,
    REBALANCES,
    WITHOUT_COORDINATOR,
    WORK_RETRIES,
    ClientMetric,
    Instruments,
    Reading,
    cause_name,
    code_attribute,
    loaded_api,
)
from muster._values import TopicPartition

_CALLS = frozenset(CALLS_REPEATED.attributes["call"])


class Names:
    """The first names that were asked for stay as they are, and all others are `other`: never more series.

    Args:
        most: how many stay.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def of(self, name: str) -> str:
        """The name as an attribute."""
        if name in self._known:
            return name
        with self._lock:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return name


def _nothing() -> Iterable[TopicPartition]:
    return ()


class MemberMetrics:
    """Counts what one member does. All but `begin` and `end` may be called at any time.

    Args:
        group_id: its group.
        topics: what it subscribes to.
        owned: what it owns at the moment; called from any thread.

    Attributes:
        parked: which partitions of it are parked; called from any thread.
    """

    def __init__(
        self, group_id: str, topics: Iterable[str], owned: Callable[[], Iterable[TopicPartition]]
    ) -> None:
        self.topics: tuple[str, ...] = tuple(topics)
        self.owned: Callable[[], Iterable[TopicPartition]] = owned
        self.parked: Callable[[], Iterable[TopicPartition]] = _nothing
        self._group_id = group_id
        self._without_since_s: float | None = None
        self._without_s = 0.0
        self._taking_part = False

    @property
    def group(self) -> str:
        """Its group as an attribute."""
        return _process.groups.of(self._group_id)

    @property
    def without_coordinator_s(self) -> float:
        """How long it was without a coordinator, the present moment included."""
        since_s = self._without_since_s
        return self._without_s + (0.0 if since_s is None else max(0.0, monotonic_s() - since_s))

    def begin(self) -> None:
        """The member takes part from now on; it has no coordinator yet."""
        self._taking_part = True
        self.contact(reached=False)
        _process.begin(self)
        _process.instruments()

    def end(self) -> None:
        """The member takes part no more."""
        if self._taking_part:
            self.contact(reached=True)
            self._taking_part = False
            _process.end(self)

    def contact(self, *, reached: bool) -> None:
        """A coordinator answered, or there is none that serves the group."""
        if reached:
            self._without_s, self._without_since_s = self.without_coordinator_s, None
        elif self._without_since_s is None and self._taking_part:
            self._without_since_s = monotonic_s()

    def unanswered(self, call: str, code: int) -> None:
        """A call has to be made again."""
        if made := _process.instruments():
            named = call if call in _CALLS else OTHER
            made.add(CALLS_REPEATED, {"group": self.group, "call": named, "code": code_attribute(code)})

    def committed(self, partition: TopicPartition) -> None:
        """A position was stored."""
        if made := _process.instruments():
            made.add(COMMITS, self._of(partition))

    def commit_took(self, seconds: float) -> None:
        """A commit returned after so long."""
        if made := _process.instruments():
            made.record(COMMIT_DURATION, seconds, {"group": self.group})

    def commit_refused(self, partitions: Iterable[TopicPartition], code: int) -> None:
        """A coordinator refused positions."""
        if made := _process.instruments():
            for partition in partitions:
                made.add(COMMITS_REFUSED, {**self._of(partition), "code": code_attribute(code)})

    def rebalanced(self, kind: int) -> None:
        """The member got its assignment in another generation."""
        if made := _process.instruments():
            made.add(REBALANCES, {"group": self.group, "cause": cause_name(kind)})

    def retried(self, partition: TopicPartition, why: str) -> None:
        """Work is called again."""
        if made := _process.instruments():
            made.add(WORK_RETRIES, {**self._of(partition), "why": why})

    def _of(self, partition: TopicPartition) -> dict[str, str]:
        return {"group": self.group, "topic": _process.topics.of(partition.topic)}


class _Process:
    """The members of this process, and its instruments."""

    def __init__(self) -> None:
        self.groups = Names(MOST_GROUPS)
        self.topics = Names(MOST_TOPICS)
        self._lock = threading.Lock()
        self._members: dict[MemberMetrics, None] = {}
        self._ended_s: defaultdict[str, float] = defaultdict(float)
        self._instruments: Instruments | None = None

    def instruments(self) -> Instruments | None:
        """The program's instruments; None: it does not use any."""
        if self._instruments is None and (api := loaded_api()) is not None:
            with self._lock:
                if self._instruments is None:
                    self._instruments = Instruments(api, self._observe)
        return self._instruments

    def begin(self, member: MemberMetrics) -> None:
        with self._lock:
            self._members[member] = None

    def end(self, member: MemberMetrics) -> None:
        with self._lock:
            self._members.pop(member, None)
            self._ended_s[member.group] += member.without_coordinator_s

    def _observe(self, metric: ClientMetric) -> Iterator[Reading]:
        with self._lock:
            members = tuple(self._members)
            without_s = self._ended_s.copy()
        if metric is WITHOUT_COORDINATOR:
            for member in members:
                without_s[member.group] += member.without_coordinator_s
            for group, seconds in without_s.items():
                yield seconds, {"group": group}
            return
        counts: Counter[tuple[str, str]] = Counter()
        for member in members:
            counts.update({(member.group, self.topics.of(topic)): 0 for topic in member.topics})
            for partition in member.owned() if metric is OWNED else member.parked():
                counts[member.group, self.topics.of(partition.topic)] += 1
        for (group, topic), count in counts.items():
            yield count, {"group": group, "topic": topic}


_process = _Process()


def loop_was_blocked(seconds: float) -> None:
    """The event loop of members was blocked, and is back. Called from any thread."""
    if made := _process.instruments():
        made.record(LOOP_BLOCKS, seconds, {})
