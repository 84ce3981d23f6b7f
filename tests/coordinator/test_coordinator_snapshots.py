"""Snapshots and trimming by a coordinator on the real metadata service and three embedded servers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from coordinator.coordinator_cluster import Caller, group_of, kill, owns
from coordinator.real_cluster import SHARDS, RealCluster
from kit.waiting import until, until_equal
from muster_coordinator.coordinator import Coordinator
from muster_coordinator.log.kept_snapshots import RECORD_WEIGHT_BYTES, KeptSnapshots
from muster_coordinator.log.loader import Loader
from muster_coordinator.log.log_client import Nonces, Step
from muster_coordinator.log.log_image import LogImage
from muster_coordinator.log.shard_log import ShardLog
from muster_coordinator.ownership import ownership
from muster_coordinator.settings import ShardLogSettings
from muster_coordinator.shard.owned_shard import OwnedShard
from muster_coordinator.shard.phase import Phase
from muster_coordinator.shard.snapshot_pace import SnapshotPace
from muster_coordinator.shard.snapshot_taker import SnapshotTaker
from muster_core import error_code
from muster_core.clock import Now
from muster_core.config import GroupConfig
from muster_core.log.application import Application
from muster_core.log.snapshot import Covered, Milestone
from muster_core.position import GENESIS, NOWHERE, Position
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import coordinator_pb2
from muster_runtime.addresses import parse_addresses
from muster_runtime.logs import ALARMS
from muster_runtime.rpc.channels import open_channel
from muster_runtime.settings import SettingsError, load
from muster_server.verify.verifier import verify
from redis.asyncio import Redis
from structlog.testing import capture_logs

pytestmark = pytest.mark.cluster

NEVER_MS = 3_600_000
SHARD = 3
GROUP = group_of(SHARD, 0, SHARDS)
LOG = f"muster:{{{SHARD}}}:log"
INDEX = f"muster:{{{SHARD}}}:snapshots"
ACKNOWLEDGED = f"muster:{{{SHARD}}}:acknowledged"
EVERY = 100
WALL_MS = 1_700_000_000_000

KEEP = ShardLogSettings(snapshot_records=EVERY, retention_ms=0)
TRIM = ShardLogSettings(snapshot_records=EVERY, retention_ms=1)
EXPORT = ShardLogSettings(snapshot_records=EVERY, retention_ms=1, export=True)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    cluster = RealCluster(tmp_path)
    await cluster.start()
    yield cluster
    await cluster.stop()


@asynccontextmanager
async def node(cluster: RealCluster, index: int) -> AsyncIterator["Redis"]:
    client: Redis = Redis.from_url(cluster.nodes[index].url)
    try:
        yield client
    finally:
        await client.aclose()


async def on_all(cluster: RealCluster, work: Callable[["Redis"], Any]) -> list[Any]:
    found = []
    for index in range(3):
        async with node(cluster, index) as client:
            found.append(await work(client))
    return found


async def kept(client: "Redis") -> dict[str, str]:
    """The snapshots that a node has, with their markers."""
    rows: Any = await client.hgetall(INDEX)
    return {upto.decode(): marker.decode() for upto, marker in rows.items()}


async def oldest(client: "Redis") -> Position:
    rows: Any = await client.xrange(LOG, count=1)
    return Position.parse(rows[0][0].decode())


async def joined_group(caller: Caller) -> coordinator_pb2.JoinGroupResponse:
    joined = await caller.join(GROUP, group_instance_id="static", member_seq=3)
    assert (await caller.sync(GROUP, joined)).error_code == error_code.NONE
    return joined


async def commits(caller: Caller, joined: coordinator_pb2.JoinGroupResponse, count: int, last: int) -> None:
    """So many records; the last of them says `last`."""
    for first in range(0, count - 1, 50):
        size = min(50, count - 1 - first)
        await asyncio.gather(*(caller.commit(GROUP, 0, joined) for _ in range(size)))
    assert await caller.commit(GROUP, last, joined) == error_code.NONE


async def taken(coordinator: Coordinator, after: Position = NOWHERE) -> Position:
    """Waits for a snapshot after a place; gives what it covers."""

    def newest() -> Position:
        shard = coordinator.shards.get(SHARD)
        return shard.kept.newest.upto if shard is not None and shard.kept is not None else NOWHERE

    await until(lambda: newest() > after)
    return newest()


async def picture(caller: Caller) -> Any:
    described = await caller.stub.DescribeGroups(coordinator_pb2.DescribeGroupsRequest(group_ids=[GROUP]))
    history = await caller.stub.GroupHistory(coordinator_pb2.GroupHistoryRequest(group_id=GROUP, limit=100))
    group = described.groups[0]
    members = [(m.member_id, m.group_instance_id, m.assignment, m.token) for m in group.members]
    generations = [generation.SerializeToString(deterministic=True) for generation in history.generations]
    return group.state, group.generation, group.leader, members, generations, await caller.fetch(GROUP)


async def with_snapshots(
    cluster: RealCluster, settings: ShardLogSettings, count: int
) -> tuple[Any, Position]:
    """A group whose log has so many snapshots, by an owner that is gone; and what the last one covers."""
    first = await cluster.add("a", settle_ms=NEVER_MS, shard_log=settings)
    await owns(first, SHARDS)
    caller = cluster.caller(first)
    joined = await joined_group(caller)
    upto = NOWHERE
    for number in range(count):
        await commits(caller, joined, EVERY + 5, number)
        upto = await taken(first, upto)
    await commits(caller, joined, 7, 4_711)
    before = await picture(caller)
    async with node(cluster, 0) as client:

        async def marked() -> bool:
            return bool(await client.hget(INDEX, upto.stream_id))

        await until(marked, "the nodes know which snapshot counts")
    if settings is TRIM:

        async def trimmed() -> bool:
            shard_log = first.shards[SHARD].kept
            assert shard_log is not None
            return await on_all(cluster, oldest) == [shard_log.newest.previous_upto] * 3

        await until(trimmed, "all nodes have trimmed their logs", 60)
    await kill(first)
    return before, upto


async def test_a_load_starts_from_the_newest_snapshot_and_loses_nothing(
    cluster: RealCluster, caplog: pytest.LogCaptureFixture
) -> None:
    before, upto = await with_snapshots(cluster, KEEP, 2)
    second = await cluster.add("b", settle_ms=NEVER_MS, shard_log=KEEP)
    await owns(second, SHARDS)
    shard = second.shards[SHARD]
    assert shard.kept is not None
    assert shard.kept.newest.upto == upto
    assert shard.kept.records_since < EVERY
    assert await picture(cluster.caller(second)) == before
    assert await on_all(cluster, oldest) == [GENESIS] * 3
    assert verify(cluster.nodes.url).clean


async def test_a_log_is_trimmed_up_to_what_the_older_snapshot_covers(cluster: RealCluster) -> None:
    before, upto = await with_snapshots(cluster, TRIM, 4)
    starts = await on_all(cluster, oldest)
    second = await cluster.add("b", settle_ms=NEVER_MS, shard_log=KEEP)
    await owns(second, SHARDS)
    newest = second.shards[SHARD].kept
    assert newest is not None
    assert starts == [newest.newest.previous_upto] * 3
    assert newest.newest.upto == upto
    for rows in await on_all(cluster, kept):
        assert set(rows) == {upto.stream_id, newest.newest.previous_upto.stream_id}
    assert await picture(cluster.caller(second)) == before
    report = verify(cluster.nodes.url)
    assert report.clean, report.evidence
    assert report.checked["L9"] > 0


async def test_nothing_is_trimmed_before_the_audit_has_it(cluster: RealCluster) -> None:
    await with_snapshots(cluster, EXPORT, 3)
    assert await on_all(cluster, oldest) == [GENESIS] * 3
    async with node(cluster, 0) as client:
        rows: Any = await client.xrange(LOG, count=20)
    exported = rows[-1]
    channel = open_channel(parse_addresses(",".join(cluster.metadata))[0])
    stub: Any = metadata_pb2_grpc.MetadataServiceStub(channel)
    place = Position.parse(exported[0].decode())
    report = metadata_pb2.ReportExportedRequest(
        shard=SHARD, position=place.to_proto(), hash=exported[1][b"h"]
    )
    wrong = metadata_pb2.ReportExportedRequest(shard=SHARD, position=place.to_proto(), hash=bytes(32))
    assert (await stub.ReportExported(wrong)).outcome == metadata_pb2.LOG_OUTCOME_INVALID
    assert (await stub.ReportExported(report)).outcome == metadata_pb2.LOG_OUTCOME_OK
    await cluster.add("b", settle_ms=NEVER_MS, shard_log=EXPORT)

    async def cut() -> bool:
        return await on_all(cluster, oldest) == [place] * 3

    await until(cut, "the log begins where it was exported to")
    # what was reported may be reported again, though it is gone by then
    assert (await stub.ReportExported(report)).outcome == metadata_pb2.LOG_OUTCOME_OK
    await channel.close()


async def test_a_wiped_node_gets_log_promise_and_snapshots(cluster: RealCluster) -> None:
    before, upto = await with_snapshots(cluster, TRIM, 3)
    async with node(cluster, 2) as client:
        await client.flushall()
    second = await cluster.add("b", settle_ms=NEVER_MS, shard_log=KEEP)
    await owns(second, SHARDS)

    async def level() -> bool:
        async with node(cluster, 0) as whole, node(cluster, 2) as wiped:
            if (
                not await wiped.exists(LOG)
                or await kept(whole) != await kept(wiped)
                or await oldest(whole) != await oldest(wiped)
            ):
                return False
            for row in await kept(whole):
                name = f"muster:{{{SHARD}}}:snapshot:{row}"
                if await whole.hgetall(name) != await wiped.hgetall(name):
                    return False
            return True

    await until(level, "the wiped node has what the others have")
    async with node(cluster, 0) as client:
        assert upto.stream_id in await kept(client)
    assert await picture(cluster.caller(second)) == before


async def spoil_snapshot(cluster: RealCluster, indexes: range, upto: str) -> None:
    """Changes one byte of a snapshot."""
    for index in indexes:
        async with node(cluster, index) as client:
            name = f"muster:{{{SHARD}}}:snapshot:{upto}"
            part: Any = await client.hget(name, "0")
            middle = len(part) // 2
            await client.hset(name, "0", part[:middle] + bytes([part[middle] ^ 1]) + part[middle + 1 :])


async def test_a_part_that_one_node_has_wrong_is_read_from_another(cluster: RealCluster) -> None:
    before, upto = await with_snapshots(cluster, TRIM, 3)
    await spoil_snapshot(cluster, range(2), upto.stream_id)
    second = await cluster.add("b", settle_ms=NEVER_MS, shard_log=KEEP)
    await owns(second, SHARDS)
    assert await picture(cluster.caller(second)) == before
    newest = second.shards[SHARD].kept
    assert newest is not None
    assert newest.newest.upto == upto


async def test_a_snapshot_that_is_wrong_everywhere_is_passed_over_for_the_older_one(
    cluster: RealCluster,
) -> None:
    before, upto = await with_snapshots(cluster, TRIM, 3)
    await spoil_snapshot(cluster, range(3), upto.stream_id)
    assert not verify(cluster.nodes.url).clean
    second = await cluster.add("b", settle_ms=NEVER_MS, shard_log=KEEP)
    await owns(second, SHARDS)
    assert await picture(cluster.caller(second)) == before
    newer = await taken(second, upto)
    assert newer > upto


async def test_a_trimmed_log_without_a_right_snapshot_is_not_served(cluster: RealCluster) -> None:
    await with_snapshots(cluster, TRIM, 3)
    for upto in (await on_all(cluster, kept))[0]:
        await spoil_snapshot(cluster, range(3), upto)
    second = await cluster.add("b", settle_ms=NEVER_MS, shard_log=KEEP)
    await until(lambda: SHARD in second.shards and second.shards[SHARD].phase is Phase.FAILED)
    assert (await cluster.caller(second).fetch(GROUP))[0][0] == error_code.COORDINATOR_NOT_AVAILABLE
    report = verify(cluster.nodes.url)
    assert report.broken["L9"]


async def test_an_untrimmed_log_without_a_right_snapshot_is_read_from_its_beginning(
    cluster: RealCluster,
) -> None:
    before, _ = await with_snapshots(cluster, KEEP, 2)
    for upto in (await on_all(cluster, kept))[0]:
        await spoil_snapshot(cluster, range(3), upto)
    second = await cluster.add("b", settle_ms=NEVER_MS, shard_log=KEEP)
    await owns(second, SHARDS)
    assert await picture(cluster.caller(second)) == before


async def test_markers_in_the_log_count_when_the_nodes_lost_their_hints(cluster: RealCluster) -> None:
    before, upto = await with_snapshots(cluster, TRIM, 3)
    await on_all(cluster, lambda client: client.delete(INDEX))
    second = await cluster.add("b", settle_ms=NEVER_MS, shard_log=KEEP)
    await owns(second, SHARDS)
    newest = second.shards[SHARD].kept
    assert newest is not None
    assert newest.newest.upto == upto
    assert await picture(cluster.caller(second)) == before


async def test_a_shard_whose_log_is_brought_back_is_served_again_by_itself(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older copy of it is not taken for it."""
    older, acknowledged = [NOWHERE, NOWHERE], Loader.acknowledged

    async def older_first(loader: Loader, shard: int) -> Position:
        return older.pop() if shard == SHARD and older else await acknowledged(loader, shard)

    monkeypatch.setattr(Loader, "acknowledged", older_first)
    monkeypatch.setattr(ownership, "_LOOK_AGAIN_S", 0.01)
    failed = ALARMS["shard_failed"]
    only = await cluster.add("a", settle_ms=NEVER_MS, shard_log=KEEP)
    await owns(only, SHARDS)
    caller = cluster.caller(only)
    joined = await joined_group(caller)
    assert await caller.commit(GROUP, 1, joined) == error_code.NONE
    epoch = only.shards[SHARD].epoch
    for index in (0, 1):
        async with node(cluster, index) as client:
            await client.rename(LOG, "away")
    committing = asyncio.ensure_future(caller.commit(GROUP, 2, joined))
    await until(lambda: only.shards[SHARD].phase is Phase.FAILED)
    assert await committing == error_code.COORDINATOR_NOT_AVAILABLE
    for index in (0, 1):
        async with node(cluster, index) as client:
            await client.rename("away", LOG)
    await until(lambda: SHARD in only.shards and only.shards[SHARD].phase is Phase.SERVING)
    assert only.shards[SHARD].epoch == epoch + 1, "while the log was away nobody tried to claim it"
    assert (older, ALARMS["shard_failed"]) == ([], failed + 1)
    assert await caller.commit(GROUP, 3, joined) == error_code.NONE


