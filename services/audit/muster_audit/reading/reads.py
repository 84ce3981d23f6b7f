"""The offsets that clients fetched, against the commits that the log has: invariant O1."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from google.protobuf.message import DecodeError
from muster_core.audit.invariants import Findings
from muster_core.log.page import Page
from muster_core.position import Position
from muster_core.sharding import shard_of
from muster_protos.muster.log.v1 import records_pb2

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOTHING = -1
"""The offset of a partition for which nothing is committed, as OffsetFetch answers it."""

_CHANGES = pa.schema(
    [
        ("shard", pa.int64()),
        ("epoch", pa.int64()),
        ("place", pa.int64()),
        ("group_id", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int64()),
        ("value", pa.int64()),
    ]
)
CHANGES_DDL = (
    "shard bigint, epoch bigint, place bigint, group_id string, topic string, partition bigint, value bigint"
)
_JUDGED = """
WITH keys AS (SELECT DISTINCT shard, group_id, topic, partition FROM reads),
moves AS (
  SELECT keys.shard, keys.group_id, keys.topic, keys.partition, changes.epoch, changes.place, changes.value
  FROM keys JOIN changes ON keys.shard = changes.shard AND keys.group_id = changes.group_id
    AND (changes.topic IS NULL OR (changes.topic = keys.topic AND changes.partition = keys.partition))
),
newest AS (
  SELECT shard, group_id, topic, partition, value, max(place) AS place
  FROM moves GROUP BY shard, group_id, topic, partition, value
),
steps AS (
  SELECT shard, group_id, topic, partition, acks.at_ms, false AS is_read,
         struct(moves.place, moves.epoch) AS move, NULL AS id
  FROM moves JOIN acks USING (shard, epoch) WHERE acks.offset = moves.place AND acks.at_ms IS NOT NULL
  UNION ALL
  SELECT shard, group_id, topic, partition, began_at_ms, true, NULL, id FROM reads
),
floors AS (
  SELECT id, is_read, max(move) OVER (
    PARTITION BY shard, group_id, topic, partition ORDER BY at_ms, is_read DESC ROWS UNBOUNDED PRECEDING
  ) AS floor FROM steps
)
SELECT reads.*, floors.floor,
       coalesce(newest.place >= coalesce(floors.floor.place, 0), false)
         OR (floors.floor IS NULL AND (reads.value = -1 OR ends.first > 1)) AS right
FROM reads
JOIN floors ON floors.is_read AND floors.id = reads.id
JOIN ends ON ends.shard = reads.shard
LEFT JOIN newest ON newest.shard = reads.shard AND newest.group_id = reads.group_id
  AND newest.topic = reads.topic AND newest.partition = reads.partition AND newest.value = reads.value
"""
"""A read is right if the newest record that made the partition what was read is at or after the newest
change of the partition that was acknowledged before the read began. Where none was, nothing is right, too,
and in a log without its beginning everything."""


def read_reads(spark: "SparkSession", path: Path, shard_count: int) -> "DataFrame":
    """Reads that clients noted: `group_id`, `topic`, `partition`, `offset`, `began_at_ms`; `shard` if known.

    Raises:
        ValueError: the file has no such columns.
    """
    reader = spark.read.json if path.suffix in (".json", ".jsonl", ".ndjson") else spark.read.parquet
    found = reader(str(path))
    missing = sorted({"group_id", "topic", "partition", "offset", "began_at_ms"} - set(found.columns))
    if missing:
        raise ValueError(f"the reads in {path} have no {', '.join(missing)}")
    if "shard" not in found.columns:
        groups = [row.group_id for row in found.select("group_id").distinct().collect()]
        rows = [(group_id, shard_of(group_id, shard_count)) for group_id in groups]
        found = found.join(spark.createDataFrame(rows, "group_id string, shard bigint"), "group_id")
    return found.selectExpr(
        "monotonically_increasing_id() AS id",
        "cast(shard AS bigint) AS shard",
        "group_id",
        "topic",
        "cast(partition AS bigint) AS partition",
        "cast(offset AS bigint) AS value",
        "cast(began_at_ms AS bigint) AS began_at_ms",
    ).cache()


def check_reads(
    spark: "SparkSession",
    reads: "DataFrame",
    acks: "DataFrame",
    changes: "DataFrame",
    ends: "DataFrame",
    limit: int = 20,
) -> dict[int, Findings]:
    """Judges every read by the log and by what was acknowledged before it began, by one clock.

    Args:
        spark: the session.
        reads: what clients read.
        acks: acknowledgements, with `at_ms`; those without say nothing here.
        changes: what the logs say of committed offsets, as `muster-offsets` gives it.
        ends: `shard`, `epoch`, `offset` of the acknowledged end, and `first`, the first offset that is left.
        limit: violations kept.

    Returns:
        What was found by log, of invariant O1.
    """
    for name, table in (("reads", reads), ("acks", acks), ("changes", changes), ("ends", ends)):
        table.createOrReplaceTempView(name)
    judged = spark.sql(_JUDGED).cache()
    found: dict[int, Findings] = {}
    for row in judged.groupBy("shard").count().collect():
        found.setdefault(row.shard, Findings(limit)).checked["O1"] += row["count"]
    last = {row.shard: Position(row.epoch, row.offset) for row in ends.collect()}
    for row in judged.where("NOT right").orderBy("shard", "began_at_ms").collect():
        findings, floor = found[row.shard], row.floor
        place = last[row.shard] if floor is None else Position(floor.epoch, floor.place)
        findings.broke("O1", place, _sentence(row.asDict(), place))
    return found


def _sentence(row: dict[str, object], place: Position) -> str:
    where = f"group {row['group_id']!r}: {row['topic']}/{row['partition']}"
    read = "nothing" if row["value"] == NOTHING else row["value"]
    if row["floor"] is None:
        return f"{where} was read as {read} at {row['began_at_ms']}, and no record of the log made it that"
    return (
        f"{where} was read as {read} at {row['began_at_ms']}; {place.stream_id} was acknowledged before, and "
        "no record at or after it made it that"
    )


def changes_batch(shard: int, page: Page) -> pa.RecordBatch:
    """What a page changes of committed offsets, a row for each partition; no topic: all of the group."""
    found = [
        (shard, *page.position(index), *change)
        for index, data in enumerate(page.records)
        for change in _changed_by(data)
    ]
    columns = list(zip(*found, strict=True)) if found else [()] * len(_CHANGES)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _CHANGES, strict=True)],
        schema=_CHANGES,
    )


def _changed_by(data: bytes) -> Iterator[tuple[str, str | None, int | None, int]]:
    try:
        record = records_pb2.Record.FromString(data)
    except DecodeError:  # which is a violation of its own
        return
    if record.HasField("offset_committed"):
        commit = record.offset_committed
        for entry in commit.offsets:
            yield commit.group_id, entry.topic, entry.partition, entry.offset
    elif record.HasField("offset_tombstone"):
        for gone in record.offset_tombstone.topics:
            for partition in gone.partitions:
                yield record.offset_tombstone.group_id, gone.topic, partition, NOTHING
    elif record.HasField("group_tombstone"):
        yield record.group_tombstone.group_id, None, None, NOTHING
