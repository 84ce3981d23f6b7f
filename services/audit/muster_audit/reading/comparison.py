"""What crosses logs: the copies of the nodes side by side, and acknowledgements that were noted elsewhere."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from muster_core.audit.invariants import Findings
from muster_core.audit.log_audit import compare_nodes
from muster_core.position import NOWHERE, Position
from muster_server.verify.reader import PAGE_ENTRIES

from muster_audit.reading.scan import SEGMENT_ENTRIES
from muster_audit.reading.sources import LogSource, steadily

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAX_SEGMENTS = 50  # looked into per log, once digests show that something is wrong there

_SUSPICIOUS = """
WITH spans AS (
  SELECT shard, node, min(number) AS first, max(number) AS last FROM segments GROUP BY shard, node
),
expected AS (
  SELECT numbers.shard, numbers.number, count(*) AS nodes
  FROM (SELECT DISTINCT shard, number FROM segments) AS numbers
  JOIN spans ON spans.shard = numbers.shard AND numbers.number BETWEEN spans.first AND spans.last
  GROUP BY numbers.shard, numbers.number
),
held AS (
  SELECT shard, number, count(DISTINCT digest) AS digests, count(*) AS nodes, max(entries) AS entries
  FROM segments GROUP BY shard, number
)
SELECT held.shard, held.number, held.entries,
       digests > 1 OR held.nodes < expected.nodes OR held.nodes <= {half} AS suspicious
FROM held JOIN expected ON held.shard = expected.shard AND held.number = expected.number
"""


def compare_copies(
    segments: "DataFrame",
    source: LogSource,
    acknowledged: dict[int, Position],
    reach: Mapping[int, Mapping[int, Position]],
    read: Mapping[int, Collection[int]],
) -> Iterator[tuple[int, Findings]]:
    """Compares the nodes by the digests of their segments, and entry by entry where those differ.

    Args:
        segments: digests of all nodes.
        source: the nodes.
        acknowledged: place up to which each log was read.
        reach: log → node → how far right snapshots there cover the log.
        read: log → the nodes of which there are digests.

    Yields:
        A log and what was found of invariants L5 and L6n.
    """
    segments.createOrReplaceTempView("segments")
    rows = segments.sparkSession.sql(_SUSPICIOUS.format(half=source.count // 2)).collect()
    found: dict[int, Findings] = {shard: Findings() for shard in acknowledged}
    suspicious: dict[int, list[int]] = {}
    for row in rows:
        if row.suspicious:
            suspicious.setdefault(row.shard, []).append(row.number)
        else:
            for invariant in ("L5", "L6n"):
                found[row.shard].checked[invariant] += row.entries
    for shard, numbers in suspicious.items():
        place = acknowledged[shard]
        look = partial(_look_closer, source, shard, numbers, place, reach.get(shard), read[shard])
        closer = steadily(source, look)
        closer.checked.update(found[shard].checked)
        found[shard] = closer
    yield from found.items()


def _look_closer(
    source: LogSource,
    shard: int,
    numbers: list[int],
    acknowledged: Position,
    reach: Mapping[int, Position] | None,
    read: Collection[int],
) -> Findings:
    """Compares some segments entry by entry, on the nodes that were read and are still there."""
    findings = Findings()
    nodes = [node for node in source.node_numbers() if node in read]
    for first, last in _runs(sorted(numbers)[:_MAX_SEGMENTS]):
        after = source.place_of(shard, first * SEGMENT_ENTRIES - 1)
        upto = source.place_of(shard, (last + 1) * SEGMENT_ENTRIES) or acknowledged
        upto = min(upto, acknowledged)
        logs = {node: source.pages(shard, node, upto, PAGE_ENTRIES, after or NOWHERE) for node in nodes}
        begins = {node: source.first(shard, node) for node in nodes}
        compare_nodes(logs, source.count, acknowledged, findings, begins, source.marks(shard), reach)
    return findings


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Numbers that follow each other, as first and last."""
    start = previous = numbers[0]
    for number in numbers[1:]:
        if number != previous + 1:
            yield start, previous
            start = number
        previous = number
    yield start, previous


def read_acknowledgements(spark: "SparkSession", path: Path) -> "DataFrame":
    """Acknowledgements that clients or services noted: `shard`, `epoch`, `offset` and, if known, `at_ms`.

    Raises:
        ValueError: the file has no such columns.
    """
    reader = spark.read.json if path.suffix in (".json", ".jsonl", ".ndjson") else spark.read.parquet
    found = reader(str(path))
    missing = sorted({"shard", "epoch", "offset"} - set(found.columns))
    if missing:
        raise ValueError(f"the acknowledgements in {path} have no {', '.join(missing)}")
    columns = ["cast(shard as bigint)", "cast(epoch as bigint)", "cast(offset as bigint)"]
    at_ms = "cast(at_ms as bigint)" if "at_ms" in found.columns else "cast(null as bigint)"
    return found.selectExpr(*columns, f"{at_ms} as at_ms")


_ACKNOWLEDGED = """
SELECT acks.shard, acks.epoch, acks.offset, acks.at_ms, ends.epoch AS end_epoch, ends.offset AS end_offset,
       entries.written_at_ms, entries.offset IS NOT NULL AS there,
       acks.offset > ends.offset AS beyond, acks.offset < ends.first AS trimmed
FROM acks
JOIN ends ON acks.shard = ends.shard
LEFT JOIN entries
  ON acks.shard = entries.shard AND acks.epoch = entries.epoch AND acks.offset = entries.offset
"""


def check_acknowledgements(
    spark: "SparkSession", acks: "DataFrame", entries: "DataFrame", ends: "DataFrame", limit: int = 20
) -> "tuple[dict[int, Findings], DataFrame]":
    """Looks every acknowledged position up in the log.

    Args:
        spark: the session.
        acks: acknowledgements.
        entries: entries of the logs.
        ends: `shard`, `epoch`, `offset` of the acknowledged end, and `first`, the first offset that is left.
        limit: violations kept.

    Returns:
        What was found by log, of invariants L5 and E2; and the acknowledgements with what the log has.
    """
    for name, table in (("acks", acks), ("entries", entries), ("ends", ends)):
        table.createOrReplaceTempView(name)
    joined = spark.sql(_ACKNOWLEDGED).cache()
    found: dict[int, Findings] = {}
    counted = joined.groupBy("shard").count().collect()
    for row in counted:
        findings = found.setdefault(row.shard, Findings(limit))
        for invariant in ("L5", "E2"):
            findings.checked[invariant] += row["count"]
    for row in joined.where("NOT there AND NOT trimmed").orderBy("shard", "offset").collect():
        place, end = Position(row.epoch, row.offset), Position(row.end_epoch, row.end_offset)
        if row.beyond:
            text = f"{place.stream_id} was answered as stored; the log is acknowledged up to {end.stream_id}"
            found[row.shard].expect("E2", False, place, text)
        else:
            text = f"{place.stream_id} was acknowledged and is not in the log"
            found[row.shard].expect("L5", False, place, text)
    return found, joined
