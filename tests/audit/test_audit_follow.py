"""`muster-audit follow`: what it raises, what it keeps, and that a kill loses and repeats nothing."""

import signal
import threading
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
from kit.logs.audit_follower import FollowProcess
from kit.logs.damaged_logs import DAMAGES, Damage
from kit.logs.log_builder import LogBuilder, healthy, page_of
from kit.logs.log_nodes import empty, nodes_with, store
from kit.waiting import until
from muster_core.audit.stored_snapshots import StoredSnapshot
from muster_core.position import Position
from muster_protos.muster.log.v1 import records_pb2
from muster_server.dev.redis_nodes import RedisNodes

pytest.importorskip("pyarrow", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

from muster_audit.command import app
from muster_audit.follow.checkpoint import Checkpoint, CheckpointUnusable
from muster_audit.follow.follow import Follower, Listener, follow
from muster_audit.follow.log_follower import FollowOptions
from muster_audit.reading.exported import Beginning, ExportSource, ShardExport, mark
from muster_audit.reading.facts import Broken
from muster_audit.reading.nonce_window import NonceWindow
from muster_audit.reading.sources import NodesSource
from typer.testing import CliRunner

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

CLUSTER = "cluster-of-the-tests"
PATIENCE_S = 120
OPTIONS = FollowOptions(page_entries=10)


def builder() -> LogBuilder:
    return healthy(empty(0, 1))


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[RedisNodes]:
    async with nodes_with(tmp_path / "nodes", {0: builder()}) as nodes:
        yield nodes


def hold(nodes: RedisNodes, built: LogBuilder, acknowledged: Position | None = None) -> None:
    store(nodes[0], 0, 1, built.entries, built.end if acknowledged is None else acknowledged)


def rounds(nodes: RedisNodes, follower: Follower, count: int = 1) -> list[tuple[str, int]]:
    """What so many rounds raise: promise and offset."""
    raised: list[Broken] = []
    for _ in range(count):
        with NodesSource(nodes.url) as source:
            raised += follower.round(source)
    return [(one.invariant, one.offset) for one in raised]


def restarted(follower: Follower, folder: Path) -> Follower:
    follower.checkpoint.save(folder / "checkpoint")
    return Follower(Checkpoint.load(folder / "checkpoint"), OPTIONS)


def entries(follower: Follower) -> int:
    return sum(one.entries for one in follower.checkpoint.logs.values())


class TestRounds:
    async def test_each_entry_is_checked_once_and_each_violation_raised_once(
        self, nodes: RedisNodes, tmp_path: Path
    ) -> None:
        follower = Follower(Checkpoint(), OPTIONS)
        assert rounds(nodes, follower, 3) == []
        assert entries(follower) == 23
        built = builder()
        built.generation(7, "z")
        hold(nodes, built)
        assert rounds(nodes, follower, 2) == [("G1", 23)]
        again = restarted(follower, tmp_path)
        built.commit(7, "z", 1)
        built.commit(3, "z", 2)
        hold(nodes, built)
        assert rounds(nodes, again, 2) == [("O3", 25)]
        assert entries(again) == 26
        assert again.checkpoint.broken == {"G1": 1, "O3": 1}
        assert rounds(nodes, restarted(again, tmp_path), 2) == []

    async def test_a_long_log_gets_several_turns(self, nodes: RedisNodes) -> None:
        built = builder()
        for number in range(100):
            built.commit(1, "z", number)
        hold(nodes, built)
        follower = Follower(Checkpoint(), OPTIONS)
        counts: list[int] = []
        while not counts or follower.more:
            assert rounds(nodes, follower) == []
            counts.append(entries(follower))
        turns = [after - before for before, after in pairwise([0, *counts])]
        assert (len(turns), sum(turns)) == (3, 123)
        assert max(turns) <= 51, "five pages, and the entry that the first begins after"
        assert follower.lags == {"shard 0": 0, "catalog": 0}

    async def test_what_was_changed_meanwhile_is_raised_at_a_restart(
        self, nodes: RedisNodes, tmp_path: Path
    ) -> None:
        follower = Follower(Checkpoint(), OPTIONS)
        assert rounds(nodes, follower) == []
        built = builder()
        built.change(5, record=b"")
        hold(nodes, built)
        assert ("L6", 6) in rounds(nodes, restarted(follower, tmp_path))
        other = empty(0, 1)
        other.now_ms += 7
        hold(nodes, healthy(other))
        assert rounds(nodes, restarted(follower, tmp_path)) == [("L6", 22)]

    async def test_an_acknowledged_entry_that_is_gone(self, nodes: RedisNodes, tmp_path: Path) -> None:
        built = builder()
        hold(nodes, built, built.end.after(3))
        follower = Follower(Checkpoint(), OPTIONS)
        assert rounds(nodes, follower) == []  # a node may have come or gone between two questions
        assert rounds(nodes, follower, 3) == [("L5", 25)]
        end = built.end
        del built.entries[20:]
        hold(nodes, built)
        assert rounds(nodes, follower, 3) == [("L5", end.offset)]
        again = restarted(Follower(follower.checkpoint, OPTIONS), tmp_path)
        assert rounds(nodes, again) == []

    async def test_a_log_that_was_trimmed_behind_the_checkpoint_is_gone_on_with(
        self, nodes: RedisNodes, tmp_path: Path
    ) -> None:
        built = builder()
        built.snapshot(Position(2, 15))
        hold(nodes, built)
        follower = Follower(Checkpoint(), OPTIONS)
        assert rounds(nodes, follower) == []
        del built.entries[:14]
        built.commit(1, "z", 1)
        hold(nodes, built)
        again = restarted(follower, tmp_path)
        assert rounds(nodes, again, 2) == []
        assert entries(again) == 25

    async def test_entries_that_were_trimmed_unseen_are_no_secret(
        self, nodes: RedisNodes, tmp_path: Path
    ) -> None:
        follower = Follower(Checkpoint(), OPTIONS)
        assert rounds(nodes, follower) == []
        built = builder()
        for number in range(9):
            built.commit(1, "z", number)
        built.snapshot(built.end)
        del built.entries[:26]
        hold(nodes, built)
        with pytest.raises(CheckpointUnusable, match="trimmed before they were checked"):
            rounds(nodes, follower)
        with pytest.raises(CheckpointUnusable, match=r"up to 2-22 and now begins at 2-27.*unseen"):
            rounds(nodes, restarted(follower, tmp_path))

    async def test_the_checkpoint_of_another_cluster_is_refused(self, nodes: RedisNodes) -> None:
        with pytest.raises(CheckpointUnusable, match=f"of cluster another, the log of {CLUSTER}"):
            rounds(nodes, Follower(Checkpoint("another"), OPTIONS))

    async def test_more_violations_than_are_raised_are_counted(
        self, nodes: RedisNodes, tmp_path: Path
    ) -> None:
        built = builder()
        for _ in range(30):
            built.commit(1, "stranger", 1)
        hold(nodes, built)
        follower = Follower(Checkpoint(), OPTIONS)
        raised = rounds(nodes, follower, 3)
        assert [id_ for id_, _ in raised].count("O3") == OPTIONS.limit
        assert follower.checkpoint.broken["O3"] == 30
        again = restarted(follower, tmp_path)
        assert rounds(nodes, again, 3) == []
        assert again.checkpoint.broken["O3"] == 30


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: f"{damage.invariant}: {damage.name}")
def test_every_damage_is_raised(damage: Damage, tmp_path: Path) -> None:
    built = healthy(empty(0, 2))
    damage.make(built)
    mark(tmp_path, records_pb2.Genesis(cluster_id=CLUSTER, shard_count=built.shard_count))
    before = Beginning(built.entries[0].position, StoredSnapshot([], b""))  # where it is cut off
    ShardExport(tmp_path, 0).write([page_of(built.entries)], lambda: before)
    follower, raised = Follower(Checkpoint(), FollowOptions(page_entries=7)), set()
    for _ in range(200):
        raised |= {one.invariant for one in follower.round(ExportSource(tmp_path))}
        if not follower.more:
            break
    assert damage.invariant in raised


