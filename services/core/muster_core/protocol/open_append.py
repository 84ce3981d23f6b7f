"""Records on their way to the log."""

from collections.abc import Callable, Sequence

from muster_protos.muster.log.v1 import records_pb2

from muster_core.log.application import group_of
from muster_core.state.group import Group
from muster_core.waiting.timing_wheel import Timer

BeforePart = Callable[[Sequence[records_pb2.Record]], None]
"""Called with the records of a part of what is carried out some at a time."""


class OpenAppend(Timer):
    """Records on their way to the log, and what waits for them; its deadline is the callers' patience.

    Args:
        records: what is stored, at least one.
        encoded: the bytes of each record.
        done: what follows.
        impatient: called with this append at its deadline.
        holds: the group whose further events wait in line until then; None: none.
        calls: calls that wait for it.
        overdue: what is to run at its deadline; None: nothing.
        before: called with its records before they are carried out; None: nothing is.
        more_bytes: what is held in memory for it besides, until then.

    Attributes:
        bytes: how many all of its records have, and these.
    """

    __slots__ = ("_impatient", "before", "bytes", "calls", "done", "encoded", "holds", "overdue", "records")

    def __init__(
        self,
        records: tuple[records_pb2.Record, ...],
        encoded: tuple[bytes, ...],
        done: Callable[[], None],
        impatient: "Callable[[OpenAppend], None]",
        holds: Group | None = None,
        calls: tuple[int, ...] = (),
        overdue: Callable[[], None] | None = None,
        before: BeforePart | None = None,
        more_bytes: int = 0,
    ) -> None:
        super().__init__()
        self.records = records
        self.encoded = encoded
        self.bytes = sum(map(len, self.encoded)) + more_bytes
        self.done = done
        self._impatient = impatient
        self.holds = holds
        self.calls = calls
        self.overdue = overdue
        self.before = before

    @property
    def group_id(self) -> str:
        """The group that the records are about."""
        return group_of(self.records[0])

    def fire(self) -> None:
        """The callers' patience is over."""
        self._impatient(self)


def nothing_follows() -> None:
    """Follows an append whose records are all that is wanted: nobody waits for it."""
