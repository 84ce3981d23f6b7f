"""Entries of one epoch as columns, which pass from Redis into a message without being handled one by one."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from muster_core.position import Position
from muster_protos.muster.internal.v1 import metadata_pb2

from muster_metadata.nodes.entries import LogEnd, NodeEntry, parse_id

_NONCE_BYTES = 16
_HASH_BYTES = 32
_FIELDS = 6


class Malformed(Exception):
    """Something in a log is no entry, or does not follow the entry before it."""


class Run(NamedTuple):
    """Consecutive entries of one epoch.

    Attributes:
        epoch: of all of them.
        first_offset: offset of the first one.
        records: bytes of each.
        nonces: their nonces, joined.
        hashes: their chain hashes, joined.
    """

    epoch: int
    first_offset: int
    records: Sequence[bytes]
    nonces: bytes
    hashes: bytes

    @property
    def end(self) -> LogEnd:
        """The end of a log that ends with these entries."""
        position = Position(self.epoch, self.first_offset + len(self.records) - 1)
        return LogEnd(position, self.hashes[-_HASH_BYTES:])

    @property
    def size_bytes(self) -> int:
        """Bytes of the records."""
        return sum(map(len, self.records))

    def entries(self) -> Iterator[NodeEntry]:
        """The entries, one by one."""
        for index, record in enumerate(self.records):
            yield NodeEntry(
                Position(self.epoch, self.first_offset + index),
                record,
                self.nonces[index * _NONCE_BYTES : (index + 1) * _NONCE_BYTES],
                self.hashes[index * _HASH_BYTES : (index + 1) * _HASH_BYTES],
            )

    def cut(self, max_bytes: int) -> Iterator["Run"]:
        """Cuts the run into runs of at most `max_bytes`; a larger entry becomes a run of its own."""
        first = size = 0
        for index, record in enumerate(self.records):
            size += len(record)
            if size > max_bytes and index > first:
                yield self._part(first, index)
                first, size = index, len(record)
        yield self if first == 0 else self._part(first, len(self.records))

    def _part(self, first: int, last: int) -> "Run":
        return Run(
            self.epoch,
            self.first_offset + first,
            self.records[first:last],
            self.nonces[first * _NONCE_BYTES : last * _NONCE_BYTES],
            self.hashes[first * _HASH_BYTES : last * _HASH_BYTES],
        )

    def to_proto(self) -> metadata_pb2.EntryRun:
        """The message of the same content."""
        return metadata_pb2.EntryRun(
            epoch=self.epoch,
            first_offset=self.first_offset,
            records=self.records,
            nonces=self.nonces,
            hashes=self.hashes,
        )


def runs_of(rows: Sequence[Any]) -> list[Run]:
    """The entries of an answer to XRANGE, at least one, as one run per epoch.

    Raises:
        Malformed: something there is no entry, or one is missing.
    """
    first, last = parse_id(rows[0][0]), parse_id(rows[-1][0])
    if last.offset - first.offset != len(rows) - 1:
        raise Malformed(f"entries are missing between {first.stream_id} and {last.stream_id}")
    if first.epoch == last.epoch:
        # Ids grow along a stream: as many as fit between the first and the last of one epoch are dense.
        return [_run(first, rows)]
    runs, begin = [], 0
    places = [parse_id(row[0]) for row in rows]
    for index, place in enumerate(places):
        if place.offset != first.offset + index:
            raise Malformed(f"entry {first.offset + index} is missing")
        if index + 1 == len(places) or places[index + 1].epoch != place.epoch:
            runs.append(_run(places[begin], rows[begin : index + 1]))
            begin = index + 1
    return runs


def _run(first: Position, rows: Sequence[Any]) -> Run:
    columns = [row[1] for row in rows]
    try:
        if {*map(len, columns)} != {_FIELDS}:
            raise Malformed(_where(first, rows))
        nonces = b"".join([fields[3] for fields in columns])
        hashes = b"".join([fields[5] for fields in columns])
    except TypeError:  # a deleted entry that a client still sees has no fields
        raise Malformed(_where(first, rows)) from None
    if len(nonces) != _NONCE_BYTES * len(rows) or len(hashes) != _HASH_BYTES * len(rows):
        raise Malformed(_where(first, rows))
    return Run(first.epoch, first.offset, [fields[1] for fields in columns], nonces, hashes)


def _where(first: Position, rows: Sequence[Any]) -> str:
    for row in rows:
        fields: Sequence[bytes] = row[1] or ()
        if len(fields) != _FIELDS or len(fields[3]) != _NONCE_BYTES or len(fields[5]) != _HASH_BYTES:
            return (
                f"{parse_id(row[0]).stream_id} is no entry: it has other fields than record, nonce and hash"
            )
    return f"an entry after {first.stream_id} is none"
