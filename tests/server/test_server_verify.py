"""The verifier reads real nodes, and sees what is wrong with them."""

import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
from kit.logs.damaged_logs import DAMAGES, fits_a_stream, rechain
from kit.logs.log_builder import LogBuilder, with_a_nonce_twice
from kit.logs.log_builder import healthy as healthy_log
from kit.logs.log_nodes import store as store_log
from muster_core.audit.log_audit import LogAudit
from muster_core.audit.node_log import NodeLog
from muster_core.audit.nonces import NonceSet
from muster_core.config import GroupConfig
from muster_core.log.page import Page
from muster_core.log.replay import Entry
from muster_core.log.snapshot import Covered, digest_of, part_hash, parts
from muster_core.position import GENESIS, NOWHERE, Position
from muster_core.shard import Shard
from muster_protos.muster.log.v1 import records_pb2
from muster_server.dev.redis_nodes import RedisNode, RedisNodes
from muster_server.initialise import initialise_log
from muster_server.verify import reader
from muster_server.verify.command import show
from muster_server.verify.command import verify as verify_command
from muster_server.verify.reader import LogUnreadableError, NodeReader
from muster_server.verify.stored_logs import StoredLogs, split_url
from muster_server.verify.verifier import verify
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

pytestmark = pytest.mark.cluster

SHARDS = 2
CLUSTER = "cluster-of-the-tests"
LOG, ACKNOWLEDGED, SNAPSHOT = "muster:{1}:log", "muster:{1}:acknowledged", "muster:{1}:snapshot"


def empty() -> LogBuilder:
    return LogBuilder(shard=1, shard_count=SHARDS, cluster_id=CLUSTER)


def healthy() -> LogBuilder:
    return healthy_log(empty())


def store(node: RedisNode, entries: list[Entry], acknowledged: Position) -> None:
    """Writes a log as the nodes hold it."""
    store_log(node, 1, SHARDS, entries, acknowledged)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[RedisNodes]:
    """Three initialised nodes with a healthy log of shard 1."""
    nodes = RedisNodes(tmp_path, 3, fsync="no")
    await nodes.start()
    await initialise_log(nodes.url, SHARDS, CLUSTER, features=())
    built = healthy()
    for node in nodes:
        store(node, built.entries, built.end)
    yield nodes
    await nodes.stop()


async def test_a_healthy_log_is_clean_and_nothing_is_written(nodes: RedisNodes) -> None:
    before = [redis.Redis(port=node.port).info("commandstats") for node in nodes]
    report = verify(nodes.url)
    assert report.clean, report.evidence
    assert (report.logs, report.groups) == (SHARDS + 1, 1)
    assert report.entries == len(healthy().entries) + SHARDS  # and the other logs' genesis
    after = [redis.Redis(port=node.port).info("commandstats") for node in nodes]
    writing = {"cmdstat_xadd", "cmdstat_set", "cmdstat_del", "cmdstat_hset"}
    for old, new in zip(before, after, strict=True):
        assert {k: v["calls"] for k, v in old.items() if k in writing} == {
            k: v["calls"] for k, v in new.items() if k in writing
        }


async def test_what_is_not_acknowledged_is_not_looked_at(nodes: RedisNodes) -> None:
    built = healthy()
    good = built.end
    built.generation(7, "z")
    store(nodes[0], built.entries, good)
    assert verify(nodes.url).clean


