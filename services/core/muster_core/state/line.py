"""The line of a group: what waits until its record is stored, or until it goes on after a pause."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple


class Step(NamedTuple):
    """What waits in line after a group record.

    Attributes:
        run: what to do.
        call_id: the call that waits with it; None: no call.
        deadline: whether it is due because members said nothing.
    """

    run: Callable[[], None]
    call_id: int | None = None
    deadline: bool = False


class Line:
    """What waits of one group, and for what. Data only: `muster_core.protocol.lines` puts in and takes out.

    Attributes:
        in_flight: whether a group record is on its way to the log.
        gathers: whether what waits in line does so until the next `Tick`.
        in_turns: whether calls are carried out in several turns, and are to go on.
        steps: what waits for any of them, in order.
        commits: those of members, which wait for the record that is in flight and for nothing else; behind
            them what follows from that record.
    """

    __slots__ = ("commits", "gathers", "in_flight", "in_turns", "steps")

    def __init__(self) -> None:
        self.in_flight = False
        self.gathers = False
        self.in_turns = False
        self.steps: deque[Step] = deque()
        self.commits: deque[Step] = deque()

    @property
    def must_wait(self) -> bool:
        """Whether what comes for the group now has to wait."""
        return self.in_flight or self.gathers or self.in_turns

    def next_step(self) -> Step | None:
        """Takes what is next of what waits; None: nothing does. Commits change nobody's membership."""
        if self.commits:
            return self.commits.popleft()
        return self.steps.popleft() if self.steps and not self.in_turns else None

    def drop_deadlines(self) -> None:
        """Takes the deadlines out of the line: members could not be heard (docs/safety.md, OWN-12)."""
        self.steps = deque(step for step in self.steps if not step.deadline)
        self.commits = deque(step for step in self.commits if not step.deadline)
