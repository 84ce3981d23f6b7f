"""The report as one HTML page that needs nothing else: the plots are inside, and it asks no address."""

from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import plotly.graph_objects as go
import plotly.io as pio
import plotly.offline
import pyarrow.parquet as pq
from muster_core.position import Position

from muster_audit.check import Result
from muster_audit.promises import ALL

_MAX_SERIES = 12
_WORST_GROUPS = 20
_FIRST_EVIDENCE = 10
_MAX_EVIDENCE = 100
_HEIGHT = 320
_LEGEND_ROW_HEIGHT = 20
_COLOURS = (
    "#3b6fb6", "#d9822b", "#3f9b5c", "#a3479e", "#c23b3b", "#7a6a4f", "#2a9d9d", "#8a8f98",
    "#8fb3e0", "#f0bd86", "#93cfa6", "#d79ad3", "#e59a9a",
)  # fmt: skip
_LAYOUT = {
    "template": "plotly_white",
    "height": _HEIGHT,
    "margin": {"l": 50, "r": 12, "t": 12, "b": 40},
    "legend": {"orientation": "h", "y": -0.2, "traceorder": "normal"},
    "xaxis": {"tickangle": 0, "nticks": 6},
    "font": {"family": "system-ui, sans-serif", "size": 13},
    "colorway": _COLOURS,
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
}


def write_page(result: Result, folder: Path) -> Path:
    """Writes `index.html` into a folder, from the tables of a result; gives its path."""
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        resources.files("muster_audit").joinpath("page.html.j2").read_text("utf-8")
    )
    plots = [
        (
            title,
            text,
            pio.to_html(
                figure, full_html=False, include_plotlyjs=False, config=_CONFIG, default_width="100%"
            ),
        )
        for title, text, figure in _plots(result)
    ]
    groups = _rows(result, "group")
    groups.sort(key=lambda row: (-row["unexpected"], -row["rebalances"], row["group_id"]))
    page = template.render(
        result=result,
        invariants=[(row, result.checked[row.id], result.broken[row.id]) for row in ALL.values()],
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
        longest=sorted(result.logs, key=lambda log: -log.entries)[:_WORST_GROUPS],
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        script=plotly.offline.get_plotlyjs() if plots else "",
    )
    path = folder / "index.html"
    path.write_text(page, "utf-8")
    return path


_CONFIG = {"responsive": True, "displaylogo": False, "displayModeBar": False}


def _rows(result: Result, table: str) -> list[dict[str, Any]]:
    place = result.tables / f"{table}.parquet"
    return pq.read_table(place).to_pylist() if place.is_file() else []


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _plots(result: Result) -> Iterable[tuple[str, str, go.Figure]]:
    """Title, explanation and figure of each plot for which there is something to show."""
    span = _in_words(result.span_ms)
    rebalances = _rows(result, "rebalance")
    if rebalances:
        yield (
            "Generations by cause",
            f"Generations that were started, in spans of {span}, by why.",
            _stacked(_summed(rebalances, "cause", "generations"), result.span_ms),
        )
        yield (
            "Members",
            "Members of all groups, as their generations and departures show.",
            _members(rebalances),
        )
    activity = _rows(result, "activity")
    if activity:
        yield (
            "Records by kind",
            f"Records that were written, in spans of {span}.",
            _stacked(_summed(activity, "record", "records"), result.span_ms),
        )
    owners = _rows(result, "ownership")
    if owners:
        yield (
            "Owners of shards",
            "Each point is a Claim. One that follows a hand-over was planned.",
            _claims(owners),
        )
        yield (
            "Seconds without an owner, by shard",
            "Sum over all changes of owner, from the last record of one to the Claim of the next. After a "
            "hand-over this is exact; otherwise it is a bound from above: maybe there was nothing to write.",
            _unowned(owners),
        )
    latencies = _rows(result, "latency")
    if latencies:
        yield (
            "From record to acknowledgement",
            f"Milliseconds, median and 99th percentile, in spans of {span}, of the acknowledgements given.",
            _latency(latencies),
        )


