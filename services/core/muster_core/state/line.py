"""The line of a group: what waits until its record is stored, or until it goes on after a pause."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

LARGE_COMMITS_FIRST = 8
"""After so many large commits, for each of which others had to wait, what waits in line has its turn."""


class Step(NamedTuple):
    """What waits in line after a group record.

    Attributes:
        run: what to do.
        call_id: the call that waits with it; None: no call.
        deadline: whether it is due because members said nothing.
        stays: whether it is run though its call was refused meanwhile.
    """

    run: Callable[[], None]
    call_id: int | None = None
    deadline: bool = False
    stays: bool = False


class Line:
    """What waits of one group, and for what. Data only: `muster_core.protocol.lines` puts in and takes out.

    Attributes:
        in_flight: whether a group record is on its way to the log.
        gathers: whether what waits in line does so until the next `Tick`.
        in_turns: whether calls are carried out in several turns, and are to go on.
        holds_commits: whether one of those is a commit, which others must not come before.
        passed: how many large commits have ended since what waits in line had its turn last.
        suspensions: how often its deadlines were dropped.
    """

    __slots__ = (
        "_commits",
        "_steps",
        "gathers",
        "holds_commits",
        "in_flight",
        "in_turns",
        "passed",
        "suspensions",
    )

    def __init__(self) -> None:
        self.in_flight = False
        self.gathers = False
        self.in_turns = False
        self.holds_commits = False
        self.passed = 0
        self.suspensions = 0
        self._steps: deque[Step] | None = None  # nothing ever waits of most groups
        self._commits: deque[Step] | None = None

    @property
    def steps(self) -> deque[Step]:
        """What waits for any of them, in order."""
        if self._steps is None:
            self._steps = deque()
        return self._steps

    @property
    def commits(self) -> deque[Step]:
        """Those of members, which wait for the record that is in flight, and what follows from it."""
        if self._commits is None:
            self._commits = deque()
        return self._commits

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits but commits."""
        return not self._steps

    @property
    def has_commits(self) -> bool:
        """Whether commits of members wait."""
        return bool(self._commits)

    @property
    def must_wait(self) -> bool:
        """Whether what comes for the group now has to wait."""
        return self.in_flight or self.gathers or self.in_turns

    def next_step(self) -> Step | None:
        """Takes what is next of what waits; None: nothing does. Commits change nobody's membership."""
        if self.passed >= LARGE_COMMITS_FIRST and self._steps and not self.in_turns:
            self.passed = 0  # who always has one open would hold its group for ever
            return self._steps.popleft()
        if self._commits and not self.holds_commits:
            return self._commits.popleft()
        return self._steps.popleft() if self._steps and not self.in_turns else None

    def take_all(self) -> list[Step]:
        """Takes all that waits."""
        waited = [*(self._commits or ()), *(self._steps or ())]
        self._commits = self._steps = None
        return waited

    def drop_deadlines(self) -> None:
        """Takes the deadlines out of the line: members could not be heard (docs/safety.md, OWN-12)."""
        self.suspensions += 1
        for steps in (self._steps, self._commits):
            if steps:
                left = [step for step in steps if not step.deadline]
                steps.clear()
                steps += left
