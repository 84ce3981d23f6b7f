"""The work of one ownership, and what outlasts it."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from muster._values import TopicPartition
from muster._work.attempt import Attempt
from muster._work.failures import Failures
from muster._work.signs import Signs


@dataclass(slots=True)
class Case:
    """What is remembered of a partition while this process keeps it, over rebalances.

    Attributes:
        signs: what the work shows of itself.
        failures: of the work, in a row.
        parked: why its work is not called any more in this process; empty: nothing but the group's log says.
        returned: that the work returned has been said.
    """

    failures: Failures
    signs: Signs = field(default_factory=Signs)
    parked: str = ""
    returned: bool = False


@dataclass(slots=True)
class Job:
    """The work of one ownership.

    Attributes:
        attempt: the call that is under way; None: none is.
        ending: it is to end, and calls the work no more.
        left: it is not waited for any longer.
        parked: the partition is parked.
        looks: whether the group's log is to be asked, before the work is called, if the partition is parked.
    """

    where: TopicPartition
    case: Case
    task: "asyncio.Task[None] | None" = None
    attempt: Attempt | None = None
    ending: bool = False
    left: bool = False
    parked: bool = False
    looks: bool = True

    @property
    def done(self) -> bool:
        """Whether everything of it has ended, or is not waited for."""
        return self.task is None or self.task.done()

    def end(self) -> None:
        """Asks it to end."""
        self.ending = True
        if self.attempt is not None:
            self.attempt.cancel()
        if self.task is not None:
            self.task.cancel()

    def leave(self) -> None:
        """Ends it without waiting for the work."""
        self.left = True
        if self.attempt is not None:
            self.attempt.leave()
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()


def tasks_of(jobs: Iterable[Job]) -> "list[asyncio.Task[None]]":
    """The tasks of jobs that were started."""
    return [job.task for job in jobs if job.task is not None]