async def spoil_entry(client: "Redis", back: int) -> str:
    """Changes one byte of the record of an entry, so many before the last one; gives its place."""
    rows: Any = await client.xrevrange(LOG, count=back + 1)
    tail = list(reversed(rows))
    data = tail[0][1][b"r"]
    record = records_pb2.Record.FromString(data)
    record.written_at_ms += 1
    tail[0][1][b"r"] = record.SerializeToString()
    rest: Any = await client.xrange(LOG, max=f"({tail[0][0].decode()}")
    pipe = client.pipeline()
    pipe.delete(LOG)
    for place, fields in (*rest, *tail):
        pipe.xadd(LOG, {name: fields[name] for name in (b"r", b"n", b"h")}, id=place)
    await pipe.execute()
    return str(tail[0][0].decode())


async def test_an_entry_that_was_changed_on_one_node_is_read_from_another(cluster: RealCluster) -> None:
    before, _ = await with_snapshots(cluster, KEEP, 1)
    async with node(cluster, 0) as client:
        place = await spoil_entry(client, 3)
    report = verify(cluster.nodes.url)
    assert any(one.violation.position.stream_id == place for one in report.evidence)
    second = await cluster.add("b", settle_ms=NEVER_MS, shard_log=KEEP)
    await owns(second, SHARDS)
    assert await picture(cluster.caller(second)) == before
    # As docs/log.md says: remove what the node has of the shard, and it is rebuilt from the others.
    async with node(cluster, 0) as client:
        await client.delete(LOG, f"muster:{{{SHARD}}}:promise")

        async def rebuilt() -> bool:
            return await client.exists(LOG) == 1 and verify(cluster.nodes.url).clean

        await until(rebuilt, "the node has what the others have", 60)


