"""Records in words, for people who look at a log."""

from collections.abc import Iterable, Iterator

from google.protobuf.message import DecodeError
from muster_protos.muster.log.v1 import records_pb2

from muster_core.log.replay import Entry
from muster_core.position import Position


def describe(data: bytes) -> str:
    """A record in one line."""
    try:
        record = records_pb2.Record.FromString(data)
    except DecodeError:
        return f"{len(data)} bytes that are no record"
    kind = record.WhichOneof("kind")
    if kind is None:
        return "a record of an unknown kind"
    message = getattr(record, kind)
    fields = [
        f"{field.name}={str(value)[:60]!r}"
        for field, value in message.ListFields()
        if field.type
        in (field.TYPE_STRING, field.TYPE_INT32, field.TYPE_INT64, field.TYPE_UINT32, field.TYPE_UINT64)
        and not hasattr(value, "append")
    ]
    return " ".join([kind, *fields])


def surroundings(entries: Iterable[Entry], position: Position) -> Iterator[str]:
    """Entries in one line each, the one at a place marked; nothing if there is no entry at that place."""
    listed = list(entries)
    if all(entry.position != position for entry in listed):
        return
    for entry in listed:
        mark = ">" if entry.position == position else " "
        yield f"{mark} {entry.position.stream_id}  {describe(entry.record)}"
