"""The catalog's log is snapshotted and trimmed, and every reader of it goes on from a snapshot."""

import asyncio
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit import forked
from kit.logs.catalog_log import (
    LOG,
    OFTEN,
    begins,
    catalog_of,
    change,
    change_many,
    creation,
    growth,
    log_of,
    picture,
    removal,
    snapshots_on,
)  # fmt: skip
from kit.metadata.metadata_instances import FAST, Instance, MetadataCluster, fast, metadata_cluster
from kit.waiting import until
from muster_core.features import FEATURE_NAMES, Feature
from muster_core.position import GENESIS, Position
from muster_metadata.operator.replacement import ReplaceError, Replacement
from muster_metadata.operator.restored import raise_epochs
from muster_metadata.server import MetadataServer
from muster_metadata.settings import MetadataSettings
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_runtime.settings import SettingsError, load
from muster_server.dev.redis_nodes import RedisNode
from muster_server.verify.verifier import verify
from structlog.testing import capture_logs

pytestmark = pytest.mark.cluster

RECORDS = 100
SHARDS = 2
SNAPSHOTTED: dict[str, Any] = {"shards": SHARDS, "catalog_snapshot_records": RECORDS}
EVERY_STEP = range(1, 25)
"""With `EVERY_STEP=1`: after each write that a node confirms."""
SOME_STEPS = (4, 6, 9, 15, 16, 18, 19, 20)
"""Some parts of the first snapshot, all, its marks; all parts of the second, a mark, all marks, a trim."""
SECOND_SNAPSHOT = 15
"""After so many its parts are stored, and its marker follows."""
TESTS = Path(__file__).parent.parent