def test_only_the_latest_nonces_are_remembered() -> None:
    window = NonceWindow(10)
    words = [bytes([number]) * 16 for number in range(100)]
    assert all(window.add(word, Position(1, 1)) for word in words[:50])
    assert window.add_all(words[50:], Position(1, 51))
    assert not any(window.add(word, Position(1, 101)) for word in words[-10:])
    assert not window.add_all([words[99], b"new"], Position(1, 101))
    assert window.add(words[0], Position(1, 101))


@pytest.mark.parametrize("text", ["", "[]", '{"cluster_id": "c", "logs": {"0": {}}}', '{"logs": 5}'])
def test_what_is_no_checkpoint(text: str, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text(text)
    with pytest.raises(CheckpointUnusable, match="holds no checkpoint"):
        Checkpoint.load(tmp_path / "checkpoint")


async def test_a_kill_loses_and_repeats_nothing(nodes: RedisNodes, tmp_path: Path) -> None:
    built = builder()
    one = FollowProcess(nodes.url, tmp_path)
    one.has_checked(22)
    built.generation(7, "z")
    hold(nodes, built)
    one.has_checked(23)
    assert one.end(signal.SIGKILL) == (-signal.SIGKILL, [("G1", "2-23")])
    built.commit(7, "z", 1)
    built.commit(3, "z", 2)
    hold(nodes, built)
    two = FollowProcess(nodes.url, tmp_path)
    two.has_checked(25)
    text = two.metrics.read_text()
    assert two.end(signal.SIGTERM) == (1, [("O3", "2-25")])
    assert 'muster_audit_violations_total{invariant="G1"} 1.0\n' in text
    assert 'muster_audit_violations_total{invariant="L6"} 0.0\n' in text
    assert 'muster_audit_lag_entries{log="shard 0"} 0.0\n' in text
    assert "muster_audit_up 1.0\n" in text


async def test_one_checkpoint_has_one_follower(nodes: RedisNodes, tmp_path: Path) -> None:
    one = FollowProcess(nodes.url, tmp_path)
    one.has_checked(22)
    two = FollowProcess(nodes.url, tmp_path)
    _, said = two.process.communicate(timeout=PATIENCE_S)
    assert two.process.returncode == 2
    assert f"at.json is in use by process {one.process.pid}" in said
    assert one.end(signal.SIGTERM) == (0, [])
    one.metrics.unlink()
    three = FollowProcess(nodes.url, tmp_path)
    three.has_checked(22)
    assert three.end(signal.SIGTERM) == (0, [])


async def test_a_clean_log_ends_with_0_and_the_first_violation_with_1_if_asked_for(
    nodes: RedisNodes, tmp_path: Path
) -> None:
    process = FollowProcess(nodes.url, tmp_path, "--fail-fast")
    process.has_checked(22)
    assert process.end(signal.SIGTERM) == (0, [])
    built = builder()
    built.generation(7, "z")
    hold(nodes, built)
    again = FollowProcess(nodes.url, tmp_path, "--fail-fast")
    assert again.process.wait(PATIENCE_S) == 1
    assert again.end(signal.SIGTERM)[1] == [("G1", "2-23")]


async def test_a_log_that_cannot_be_read_for_a_while_is_tried_again(
    nodes: RedisNodes, tmp_path: Path
) -> None:
    stop, heard = threading.Event(), []
    metrics = tmp_path / "audit.prom"

    def hear(problem: str) -> None:
        heard.append(problem)

    options = FollowOptions(poll_seconds=0.1)
    told = Listener(lambda _: None, hear)
    arguments = (nodes.url, tmp_path / "at.json", options, told, stop, metrics)
    thread = threading.Thread(target=follow, args=arguments)
    thread.start()
    try:
        await until(metrics.is_file, "there are metrics")
        await nodes[0].kill()
        await until(lambda: "muster_audit_up 0.0\n" in metrics.read_text(), "up is 0")
        await nodes[0].start()
        await until(lambda: "muster_audit_up 1.0\n" in metrics.read_text(), "up is 1")
    finally:
        stop.set()
        thread.join()
    assert "no majority" in heard[0]
    assert heard[-1] == ""


def test_what_cannot_be_followed_is_said_in_a_sentence(tmp_path: Path) -> None:
    runner = CliRunner()
    place = ["--checkpoint", str(tmp_path / "at.json")]
    folder = runner.invoke(app, ["follow", str(tmp_path), *place])
    assert (folder.exit_code, "is no address of a log" in folder.stderr) == (2, True)
    nobody = runner.invoke(app, ["follow", "redis://127.0.0.1:1", *place])
    assert (nobody.exit_code, "no majority" in nobody.stderr) == (2, True)
