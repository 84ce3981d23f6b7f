"""A run of entries of a log in columns: what is checked a page at a time costs a third."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from operator import lt

from muster_core.log.replay import Entry
from muster_core.position import NOWHERE, Position


@dataclass(frozen=True, slots=True)
class Page:
    """Entries that follow each other in a log.

    Attributes:
        first: place of the first entry.
        records: bytes of each entry's record.
        nonces: its nonce.
        hashes: its chain hash.
        positions: place of each entry; None: all are of one epoch and their offsets have no gap.
    """

    first: Position
    records: Sequence[bytes]
    nonces: Sequence[bytes]
    hashes: Sequence[bytes]
    positions: Sequence[Position] | None = None

    def __len__(self) -> int:
        return len(self.records)

    @property
    def dense(self) -> bool:
        """Whether all entries are of one epoch and their offsets have no gap."""
        return self.positions is None

    @property
    def last(self) -> Position:
        """Place of the last entry; the page is not empty."""
        return self.position(len(self) - 1)

    def position(self, index: int) -> Position:
        """Place of an entry."""
        return self.first.after(index) if self.positions is None else self.positions[index]

    def dense_parts(self) -> Iterator["Page"]:
        """The page in as few pages as are dense."""
        positions = self.positions
        if positions is None:
            yield self
            return
        begin = 0
        for end, (before, place) in enumerate(pairwise((*positions, NOWHERE)), 1):
            if place != (before.epoch, before.offset + 1):
                span = slice(begin, end)
                yield Page(positions[begin], self.records[span], self.nonces[span], self.hashes[span])
                begin = end

    def part(self, begin: int, end: int) -> "Page":
        """Some of the entries, as a page."""
        if (begin, end) == (0, len(self)):
            return self
        span = slice(begin, end)
        positions = None if self.positions is None else self.positions[span]
        first = self.position(begin) if begin < end else NOWHERE
        return Page(first, self.records[span], self.nonces[span], self.hashes[span], positions)

    def entry(self, index: int) -> Entry:
        """One of the entries."""
        return Entry(self.position(index), self.records[index], self.nonces[index], self.hashes[index])

    def entries(self) -> Iterator[Entry]:
        """The entries one by one."""
        for index, (record, nonce, hash_) in enumerate(
            zip(self.records, self.nonces, self.hashes, strict=True)
        ):
            yield Entry(self.position(index), record, nonce, hash_)

    @classmethod
    def of_stream(
        cls,
        ids: Sequence[bytes],
        records: Sequence[bytes],
        nonces: Sequence[bytes],
        hashes: Sequence[bytes],
    ) -> "Page":
        """A page from ids of a Redis stream, `<epoch>-<offset>` each."""
        if not ids:
            return cls(NOWHERE, records, nonces, hashes)
        first = Position.parse(ids[0].decode())
        if ids[-1].decode() == first.after(len(ids) - 1).stream_id and _ascend(ids):
            return cls(first, records, nonces, hashes)
        epochs_and_offsets = list(map(int, b"-".join(ids).split(b"-")))
        positions = list(map(Position, epochs_and_offsets[::2], epochs_and_offsets[1::2]))
        if len(epochs_and_offsets) != 2 * len(ids):
            raise ValueError(f"not all of these are positions: {ids!r}")
        dense = positions == list(map(first.after, range(len(ids))))
        return cls(first, records, nonces, hashes, None if dense else positions)


def _ascend(ids: Sequence[bytes]) -> bool:
    """Whether each id is above the one before it; of ids that differ in length, which is rare: no."""
    return len(set(map(len, ids))) == 1 and all(map(lt, ids, islice(ids, 1, None)))
