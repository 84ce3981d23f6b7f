"""Entries of a log as rows: the columns of `muster-log` and of an export."""

import pyarrow as pa
from google.protobuf.message import DecodeError
from muster_core.log.page import Page
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


def entries_batch(shard: int, page: Page, *, payload: bool = True) -> pa.RecordBatch:
    """A page as rows; what cannot be decoded is a row like any other.

    Args:
        shard: number of the log.
        page: entries; not empty.
        payload: whether the records' bytes are wanted.
    """
    count = len(page)
    written, kinds, groups, problems = zip(*map(_row, page.records), strict=True)
    places = [page.position(index) for index in range(count)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([shard] * count, pa.int64()),
            pa.array([place.epoch for place in places], pa.int64()),
            pa.array([place.offset for place in places], pa.int64()),
            pa.array(written, pa.int64()),
            pa.array(kinds, pa.string()),
            pa.array(groups, pa.string()),
            pa.array(problems, pa.string()),
            pa.array(page.nonces, pa.binary()),
            pa.array(page.hashes, pa.binary()),
            pa.array(page.records if payload else [None] * count, pa.binary()),
        ],
        schema=SCHEMA,
    )