async def claim_is_known(cluster: RealCluster) -> bool:
    """Whether every node has an entry of the second epoch as acknowledged."""
    known = await on_all(cluster, lambda client: client.get(ACKNOWLEDGED))
    return all((place or b"").startswith(b"2-") for place in known)


async def test_an_entry_that_was_changed_everywhere_is_refused_by_name_and_a_restored_copy_is_served(
    cluster: RealCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    before, _ = await with_snapshots(cluster, KEEP, 1)
    async with node(cluster, 2) as client:
        backup = await client.dump(LOG)
    assert backup is not None
    (place, *_) = await on_all(cluster, lambda client: spoil_entry(client, 3))
    second = await cluster.add("b", settle_ms=NEVER_MS, shard_log=KEEP)
    await until(lambda: SHARD in second.shards and second.shards[SHARD].phase is Phase.FAILED)
    assert place in capsys.readouterr().out
    # Its Claim is acknowledged, and sooner or later the nodes know it.
    await until(lambda: claim_is_known(cluster), "the nodes know the Claim as acknowledged")
    await kill(second)

    # As docs/log.md says: the log from a backup, on all nodes, its end as acknowledged; the promise stays.
    async def restore(client: "Redis") -> None:
        await client.delete(LOG)
        await client.restore(LOG, 0, backup)
        information: dict[str, Any] = await client.xinfo_stream(LOG)
        await client.set(ACKNOWLEDGED, information["last-entry"][0])

    await on_all(cluster, restore)
    third = await cluster.add("c", settle_ms=NEVER_MS, shard_log=KEEP)
    await owns(third, SHARDS)
    assert await picture(cluster.caller(third)) == before


async def test_a_slow_upload_holds_up_no_call_and_leaves_no_gap(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = 0

    def slow(store: Any) -> Any:
        async def later(*arguments: Any) -> Any:
            nonlocal uploads
            uploads += 1
            await released.wait()
            return await store(*arguments)

        return later

    released = asyncio.Event()
    for server in cluster.servers:
        snapshots = server.metadata.snapshots
        monkeypatch.setattr(snapshots, "store", slow(snapshots.store))
    first = await cluster.add("a", settle_ms=NEVER_MS, shard_log=KEEP)
    await owns(first, SHARDS)
    caller = cluster.caller(first)
    joined = await joined_group(caller)
    await commits(caller, joined, EVERY + 5, 1)
    await until(lambda: uploads > 0)
    # the first part is on its way, and the log goes on: none of this is in that snapshot
    await commits(caller, joined, EVERY, 2)
    shard = first.shards[SHARD]
    assert shard.kept is not None
    end = shard.kept.log.end.position.offset
    released.set()
    upto = await taken(first)
    assert upto.offset < end - EVERY // 2
    before = await picture(caller)
    await kill(first)
    second = await cluster.add("b", settle_ms=NEVER_MS, shard_log=KEEP)
    await owns(second, SHARDS)
    assert await picture(cluster.caller(second)) == before


async def test_nothing_is_trimmed_while_the_wall_clock_is_not_trusted() -> None:
    log = KeptLog()
    for trusted in (True, False, True):
        log.steps.clear()
        log.now = Now(log.now.boot_ms + 61_000, log.now.boot_ms + 61_000 + WALL_MS, trusted)
        await log.taker._look_after(cast(OwnedShard, log))
        (step,) = log.steps
        assert step.HasField("before") == trusted
        log.kept.trimmed = NOWHERE


async def test_a_large_snapshot_is_not_made_anew_for_little() -> None:
    """LIM-63: what snapshots cost grows with what is written, not with what is there."""
    log = KeptLog(records=10)
    shard = cast(OwnedShard, log)
    assert log.taker._due(shard, log.kept), "there are fifty records"
    log.kept.newest_bytes = 50 * RECORD_WEIGHT_BYTES + 1
    assert not log.taker._due(shard, log.kept)
    log.kept.log.written_bytes = log.kept.newest_bytes - 1
    assert not log.taker._due(shard, log.kept)
    log.kept.log.written_bytes += 1
    assert log.taker._due(shard, log.kept)


async def test_an_owner_knows_how_large_the_newest_snapshot_is(cluster: RealCluster) -> None:
    """LIM-63, also where another one took it."""
    _, upto = await with_snapshots(cluster, KEEP, 2)
    async with node(cluster, 0) as client:
        fields: Any = await client.hgetall(f"muster:{{{SHARD}}}:snapshot:{upto.stream_id}")
    stored_bytes = sum(len(part) for name, part in fields.items() if name.isdigit())
    second = await cluster.add("b", settle_ms=NEVER_MS, shard_log=KEEP)
    await owns(second, SHARDS)
    caller = cluster.caller(second)
    joined = await joined_group(caller)
    kept = second.shards[SHARD].kept
    assert kept is not None
    assert kept.newest_bytes == stored_bytes
    kept.newest_bytes = 0
    await commits(caller, joined, EVERY + 5, 7)
    await taken(second, upto)
    assert kept.newest_bytes > 0


async def test_nothing_is_summed_up_that_ends_before_the_owners_claim() -> None:
    """It may be a history that the owner's log does not go on from, where an accepted loss cut it."""
    log = KeptLog(NothingRead(), records=10)
    shard = cast(OwnedShard, log)
    assert log.taker._wanted(shard)
    log.taker.start()
    await until(lambda: not log.taker._wanted(shard))
    await log.taker.stop()
    assert log.steps == []
    log.now = Now(SnapshotPace().retry_ms, WALL_MS)
    assert log.taker._wanted(shard), "the log is read again, but not at once"


class NothingRead(Loader):
    """The nodes have not heard yet how far this owner's log is acknowledged."""

    def __init__(self) -> None:
        super().__init__(cast(Callable[[int], Any], None), 1, GroupConfig())

    async def preload(self, image: LogImage, *, gently: bool = False) -> None:
        """Leaves it as it is."""


class KeptLog:
    """A shard with two snapshots, and a log client that says yes."""

    number = 0

    def __init__(self, loader: Loader | None = None, *, records: int = 10_000) -> None:
        self.now = Now(0, WALL_MS)
        self.steps: list[metadata_pb2.TrimStep] = []
        image = LogImage(0, GroupConfig())
        old, new = Position(1, 500), Position(1, 900)
        image.base = Covered(0, new, bytes(32), (Milestone(old, 5), Milestone(new, 6)), old)
        log = ShardLog(
            0,
            1,
            bytes(16),
            metadata_pb2.LogEnd(),
            self,
            Nonces(),
            lambda *_: None,
            lambda _: None,
            lambda _: None,
        )
        log.end = metadata_pb2.LogEnd(position=Position(1, 950).to_proto(), hash=bytes(32))
        self.kept = KeptSnapshots(log, image)
        self.kept.marker = metadata_pb2.LogEnd(position=Position(1, 901).to_proto(), hash=bytes(32))
        pace = SnapshotPace(records=records, retention_ms=1, tick_ms=1)
        shards = {0: cast(OwnedShard, self)}
        self.taker = SnapshotTaker(lambda: shards, cast(Loader, loader), self, lambda: self.now, pace)

    def submit(self, shard: int, step: Step) -> "asyncio.Future[metadata_pb2.LogResult]":
        assert isinstance(step, metadata_pb2.TrimStep)
        self.steps.append(step)
        future: asyncio.Future[metadata_pb2.LogResult] = asyncio.get_running_loop().create_future()
        future.set_result(metadata_pb2.LogResult(outcome=metadata_pb2.LOG_OUTCOME_OK))
        return future


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SNAPSHOT_RECORDS": "50"}, "must be 0 or at least 100"),
        ({"SNAPSHOT_RECORDS": "0"}, "set that to 0 too"),
        ({"EXPORT": "true", "RETENTION_MS": "0"}, "drop one of them"),
        ({"SNAPSHOT_BYTES": "1"}, "65536"),
        ({"RETENTION_MS": "-1"}, "greater than or equal to 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], words: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"MUSTER_SHARD_LOG_{name}", value)
    with pytest.raises(SettingsError, match=words):
        load(ShardLogSettings)


def test_settings_say_what_is_done() -> None:
    settings = ShardLogSettings(snapshot_records=500, snapshot_bytes=1 << 20, retention_ms=9, export=True)
    pace = settings.to_pace()
    assert (pace.records, pace.size_bytes, pace.retention_ms, pace.only_exported) == (500, 1 << 20, 9, True)
    assert ShardLogSettings().to_pace().records * 2 <= 20_000  # what a load may replay


async def test_shards_whose_logs_cannot_be_read_hold_up_no_other_one(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them hang than are looked after at a time, and come first."""
    to_pace, preload = ShardLogSettings.to_pace, Loader.preload
    hung = set[int]()

    async def hanging(loader: Loader, image: LogImage, *, gently: bool = False) -> None:
        if image.shard < SHARD:
            hung.add(image.shard)
            await asyncio.Event().wait()
        await preload(loader, image, gently=gently)

    monkeypatch.setattr(ShardLogSettings, "to_pace", lambda self: replace(to_pace(self), limit_ms=300))
    monkeypatch.setattr(Loader, "preload", hanging)
    first = await cluster.add("a", settle_ms=NEVER_MS, shard_log=KEEP)
    await owns(first, SHARDS)
    caller = cluster.caller(first)
    for shard in range(SHARD):
        group = group_of(shard, 0, SHARDS)
        await asyncio.gather(*(caller.commit(group, number) for number in range(EVERY + 5)))
    await until_equal(lambda: hung, set(range(SHARD)), "all of them hang")
    await commits(caller, await joined_group(caller), EVERY + 5, 1)
    assert await taken(first) > NOWHERE


async def test_no_snapshot_leaves_out_a_record_that_cannot_be_replayed(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_pace, committed = ShardLogSettings.to_pace, Application._assignment_committed
    bad = group_of(SHARD, 1, SHARDS)

    def poisoned(application: Application, position: Position, wall_ms: int, record: Any) -> None:
        if record.group_id == bad:
            raise RuntimeError("planted")
        committed(application, position, wall_ms, record)

    monkeypatch.setattr(ShardLogSettings, "to_pace", lambda self: replace(to_pace(self), damaged_ms=200))
    first = await cluster.add("a", settle_ms=NEVER_MS, shard_log=KEEP)
    await owns(first, SHARDS)
    caller = cluster.caller(first)
    assert (await caller.sync(bad, await caller.join(bad, group_instance_id="i"))).error_code == 0
    monkeypatch.setattr(Application, "_assignment_committed", poisoned)
    before = ALARMS["snapshot_blocked"]
    with capture_logs() as logged:
        await asyncio.gather(*(caller.commit(GROUP, number) for number in range(EVERY + 5)))
        await until(lambda: ALARMS["snapshot_blocked"] > before)
    (told, *_) = [line for line in logged if line["event"] == "snapshot_blocked"]
    assert (told["shard"], told["group_id"]) == (SHARD, bad)
    known = first.shards[SHARD].kept
    assert known is not None
    assert known.newest.upto == NOWHERE
    monkeypatch.setattr(Application, "_assignment_committed", committed)
    assert await taken(first) > NOWHERE, "a version that can replay it takes one"
