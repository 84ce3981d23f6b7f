"""Snapshots, trimming and reading from them, step by step over real nodes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from kit.metadata.metadata_instances import MetadataCluster, Writer, metadata_cluster
from kit.waiting import until, until_equal
from muster_core.log.snapshot import digest_of, part_hash
from muster_core.position import NOWHERE, Position
from muster_metadata.log.reading import LogReader, Wanted
from muster_metadata.log.snapshot_copies import SnapshotCopies
from muster_metadata.log.states import Held
from muster_metadata.nodes.connection import NodeConnection
from muster_metadata.nodes.entries import LogEnd
from muster_metadata.nodes.node import Answer, Node
from muster_metadata.nodes.reply import NodeReply, Status
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2

pytestmark = pytest.mark.cluster

OK = metadata_pb2.LOG_OUTCOME_OK
INVALID = metadata_pb2.LOG_OUTCOME_INVALID
PARTS = [b"first part", b"second part"]
HASHES = [part_hash(part) for part in PARTS]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MetadataCluster]:
    async with metadata_cluster(tmp_path, 3) as cluster:
        yield cluster


def step(writer: Writer, upto: Position, **fields: Any) -> metadata_pb2.SnapshotStep:
    return metadata_pb2.SnapshotStep(
        epoch=writer.epoch, claim_nonce=writer.nonce, upto=upto.to_proto(), **fields
    )


async def begin(cluster: MetadataCluster) -> Writer:
    writer = Writer(0)
    assert (await writer.claim(cluster[0])).outcome == OK
    return writer


async def fill(cluster: MetadataCluster, writer: Writer, count: int) -> None:
    """So many records of no kind."""
    for first in range(0, count, 50):
        rows = [records_pb2.Record(written_at_ms=5).SerializeToString()] * min(50, count - first)
        assert (await writer.append(cluster[0], *rows)).outcome == OK


async def snapshot(
    cluster: MetadataCluster, writer: Writer, parts: list[bytes], *, settle: bool = True
) -> tuple[Position, LogEnd]:
    """A snapshot of everything up to now, with its marker; settled when all nodes have both."""
    upto = writer.end
    for number, part in enumerate(parts):
        stored = await cluster[0].step(0, snapshot=step(writer, upto.position, part=number, data=part))
        assert stored.outcome == OK
    hashes = [part_hash(part) for part in parts]
    last = step(writer, upto.position, part_hashes=b"".join(hashes))
    assert (await cluster[0].step(0, snapshot=last)).outcome == OK
    record = records_pb2.Record(
        snapshot=records_pb2.Snapshot(
            upto=upto.position.to_proto(), hash=upto.hash, parts=len(parts), digest=digest_of(hashes)
        )
    )
    assert (await writer.append(cluster[0], record.SerializeToString())).outcome == OK
    if settle:
        await until(lambda: cluster.level(0), "all nodes are level")
    return upto.position, writer.end


async def trim(
    cluster: MetadataCluster, writer: Writer, upto: Position, marker: LogEnd, **fields: Any
) -> metadata_pb2.LogResult:
    return await cluster[0].step(
        0,
        trim=metadata_pb2.TrimStep(
            epoch=writer.epoch,
            claim_nonce=writer.nonce,
            marker=marker.to_proto(),
            upto=upto.to_proto(),
            **fields,
        ),
    )


async def read(cluster: MetadataCluster, **fields: Any) -> tuple[list[bytes], list[int], int]:
    """Parts, offsets of entries, and the last outcome."""
    parts: list[bytes] = []
    offsets: list[int] = []
    outcome = int(OK)
    request = metadata_pb2.ReadLogRequest(shard=0, packed=True, **fields)
    async for message in cluster[0].stub.ReadLog(request):
        outcome = message.outcome
        if message.snapshot_part:
            parts.append(message.snapshot_part)
        for data in message.runs:
            run = metadata_pb2.EntryRun.FromString(data)
            offsets += range(run.first_offset, run.first_offset + len(run.records))
            assert len(run.nonces) == 16 * len(run.records)
            assert len(run.hashes) == 32 * len(run.records)
    return parts, offsets, outcome


async def trimmed(cluster: MetadataCluster, first: Position) -> bool:
    replicas = []
    for index in range(3):
        async with cluster.client(index) as client:
            rows: Any = await client.xrange("muster:{0}:log", count=1)
            replicas.append(Position.parse(rows[0][0].decode()))
    return replicas == [first] * 3


async def two_snapshots(cluster: MetadataCluster) -> tuple[Writer, Position, Position, LogEnd]:
    writer = await begin(cluster)
    await fill(cluster, writer, 60)
    older, marker = await snapshot(cluster, writer, [b"older"])
    assert (await trim(cluster, writer, older, marker)).outcome == OK
    await fill(cluster, writer, 60)
    newer, marker = await snapshot(cluster, writer, PARTS)
    done = await trim(cluster, writer, newer, marker, previous_upto=older.to_proto(), before=older.to_proto())
    assert done.outcome == OK
    await fill(cluster, writer, 5)
    await until(lambda: trimmed(cluster, older), "all nodes have trimmed their logs")
    return writer, older, newer, marker


async def test_a_read_begins_with_the_newest_snapshot_and_goes_on_behind_it(cluster: MetadataCluster) -> None:
    writer, older, newer, _ = await two_snapshots(cluster)
    end = writer.end.position.offset
    mine = {"epoch": writer.epoch, "claim_nonce": writer.nonce}
    behind = list(range(newer.offset + 1, end + 1))
    assert await read(cluster, snapshot=True, **mine) == (PARTS, behind, OK)
    older_one = ([b"older"], list(range(older.offset + 1, end + 1)), OK)
    assert await read(cluster, snapshot=True, without_snapshots=[newer.to_proto()], **mine) == older_one
    both = [newer.to_proto(), older.to_proto()]
    parts, offsets, outcome = await read(cluster, snapshot=True, without_snapshots=both, **mine)
    assert (parts, offsets, outcome) == ([], [], metadata_pb2.LOG_OUTCOME_DAMAGED)


async def test_a_node_that_is_slow_keeps_no_read_waiting(
    cluster: MetadataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is connected, and does not answer while a shard's next owner loads its log."""
    writer, _, newer, _ = await two_snapshots(cluster)
    slow = cluster[0].server.metadata.quorum.nodes[0]
    for question in ("snapshots", "snapshot_field", "page"):
        monkeypatch.setattr(slow, question, lambda *_: asyncio.get_running_loop().create_future())
    send = slow.inspect
    monkeypatch.setattr(slow, "inspect", lambda *_: asyncio.ensure_future(later(send)))
    behind = list(range(newer.offset + 1, writer.end.position.offset + 1))
    mine = {"epoch": writer.epoch, "claim_nonce": writer.nonce}
    async with asyncio.timeout(60):
        assert await read(cluster, snapshot=True, **mine) == (PARTS, behind, OK)


