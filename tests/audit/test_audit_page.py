"""The page of the report shows hostile text as text."""

from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

import pyarrow as pa
import pyarrow.parquet as pq
from muster_audit.check import Result
from muster_audit.page import NodeHealth, nodes_of, write_page
from muster_audit.plots import plots_of
from muster_audit.promises import ALL
from muster_audit.reading.facts import Broken, LogRead
from muster_audit.run_summary import RunSummary

pytestmark = pytest.mark.spark

TAG = "<script>alert(1)</script>"
QUOTE = '"><img src=x onerror=alert(2)>'
CLOSING = "</script><script>alert(3)</script>"
BEGAN_MS = 1_700_000_000_000


class Elements(HTMLParser):
    """The elements of a page, and what its scripts say."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.text = ""
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes.update(name for name, _ in attrs)
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = self._in_script and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data
        else:
            self.text += data


def page_of(folder: Path, *texts: str) -> Elements:
    """The page of a log in which these texts stand wherever a caller or an operator gives one."""
    one, other, last = texts
    tables: dict[str, list[dict[str, Any]]] = {
        "group": [
            {"group_id": one + other, "shard": 1, "group_kind": "classic", "state": "stable", "members": 1}
            | {
                "generation": 1,
                "rebalances": 3,
                "unexpected": 2,
                "last_cause": last,
                "commits": 1,
                "offsets": 1,
            }
        ],
        "rebalance": [
            {"at_ms": BEGAN_MS + number * 1_000, "cause": texts[number % 3], "generations": 2}
            | {"shard": 1, "members_change": 1}
            for number in range(9)
        ],
        "activity": [
            {"at_ms": BEGAN_MS + number * 1_000, "record": texts[number % 3], "records": 2}
            for number in range(9)
        ],
        "ownership": [
            {"at_ms": BEGAN_MS + number * 1_000, "shard": number, "epoch": number}
            | {"owner": last + other, "planned": number % 2 == 0, "unowned_ms": 5}
            | {"session": one, "before": one if number else ""}
            for number in range(3)
        ],
        "node": [{"shard": 1, "node": 1, "first_offset": 1, "last_offset": 0}],
    }
    folder.mkdir()
    for name, rows in tables.items():
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    result = Result(
        cluster_id=one,
        address=last,
        nodes=1,
        problems={1: last},
        compared=False,
        checked=Counter(dict.fromkeys(ALL, 1)),
        broken=Counter({"G1": 1}),
        violations=[Broken(1, one, "G1", 1, 1, last + other, [one, other])],
        tables=folder,
    )
    return Elements(write_page(result, folder).read_text("utf-8"))


def test_hostile_text_makes_no_element_and_no_script(tmp_path: Path) -> None:
    plain = page_of(tmp_path / "plain", "a", "b", "c")
    hostile = page_of(tmp_path / "hostile", TAG, QUOTE, CLOSING)
    assert hostile.tags == plain.tags
    assert hostile.attributes == plain.attributes
    assert "img" not in hostile.tags
    assert len(hostile.scripts) == len(plain.scripts)
    for text in (TAG, QUOTE, CLOSING):
        assert text in hostile.text
        assert not any(text in script for script in hostile.scripts)


def log_read(shard: int, name: str, last_offset: int) -> LogRead:
    return LogRead(shard, name, 1, 1, 1, last_offset, "", last_offset, 1, 9, False, False, 0.1)


def result_in(folder: Path, broken: Counter[str] | None = None, **tables: list[dict[str, Any]]) -> Result:
    folder.mkdir(parents=True)
    group: dict[str, Any] = {"group_id": "g", "shard": 0, "group_kind": "incremental", "state": "assigning"}
    group |= {
        "members": 1,
        "generation": 7,
        "rebalances": 3,
        "unexpected": 2,
        "last_cause": "member joined",
        "commits": 1,
        "offsets": 1,
    }
    for name, rows in {"group": [group], **tables}.items():
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    return Result(
        "cluster",
        "address",
        3,
        {},
        compared=True,
        compared_nodes={1, 2, 3},
        logs=[log_read(0, "shard 0", 9), log_read(1, "shard 1", 5), log_read(2, "catalog", 7)],
        checked=Counter(dict.fromkeys(ALL, 1)),
        broken=Counter() if broken is None else broken,
        period_ms=(BEGAN_MS, BEGAN_MS + 60_000),
        tables=folder,
    )


def rendered(result: Result, last: RunSummary | None = None) -> str:
    return write_page(result, result.tables.parent, last).read_text("utf-8")


def test_broken_promises_come_first_and_the_others_are_folded(tmp_path: Path) -> None:
    page = rendered(result_in(tmp_path / "tables", Counter({"O3": 2})))
    folded = page.index("<details>", page.index("<h2>Promises</h2>"))
    assert page.index('<td class="mono">O3</td>') < folded < page.index('<td class="mono">L1</td>')
    assert page.count("broken 2×") == 1


def test_a_group_is_shown_with_its_kind_and_its_epoch(tmp_path: Path) -> None:
    page = " ".join(rendered(result_in(tmp_path / "tables")).split())
    assert (
        '<th>kind</th><th>state</th><th class="n">members</th><th class="n">generation or epoch</th>' in page
    )
    assert '<td>incremental</td><td>assigning</td> <td class="n">1</td><td class="n">7</td>' in page


def test_the_page_says_of_which_time_the_entries_are(tmp_path: Path) -> None:
    page = rendered(result_in(tmp_path / "tables"))
    assert "Entries from 2023-11-14 22:13:20 UTC to 2023-11-14 22:14:20 UTC" in page


def node_row(node: int, shard: int, last_offset: int) -> dict[str, Any]:
    return {"node": node, "shard": shard, "first_offset": min(last_offset, 1), "last_offset": last_offset}


def test_what_a_node_lacks_is_told(tmp_path: Path) -> None:
    rows = [node_row(1, 0, 9), node_row(1, 1, 5), node_row(1, 2, 7)]
    rows += [node_row(2, 0, 6), node_row(2, 1, 0), node_row(2, 2, 7)]
    result = result_in(tmp_path / "tables", node=rows)
    result.problems[3] = "no answer"
    assert nodes_of(result) == [
        NodeHealth(1, entries=21, logs=3),
        NodeHealth(2, entries=13, logs=2, lag=3, missing=("shard 1",)),
        NodeHealth(3, problem="no answer"),
    ]
    page = rendered(result)
    assert "<h2>Nodes</h2>" in page
    assert "no answer" in page


def test_a_run_is_compared_with_the_last_one(tmp_path: Path) -> None:
    rendered(result_in(tmp_path / "before" / "tables"))
    last = RunSummary.read(tmp_path / "before")
    now = result_in(tmp_path / "now" / "tables", Counter({"O3": 2}))
    now.logs.append(log_read(3, "shard 3", 1_000))
    page = rendered(now, last)
    compared = page[page.index("Since the last audit") :]
    assert compared.index("+1,000") < compared.index("violations") < compared.index("+2<")
    now.cluster_id = "another"
    with pytest.raises(ValueError, match="cluster"):
        rendered(now, last)
    with pytest.raises(ValueError, match="no report"):
        RunSummary.read(tmp_path)


def owned(shard: int, at_ms: int, unowned_ms: int, before: str, planned: bool = False) -> dict[str, Any]:
    return {"shard": shard, "epoch": 2, "at_ms": at_ms, "owner": "c", "planned": planned} | {
        "unowned_ms": unowned_ms,
        "session": "s",
        "before": before,
    }


def test_no_seconds_without_an_owner_are_counted_where_the_owner_lived_or_no_group_wrote() -> None:
    rows = [
        owned(0, 1_000, 0, ""),  # the first one
        owned(0, 100_000, 2_000, "dead"),
        owned(1, 101_000, 90_000, "dead"),  # wrote nothing for long, and lived until 98,000 in shard 0
        owned(2, 101_000, 90_000, "dead"),  # nobody uses it
        owned(1, 200_000, 30, "s", planned=True),
    ]
    names = {0: "shard 0", 1: "shard 1", 2: "shard 2", 3: "catalog"}
    figures = {
        title: figure
        for title, _, figure in plots_of(
            {"rebalance": [], "activity": [], "ownership": rows, "latency": []},
            1_000,
            names,
            frozenset((2, 3)),
        )
    }
    planned, failures = figures["Seconds without an owner, by shard"].data
    assert dict(zip(failures.x, failures.y, strict=True)) == {"0": 2.0, "1": 3.0}
    assert dict(zip(planned.x, planned.y, strict=True)) == {"1": 0.03}
    claims = figures["Owners of shards"]
    assert claims.layout.yaxis.categoryarray == ("0", "1", "2", "catalog")
