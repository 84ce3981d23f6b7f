"""Entries of a log as rows: the columns of `muster-log` and of an export."""

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
from google.protobuf.message import DecodeError
from muster_core.log.page import Page
from muster_core.log.record_run import RecordRun
from muster_protos.muster.log.v1 import records_pb2

DDL = (
    "shard bigint, epoch bigint, offset bigint, written_at_ms bigint, kind string, group_id string, "
    "problem string, nonce binary, hash binary, record binary"
)
"""The columns as Spark declares them. `kind` is `unknown` for a record of a later version, and null, with
`problem` set, for bytes that are no record; `record` is null where it was not asked for."""

SCHEMA = pa.schema(
    [
        ("shard", pa.int64()),
        ("epoch", pa.int64()),
        ("offset", pa.int64()),
        ("written_at_ms", pa.int64()),
        ("kind", pa.string()),
        ("group_id", pa.string()),
        ("problem", pa.string()),
        ("nonce", pa.binary()),
        ("hash", pa.binary()),
        ("record", pa.binary()),
    ]
)


_DECODED = ("written_at_ms", "kind", "group_id", "problem")


def _row(data: bytes) -> tuple[int | None, str | None, str | None, str | None]:
    """Time, kind, group and problem of a record."""
    try:
        record = records_pb2.Record.FromString(data)
    except DecodeError:
        return None, None, None, f"{len(data)} bytes that are no record"
    kind = record.WhichOneof("kind")
    if kind is None:
        return record.written_at_ms, "unknown", None, None
    return record.written_at_ms, kind, getattr(getattr(record, kind), "group_id", None), None


def _decoded(page: Page) -> Iterable[Sequence[object]]:
    """What `_row` says of each record, in columns."""
    try:
        run = RecordRun(page.first, page.records)
    except DecodeError:
        return zip(*map(_row, page.records), strict=True)
    group_ids: list[str | None] = [*run.commits.group_ids]
    for index, record in run.others.items():
        message = getattr(record, run.kinds[index]) if run.kinds[index] else None
        group_ids.insert(index, getattr(message, "group_id", None))
    return run.times_ms(), [kind or "unknown" for kind in run.kinds], group_ids, [None] * len(page)


def entries_batch(
    shard: int, page: Page, *, schema: pa.Schema = SCHEMA, payload: bool = True
) -> pa.RecordBatch:
    """A page as rows; what cannot be decoded is a row like any other.

    Args:
        shard: number of the log.
        page: entries; not empty.
        schema: the columns that are wanted; records are only decoded where one of these needs it.
        payload: whether the records' bytes are wanted.
    """
    count = len(page)
    build: dict[str, Callable[[], Sequence[object]]] = {
        "shard": lambda: [shard] * count,
        "epoch": lambda: [place.epoch for place in page.positions or ()] or [page.first.epoch] * count,
        "offset": lambda: (
            [place.offset for place in page.positions or ()]
            or range(page.first.offset, page.first.offset + count)
        ),
        "nonce": lambda: page.nonces,
        "hash": lambda: page.hashes,
        "record": lambda: page.records if payload else [None] * count,
    }
    decoded: dict[str, Sequence[object]] = {}
    if not build.keys() >= set(schema.names):
        decoded = dict(zip(_DECODED, _decoded(page), strict=True))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(decoded[field.name] if field.name in decoded else build[field.name](), field.type)
            for field in schema
        ],
        schema=schema,
    )