async def test_reads_that_come_together_are_shared_by_the_nodes(
    cluster: MetadataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(cluster)
    await until(lambda: cluster.level(0), "all nodes are level")
    metadata = cluster[0].server.metadata
    asked = Counter[NodeConnection]()

    def unanswered(node: Node, *_: Any) -> Answer:
        asked[node.bulk] += 1
        return asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Node, "entries", unanswered)
    monkeypatch.setattr(NodeConnection, "unanswered", property(lambda connection: asked[connection]))
    reads = []
    for count in range(1, 5):
        pages = LogReader(metadata.quorum).read(Wanted(0, NOWHERE))
        reads.append(asyncio.ensure_future(anext(pages)))
        await until_equal(asked.total, count)
    assert max(asked.values()) == 2
    for one in reads:
        one.cancel()


async def test_a_node_that_is_slow_is_not_the_source_of_repairs(
    cluster: MetadataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await begin(cluster)
    await until(lambda: cluster.level(0), "all nodes are level")
    metadata = cluster[0].server.metadata
    slow, _, _ = metadata.quorum.nodes
    send = slow.inspect
    monkeypatch.setattr(slow, "inspect", lambda *_, **__: asyncio.ensure_future(later(send)))
    found = await metadata.upkeep._repairer.sources.best(Held(0, writer.epoch, writer.nonce))
    assert found is not None
    assert found[0] is not slow


async def test_markers_are_looked_for_in_some_megabytes_of_the_log_at_a_time(
    cluster: MetadataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the nodes lost their lists the whole log is read, however large its records are."""
    writer = await begin(cluster)
    upto, _ = await snapshot(cluster, writer, PARTS)
    for _ in range(5):
        assert (await writer.append(cluster[0], bytes(4 << 20))).outcome == OK
    last, _ = await snapshot(cluster, writer, PARTS)
    source = cluster[0].server.metadata.quorum.nodes[0]
    send, sizes = source.entries, list[int]()

    def noted(*arguments: Any) -> Answer:
        answer = send(*arguments)
        answer.add_done_callback(
            lambda reply: sizes.append(sum(len(row[1][1]) for row in reply.result().values))
        )
        return answer

    monkeypatch.setattr(source, "page", None)
    monkeypatch.setattr(source, "entries", noted)
    found = await SnapshotCopies(cluster[0].server.metadata.quorum)._markers(source, 0, writer.end.position)
    assert [Position.from_proto(snapshot.upto) for snapshot in found] == [upto, last]
    assert max(sizes) < 10 << 20 < sum(sizes)


async def later(send: Callable[..., Answer]) -> NodeReply:
    """The answer about the first log, after those of the other nodes."""
    await asyncio.sleep(0.3)
    return await send(0)


async def test_a_place_that_was_trimmed_is_told_from_one_that_is_missing(cluster: MetadataCluster) -> None:
    _, older, _, _ = await two_snapshots(cluster)
    wanted = {"from": Position(older.epoch, older.offset - 1).to_proto()}
    assert (await read(cluster, **wanted))[2] == metadata_pb2.LOG_OUTCOME_TRIMMED
    await_ = {"from": older.to_proto()}
    assert (await read(cluster, **await_))[1][0] == older.offset
    for index in range(3):
        async with cluster.client(index) as client:
            await client.xdel("muster:{0}:log", f"1-{older.offset + 3}")
    assert (await read(cluster, **await_))[2] == metadata_pb2.LOG_OUTCOME_DAMAGED


async def test_a_read_that_a_trim_overtakes_says_so(cluster: MetadataCluster) -> None:
    writer, _, newer, _ = await two_snapshots(cluster)
    await fill(cluster, writer, 400)
    third, marker = await snapshot(cluster, writer, [b"third"])
    await fill(cluster, writer, 5)
    reader = cluster[0].server.metadata.reader
    pages = reader.read(Wanted(0, Position(0, 0), writer.epoch, writer.nonce, page_size=10))
    first = await anext(pages)
    assert first.verdict.outcome == OK
    cut = await trim(cluster, writer, third, marker, previous_upto=newer.to_proto(), before=newer.to_proto())
    assert cut.outcome == OK
    outcomes = [page.verdict.outcome async for page in pages]
    assert outcomes[-1] == metadata_pb2.LOG_OUTCOME_TRIMMED


async def test_only_two_snapshots_are_kept_and_a_late_word_about_an_older_one_changes_nothing(
    cluster: MetadataCluster,
) -> None:
    writer, older, newer, marker = await two_snapshots(cluster)
    await fill(cluster, writer, 10)
    third, last = await snapshot(cluster, writer, [b"third"])
    assert (await trim(cluster, writer, third, last, previous_upto=newer.to_proto())).outcome == OK
    late = await trim(cluster, writer, newer, marker, previous_upto=older.to_proto())
    assert late.outcome == OK
    for index in range(3):
        async with cluster.client(index) as client:
            rows: Any = await client.hgetall("muster:{0}:snapshots")
            assert set(rows) == {newer.stream_id.encode(), third.stream_id.encode()}
            keys: Any = await client.keys("muster:{0}:snapshot:*")
            assert len(keys) == 2


async def test_a_node_that_missed_a_snapshot_gets_it(cluster: MetadataCluster) -> None:
    writer = await begin(cluster)
    await fill(cluster, writer, 20)
    await cluster.nodes[2].kill()
    upto, marker = await snapshot(cluster, writer, PARTS, settle=False)
    assert (await trim(cluster, writer, upto, marker)).outcome == OK
    await cluster.nodes[2].start()
    async with cluster.client(2) as client:
        await until(lambda: has_snapshot(client, upto), "the node has the snapshot")


async def test_a_copy_of_a_snapshot_is_named_when_it_is_whole(
    cluster: MetadataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node takes the first part, and then no more for a while."""
    writer = await begin(cluster)
    await fill(cluster, writer, 20)
    await cluster.nodes[2].kill()
    upto, marker = await snapshot(cluster, writer, PARTS, settle=False)
    assert (await trim(cluster, writer, upto, marker)).outcome == OK
    node = cluster[0].server.metadata.quorum.nodes[2]
    refused = asyncio.Event()
    answer: Answer = asyncio.get_running_loop().create_future()
    answer.set_result(NodeReply(Status.REFUSED))

    def keep_one(*step: Any) -> Answer:
        if step[4] == "0":
            return keep(*step)
        refused.set()
        return answer

    keep = node.keep
    monkeypatch.setattr(node, "keep", keep_one)
    await cluster.nodes[2].start()
    await asyncio.wait_for(refused.wait(), 60)
    async with cluster.client(2) as client:
        assert await client.hgetall("muster:{0}:snapshots") == {upto.stream_id.encode(): b""}
        monkeypatch.undo()
        await until(lambda: has_snapshot(client, upto), "the node has all of the snapshot")
        named = {upto.stream_id.encode(): marker.position.stream_id.encode()}
        assert await client.hgetall("muster:{0}:snapshots") == named


async def test_a_snapshot_that_a_node_names_and_does_not_have_is_copied(cluster: MetadataCluster) -> None:
    _, _, newer, _ = await two_snapshots(cluster)
    async with cluster.client(2) as client:
        await client.delete(f"muster:{{0}}:snapshot:{newer.stream_id}")
    await cluster.nodes[2].kill()
    await cluster.nodes[2].start()
    async with cluster.client(2) as client:
        await until(lambda: has_snapshot(client, newer), "the node has the snapshot")


async def has_snapshot(client: Any, upto: Position) -> bool:
    """Whether a node has all of it."""
    row = await client.hgetall(f"muster:{{0}}:snapshot:{upto.stream_id}")
    return bool(row.get(b"hashes") == b"".join(HASHES) and [row.get(b"0"), row.get(b"1")] == PARTS)


@pytest.mark.parametrize("field", ["0", "hashes"])
async def test_a_snapshot_that_no_node_has_right_keeps_none_from_being_rebuilt(
    cluster: MetadataCluster, field: str
) -> None:
    _, older, newer, _ = await two_snapshots(cluster)
    for index in range(2):
        async with cluster.client(index) as client:
            await client.hset(f"muster:{{0}}:snapshot:{older.stream_id}", field, "rotten")
    async with cluster.client(2) as client:
        await client.flushall()

        async def rebuilt() -> bool:
            log_there = await client.exists("muster:{0}:log", "muster:{0}:promise")
            return log_there == 2 and bool(
                await client.hexists(f"muster:{{0}}:snapshot:{newer.stream_id}", "hashes")
            )

        await until(rebuilt, "the node has the log and the snapshot that is right")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"data": b""}, "data has 1 to"),
        ({"data": b"x" * ((16 << 20) + 1)}, "data has 1 to"),
        ({"part": 1 << 20, "data": b"x"}, "part must be below"),
        ({"part_hashes": b"x" * 31}, "32 bytes per part"),
        ({"part_hashes": b"x" * 32, "data": b"x"}, "no data beside it"),
        ({"data": b"x", "epoch": 0}, "epoch"),
        ({"data": b"x", "claim_nonce": b"x"}, "nonce"),
        ({"data": b"x", "upto": Position(1, 0).to_proto()}, "upto must be"),
    ],
)
async def test_a_part_that_breaks_a_limit_is_refused(
    cluster: MetadataCluster, fields: dict[str, Any], words: str
) -> None:
    writer = await begin(cluster)
    message = step(writer, Position(1, 2))
    for name, value in fields.items():
        if name == "upto":
            message.upto.CopyFrom(value)
        else:
            setattr(message, name, value)
    verdict = await cluster[0].server.metadata.snapshots.store(0, message)
    assert verdict.outcome == INVALID
    assert words in verdict.message


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"upto": Position(1, 9)}, "after upto"),
        ({"hash": b"x"}, "32-byte hash"),
        ({"previous_upto": Position(1, 4)}, "before upto"),
        ({"previous_upto": Position(1, 3), "before": Position(1, 4)}, "not be after previous_upto"),
        ({"before": Position(1, 2)}, "not be after previous_upto"),
    ],
)
async def test_a_trim_that_contradicts_itself_is_refused(
    cluster: MetadataCluster, fields: dict[str, Any], words: str
) -> None:
    writer = await begin(cluster)
    message = metadata_pb2.TrimStep(
        epoch=writer.epoch,
        claim_nonce=writer.nonce,
        marker=metadata_pb2.LogEnd(position=Position(1, 9).to_proto(), hash=fields.pop("hash", bytes(32))),
        upto=fields.pop("upto", Position(1, 4)).to_proto(),
        **{name: place.to_proto() for name, place in fields.items()},
    )
    verdict = await cluster[0].server.metadata.snapshots.trim(0, message)
    assert verdict.outcome == INVALID
    assert words in verdict.message


