"""The report as one HTML page that needs nothing else: the plots are inside, and it asks no address."""

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import jinja2
import plotly.io as pio
import plotly.offline
import pyarrow.parquet as pq
from muster_core.position import Position

from muster_audit.check import Result
from muster_audit.plots import Rows, plots_of
from muster_audit.promises import ALL
from muster_audit.run_summary import RunSummary

_WORST_GROUPS = 20
_FIRST_EVIDENCE = 10
_MAX_EVIDENCE = 100
_TABLES = ("rebalance", "activity", "ownership", "latency")
_CONFIG = {"responsive": True, "displaylogo": False, "displayModeBar": False}


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """What a node has of the logs.

    Attributes:
        node: its number.
        entries: it has.
        logs: of which it has any.
        lag: entries after its ends that others have.
        missing: names of logs of which it has none.
        problem: why it was not read; empty: it was.
    """

    node: int
    entries: int = 0
    logs: int = 0
    lag: int = 0
    missing: tuple[str, ...] = ()
    problem: str = ""


def write_page(result: Result, folder: Path, last: RunSummary | None = None) -> Path:
    """Writes `index.html` into a folder, from the tables of a result; gives its path.

    Args:
        result: of the audit.
        folder: of the report; what the run saw is kept in the folder of the tables.
        last: what an earlier run saw, to compare with.

    Raises:
        ValueError: the earlier run was of another cluster.
    """
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        resources.files("muster_audit").joinpath("page.html.j2").read_text("utf-8")
    )
    made = datetime.now(UTC)
    now = RunSummary.of(result, round(made.timestamp() * 1000))
    now.keep(result.tables)
    groups = _rows(result, "group")
    names = {log.shard: log.name for log in result.logs}
    tables = {name: _rows(result, name) for name in _TABLES}
    idle = frozenset(names) - {row["shard"] for row in groups}
    plots = [
        (
            title,
            text,
            pio.to_html(
                figure, full_html=False, include_plotlyjs=False, config=_CONFIG, default_width="100%"
            ),
        )
        for title, text, figure in plots_of(tables, result.span_ms, names, idle)
    ]
    groups.sort(key=lambda row: (-row["unexpected"], -row["rebalances"], row["group_id"]))
    promises = [(row, result.checked[row.id], result.broken[row.id]) for row in ALL.values()]
    page = template.render(
        result=result,
        broken_promises=[row for row in promises if row[2]],
        kept_promises=[row for row in promises if not row[2]],
        violations=[
            (one, Position(one.epoch, one.offset).stream_id) for one in result.violations[:_MAX_EVIDENCE]
        ],
        first=_FIRST_EVIDENCE,
        broken=[id_ for id_ in ALL if result.broken[id_]],
        more_violations=max(len(result.violations) - _MAX_EVIDENCE, 0),
        total_broken=sum(result.broken.values()),
        plots=plots,
        groups=groups[:_WORST_GROUPS],
        group_count=len(groups),
        nodes=nodes_of(result),
        period=[_in_utc(at_ms) for at_ms in result.period_ms] if result.period_ms[0] else [],
        last_made="" if last is None else _in_utc(last.made_at_ms),
        compared_runs=[] if last is None else list(now.beside(last)),
        longest=sorted(result.logs, key=lambda log: -log.entries)[:_WORST_GROUPS],
        made=made.strftime("%Y-%m-%d %H:%M:%S UTC"),
        script=plotly.offline.get_plotlyjs() if plots else "",
    )
    path = folder / "index.html"
    path.write_text(page, "utf-8")
    return path


def nodes_of(result: Result) -> list[NodeHealth]:
    """What each node has, as far as it was read; none where nobody looked at the nodes."""
    rows = _rows(result, "node")
    ends = {log.shard: log.last_offset for log in result.logs}
    found = []
    for node in sorted({row["node"] for row in rows} | result.problems.keys()):
        mine = [row for row in rows if row["node"] == node]
        have = [row for row in mine if row["last_offset"]]
        missing = {row["shard"] for row in mine} - {row["shard"] for row in have}
        found.append(
            NodeHealth(
                node,
                sum(row["last_offset"] - row["first_offset"] + 1 for row in have),
                len(have),
                sum(max(ends.get(row["shard"], 0) - row["last_offset"], 0) for row in have),
                tuple(log.name for log in result.logs if log.shard in missing),
                result.problems.get(node, ""),
            )
        )
    return found


def _rows(result: Result, table: str) -> Rows:
    place = result.tables / f"{table}.parquet"
    return pq.read_table(place).to_pylist() if place.is_file() else []


def _in_utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
