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
from muster_audit.page import write_page
from muster_audit.promises import ALL
from muster_audit.reading.facts import Broken

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
            {"group_id": one + other, "shard": 1, "state": "Stable", "members": 1, "generation": 1}
            | {"rebalances": 3, "unexpected": 2, "last_cause": last, "commits": 1, "offsets": 1}
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
            for number in range(3)
        ],
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