def _in_words(span_ms: int) -> str:
    seconds = span_ms // 1000
    for unit, name in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        if seconds % unit == 0 and seconds >= unit:
            count = seconds // unit
            return f"{count} {name}{'s' if count > 1 else ''}"
    return f"{span_ms} ms"


def _summed(rows: list[dict[str, Any]], name: str, value: str) -> dict[str, dict[int, int]]:
    """Sums by name and time, the largest names first; the smallest ones together."""
    sums: dict[str, dict[int, int]] = {}
    for row in rows:
        series = sums.setdefault(row[name], {})
        series[row["at_ms"]] = series.get(row["at_ms"], 0) + row[value]
    ordered = sorted(sums, key=lambda key: -sum(sums[key].values()))
    for key in ordered[_MAX_SERIES:]:
        others = sums.setdefault("others", {})
        for at_ms, count in sums.pop(key).items():
            others[at_ms] = others.get(at_ms, 0) + count
    return {key: sums[key] for key in [*ordered[:_MAX_SERIES], "others"] if key in sums}


def _stacked(series: dict[str, dict[int, int]], span_ms: int) -> go.Figure:
    height = _HEIGHT + len(series) // 2 * _LEGEND_ROW_HEIGHT  # the legend is below, two names in a row
    figure = go.Figure(layout={**_LAYOUT, "barmode": "stack", "height": height})
    for name, values in series.items():
        times = sorted(at_ms for at_ms, count in values.items() if count)
        figure.add_bar(
            name=name,
            x=[_time(at_ms + span_ms // 2) for at_ms in times],
            y=[values[at_ms] for at_ms in times],
            width=span_ms,
        )
    return figure


def _members(rows: list[dict[str, Any]]) -> go.Figure:
    changes: dict[int, int] = {}
    for row in rows:
        changes[row["at_ms"]] = changes.get(row["at_ms"], 0) + row["members_change"]
    total, points = 0, []
    for at_ms in sorted(changes):
        total += changes[at_ms]
        points.append((_time(at_ms), total))
    figure = go.Figure(layout=_LAYOUT)
    figure.add_scatter(
        x=[at for at, _ in points], y=[count for _, count in points], line_shape="hv", fill="tozeroy"
    )
    return figure


def _claims(rows: list[dict[str, Any]]) -> go.Figure:
    figure = go.Figure(layout={**_LAYOUT, "yaxis": {"title": "shard"}})
    for planned, name in ((True, "planned"), (False, "first claim, or after a failure")):
        chosen = [row for row in rows if row["planned"] == planned]
        figure.add_scatter(
            name=name,
            mode="markers",
            x=[_time(row["at_ms"]) for row in chosen],
            y=[row["shard"] for row in chosen],
            text=[f"{row['owner']}, epoch {row['epoch']}" for row in chosen],
        )
    return figure


def _unowned(rows: list[dict[str, Any]]) -> go.Figure:
    figure = go.Figure(
        layout={**_LAYOUT, "barmode": "stack", "xaxis": {"title": {"text": "shard", "standoff": 4}}}
    )
    for planned, name in ((True, "hand-overs"), (False, "failures, at most")):
        sums: dict[int, float] = {}
        for row in rows:
            if row["planned"] == planned:
                sums[row["shard"]] = sums.get(row["shard"], 0.0) + row["unowned_ms"] / 1000
        figure.add_bar(name=name, x=list(sums), y=list(sums.values()))
    return figure


def _latency(rows: list[dict[str, Any]]) -> go.Figure:
    figure = go.Figure(layout={**_LAYOUT, "yaxis": {"title": "ms"}})
    times = [_time(row["at_ms"]) for row in rows]
    for column, name in (("p50_ms", "median"), ("p99_ms", "99th percentile")):
        figure.add_scatter(name=name, x=times, y=[row[column] for row in rows])
    return figure
