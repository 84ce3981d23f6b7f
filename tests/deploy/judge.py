"""What the histories of the workers say about the time of a fault."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from chaos.checkers import Commits, Generations, Violation
from chaos.history import Event

NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """How it went for the workers.

    Attributes:
        fault: what was done.
        gap_ms: the longest that any worker was without an acknowledged commit.
        bar_ms: what it may be.
        calm_ms: the longest before the fault, when nothing was done: how quiet the machine is.
        commits: acknowledged ones.
        rebalances: generations that began, of all groups.
        violations: promises that were broken.
        note: what else is worth knowing.
    """

    fault: str
    gap_ms: int
    bar_ms: int
    calm_ms: int
    commits: int
    rebalances: int
    violations: tuple[Violation, ...]
    note: str = ""

    @property
    def problems(self) -> tuple[str, ...]:
        """Why it did not hold; nothing: it did."""
        found = [f"{one.promise}: {one.detail}" for one in self.violations]
        if self.gap_ms > self.bar_ms:
            found.append(f"{self.gap_ms} ms without an acknowledged commit, {self.bar_ms} are allowed")
        if self.rebalances:
            found.append(f"{self.rebalances} rebalances that no member caused")
        return tuple(found)

    def row(self) -> str:
        """A line of the table."""
        verdict = "BROKEN" if self.problems else "holds"
        return (
            f"{self.fault:<50} {self.gap_ms:>6} ms {self.bar_ms:>6} ms {self.calm_ms:>6} ms "
            f"{self.rebalances:>5} {self.commits:>8}  {verdict:<7} {self.note}".rstrip()
        )


HEADER = f"{'fault':<50} {'gap':>9} {'bar':>9} {'before':>9} {'reb.':>5} {'commits':>8}  verdict"


@dataclass
class Judge:
    """Follows the histories from one fault to the next.

    Attributes:
        workers: how many there must be; one that is silent for a whole fault counts with all its time.
        acknowledged: commits in all.
        compared: reads that were compared with what had been acknowledged.
    """

    workers: int
    acknowledged: int = 0
    _commits: Commits = field(default_factory=Commits)
    _generations: Generations = field(default_factory=Generations)
    _slots: dict[str, str] = field(default_factory=dict)
    _last_ok: dict[str, int] = field(default_factory=dict)
    _reported: int = 0

    @property
    def compared(self) -> int:
        """Reads that were compared with what had been acknowledged before."""
        return self._commits.checked

    def active_since(self, at_ns: int) -> int:
        """How many workers had a commit acknowledged after a moment."""
        return sum(last > at_ns for last in self._last_ok.values())

    def feed(self, events: Iterable[Event], until_ns: int = 0) -> tuple[int, int, int]:
        """Takes the next events, in order.

        Args:
            events: of all workers.
            until_ns: when they end; a worker's silence up to then counts.

        Returns:
            The longest gap in ns, acknowledged commits, and generations that began.
        """
        longest = commits = 0
        before = dict(self._generations.newest)
        for event in events:
            self._commits.feed(event)
            self._generations.feed(event)
            if event["e"] == "invoke" and event["f"] == "commit":
                self._slots[event["op"]] = event["s"]
            elif event["e"] in ("ok", "info", "fail"):
                slot = self._slots.pop(event["op"], None)
                if slot is None or event["e"] != "ok":
                    continue
                commits += 1
                longest = max(longest, event["t"] - self._last_ok.get(slot, event["t"]))
                self._last_ok[slot] = event["t"]
        if until_ns:
            longest = max([longest, *(until_ns - last for last in self._last_ok.values())])
        self.acknowledged += commits
        began = sum(
            generation - before.get(group, 0) for group, generation in self._generations.newest.items()
        )
        return longest, commits, began

    def judge(
        self,
        fault: str,
        bar_ms: int,
        before: Iterable[Event],
        during: Iterable[Event],
        until_ns: int,
        note: str = "",
    ) -> Verdict:
        """The verdict over one fault.

        Args:
            fault: what was done.
            bar_ms: the longest that a worker may be without an acknowledged commit.
            before: events since the last verdict, up to the fault. What they break counts; their gaps do not.
            during: events from the fault to `until_ns`.
            until_ns: when the fault is over.
            note: what else is worth knowing.
        """
        calm, commits_before, rebalances_before = self.feed(before)
        longest, commits, rebalances = self.feed(during, until_ns)
        violations = [*self._commits.violations, *self._generations.violations]
        new, self._reported = violations[self._reported :], len(violations)
        missing = self.workers - len(self._last_ok)
        if missing:
            new.append(Violation("fleet", until_ns, f"{missing} workers never had a commit acknowledged"))
        return Verdict(
            fault,
            longest // NS_PER_MS,
            bar_ms,
            calm // NS_PER_MS,
            commits_before + commits,
            rebalances_before + rebalances,
            tuple(new),
            note,
        )
