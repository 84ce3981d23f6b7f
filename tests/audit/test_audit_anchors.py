"""Anchors that `export` and `follow` keep by themselves, and checks against them with Spark."""

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kit.logs.log_builder import healthy
from kit.logs.log_nodes import CLUSTER, empty, nodes_with, set_back, store, trimmed_after_reading
from kit.waiting import until
from muster_core.audit.anchor import Anchor, End
from muster_server.dev.redis_nodes import RedisNodes
from muster_server.verify.anchors import Anchoring, as_text, parse
from muster_server.verify.verifier import verify

pytest.importorskip("pyspark", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

from muster_audit.check import CheckOptions, Result, check
from muster_audit.command import app
from muster_audit.follow.follow import Listener, follow
from muster_audit.follow.log_follower import FollowOptions
from muster_audit.reading.facts import Broken
from muster_audit.reading.scan import ScanOptions, audit_log
from muster_audit.reading.sources import NodesSource
from typer.testing import CliRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[RedisNodes]:
    async with nodes_with(tmp_path / "nodes", {0: healthy(empty(0, 1))}, count=3) as nodes:
        yield nodes


async def test_an_end_that_is_trimmed_while_its_log_is_read_was_there(
    nodes: RedisNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "anchor.json"
    verify(nodes.url, anchoring=Anchoring(keep=str(place)))
    anchor = parse(place.read_bytes(), str(place), None)
    trimmed = trimmed_after_reading(monkeypatch, NodesSource)
    with NodesSource(nodes.url) as source:
        facts = list(audit_log(source, 0, ScanOptions(anchor=anchor.ends)))
    assert not [fact for fact in facts if isinstance(fact, Broken)]
    assert 0 in trimmed


def checked(spark: "SparkSession", folder: Path, *runs: tuple[str, Anchoring]) -> list[Result]:
    """What audits find at these addresses."""
    return [
        check(spark, address, CheckOptions(anchoring=anchoring, tasks=1), folder / f"tables-{number}")
        for number, (address, anchoring) in enumerate(runs)
    ]


def forged(place: Path) -> Anchoring:
    """An anchor of a log that was another one."""
    end = healthy(empty(0, 1)).end
    place.write_bytes(as_text(Anchor(CLUSTER, 0, {0: End(end, bytes(32))}), None))
    return Anchoring(str(place))


@pytest.mark.long
async def test_an_export_keeps_an_anchor_and_is_checked_against_one(
    spark: "SparkSession", nodes: RedisNodes, tmp_path: Path
) -> None:
    export = tmp_path / "export"
    done = await asyncio.to_thread(
        CliRunner().invoke, app, ["export", nodes.url, str(export), "--master", "local[1]"]
    )
    assert done.exit_code == 0, done.output
    kept = str(export / "_anchor.json")
    assert verify(nodes.url, anchoring=Anchoring(kept)).checked["L12"] == 2
    set_back(nodes)
    assert verify(nodes.url, anchoring=Anchoring(kept)).broken == {"L12": 1}
    set_back(nodes, "a disk burned")
    right, wrong, restored, unexcused = await asyncio.to_thread(
        checked,
        spark,
        tmp_path,
        (str(export), Anchoring(kept)),
        (str(export), forged(tmp_path / "forged.json")),
        (nodes.url, Anchoring(kept, accept_restore=True)),
        (nodes.url, Anchoring(kept)),
    )
    assert (right.clean, right.checked["L12"]) == (True, 2)
    assert wrong.broken == {"L12": 1}
    assert "another entry is here" in wrong.violations[0].detail
    assert restored.clean, restored.violations
    assert any(note.endswith("a disk burned") for note in restored.notes)
    assert unexcused.broken["L12"]


async def test_a_follower_keeps_an_anchor_while_nothing_is_broken(nodes: RedisNodes, tmp_path: Path) -> None:
    place = tmp_path / "anchor.json"

    async def once(checkpoint: str) -> None:
        stop = threading.Event()
        unreachable = Listener(lambda _: None, lambda problem: stop.set() if problem else None)
        run = partial(follow, nodes.url, tmp_path / checkpoint, FollowOptions(0.1), unreachable, stop)
        thread = asyncio.create_task(asyncio.to_thread(run, None, Anchoring(keep=str(place))))

        async def looked() -> bool:
            return (tmp_path / checkpoint).exists()

        await until(looked, "the logs were looked at")
        stop.set()
        await thread

    await once("first")
    assert verify(nodes.url, anchoring=Anchoring(str(place))).checked["L12"] == 2
    kept = place.read_bytes()
    built = healthy(empty(0, 1))
    built.generation(7, "z")
    for node in nodes:
        store(node, 0, 1, built.entries, built.end)
    await once("second")
    assert place.read_bytes() == kept, "a log that is broken makes no anchor"
