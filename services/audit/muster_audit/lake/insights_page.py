"""The analyses as one HTML page that needs nothing else: its pictures are drawn into it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import jinja2

from muster_audit.lake.insights import DAY_MS, Insights
from muster_audit.lake.row import day_of

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 220, 80, 34
_COLOURS = ("#3b6fb6", "#d9822b", "#3f9b5c", "#a3479e", "#c23b3b", "#7a6a4f", "#2a9d9d", "#8a8f98")
_MAX_SERIES = len(_COLOURS)
_OTHERS = "others"
_MAX_BARS, _LABEL = 8, 10


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a bar, in pixels, with what it says where one points at it."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of stacked bars.

    Attributes:
        title: what it shows.
        bars: the parts of its bars.
        labels: what is written below them: place and text.
        ticks: lines across: height and text.
        legend: name and colour of each series.
    """

    title: str
    bars: list[Bar]
    labels: list[tuple[float, str]]
    ticks: list[tuple[float, str]]
    legend: list[tuple[str, str]]


def stacked(title: str, values: Iterable[tuple[str, str, float]], bars_of: Iterable[str]) -> Chart:
    """A chart.

    Args:
        title: what it shows.
        values: bar, series and height of each part.
        bars_of: the bars from left to right, also those without a part.
    """
    sums: dict[str, float] = {}
    parts: dict[tuple[str, str], float] = {}
    for name, series, value in values:
        sums[series] = sums.get(series, 0) + value
        parts[name, series] = parts.get((name, series), 0) + value
    ordered = sorted(sums, key=lambda series: (series == _OTHERS, -sums[series]))
    shown = ordered if len(ordered) <= _MAX_SERIES else [*ordered[: _MAX_SERIES - 1], _OTHERS]
    names = list(bars_of)
    stacks = {name: dict.fromkeys(shown, 0.0) for name in names}
    for (name, series), value in parts.items():
        stacks[name][series if series in stacks[name] else _OTHERS] += value
    top = max((sum(stack.values()) for stack in stacks.values()), default=0) or 1
    step, height = (_WIDTH - _LEFT) / max(len(names), 1), _HEIGHT - _BOTTOM
    bars, labels = [], []
    every = max(len(names) // 8, 1)
    for number, name in enumerate(names):
        y = float(height)
        for series, colour in zip(shown, _COLOURS, strict=False):
            value = stacks[name][series]
            size = value / top * (height - 12)
            y -= size
            text = f"{name}, {series}: {_short(value)}"
            bars.append(Bar(_LEFT + number * step + step * 0.1, y, step * 0.8, size, colour, text))
        if number % every == 0:
            labels.append((_LEFT + (number + 0.5) * step, _in_the_middle(name)))
    ticks = [(height - share * (height - 12), _short(top * share)) for share in (0, 0.5, 1)]
    return Chart(title, bars, labels, ticks, list(zip(shown, _COLOURS, strict=False)))


def write_page(found: Insights, path: Path) -> None:
    """Writes the page.

    Args:
        found: the analyses.
        path: of the page.
    """
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        resources.files("muster_audit").joinpath("lake", "insights.html.j2").read_text("utf-8")
    )
    page = template.render(
        found=found,
        slo=found.slo,
        charts=list(charts(found)),
        trend=list(trend(found)),
        time=_time,
        seconds=lambda ms: "–" if ms is None else f"{ms / 1000:,.1f}",
        size=(_WIDTH, _HEIGHT, _LEFT, _BOTTOM),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, "utf-8")


def charts(found: Insights) -> Iterable[Chart]:
    """The pictures for which there is something to show; those by day show each day of the period."""
    period, rebalances, takeovers = found.period, found.rebalances, found.takeovers
    days = [day_of(at_ms) for at_ms in range(period.from_ms, period.to_ms, DAY_MS)]
    days += [last for last in [day_of(period.to_ms - 1)] if last not in days]
    if rebalances:
        causes = ((row["started_day"], row["cause"], row["rebalances"]) for row in rebalances)
        yield stacked("Rebalances by day and cause", causes, days)
        moves = [(row["started_day"], "at least", row["minimum_moves"]) for row in rebalances]
        moves += [
            (row["started_day"], "avoidable", row["moves"] - row["minimum_moves"]) for row in rebalances
        ]
        yield stacked("Partitions moved by day", moves, days)
    unowned = [
        (row["group_id"], "without an owner", row["unowned_ms"] / 1000)
        for row in found.worst["ownership"][:_MAX_BARS]
        if row["unowned_ms"]
    ]
    if unowned:
        title = "Partition-seconds without an owner, the worst groups"
        yield stacked(title, unowned, [name for name, _, _ in unowned])
    if found.commits:
        named = [(row, _OTHERS if row["group_id"] is None else row["group_id"]) for row in found.commits]
        commits = ((row["written_day"], group, row["commits"]) for row, group in named)
        yield stacked("Commits by day and group", commits, days)
    crashes = [
        (row["claimed_day"], "longest", row["longest_ms"] / 1000) for row in takeovers if not row["planned"]
    ]
    if crashes:
        title = "Seconds until another owner took over after a crash, the longest of each day"
        yield stacked(title, crashes, days)


def trend(found: Insights) -> Iterable[tuple[str, str, str]]:
    """The summary beside that of the period before: what, now, before."""
    for name, value in found.summary.items():
        before = "–" if found.before is None else _number(name, found.before[name])
        yield _WORDS[name], _number(name, value), before


_WORDS = {
    "availability": "time with an owner, all partitions",
    "unowned_ms": "partition-seconds without an owner",
    "rebalances": "rebalances",
    "moves": "partitions moved",
    "minimum_moves": "of them unavoidable",
    "flapping": "flapping members",
    "commits": "commits",
    "stalls": "stalls",
    "crashes": "logs taken over after a crash",
    "slowest_takeover_ms": "seconds that the slowest of these took",
}


def _number(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    if name == "availability":
        return f"{value:.4%}"
    return f"{value / 1000:,.1f}" if name.endswith("_ms") else f"{value:,}"


def _short(value: float) -> str:
    """A number as people read it: whole where it is large."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _in_the_middle(name: str) -> str:
    """A name that fits below a bar: names of groups often begin alike, so both ends are shown."""
    return name if len(name) <= _LABEL else f"{name[: _LABEL // 2 - 1]}…{name[-(_LABEL // 2) :]}"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