async def make_it_trimmed(cluster: MetadataCluster, index: int = 0) -> None:
    """Changes through an instance until all nodes have removed what the log begins with."""
    before = max(await begins(cluster))

    async def further() -> bool:
        await change_many(cluster[index], RECORDS // 5)
        return min(await begins(cluster)) > before

    await until(further, "the catalog's log is trimmed on all nodes")


async def is_trimmed(cluster: MetadataCluster) -> bool:
    return min(await begins(cluster)) > GENESIS


def same(one: Instance, other: Instance) -> bool:
    return picture(one) == picture(other)


async def is_level(cluster: MetadataCluster) -> bool:
    """Whether all nodes have the same end of the log and the same snapshots."""
    ends = {(await log_of(cluster, index))[-1] for index in range(len(cluster.nodes))}
    kept = [await snapshots_on(cluster, index) for index in range(len(cluster.nodes))]
    return len(ends) == 1 and all(one == kept[0] for one in kept)


async def test_the_log_stays_short_and_what_its_records_said_stays_known(tmp_path: Path) -> None:
    early, gone = b"early".ljust(16), b"gone".ljust(16)
    async with metadata_cluster(tmp_path, 3, instances=2, **SNAPSHOTTED) as cluster:
        created = await change(cluster[0], creation("kept", 3, early))
        await change(cluster[0], creation("removed", 5))
        deleted = await change(cluster[0], removal("removed", gone))
        await make_it_trimmed(cluster)
        await change_many(cluster[0], 2 * RECORDS)
        lengths = [len(await log_of(cluster, index)) for index in range(3)]
        assert max(lengths) < 3 * RECORDS
        assert [len(await snapshots_on(cluster, index)) for index in range(3)] == [2, 2, 2]
        # A version that reads no snapshots stops at a critical record that it does not know.
        left = [records_pb2.Record.FromString(entry.record) for entry in await log_of(cluster, 0)]
        assert any(record.critical and record.HasField("feature_enabled") for record in left)
        late = await cluster.add_instance()
        for instance in (late, cluster[1]):
            await until(partial(same, instance, cluster[0]), "it knows what the writer knows")
            known = catalog_of(instance)
            assert known.features == set(FEATURE_NAMES)
            assert len(known.kept) == len(FEATURE_NAMES)
            assert known.deletions == {"removed": deleted.version.offset}
            assert known.by_name["kept"].incarnation == created.topic.incarnation
        # The repeats of changes whose records are gone, at whatever instance.
        for instance in (late, cluster[1], cluster[0]):
            assert await change(instance, creation("kept", 3, early)) == created
            assert await change(instance, removal("removed", gone)) == deleted
        assert verify(cluster.nodes.url).clean


async def test_it_stays_short_while_changes_follow_each_other_without_a_pause(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1, **SNAPSHOTTED) as cluster:
        catalog = cluster[0].server.metadata.catalog
        for request in [creation(OFTEN, 1), *growth(range(2, 6 * RECORDS))]:
            assert not (await catalog.change(request)).error_code
        assert len(await log_of(cluster, 0)) < 4 * RECORDS


async def test_nothing_is_taken_or_trimmed_before_the_feature_is_enabled(tmp_path: Path) -> None:
    before = [name for name in FEATURE_NAMES if name != Feature.CATALOG_SNAPSHOTS]
    async with metadata_cluster(tmp_path, 1, features=before, **SNAPSHOTTED) as cluster:
        await change_many(cluster[0], 5 * RECORDS // 2)
        await cluster[0].server.metadata.catalog_snapshots._look_after()
        assert await begins(cluster) == [GENESIS]
        async with cluster.client(0) as client:
            assert await client.keys("muster:{catalog}:snapshot*") == []
        request = metadata_pb2.EnableFeatureRequest(name=Feature.CATALOG_SNAPSHOTS)
        enabled = await cluster[0].stub.EnableFeature(request)
        assert enabled.outcome == metadata_pb2.ENABLE_FEATURE_OUTCOME_ENABLED

        async def taken() -> bool:
            return len(await snapshots_on(cluster, 0)) == 1

        await until(taken, "a snapshot is taken")
        await make_it_trimmed(cluster)


async def test_an_instance_that_lags_behind_what_was_trimmed_goes_on_from_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with metadata_cluster(tmp_path, 3, instances=2, **SNAPSHOTTED) as cluster:
        await change(cluster[0], creation("kept"))
        await until(lambda: "kept" in catalog_of(cluster[1]).by_name, "both know it")
        lagging = cluster[1].server.metadata.catalog
        follow, known = lagging._follow, catalog_of(cluster[1]).version

        async def nothing() -> None:
            """It hears of nothing."""

        monkeypatch.setattr(lagging, "_follow", nothing)
        await make_it_trimmed(cluster)
        assert catalog_of(cluster[1]).version == known < min(await begins(cluster))
        monkeypatch.setattr(lagging, "_follow", follow)
        await until(lambda: picture(cluster[1]) == picture(cluster[0]), "it has caught up")


async def test_a_writer_that_lags_behind_what_was_trimmed_takes_the_log_over_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with metadata_cluster(tmp_path, 3, instances=2, **SNAPSHOTTED) as cluster:
        await change(cluster[0], creation("kept"))
        lagging = cluster[1].server.metadata.catalog

        async def nothing() -> None:
            """It hears of nothing."""

        monkeypatch.setattr(lagging, "_follow", nothing)
        await make_it_trimmed(cluster)
        await cluster[0].stop()
        await change(cluster[1], creation("later"))
        assert set(catalog_of(cluster[1]).by_name) == {"kept", OFTEN, "later"}
        await make_it_trimmed(cluster, 1)
        assert verify(cluster.nodes.url).clean


async def test_a_replacement_that_was_decided_is_known_when_its_record_was_trimmed(tmp_path: Path) -> None:
    one, two = RedisNode(tmp_path / "new-1"), RedisNode(tmp_path / "new-2")
    await one.start()
    await two.start()
    try:
        async with metadata_cluster(tmp_path, 3, **SNAPSHOTTED) as cluster:
            places = [place_of(node) for node in (cluster.nodes[1], cluster.nodes[2], one, two)]

            def replacement(old: str, new: str) -> Replacement:
                return Replacement(
                    cluster.nodes.url, old, new,
                    step_timeout_ms=FAST["step_timeout_ms"], rebuild_delay_ms=FAST["rebuild_delay_ms"],
                )  # fmt: skip

            async with replacement(places[1], places[2]) as first:
                plan = await first.plan()
                await first._decide(plan.configuration)
                await make_it_trimmed(cluster)
                length = len(await log_of(cluster, 0))
                await first._decide(plan.configuration)  # it stands already: no second record
                async with replacement(places[0], places[3]) as second:
                    other = await second.plan()
                    with pytest.raises(ReplaceError, match=f"under way: node 3, .* by {places[2]}"):
                        await second.run(other)
            log = await log_of(cluster, 0)
            records = [records_pb2.Record.FromString(entry.record) for entry in log]
            assert not any(record.HasField("node_replaced") for record in records)
            assert len(log) == length + 2  # two Claims
    finally:
        await one.stop()
        await two.stop()


def place_of(node: RedisNode) -> str:
    return node.url.removeprefix("redis://")


async def test_an_empty_node_gets_the_log_and_its_snapshots_from_the_others(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3, **SNAPSHOTTED) as cluster:
        await change(cluster[0], creation("kept"))
        await make_it_trimmed(cluster)
        async with cluster.client(2) as client:
            await client.flushall()
        await until(lambda: is_whole(cluster, 2), "the node has the log again")
        await until(lambda: is_level(cluster), "it has the snapshots")
        # Logs that nobody ever claimed are not rebuilt.
        assert "catalog" not in {evidence.log for evidence in verify(cluster.nodes.url).evidence}
        await cluster.nodes[0].kill()
        late = await cluster.add_instance()
        assert set(catalog_of(late).by_name) == {"kept", OFTEN}


async def is_whole(cluster: MetadataCluster, index: int) -> bool:
    return bool(await log_of(cluster, index))


async def test_a_snapshot_that_one_node_has_wrong_is_read_from_another(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3, **SNAPSHOTTED) as cluster:
        await make_it_trimmed(cluster)
        await until(lambda: is_level(cluster), "all nodes are level")
        newest = max(await snapshots_on(cluster, 0))
        async with cluster.client(0) as client:
            await client.hset(f"muster:{{catalog}}:snapshot:{newest.stream_id}", "0", b"other bytes")
        damaged: list[int] = []
        async with asyncio.timeout(60):
            while not damaged:  # an instance that hears of the other two first asks those first
                with capture_logs() as logs:
                    late = await cluster.add_instance()
                assert picture(late) == picture(cluster[0])
                damaged = [line["node"] for line in logs if line["event"] == "log_node_damaged"]
        assert damaged == [1]
        broken = verify(cluster.nodes.url).broken
        assert set(broken) == {"L9"}


async def test_without_the_newest_snapshot_the_one_before_is_read_and_without_both_nobody_is_served(
    tmp_path: Path,
) -> None:
    async with metadata_cluster(tmp_path, 3, **SNAPSHOTTED) as cluster:
        await make_it_trimmed(cluster)
        await until(lambda: is_level(cluster), "all nodes are level")
        older, newest = sorted(await snapshots_on(cluster, 0))
        await lose(cluster, newest)
        with capture_logs() as logs:
            late = await cluster.add_instance()
        assert picture(late) == picture(cluster[0])
        assert "snapshot_unusable" in {line["event"] for line in logs}
        await lose(cluster, older)
        assert "L9" in verify(cluster.nodes.url).broken
        settings = load(MetadataSettings, redis_url=cluster.nodes.url, listen="127.0.0.1:0", **fast())
        refused = MetadataServer(settings)
        try:
            with capture_logs() as logs:
                await refused.start()
                await until(lambda: problems(logs), "it says that the log cannot be read")
                await asyncio.sleep(5 * FAST["poll_ms"] / 1000)
            assert not refused.metadata.ready.is_set()
            assert [line["alarm"] for line in problems(logs)] == [True]
        finally:
            await refused.stop(0)


def problems(logs: list[Any]) -> list[Any]:
    return [line for line in logs if line["event"] == "log_not_readable"]


async def lose(cluster: MetadataCluster, upto: Position) -> None:
    """Changes a part of a snapshot on all nodes."""
    for index in range(len(cluster.nodes)):
        async with cluster.client(index) as client:
            await client.hset(f"muster:{{catalog}}:snapshot:{upto.stream_id}", "0", b"other bytes")


async def test_an_entry_that_one_node_has_otherwise_is_read_from_another(tmp_path: Path) -> None:
    """Also after a snapshot, where the reader does not begin with the Genesis."""
    async with metadata_cluster(tmp_path, 3, **SNAPSHOTTED) as cluster:
        await make_it_trimmed(cluster)
        await until(lambda: is_level(cluster), "all nodes are level")
        log = await log_of(cluster, 0)
        forged = records_pb2.Record(topic_stored=records_pb2.TopicStored(name="forged", partitions=1))
        async with cluster.client(0) as client, client.pipeline(transaction=True) as changes:
            changes.delete(LOG)
            for entry in log:
                record = forged.SerializeToString() if entry == log[-2] else entry.record
                fields: Any = {"r": record, "n": entry.nonce, "h": entry.hash}
                changes.xadd(LOG, fields, id=entry.position.stream_id)
            await changes.execute()
        await cluster.nodes[2].kill()  # now both others are asked, and this one first
        late = await cluster.add_instance()
        assert set(catalog_of(late).by_name) == {OFTEN}
        assert picture(late) == picture(cluster[0])


async def test_verify_finds_a_snapshot_that_holds_another_catalog_than_the_records_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with metadata_cluster(tmp_path, 1, **SNAPSHOTTED) as cluster:
        await change(cluster[0], creation("kept"))
        # A writer that takes its snapshot of something else than the log.
        reader = cluster[0].server.metadata.catalog_snapshots._reader
        read = reader.read

        async def forgetful(*arguments: Any) -> Any:
            image = await read(*arguments)
            assert image is not None
            image.topics.by_name.pop("kept", None)
            return image

        monkeypatch.setattr(reader, "read", forgetful)
        await change_many(cluster[0], RECORDS)

        async def taken() -> bool:
            return None not in (kept := await snapshots_on(cluster, 0)).values() and len(kept) == 1

        await until(taken, "a snapshot is taken")
        assert set(verify(cluster.nodes.url).broken) == {"G12"}


async def test_what_the_audit_has_not_reported_stays(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1, catalog_export=True, **SNAPSHOTTED) as cluster:

        async def taken() -> bool:
            await change_many(cluster[0], RECORDS // 5)
            kept = await snapshots_on(cluster, 0)
            return len(kept) == 2 and None not in kept.values()

        await until(taken, "two snapshots are taken")
        await change_many(cluster[0], RECORDS // 5)
        assert await begins(cluster) == [GENESIS]
        log = await log_of(cluster, 0)
        exported = next(entry for entry in log if entry.position.offset == RECORDS // 2)
        report = metadata_pb2.ReportExportedRequest(
            shard=SHARDS, position=exported.position.to_proto(), hash=exported.hash
        )
        assert (await cluster[0].stub.ReportExported(report)).outcome == metadata_pb2.LOG_OUTCOME_OK
        await make_it_trimmed(cluster)
        assert await begins(cluster) == [exported.position]


async def test_without_snapshots_nothing_is_removed(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1, shards=SHARDS, catalog_snapshot_records=0) as cluster:
        await change_many(cluster[0], 5 * RECORDS // 2)
        assert await begins(cluster) == [GENESIS]
        assert await snapshots_on(cluster, 0) == {}
    with pytest.raises(SettingsError, match="MUSTER_METADATA_CATALOG_SNAPSHOT_RECORDS"):
        load(MetadataSettings, catalog_snapshot_records=99)


async def test_after_a_restore_a_trimmed_catalog_is_written_on(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3, **SNAPSHOTTED) as cluster:
        await change(cluster[0], creation("kept", 3, b"k" * 16))
        await make_it_trimmed(cluster)
        await cluster[0].stop()
        await raise_epochs(cluster.nodes.url)
        again = await cluster.add_instance()
        await change(again, creation("kept", 3, b"k" * 16))
        await change(again, creation("later"))
        assert set(catalog_of(again).by_name) == {"kept", OFTEN, "later"}
        assert verify(cluster.nodes.url).clean


async def test_a_snapshot_that_was_never_marked_is_none_and_goes_with_the_next(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1, **SNAPSHOTTED) as cluster:
        await change_many(cluster[0], RECORDS // 2)
        end = catalog_of(cluster[0]).version
        metadata = cluster[0].server.metadata
        held = metadata.catalog.held
        assert held is not None
        step = metadata_pb2.SnapshotStep(
            epoch=held.epoch, claim_nonce=held.nonce, upto=end.to_proto(), data=b"not of the catalog"
        )
        assert (await metadata.snapshots.store(SHARDS, step)).outcome == metadata_pb2.LOG_OUTCOME_OK
        assert await snapshots_on(cluster, 0) == {end: None}
        assert picture(await cluster.add_instance()) == picture(cluster[0])
        await make_it_trimmed(cluster)
        assert end not in await snapshots_on(cluster, 0)


@pytest.mark.parametrize("writes", EVERY_STEP if os.environ.get("EVERY_STEP") else SOME_STEPS)
async def test_a_writer_that_is_killed_at_any_step_loses_nothing_and_the_next_goes_on(
    tmp_path: Path, writes: int
) -> None:
    async with metadata_cluster(tmp_path, 3, instances=0, shards=SHARDS) as cluster:
        command = [sys.executable, "-m", "kit.started.catalog_until", cluster.nodes.url, str(RECORDS)]
        done = await forked.run_beside([*command, str(writes)], cwd=TESTS)
        assert done.returncode == -9, done
        acknowledged = max(int(line) for line in done.stdout.splitlines() if line.isdigit())
        cluster._settings["catalog_snapshot_records"] = RECORDS
        following = await cluster.add_instance()
        assert catalog_of(following).by_name[OFTEN].partitions >= acknowledged
        await change(following, creation("later"))
        if writes > SECOND_SNAPSHOT:
            await until(lambda: is_trimmed(cluster), "what its marker allows is trimmed")
        await make_it_trimmed(cluster)
        await until(lambda: is_level(cluster), "all nodes are level")
        assert [len(await snapshots_on(cluster, index)) for index in range(3)] == [2, 2, 2]
        late = await cluster.add_instance()
        assert picture(late) == picture(following)
        assert verify(cluster.nodes.url).clean