async def test_a_marker_that_does_not_stand_in_the_log_marks_nothing(cluster: MetadataCluster) -> None:
    writer = await begin(cluster)
    await fill(cluster, writer, 20)
    upto, marker = await snapshot(cluster, writer, PARTS)
    wrong = LogEnd(marker.position, sha256(b"another").digest())
    assert (await trim(cluster, writer, upto, wrong)).outcome == INVALID
    async with cluster.client(0) as client:
        rows: Any = await client.hgetall("muster:{0}:snapshots")
        assert rows == {upto.stream_id.encode(): b""}


async def test_a_list_of_hashes_without_all_parts_is_no_snapshot(cluster: MetadataCluster) -> None:
    writer = await begin(cluster)
    await fill(cluster, writer, 20)
    upto = writer.end.position
    one = step(writer, upto, part=0, data=PARTS[0])
    assert (await cluster[0].step(0, snapshot=one)).outcome == OK
    assert (await cluster[0].step(0, snapshot=step(writer, upto, part_hashes=bytes(64)))).outcome == OK
    record = records_pb2.Record(snapshot=records_pb2.Snapshot(upto=upto.to_proto(), parts=2))
    await writer.append(cluster[0], record.SerializeToString())
    assert (await trim(cluster, writer, upto, writer.end)).outcome == INVALID
    parts, offsets, outcome = await read(cluster, snapshot=True, epoch=writer.epoch, claim_nonce=writer.nonce)
    assert (parts, offsets[0], outcome) == ([], 1, OK)
