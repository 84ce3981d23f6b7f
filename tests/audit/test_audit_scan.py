"""What runs inside the tasks, without Spark."""

import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import redis
from kit.logs.log_builder import LogBuilder, healthy, page_of
from kit.logs.log_nodes import empty, nodes_with, store
from muster_coordinator.log.log_client import Nonces
from muster_core.audit.nonces import Late, Repeat
from muster_core.position import Position
from muster_protos.muster.log.v1 import records_pb2
from muster_server.dev.redis_nodes import RedisNodes

pytest.importorskip("pyarrow", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

from kit.logs.lake_folders import export
from muster_audit.promises import Rules
from muster_audit.reading.facts import (
    Broken,
    Fact,
    GroupSeen,
    LogRead,
    Looked,
    Owned,
    Rebalances,
    Segment,
    Unread,
)
from muster_audit.reading.nonce_files import BYTES_EACH, NonceFiles
from muster_audit.reading.scan import Digests, ScanOptions, audit_log, digest_log
from muster_audit.reading.sources import NodesSource, open_source
from muster_audit.spark.plan import Piece, pieces_of, spread, task_count
from muster_server.verify.reader import LogUnreadableError

pytestmark = pytest.mark.spark


def first(number: int) -> Position:
    return Position(1, number)


class TestNonceFiles:
    def test_repeats_are_told_whether_or_not_files_were_needed(self) -> None:
        nonces = [secrets.token_bytes(16) for _ in range(1_000)]
        nonces[900] = nonces[3]
        nonces[901] = nonces[900]
        for limit_bytes, spilled in ((1 << 20, False), (BYTES_EACH * 100, True)):
            with NonceFiles(limit_bytes) as files:
                for number, nonce in enumerate(nonces, 1):
                    files.add(nonce, first(number))
                assert files.late(20) == Late(
                    2, [Repeat(first(901), nonces[3]), Repeat(first(902), nonces[3])]
                )
                assert bool(files._files) is spilled

    def test_pages_across_fillings(self) -> None:
        pages = [[secrets.token_bytes(16) for _ in range(50)] for _ in range(20)]
        pages[15][7] = pages[2][9]
        with NonceFiles(BYTES_EACH * 120) as files:
            for number, page in enumerate(pages):
                files.add_all(page, first(50 * number + 1))
            assert files._files
            assert files.late(20) == Late(1, [Repeat(first(758), pages[2][9])])

    def test_places_are_right_across_gaps_and_epochs(self) -> None:
        repeated, other = b"r" * 16, iter(secrets.token_bytes(16) for _ in range(10))
        for limit_bytes in (1 << 20, BYTES_EACH):
            with NonceFiles(limit_bytes) as files:
                files.add_all([repeated, next(other)], Position(1, 1))
                files.add_all([next(other), repeated], Position(1, 5))
                files.add(repeated, Position(2, 7))
                places = [repeat.position for repeat in files.late(20).first]
            assert places == [Position(1, 6), Position(2, 7)]

    def test_the_nonces_of_a_coordinator_differ(self) -> None:
        ours, others = Nonces(), Nonces()  # the halves of each stand in others, too
        for limit_bytes in (1 << 20, BYTES_EACH * 100):
            with NonceFiles(limit_bytes) as files:
                for number in range(10):
                    files.add_all([ours.next() for _ in range(50)], Position(1, 100 * number + 1))
                    files.add_all([others.next() for _ in range(50)], Position(2, 100 * number + 51))
                assert files.late(20) == Late(0, [])

    def test_the_first_of_many_repeats_are_told_and_all_are_counted(self) -> None:
        for limit_bytes in (1 << 20, BYTES_EACH * 100):
            with NonceFiles(limit_bytes) as files:
                for number in range(200):
                    files.add_all([b"%016d" % (number % 70), b"%016d" % (number % 90)], first(2 * number + 1))
                total, told = files.late(3)
            assert total == 400 - 90
            assert [repeat.position for repeat in told] == [first(2), first(4), first(6)]

    def test_one_nonce_again_and_again_takes_no_more_of_a_file_than_others(self) -> None:
        with NonceFiles(BYTES_EACH * 100) as files:
            for number in range(2_000):
                files.add(b"a" * 16, first(number + 1))
            assert files.late(1) == Late(1_999, [Repeat(first(2), b"a" * 16)])
            sizes = [os.fstat(file.fileno()).st_size for file in files._files[:-1]]
            assert max(sizes) < 32 * 2_000 / 50

    def test_the_files_go(self) -> None:
        with NonceFiles(BYTES_EACH) as files:
            files.add(b"a" * 16, first(1))
            folder = files._folder
            assert folder is not None
            assert Path(folder.name).is_dir()
        assert not Path(folder.name).exists()


class TestSpread:
    def test_tasks_have_about_the_same_to_do(self) -> None:
        pieces = [Piece(shard, 0, 1_000 * (shard + 1)) for shard in range(20)]
        tasks = spread(pieces, 4)
        loads = [sum(piece.entries for piece in task) for task in tasks]
        assert sorted(piece.shard for task in tasks for piece in task) == list(range(20))
        assert max(loads) - min(loads) <= 4_000

    def test_never_more_tasks_than_pieces(self) -> None:
        assert spread([Piece(0, 0, 5)], 8) == [(Piece(0, 0, 5),)]
        assert spread([], 8) == []

    @pytest.mark.parametrize(
        ("entries", "tasks"), [(0, 2), (1_999_999, 2), (2_000_000, 4), (8_000_000, 16), (1 << 40, 16)]
    )
    def test_a_core_has_one_task_and_more_where_all_are_long(self, entries: int, tasks: int) -> None:
        assert task_count(entries, cores=2) == tasks


def digests(built: LogBuilder, size: int) -> list[Segment]:
    made = Digests(0, 1)
    for start in range(0, len(built.entries), size):
        made.add(page_of(built.entries[start : start + size]))
    return list(made.segments())


def long_log(entries: int) -> LogBuilder:
    built = empty(0, 1)
    built.genesis()
    built.claim()
    for _ in range(entries):
        built.commit(-1, "")
    return built


class TestDigests:
    def test_how_pages_are_cut_makes_no_difference(self) -> None:
        built = long_log(5_000)
        whole = digests(built, 10_000)
        assert [(one.number, one.entries) for one in whole] == [(0, 4_095), (1, 907)]
        assert digests(built, 7) == digests(built, 1_000) == whole

    @pytest.mark.parametrize(
        "change",
        [{"record": b"x"}, {"nonce": b"x" * 16}, {"hash": b"x" * 32}, {"position": Position(7, 11)}],
        ids=str,
    )
    def test_every_part_of_an_entry_counts(self, change: dict[str, Any]) -> None:
        built = long_log(20)
        before = digests(built, 100)
        built.change(10, **change)
        assert digests(built, 100) != before


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[RedisNodes]:
    logs = {0: healthy(empty(0, 2)), 1: healthy(empty(1, 2))}
    logs[1].generation(7, "z")
    async with nodes_with(tmp_path, logs, count=3) as nodes:
        yield nodes


@pytest.mark.cluster
async def test_a_pass_over_a_log_tells_everything(nodes: RedisNodes) -> None:
    with NodesSource(nodes.url) as source:
        facts = list(audit_log(source, 1, ScanOptions(span_ms=1_000, compare=True)))
    (read,) = [fact for fact in facts if isinstance(fact, LogRead)]
    assert (read.name, read.entries, read.last_offset, read.groups) == ("shard 1", 23, 23, 1)
    broken = [fact for fact in facts if isinstance(fact, Broken)]
    assert [(one.invariant, one.offset) for one in broken] == [("G1", 23)]
    assert [line[0] for line in broken[0].around] == [" ", " ", ">"]
    assert Counter({f.id: f.broken for f in facts if isinstance(f, Looked) and f.broken}) == {"G1": 1}
    assert [(one.owner, one.planned) for one in facts if isinstance(one, Owned)] == [
        ("coordinator-1", False),
        ("coordinator-2", True),
    ]
    rebalances = [fact for fact in facts if isinstance(fact, Rebalances)]
    assert sum(one.generations for one in rebalances) == 5
    (group,) = [fact for fact in facts if isinstance(fact, GroupSeen)]
    assert (group.state, group.generation, group.rebalances) == ("completing rebalance", 7, 5)
    assert len([fact for fact in facts if isinstance(fact, Segment)]) == 1


@pytest.mark.cluster
async def test_a_user_who_may_only_read_will_do(nodes: RedisNodes) -> None:
    for node in nodes:
        with redis.Redis(port=node.port) as connection:
            rights = ["resetkeys", "~muster:*", "-@all", "+@read", "+@connection"]
            connection.execute_command("ACL", "SETUSER", "auditor", "on", ">secret", *rights)
    with NodesSource(nodes.url.replace("redis://", "redis://auditor:secret@")) as source:
        broken = {
            shard: [
                fact.invariant for fact in audit_log(source, shard, ScanOptions()) if isinstance(fact, Broken)
            ]
            for shard in source.logs()
        }
    assert broken == {0: [], 1: ["G1"], 2: []}


def test_a_repeated_nonce_is_found_with_its_place_and_a_right_log_needs_no_list_of_nonces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AUD-17."""
    right, repeated = long_log(2_000), long_log(2_000)
    export(tmp_path / "right", right)
    repeated.entries.pop()
    repeated.add(records_pb2.Record.FromString(right.entries[-1].record), nonce=1_500)
    for _ in range(10):
        repeated.commit(-1, "")
    export(tmp_path / "repeated", repeated)
    broken = [
        fact
        for fact in audit_log(open_source(str(tmp_path / "repeated")), 0, ScanOptions())
        if isinstance(fact, Broken)
    ]
    assert [(one.invariant, one.offset) for one in broken] == [("L7", 2_002)]
    monkeypatch.delattr(NonceFiles, "_take")
    facts = list(audit_log(open_source(str(tmp_path / "right")), 0, ScanOptions()))
    assert [fact.entries for fact in facts if isinstance(fact, LogRead)] == [2_002]
    assert not [fact for fact in facts if isinstance(fact, Broken)]


@pytest.mark.cluster
async def test_the_rules_of_the_log_alone_say_nothing_of_groups(nodes: RedisNodes) -> None:
    with NodesSource(nodes.url) as source:
        facts = list(audit_log(source, 1, ScanOptions(rules=Rules.LOG)))
    assert not [fact for fact in facts if isinstance(fact, Broken | GroupSeen)]
    looked = {fact.id: fact.looked_at for fact in facts if isinstance(fact, Looked)}
    assert looked["L6"] == 23
    assert "G1" not in looked


@pytest.mark.cluster
async def test_nodes_that_agree_have_the_same_digests(nodes: RedisNodes) -> None:
    with NodesSource(nodes.url) as source:
        one, two = ([*digest_log(source, 0, ScanOptions(), node)] for node in (1, 2))
        assert [s.digest for s in one if isinstance(s, Segment)] == [
            s.digest for s in two if isinstance(s, Segment)
        ]
    built = healthy(empty(0, 2))
    built.change(4, nonce=b"x" * 16)
    store(nodes[1], 0, 2, built.entries, built.end)
    with NodesSource(nodes.url) as source:
        three = [*digest_log(source, 0, ScanOptions(), 2)]
    assert [s.digest for s in three if isinstance(s, Segment)] != [
        s.digest for s in one if isinstance(s, Segment)
    ]


@pytest.mark.cluster
async def test_places_are_found_by_their_offset(nodes: RedisNodes) -> None:
    with NodesSource(nodes.url) as source:
        built = healthy(empty(0, 2))
        for entry in built.entries:
            assert source.place_of(0, entry.position.offset) == entry.position
        assert source.place_of(0, 99) is None


def test_what_is_no_address(tmp_path: Path) -> None:
    with pytest.raises(LogUnreadableError, match="neither the address of a log"):
        open_source(str(tmp_path))


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[RedisNodes]:
    logs = {shard: healthy(empty(shard, 2)) for shard in range(2)}
    async with nodes_with(tmp_path / "three", logs, count=3) as nodes:
        yield nodes


@pytest.mark.cluster
@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("opened", ["before", "after"])
async def test_its_copies_are_not_compared_and_no_copy_is_counted_twice(
    three: RedisNodes, lost: int, opened: str
) -> None:
    with NodesSource(three.url) as source:
        pieces = pieces_of(source, all_nodes=True)
        assert {(piece.shard, piece.node) for piece in pieces} == {
            (s, n) for s in range(3) for n in (1, 2, 3)
        }
        await three[lost - 1].kill()
        facts: list[Fact] = []
        with NodesSource(three.url) if opened == "after" else nullcontext(source) as reader:
            for piece in pieces:
                log = digest_log if piece.copy else audit_log
                facts += log(reader, piece.shard, ScanOptions(compare=True), piece.node)
    assert not [fact for fact in facts if isinstance(fact, Broken)]
    digests = Counter((fact.shard, fact.node) for fact in facts if isinstance(fact, Segment))
    assert digests == {(s, n): 1 for s in range(3) for n in {1, 2, 3} - {lost}}
    assert {(f.shard, f.node) for f in facts if isinstance(f, Unread)} == {(s, lost) for s in range(3)}


@pytest.mark.cluster
async def test_another_node_that_is_ahead_now_is_checked_and_the_planned_one_compared(
    three: RedisNodes,
) -> None:
    with NodesSource(three.url) as source:
        pieces = [piece for piece in pieces_of(source, all_nodes=True) if piece.shard == 0]
        planned = next(piece.node for piece in pieces if not piece.copy)
        built = healthy(empty(0, 2))
        built.commit(1, "z", 1)
        for node in three:
            if node is not three[planned - 1]:
                store(node, 0, 2, built.entries, built.end)
        facts: list[Fact] = []
        for piece in pieces:
            facts += (digest_log if piece.copy else audit_log)(
                source, 0, ScanOptions(compare=True), piece.node
            )
    assert not [fact for fact in facts if isinstance(fact, Broken)]
    assert sorted(fact.node for fact in facts if isinstance(fact, Segment)) == [1, 2, 3]
    assert [fact.last_offset for fact in facts if isinstance(fact, LogRead) and not fact.copy] == [23]
