"""The plots of the report's page."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import plotly.graph_objects as go

Rows = list[dict[str, Any]]

_MAX_SERIES = 12
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


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def plots_of(
    tables: Mapping[str, Rows], span_ms: int, names: Mapping[int, str], idle: frozenset[int]
) -> Iterable[tuple[str, str, go.Figure]]:
    """Title, explanation and figure of each plot for which there is something to show.

    Args:
        tables: rows of the report's tables, by their names.
        span_ms: width of the spans of time in them.
        names: of the logs, by their numbers.
        idle: logs in which no group ever wrote.
    """
    span = _in_words(span_ms)
    rebalances = tables["rebalance"]
    if rebalances:
        yield (
            "Generations by cause",
            f"Generations that were started, and epochs of incremental groups that moved partitions, "
            f"in spans of {span}, by why.",
            _stacked(_summed(rebalances, "cause", "generations"), span_ms),
        )
        yield (
            "Members",
            "Members of all groups of both kinds, as their generations, arrivals and departures show.",
            _members(rebalances),
        )
    activity = tables["activity"]
    if activity:
        yield (
            "Records by kind",
            f"Records that were written, in spans of {span}.",
            _stacked(_summed(activity, "record", "records"), span_ms),
        )
    owners = tables["ownership"]
    if owners:
        yield (
            "Owners of shards",
            "Each point is a Claim. One that follows a hand-over was planned.",
            _claims(owners, names),
        )
        unowned = _unowned_ms(owners, idle)
        if unowned:
            yield (
                "Seconds without an owner, by shard",
                "Sum over all changes of owner, from when the last one is known to have written, in any log, "
                "to the Claim of the next. After a hand-over this is exact; otherwise it is a bound. "
                "Logs in which no group wrote are left out.",
                _unowned(unowned, names),
            )
    latencies = tables["latency"]
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


def _summed(rows: Rows, name: str, value: str) -> dict[str, dict[int, int]]:
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


def _members(rows: Rows) -> go.Figure:
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


def _claims(rows: Rows, names: Mapping[int, str]) -> go.Figure:
    figure = go.Figure(layout={**_LAYOUT, "yaxis": _by_name(names)})
    for planned, name in ((True, "planned"), (False, "first claim, or after a failure")):
        chosen = [row for row in rows if row["planned"] == planned]
        figure.add_scatter(
            name=name,
            mode="markers",
            x=[_time(row["at_ms"]) for row in chosen],
            y=[_name(names, row["shard"]) for row in chosen],
            text=[f"{row['owner']}, epoch {row['epoch']}" for row in chosen],
        )
    return figure


def _name(names: Mapping[int, str], shard: int) -> str:
    """A shard by its number, the catalog by its name."""
    return names.get(shard, "").removeprefix("shard ") or str(shard)


def _by_name(names: Mapping[int, str]) -> dict[str, Any]:
    """An axis of logs, in order."""
    order = [_name(names, shard) for shard in sorted(names)]
    return {"title": {"text": "shard", "standoff": 4}, "type": "category", "categoryarray": order}


def _unowned_ms(rows: Rows, idle: frozenset[int]) -> list[tuple[int, bool, int]]:
    """Log, whether it was planned, and time without an owner, of each change of owner in a log that is used.

    An owner is known to have lived until its last record in any log.
    """
    alive_until_ms: dict[str, int] = {}
    for row in rows:
        if row["before"]:
            wrote_ms = row["at_ms"] - row["unowned_ms"]
            alive_until_ms[row["before"]] = max(wrote_ms, alive_until_ms.get(row["before"], 0))
    return [
        (
            row["shard"],
            row["planned"],
            row["unowned_ms"]
            if row["planned"]
            else min(row["unowned_ms"], max(row["at_ms"] - alive_until_ms[row["before"]], 0)),
        )
        for row in rows
        if row["before"] and row["shard"] not in idle
    ]


def _unowned(changes: list[tuple[int, bool, int]], names: Mapping[int, str]) -> go.Figure:
    figure = go.Figure(layout={**_LAYOUT, "barmode": "stack", "xaxis": _by_name(names)})
    for planned, name in ((True, "hand-overs"), (False, "failures, at most")):
        sums: dict[str, float] = {}
        for shard, was_planned, unowned_ms in changes:
            if was_planned == planned:
                log = _name(names, shard)
                sums[log] = sums.get(log, 0.0) + unowned_ms / 1000
        figure.add_bar(name=name, x=list(sums), y=list(sums.values()))
    return figure


def _latency(rows: Rows) -> go.Figure:
    figure = go.Figure(layout={**_LAYOUT, "yaxis": {"title": "ms"}})
    times = [_time(row["at_ms"]) for row in rows]
    for column, name in (("p50_ms", "median"), ("p99_ms", "99th percentile")):
        figure.add_scatter(name=name, x=times, y=[row[column] for row in rows])
    return figure
