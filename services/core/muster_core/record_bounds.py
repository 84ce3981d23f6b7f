"""How large a record may be, and how many of them the log takes at a time (docs/safety.md, "Limits")."""

from collections.abc import Iterable, Iterator, Sequence

from muster_protos.muster.log.v1 import records_pb2

RECORD_MAX_BYTES = 8 << 20
"""Size limit of one record."""

GROUP_MAX_BYTES = 7 << 20
"""What the ids and protocol lists of all members of a group may take in it, whatever the setting is."""

APPEND_MAX_BYTES = 16 << 20
"""Size limit of the records that are stored together, all or nothing."""

APPEND_MAX_RECORDS = 10_000
"""How many records may be stored together."""

RECORD_OVERHEAD_BYTES = 32
"""Bytes stored with each record besides its own: a nonce, and the framing of both."""

RECORD_PART_BYTES = 4 << 20
"""What is too large for one record goes into several of about this size."""


def utf8_bytes(text: str) -> int:
    """Length of a text in a record, in bytes."""
    return len(text) if text.isascii() else len(text.encode())


def cut_to_bytes(text: str, limit: int) -> str:
    """The longest beginning of a text that has at most so many bytes."""
    return text if utf8_bytes(text) <= limit else text.encode()[:limit].decode(errors="ignore")


def is_one_append(records: Sequence[records_pb2.Record]) -> bool:
    """Whether the log takes records at a time, all or nothing."""
    return len(list(in_appends(records))) <= 1 and all(one.ByteSize() <= RECORD_MAX_BYTES for one in records)


def in_appends(
    records: Iterable[records_pb2.Record], max_bytes: int = APPEND_MAX_BYTES
) -> Iterator[tuple[records_pb2.Record, ...]]:
    """Cuts records into runs that the log takes at a time, in order; usually one.

    Args:
        records: what to store.
        max_bytes: what a run of several may have.
    """
    some = records if isinstance(records, Sequence) else list(records)
    for run in runs([record.ByteSize() for record in some], max_bytes):
        yield tuple(some[run])


def runs(sizes_bytes: Sequence[int], max_bytes: int = APPEND_MAX_BYTES) -> Iterator[slice]:
    """Where records are cut into runs that the log takes at a time, in order; sizes_bytes: of each record.

    A record that is too large by itself has a run of its own.
    """
    begin = run_bytes = 0
    for end, size_bytes in enumerate(sizes_bytes):
        needs_bytes = size_bytes + RECORD_OVERHEAD_BYTES
        if end > begin and (end - begin == APPEND_MAX_RECORDS or run_bytes + needs_bytes > max_bytes):
            yield slice(begin, end)
            begin, run_bytes = end, 0
        run_bytes += needs_bytes
    if sizes_bytes:
        yield slice(begin, len(sizes_bytes))
