"""Owners of logs: which process wrote which epoch, and how the log came to it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from muster_protos.muster.log.v1 import records_pb2

from muster_audit.lake.row import Interval, Place
from muster_audit.lake.tracker import Take, Tracker


@dataclass(slots=True, kw_only=True)
class Coordinator(Interval):
    """A process owned a log for one epoch, from its Claim to its last record.

    It ends with its own hand-over (`handed over`) or when another one claims the log (`taken over`).
    The owners of the catalog's log are instances of metadata.
    """

    table: ClassVar[str] = "coordinators"

    owner: Annotated[str, "Name of the process."]
    session: Annotated[str, "Identity of this run of the process."]
    version: Annotated[str, "Version of its software; empty: not known."]
    planned: Annotated[bool, "Whether the owner before handed the log over."]
    unowned_ms: Annotated[
        int | None,
        "From the last record of the owner before to the Claim, ms: exact after a hand-over, else a bound "
        "from above, as there may have been nothing to write. Null: nobody is known to have owned it before.",
    ]
    entries: Annotated[int, "Number of entries that it wrote, the Claim included."]
    last_written_at_ms: Annotated[int, "When it wrote the last of them."]


class Coordinators(Tracker[Coordinator]):
    """Follows the owners of a log."""

    row = Coordinator

    def __init__(self) -> None:
        self._owner: Coordinator | None = None

    @property
    def takes(self) -> Mapping[str, Take[Coordinator]]:
        """What it does with which kind of record."""
        return {"claim": self._claim, "handoff": self._handoff}

    def resume(self, row: Coordinator) -> None:
        """Takes back a row that was not final."""
        self._owner = row

    def running(self) -> Iterator[Coordinator]:
        """The owner."""
        return iter(() if self._owner is None else (self._owner,))

    def count(self, entries: int, last_ms: int) -> None:
        """The owner wrote so many entries, beside its Claim, the last one then."""
        if self._owner is not None and entries:
            self._owner.entries += entries
            self._owner.last_written_at_ms = last_ms

    def _claim(self, at: Place, message: records_pb2.Claim) -> Iterator[Coordinator]:
        before = self._owner
        planned, unowned_ms = False, None
        if before is not None:
            planned = before.ended_by is not None
            unowned_ms = max(at.at_ms - before.last_written_at_ms, 0)
            yield before.end(at._replace(at_ms=before.last_written_at_ms), "taken over")
        self._owner = Coordinator(
            shard=at.shard,
            epoch=at.position.epoch,
            offset=at.position.offset,
            from_ms=at.at_ms,
            owner=message.node_id,
            session=message.session,
            version=message.version,
            planned=planned,
            unowned_ms=unowned_ms,
            entries=1,
            last_written_at_ms=at.at_ms,
        )

    def _handoff(self, at: Place, _: records_pb2.Handoff) -> Iterator[Coordinator]:
        if self._owner is not None:
            self._owner.end(at, "handed over")
        yield from ()
