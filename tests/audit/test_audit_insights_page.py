"""The page of the analyses with many groups, long names, and nothing at all; without Spark."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("pyarrow", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

from muster_audit.lake.insights import DAY_MS, WORST, Insights, Period, Rows
from muster_audit.lake.insights_page import charts, write_page

pytestmark = pytest.mark.spark

PERIOD = Period(1_699_401_600_000, 1_699_401_600_000 + 7 * DAY_MS, 300_000)
"""From 2023-11-08 on, at midnight."""

NOTHING: dict[str, Any] = {
    "availability": None, "unowned_ms": 0, "rebalances": 0, "moves": 0, "minimum_moves": 0, "flapping": 0,
    "commits": 0, "stalls": 0, "crashes": 0, "slowest_takeover_ms": 0,
}  # fmt: skip


def found(groups: int) -> Insights:
    """Analyses of so many groups, whose names begin and are long alike."""
    names = [f"payments-settlement-{number:04d}" + "-x" * 100 * (number == 7) for number in range(groups)]
    worst: dict[str, Rows] = {
        "ownership": [
            {"group_id": names[number], "owned_ms": 10**9, "unowned_ms": 1_000 * number, "longest_ms": 500,
             "gaps": number, "availability": 1 - number / 10_000}
            for number in reversed(range(groups))
        ],
        "moves": [
            {"group_id": name, "rebalances": 90_000, "moves": 3, "minimum_moves": 1, "longest_ms": 0}
            for name in names
        ],
        "flapping": [],
        "stalls": [
            {"group_id": name, "topic": "t", "partition": 1, "from_ms": PERIOD.from_ms,
             "to_ms": PERIOD.to_ms, "stalled_ms": 400_000, "lasts": True}
            for name in names[:3]
        ],
    }  # fmt: skip
    rebalances = [
        {"started_day": "2023-11-09", "cause": "member left", "rebalances": 90_000 * groups,
         "moves": 3 * groups, "minimum_moves": groups}
    ] * (groups > 0)  # fmt: skip
    return Insights(
        cluster_id="cluster",
        period=PERIOD,
        slo=0.99,
        worst={name: rows[:WORST] for name, rows in worst.items()},
        counts={name: len(rows) for name, rows in worst.items()},
        missing=sum(row["availability"] < 0.99 for row in worst["ownership"]),
        rebalances=rebalances,
        commits=[],
        takeovers=[],
        summary=NOTHING,
        before=None,
    )


def shown(insights: Insights, folder: Path) -> str:
    write_page(insights, folder / "page.html")
    return (folder / "page.html").read_text("utf-8")


def test_of_many_groups_the_worst_are_shown_and_their_number_is_told(tmp_path: Path) -> None:
    text = shown(found(500), tmp_path)
    assert "399 of 500 groups miss that." in text
    assert text.index("399 of 500") < text.index("This period and the one before")  # what is wrong first
    assert text.count("The worst 20 of 500.") == 2
    assert "payments-settlement-0499" in text
    assert "e+" not in re.sub(r"<style>.*</style>", "", text)
    labels = re.findall(r'text-anchor="middle">([^<]*)', text)
    assert all(len(label) <= 10 for label in labels)
    assert "paym…-0499" in labels
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(picture)


def test_a_chart_by_day_has_each_day_of_the_period() -> None:
    rebalances = next(iter(charts(found(2))))
    days = {bar.text.partition(",")[0] for bar in rebalances.bars}
    assert days == {f"2023-11-{day:02d}" for day in range(8, 15)}
    assert {bar.text for bar in rebalances.bars if bar.height} == {"2023-11-09, member left: 180,000"}


def test_what_is_empty_says_so(tmp_path: Path) -> None:
    text = shown(found(0), tmp_path)
    assert "no group had partitions" in text
    assert text.count("None in this period.") == 5
    assert "<svg" not in text
    assert ">yes<" in shown(found(1), tmp_path)  # a stall that lasts
