"""What an audit saw, in one row: kept with its report, so that the next one can be compared with it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from muster_audit.check import Result

_TABLE = "run"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run.

    Attributes:
        cluster_id: identity of the cluster.
        made_at_ms: when it was made, wall clock, ms since the Unix epoch.
        logs: how many logs were read.
        entries: how many entries.
        groups: how many groups were seen.
        rebalances: generations that were started, and epochs of incremental groups that moved something.
        unexpected: those of them that were started for a member that was lost.
        nodes: how many nodes were compared, or read.
        violations: how often a promise was broken.
    """

    cluster_id: str
    made_at_ms: int
    logs: int
    entries: int
    groups: int
    rebalances: int
    unexpected: int
    nodes: int
    violations: int

    @classmethod
    def of(cls, result: Result, made_at_ms: int) -> "RunSummary":
        """What a result says; its tables are written."""
        groups = pq.read_table(result.tables / "group.parquet").to_pylist()
        return cls(
            result.cluster_id,
            made_at_ms,
            len(result.logs),
            result.entries,
            len(groups),
            sum(row["rebalances"] for row in groups),
            sum(row["unexpected"] for row in groups),
            len(result.compared_nodes) if result.compared else 1,
            sum(result.broken.values()),
        )

    def keep(self, tables: Path) -> None:
        """Writes it beside the other tables of a report."""
        pq.write_table(pa.Table.from_pylist([asdict(self)]), tables / f"{_TABLE}.parquet")

    @classmethod
    def read(cls, report: Path) -> "RunSummary":
        """Reads it from the folder of a report.

        Raises:
            ValueError: there is none.
        """
        path = report / "tables" / f"{_TABLE}.parquet"
        names = [field.name for field in fields(cls)]
        try:
            (row,) = pq.read_table(path, columns=names).to_pylist()
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ValueError(f"{report} is no report of an earlier audit: {error}") from error
        return cls(**row)

    def beside(self, last: "RunSummary") -> Iterator[tuple[str, int, int]]:
        """Each count: its name, what it was in the last run and what it is in this one.

        Raises:
            ValueError: that was of another cluster.
        """
        if last.cluster_id != self.cluster_id:
            raise ValueError(f"the last report is of cluster {last.cluster_id}, not of {self.cluster_id}")
        for field in fields(self)[2:]:
            yield field.name, getattr(last, field.name), getattr(self, field.name)
