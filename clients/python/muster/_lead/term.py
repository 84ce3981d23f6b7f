"""A term: the time from when a process leads until it does not any more."""

import asyncio
import threading

from muster._errors import CommitFailed
from muster._lead.assignor import PARTITION
from muster._member.member import Member


class Term:
    """One term of a leadership.

    Attributes:
        name: name of the leadership.
        token: fencing token, a string that grows with each leader. A sink that keeps the highest one and
            refuses lower ones is safe from a leader that was paused and writes after its successor.
        lost: set when the leadership is lost. The work is then cancelled, too.
        group: group of the leadership, which with `topic` and `number` names it to `muster.sinks`.
        topic: the topic of all leaderships.
        number: its only partition.
    """

    topic: str = PARTITION.topic
    number: int = PARTITION.number

    def __init__(self, member: Member, name: str) -> None:
        self.name: str = name
        self.group: str = member.group_id
        self.token: str = member.token(PARTITION)
        self.lost: asyncio.Event = asyncio.Event()
        self._member = member
        self._ending: asyncio.Event = asyncio.Event()

    def __repr__(self) -> str:
        return f"Term({self.name!r}, token={self.token!r})"

    @property
    def is_leader(self) -> bool:
        """Whether this process leads at this moment, by its clock, before `lost` can be set.

        False from the moment at which another process may lead, however long the event loop was blocked.
        """
        if self.lost.is_set():
            return False
        try:
            return self._member.token(PARTITION) == self.token
        except CommitFailed:
            return False

    @property
    def is_ending(self) -> bool:
        """True from the moment at which the leadership is lost, or the program stops."""
        return self._ending.is_set()

    async def ending(self) -> None:
        """Waits until the leadership is lost, or the program stops."""
        await self._ending.wait()

    def lose(self) -> None:
        """Marks it as lost. Called by the candidacy."""
        self.lost.set()
        self._ending.set()

    def end(self) -> None:
        """Marks it as ending. Called by whoever runs the work."""
        self._ending.set()

    def for_thread(self, loop: asyncio.AbstractEventLoop) -> "BlockingTerm":
        """What work in a thread gets. Called by whoever runs the work."""
        return BlockingTerm(self)


class BlockingTerm:
    """One term of a leadership, for work that runs in a thread. Every function may be called from any thread.

    Attributes:
        name: name of the leadership.
        token: fencing token, see `Term`.
        group: see `Term`; for `muster.sinks`.
        topic: the topic of all leaderships.
        number: its only partition.
    """

    topic: str = PARTITION.topic
    number: int = PARTITION.number

    def __init__(self, term: Term) -> None:
        self.name: str = term.name
        self.group: str = term.group
        self.token: str = term.token
        self._term = term
        self._stop = threading.Event()

    def __repr__(self) -> str:
        return f"Blocking{self._term!r}"

    @property
    def is_leader(self) -> bool:
        """Whether this process leads at this moment, by its clock; see `Term.is_leader`."""
        return self._term.is_leader

    @property
    def is_ending(self) -> bool:
        """True from the moment at which the leadership is lost, or the program stops: return soon then."""
        return self._stop.is_set()

    def wait_ending(self, timeout_s: float | None = None) -> bool:
        """Sleeps until the term is ending or the time has passed; returns `is_ending`."""
        return self._stop.wait(timeout_s)

    def end(self) -> None:
        """Marks it as ending. Called by whoever runs the work."""
        self._stop.set()

    def turn_async(self) -> None:
        """Becomes the `Term` itself: the work has turned out to be async."""
        self.__class__ = Term  # type: ignore[assignment]  # no subclass, but of the same layout
        self.__dict__ = self._term.__dict__