async def test_pages_of_large_entries_have_few_of_them(
    nodes: RedisNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of entries of some megabytes would take the memory of who reads them, and of a node."""
    monkeypatch.setattr(reader, "_PAGE_BYTES", 10_000)
    built = empty()
    built.genesis()
    built.claim()
    for seq in range(300):
        built.commit(1, "z", seq, metadata="m" * (1_000 if seq < 200 else 1))
    store(nodes[0], built.entries, built.end)
    with StoredLogs(nodes.url) as logs:
        pages = list(logs.pages(1, logs.nodes[0], built.end))
    assert [entry for page in pages for entry in page.entries()] == built.entries
    large = [page for page in pages if max(map(len, page.records)) > 1_000]
    assert max(map(len, large)) <= 16
    assert max(map(len, pages)) > 20


async def test_a_repeated_nonce_is_found_with_its_place_and_a_right_log_needs_no_list_of_nonces(
    nodes: RedisNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AUD-17."""
    built = empty()
    repeated = with_a_nonce_twice(built)
    repeated.commit(-1, "")
    for node in nodes:
        store(node, repeated.entries, repeated.end)
    found = [(one.log, one.violation.invariant, one.violation.position) for one in verify(nodes.url).evidence]
    assert found == [("shard 1", "L7", built.end)]
    for node in nodes:
        store(node, built.entries, built.end)
    monkeypatch.delattr(NonceSet, "add")
    monkeypatch.delattr(NonceSet, "add_all")
    report = verify(nodes.url)
    assert report.clean, report.evidence
    assert report.checked["L7"] == report.entries == 902 + SHARDS


async def test_an_entry_that_differs_on_one_node(nodes: RedisNodes) -> None:
    built = healthy()
    entry = built.entries[4]
    built.change(4, record=entry.record + b"\x08\x01")
    store(nodes[1], built.entries, built.end)
    report = verify(nodes.url)
    assert report.broken["L6n"] == 1
    assert report.evidence[0].violation.position == entry.position
    assert verify(nodes.url, all_nodes=False).clean


async def test_a_hole_in_one_node(nodes: RedisNodes) -> None:
    place = healthy().entries[3].position
    for node in (nodes[0], nodes[2]):
        with redis.Redis(port=node.port) as connection:
            connection.xdel(LOG, place.stream_id)
        report = verify(nodes.url)
        assert report.broken["L6n"] == 1
        assert any("lack it and have earlier and later ones" in e.violation.detail for e in report.evidence)


async def test_a_key_of_another_kind_is_damage_and_no_crash(nodes: RedisNodes) -> None:
    with redis.Redis(port=nodes[2].port) as connection:
        connection.set(LOG, "hello")
        connection.set(ACKNOWLEDGED, "garbage")
    report = verify(nodes.url)
    told = [e.violation.detail for e in report.evidence]
    assert report.broken["L6n"] == 2, report.evidence
    assert any(f"{LOG} on node 3: WRONGTYPE" in text for text in told)
    assert f"{ACKNOWLEDGED} on node 3: it holds no position" in told


async def test_a_node_that_refuses_to_answer_is_not_accused(
    nodes: RedisNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs a script, for one: that says nothing about what is stored there."""
    for node in nodes:
        change(node, "CONFIG", "SET", "busy-reply-threshold", "1")
    hindered: list[threading.Thread] = []
    seen = NodeReader.seen

    def see(self: NodeReader, *arguments: Any) -> NodeLog:
        if not hindered:
            hindered.append(threading.Thread(target=run_for_ever, args=(nodes[0],)))
            hindered[0].start()
            with redis.Redis(port=nodes[0].port) as connection:
                while not refuses(connection):
                    pass
        return seen(self, *arguments)

    monkeypatch.setattr(NodeReader, "seen", see)
    try:
        report = verify(nodes.url)
    finally:
        change(nodes[0], "SCRIPT", "KILL")
        hindered[0].join()
    assert report.clean, report.evidence
    assert list(report.problems) == [1]
    assert "BUSY" in report.problems[1]


def run_for_ever(node: RedisNode) -> None:
    with pytest.raises(redis.ResponseError):
        change(node, "EVAL", "while true do end", "0")


def refuses(connection: redis.Redis) -> bool:
    try:
        connection.ping()
    except redis.ResponseError:
        return True
    return False


@pytest.mark.parametrize("run", ["an earlier one", "an earlier one/always", ""])
async def test_a_node_that_restarted_may_have_forgotten_what_it_promised(nodes: RedisNodes, run: str) -> None:
    """Its promise is lowered before its log is cut, while it does not vote."""
    end = healthy().end
    change(nodes[0], "HSET", "muster:{1}:promise", "epoch", str(end.epoch - 1), "nonce", "n", "run", run)
    report = verify(nodes.url)
    doubted = run == "an earlier one"
    assert report.clean == doubted, report.evidence
    assert ("shard 1: node 1 restarted: it does not vote before it is repaired" in report.notes) == doubted
    assert set(report.broken) == (set() if doubted else {"L11"})


async def test_an_acknowledged_entry_that_only_a_minority_has(nodes: RedisNodes) -> None:
    built = healthy()
    for node in (nodes[0], nodes[1]):
        store(node, built.entries[:-2], built.end)
    report = verify(nodes.url)
    assert report.broken["L5"] == 2


def after_the_next_claim(nodes: RedisNodes) -> tuple[LogBuilder, LogBuilder]:
    """Node 1 has an end that reached nobody else before the next epoch: it, and the log of the others."""
    alone, others = healthy(), healthy()
    for seq in range(2):
        alone.commit(1, "z", seq)
    others.claim("coordinator-9")
    for seq in range(3):
        others.commit(1, "z", seq)
    return alone, others


async def test_an_end_that_was_never_acknowledged_is_to_be_repaired(nodes: RedisNodes) -> None:
    """For as long as it stands there: where the services are stopped nobody cuts it."""
    alone, others = after_the_next_claim(nodes)
    end = healthy().end
    store(nodes[0], alone.entries, end)
    for node in (nodes[1], nodes[2]):
        store(node, others.entries, others.end)
    report = verify(nodes.url)
    assert not {"L5", "L6n"} & set(report.broken), report.evidence
    first = Position(end.epoch, end.offset + 1).stream_id
    assert report.to_repair == [f"shard 1: node 1 has an end from {first} on that was never acknowledged"]


async def test_after_the_acknowledged_position_two_ends_are_of_two_claims(nodes: RedisNodes) -> None:
    """AUD-23: an owner writes each place once, so what differs there was written by somebody else."""
    right, other, acknowledged = healthy(), healthy(), healthy().end
    for seq in range(2):
        right.commit(1, "z", seq)
        other.commit(1, "z", 5 + seq)
    for node in nodes:
        store(node, other.entries if node in nodes[:2] else right.entries, acknowledged)
    report = verify(nodes.url)
    first = Position(acknowledged.epoch, acknowledged.offset + 1)
    told = {(e.violation.invariant, e.violation.position): e.violation.detail for e in report.evidence}
    assert set(report.broken) == {"L6n"}, report.evidence
    assert told["L6n", first].startswith("nodes [1, 2] and nodes [3] hold different entries of one claim")
    assert report.checked["L6n"] == healthy().end.offset + 2 + SHARDS
    store(nodes[2], right.entries[:-2], acknowledged)
    assert verify(nodes.url).clean


async def test_two_claimants_of_one_epoch_may_have_left_their_ends(nodes: RedisNodes) -> None:
    """AUD-15: nodes that forgot their promises gave them to both (LOG-53); a nonce tells the claims apart."""
    for index, node in enumerate(nodes):
        built = healthy()
        built.claim(f"coordinator-{index}")
        built.change(-1, nonce=bytes([index]) * 16)
        rechain(built, len(built.entries) - 1)
        built.commit(1, "z", index)
        store(node, built.entries, healthy().end)
    report = verify(nodes.url)
    assert report.clean, report.evidence
    assert report.unacknowledged == 2


async def test_a_node_that_lacks_the_acknowledged_entry_has_no_later_ones_of_its_claim(
    nodes: RedisNodes,
) -> None:
    """AUD-23; a claimant that died may have left its Claim on a node that lacks more than that (LOG-26)."""
    built, behind, acknowledged = healthy(), healthy(), healthy().end
    for seq in range(2):
        built.commit(1, "z", seq)
    del behind.entries[-2:]
    behind.claim("coordinator-9")
    store(nodes[1], behind.entries, acknowledged)
    for node in (nodes[0], nodes[2]):
        store(node, built.entries, acknowledged)
    assert verify(nodes.url).clean
    with redis.Redis(port=nodes[2].port) as connection:
        connection.xdel(LOG, acknowledged.stream_id)
    store(nodes[1], built.entries, acknowledged)
    [found] = verify(nodes.url).evidence
    assert (found.violation.invariant, found.violation.position) == ("L6n", acknowledged)
    assert found.violation.detail == "node 3 lacks it and has earlier and later ones"


@pytest.mark.parametrize("knows", [1, 2])
async def test_an_acknowledged_end_that_a_later_epoch_lacks_is_a_violation(
    nodes: RedisNodes, knows: int
) -> None:
    """Node 1 knows that it was acknowledged; or a majority has it."""
    alone, others = after_the_next_claim(nodes)
    for node in nodes[:knows]:
        store(node, alone.entries, alone.end if knows == 1 else healthy().end)
    for node in nodes[knows:]:
        store(node, others.entries, others.end)
    report = verify(nodes.url)
    assert report.broken["L6n"]
    assert not report.to_repair


async def test_a_node_that_is_away_may_have_what_another_one_lacks(nodes: RedisNodes) -> None:
    """An entry is acknowledged by two, one of which goes away, and the third is behind for a moment."""
    built = healthy()
    store(nodes[0], built.entries[:-2], built.end)
    await nodes[2].stop()
    assert verify(nodes.url).clean
    store(nodes[1], built.entries[:-1], built.end)
    assert verify(nodes.url).broken["L5"] == 1


async def test_an_acknowledged_entry_that_nobody_has(nodes: RedisNodes) -> None:
    built = healthy()
    for node in nodes:
        store(node, built.entries[:-1], built.end)
    assert "no node has that entry" in verify(nodes.url, all_nodes=False).evidence[0].violation.detail


async def test_a_missing_entry_in_the_middle_is_shown_with_its_surroundings(nodes: RedisNodes) -> None:
    built = healthy()
    del built.entries[5]
    for node in nodes:
        store(node, built.entries, built.end)
    report = verify(nodes.url)
    assert report.broken["L1"] == 1
    evidence = next(one for one in report.evidence if one.violation.invariant == "L1")
    assert evidence.log == "shard 1"
    assert [line.split()[0] for line in evidence.around].count(">") == 1
    assert len(evidence.around) == 5


async def test_what_is_wrong_with_a_log_as_a_whole_is_shown_with_its_beginning(nodes: RedisNodes) -> None:
    node = NodeReader(1, split_url(nodes.url)[0])
    around = node.around(1, SHARDS, NOWHERE, 2)
    node.close()
    assert [entry.position.offset for entry in around] == [1, 2, 3]


async def test_a_log_that_contradicts_itself_cannot_be_replayed(nodes: RedisNodes) -> None:
    built = empty()
    built.genesis()
    built.claim()
    built.assignment(4, a=[0])
    for node in nodes:
        store(node, built.entries, built.end)
    assert verify(nodes.url).broken["G12"] == 1


async def test_limits_that_an_operator_raised_accuse_nobody(nodes: RedisNodes) -> None:
    built = healthy()
    built.generation(2, *(f"m{number}" for number in range(5_001)))
    built.commit(2, "m1", 1, metadata="x" * 10_000)
    for node in nodes:
        store(node, built.entries, built.end)
    assert verify(nodes.url).broken == {"G11": 1}
    assert verify(nodes.url, limits=GroupConfig(max_size=6_000)).clean
    app = Typer()
    app.command()(verify_command)
    assert CliRunner().invoke(app, [nodes.url, "--max-group-size", "6000"]).exit_code == 0


async def test_every_damage_is_found_out(nodes: RedisNodes) -> None:
    missed = []
    for damage in DAMAGES:
        built = healthy()
        damage.make(built)
        if not fits_a_stream(built):
            continue
        for node in nodes:
            store(node, built.entries, built.entries[-1].position)
        if damage.invariant not in verify(nodes.url).broken:
            missed.append(damage.name)
    assert not missed


async def test_a_node_is_asked_for_much_at_a_time(nodes: RedisNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """From far away what counts is how often it is asked: a tenth of a second each time, in each log."""
    asked: Counter[int] = Counter()
    send: Any = redis.connection.AbstractConnection.send_packed_command

    def count(self: Any, *arguments: Any, **options: Any) -> None:
        asked[self.port] += 1
        send(self, *arguments, **options)

    monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", count)
    assert verify(nodes.url).clean
    assert max(asked.values()) <= 12 * (SHARDS + 1)


async def test_a_dead_minority_is_named_and_a_dead_majority_is_no_answer(nodes: RedisNodes) -> None:
    await nodes[2].kill()
    report = verify(nodes.url)
    assert report.clean
    assert list(report.problems) == [3]
    await nodes[1].kill()
    with pytest.raises(LogUnreadableError, match="1 of 3 nodes answer, no majority"):
        verify(nodes.url)


async def test_a_node_that_is_lost_during_the_read_is_named_and_the_others_are_read(
    nodes: RedisNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = StoredLogs.check_nodes

    def lose(self: StoredLogs, audit: LogAudit, *rest: Any) -> None:
        if audit.checker.shard == 1 and nodes[1].answers():
            redis.Redis(port=nodes[1].port).shutdown(nosave=True, now=True, force=True)
        said(self, audit, *rest)

    monkeypatch.setattr(StoredLogs, "check_nodes", lose)
    report = verify(nodes.url)
    assert (report.clean, report.logs, report.entries) == (True, 3, 1 + 22 + 1)
    assert list(report.problems) == [2]
    told = StringIO()
    show(report, Console(file=told, width=200))
    assert "2 of 3 nodes: clean" in told.getvalue()


async def test_a_node_that_is_wiped_during_the_read_accuses_nobody(
    nodes: RedisNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    wiped: list[int] = []
    pages = NodeReader.pages

    def wipe(self: NodeReader, shard: int, *rest: Any) -> Iterator[Page]:
        if shard == 1 and not wiped:
            wiped.append(self.index)
            change(nodes[self.index - 1], "FLUSHALL")
        return pages(self, shard, *rest)

    monkeypatch.setattr(NodeReader, "pages", wipe)
    report = verify(nodes.url)
    assert report.clean, report.evidence
    assert f"shard 1: node {wiped[0]} has no entries: it is to be rebuilt" in report.notes


async def test_a_log_that_was_emptied_on_all_nodes_is_lost(nodes: RedisNodes) -> None:
    for node in nodes:
        change(node, "XTRIM", "muster:{1}:log", "MAXLEN", "0")
    report = verify(nodes.url)
    assert {one.log for one in report.evidence} == {"shard 1"}
    assert report.broken["L5"]


async def test_an_empty_server_has_no_log(tmp_path: Path) -> None:
    node = RedisNode(tmp_path / "redis-1")
    await node.start()
    with pytest.raises(LogUnreadableError, match="never initialised"):
        verify(node.url)
    await node.stop()


def trimmed(nodes: RedisNodes) -> Position:
    """Stores a log that begins where its snapshot reaches, and the snapshot; gives what it covers."""
    built = healthy()
    covered = built.entries[-3]
    state = Shard(1, GroupConfig())
    for entry in built.entries[:-2]:
        state.replay(entry.position, records_pb2.Record.FromString(entry.record))
    (part,) = parts(state.groups.values(), Covered(1, covered.position, covered.hash))
    hashes = part_hash(part)
    marker = records_pb2.Snapshot(
        upto=covered.position.to_proto(), hash=covered.hash, parts=1, digest=digest_of([hashes]), groups=1
    )
    built.add(records_pb2.Record(snapshot=marker))
    for node in nodes:
        store(node, built.entries[-4:], built.end)
        with redis.Redis(port=node.port) as connection:
            place = covered.position.stream_id
            connection.hset(f"{SNAPSHOT}:{place}", mapping={"0": part, "hashes": hashes})
            connection.hset(f"{SNAPSHOT}s", place, built.end.stream_id)
    return covered.position


async def test_a_trimmed_log_is_read_from_where_its_snapshot_reaches(nodes: RedisNodes) -> None:
    trimmed(nodes)
    report = verify(nodes.url)
    assert report.clean, report.evidence
    assert report.checked["L8"] == SHARDS + 1
    assert report.checked["L9"] >= 3


async def test_a_snapshot_that_one_node_has_otherwise_is_told(nodes: RedisNodes) -> None:
    covered = trimmed(nodes)
    with redis.Redis(port=nodes[1].port) as connection:
        connection.hset(f"{SNAPSHOT}:{covered.stream_id}", "0", b"other bytes")
    report = verify(nodes.url)
    bytes_, beginning = [one.violation.detail for one in report.evidence if one.violation.invariant == "L9"]
    assert "node 2 holds other bytes" in bytes_
    assert covered.stream_id in bytes_
    assert "on node 2, which has no right snapshot" in beginning


async def test_a_snapshot_that_is_replaced_while_the_log_is_read_is_not_accused(nodes: RedisNodes) -> None:
    covered = trimmed(nodes)
    with StoredLogs(nodes.url) as reader:
        audit = LogAudit(1, cluster=reader.genesis, snapshots=reader.snapshots(1))
        logs, copies = reader.node_logs(1), reader.copies(1)
        for node in nodes:
            with redis.Redis(port=node.port) as connection:
                connection.delete(f"{SNAPSHOT}:{covered.stream_id}", f"{SNAPSHOT}s")
        for page in reader.pages(1, reader.best(1), reader.acknowledged(1)):
            audit.add_page(page)
        audit.check_nodes(logs, copies)
        findings = audit.finish(reader.acknowledged(1))
    assert not findings.violations


async def test_a_snapshot_that_comes_while_the_log_is_read_reaches_as_far_as_the_one_before(
    nodes: RedisNodes,
) -> None:
    """Two were taken since: the one that reached where the log began is gone, and no marker was read."""
    covered = trimmed(nodes)
    with StoredLogs(nodes.url) as reader:
        audit = LogAudit(1, cluster=reader.genesis, snapshots=reader.snapshots(1))
        logs, acknowledged = reader.node_logs(1), reader.acknowledged(1)
        for page in reader.pages(1, reader.best(1), acknowledged):
            audit.add_page(page)
        for node in nodes:
            with redis.Redis(port=node.port) as connection:
                connection.delete(f"{SNAPSHOT}:{covered.stream_id}", f"{SNAPSHOT}s")
                for later in (1, 3):
                    upto, marker = acknowledged.after(later), acknowledged.after(later + 1)
                    connection.hset(f"{SNAPSHOT}:{upto.stream_id}", mapping={"0": b"part", "hashes": b"hash"})
                    connection.hset(f"{SNAPSHOT}s", upto.stream_id, marker.stream_id)
        audit.check_nodes(logs, reader.copies(1))
        findings = audit.finish(acknowledged)
    assert not findings.violations
    assert set(audit.snapshots.reach.values()) == {acknowledged.after(3)}


async def test_a_listed_snapshot_that_lost_its_parts_is_told(nodes: RedisNodes) -> None:
    covered = trimmed(nodes)
    for node in nodes:
        with redis.Redis(port=node.port) as connection:
            connection.delete(f"{SNAPSHOT}:{covered.stream_id}")
    report = verify(nodes.url)
    assert report.broken["L9"] == 2 * len(nodes.url.split(","))  # the parts, and the beginning of the log
    assert report.broken["G12"] == 1


async def test_a_trimmed_log_without_its_snapshot_is_told(nodes: RedisNodes) -> None:
    covered = trimmed(nodes)
    for node in nodes:
        with redis.Redis(port=node.port) as connection:
            connection.delete(f"{SNAPSHOT}:{covered.stream_id}", f"{SNAPSHOT}s")
    report = verify(nodes.url)
    assert report.broken["L9"]
    assert any("which has no right snapshot" in one.violation.detail for one in report.evidence)


def change(node: RedisNode, *command: str | bytes) -> None:
    with redis.Redis(port=node.port) as connection:
        connection.execute_command(*command)


async def test_a_wiped_node_is_named(nodes: RedisNodes) -> None:
    change(nodes[1], "FLUSHALL")
    report = verify(nodes.url)
    assert report.clean
    assert "shard 1: node 2 has no entries: it is to be rebuilt" in report.notes


async def test_a_node_of_another_cluster_is_named_and_no_log_is_accused(nodes: RedisNodes) -> None:
    change(nodes[0], "HSET", "muster:node", "identity", f"another/{SHARDS}/1 of 3/1")
    report = verify(nodes.url)
    (evidence,) = report.evidence
    assert (evidence.log, evidence.violation.invariant) == ("catalog", "L8")
    assert evidence.violation.detail.startswith("node 1: it says that it is 'another/2/1 of 3/1'")


async def test_a_node_that_forgot_its_cluster_is_mentioned_and_a_majority_of_them_is_a_fault(
    nodes: RedisNodes,
) -> None:
    change(nodes[0], "DEL", "muster:node")
    report = verify(nodes.url)
    assert report.clean
    assert "catalog: node 1 does not say of which cluster it is: it takes no part" in report.notes
    change(nodes[2], "DEL", "muster:node")
    (evidence,) = verify(nodes.url).evidence
    assert evidence.violation.invariant == "L8"
    assert "nodes (1, 3), a majority" in evidence.violation.detail


async def test_a_configuration_that_nobody_decided(nodes: RedisNodes) -> None:
    change(nodes[2], "HSET", "muster:node", "identity", f"{CLUSTER}/{SHARDS}/3 of 3/7")
    (evidence,) = verify(nodes.url).evidence
    assert evidence.violation.invariant == "C3"
    assert "node 3 is in configuration 7; 1 is the last" in evidence.violation.detail


async def test_the_address_names_each_node_of_the_cluster_once(nodes: RedisNodes) -> None:
    one, two, three = (node.url.removeprefix("redis://") for node in nodes)
    for places, problem in (
        ((one, one.replace("127.0.0.1", "localhost"), three), "nodes 1 and 2 of the address are one server"),
        ((two, one, three), "too few nodes of the cluster, in the order of their numbers"),
        ((one,), "the cluster has 3 nodes and the address names 1"),
    ):
        with pytest.raises(LogUnreadableError, match=problem):
            verify("redis://" + ",".join(places))


DAMAGED_KEYS = (
    ("SET", "muster:{catalog}:log", "hello"),
    ("SET", "muster:node", "hello"),
    ("SET", "muster:owners", "hello"),
    ("HSET", "muster:owners", "1", "{}"),
    ("SET", "muster:{1}:snapshots", "hello"),
    ("HSET", "muster:{1}:snapshots", "no place", "2-3"),
    ("HSET", "muster:{1}:snapshots", "2-3", "no place"),
    ("SET", "muster:{1}:promise", "hello"),
    ("HSET", "muster:{1}:promise", "epoch", "hello"),
    ("SET", "muster:{1}:exported", "hello"),
    ("SADD", "muster:{1}:acknowledged", "hello"),
    ("HSET", "muster:node", "identity", f"{CLUSTER}/99999/2 of 3/1"),
    ("HSET", "muster:node", "identity", b"\xff\xfe"),
    ("XADD", "muster:{1}:log", "9-9", "x", "y"),
    ("XADD", "muster:{catalog}:log", "9-9", "r", b"\xff", "n", "", "h", ""),
)


@pytest.mark.parametrize("command", [one for one in DAMAGED_KEYS if one[1] == "muster:owners"])
async def test_what_belongs_to_no_log_is_seen_by_whoever_looks_at_the_catalog_alone(
    nodes: RedisNodes, command: tuple[str, ...]
) -> None:
    """The audit with Spark looks at each log in a process of its own."""
    if command[0] == "SET":
        change(nodes[1], "DEL", command[1])
    change(nodes[1], *command)
    with StoredLogs(nodes.url) as logs:
        logs.node_logs(SHARDS)
        assert [text.partition(":owners on ")[2][:6] for text in logs.damage(SHARDS)] == ["node 2"]


@pytest.mark.parametrize("command", DAMAGED_KEYS, ids=lambda command: " ".join(map(repr, command)))
async def test_a_damaged_key_of_one_node_is_told_and_no_crash(
    nodes: RedisNodes, command: tuple[str | bytes, ...]
) -> None:
    if command[0] in ("SET", "SADD"):
        change(nodes[1], "DEL", command[1])
    change(nodes[1], *command)
    report = verify(nodes.url)
    assert any("node 2" in one.violation.detail for one in report.evidence), report.evidence


@pytest.mark.parametrize(
    ("url", "split"),
    [
        ("redis://a:1,b:2,c:3", ["redis://a:1", "redis://b:2", "redis://c:3"]),
        ("rediss://u:p@a:1/3", ["rediss://u:p@a:1/3"]),
    ],
)
def test_urls(url: str, split: list[str]) -> None:
    assert split_url(url) == split


class TestCommand:
    runner = CliRunner()

    @property
    def app(self) -> Typer:
        app = Typer(pretty_exceptions_enable=False)
        app.command()(verify_command)
        return app

    async def test_exit_codes_and_json(self, nodes: RedisNodes) -> None:
        clean = self.runner.invoke(self.app, [nodes.url, "--output", "json"])
        assert clean.exit_code == 0
        assert json.loads(clean.stdout)["clean"] is True
        built = healthy()
        built.generation(7, "z")
        for node in nodes:
            store(node, built.entries, built.end)
        broken = self.runner.invoke(self.app, [nodes.url])
        assert broken.exit_code == 1
        assert "G1 is broken in shard 1" in broken.stdout
        told = json.loads(self.runner.invoke(self.app, [nodes.url, "-o", "json"]).stdout)
        assert told["violations"][0]["position"] == built.end.stream_id

    def test_clear_errors(self, tmp_path: Path) -> None:
        broken = tmp_path / "broken"
        broken.mkdir()
        (broken / "cluster.json").write_text('["redis://u:secret@a:1"]')
        for arguments, message in (
            (["nonsense"], "must begin with redis:// or rediss://"),
            (["redis://u:se#cret@a:1"], "percent-encoded"),
            (["redis://127.0.0.1:1"], "0 of 1 nodes answer"),
            (["--data", str(tmp_path)], "no cluster was started"),
            (["redis://x", "--nodes", "two"], "use all or one"),
            (["--data", str(broken)], "cluster.json does not describe a cluster"),
            (["--data", str(broken / "cluster.json")], "does not describe a cluster"),
        ):
            result = self.runner.invoke(self.app, arguments)
            assert result.exit_code == 2
            assert message in result.stderr
            assert "secret" not in result.stderr


def test_genesis_is_where_init_puts_it() -> None:
    assert GENESIS.stream_id == "0-1"
