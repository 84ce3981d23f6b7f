"""The audit of a catalog whose log was trimmed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kit.logs.catalog_log import begins, change, change_many, creation, snapshots_on
from kit.metadata.metadata_instances import MetadataCluster, metadata_cluster
from kit.waiting import until
from muster_core.position import GENESIS

pytest.importorskip("pyarrow", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

from muster_audit.export import export_log, report_exported
from muster_audit.follow.checkpoint import LogProgress
from muster_audit.follow.log_follower import FollowOptions, LogFollower
from muster_audit.promises import Rules
from muster_audit.reading.exported import mark
from muster_audit.reading.facts import Broken, LogRead
from muster_audit.reading.scan import ScanOptions, audit_log
from muster_audit.reading.sources import open_source

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

SHARDS, RECORDS = 2, 100


async def make_it_trimmed(cluster: MetadataCluster) -> None:
    before = max(await begins(cluster))

    async def further() -> bool:
        await change_many(cluster[0], RECORDS // 5)
        return min(await begins(cluster)) > before

    await until(further, "the catalog's log is trimmed")


async def test_a_trimmed_catalog_is_scanned_from_its_snapshot(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3, shards=SHARDS, catalog_snapshot_records=RECORDS) as cluster:
        await change(cluster[0], creation("kept"))
        await make_it_trimmed(cluster)
        source = open_source(cluster.nodes.url)
        assert source.shard_count == SHARDS  # though the Genesis that says so is gone
        for rules in Rules:
            facts = list(audit_log(source, SHARDS, ScanOptions(rules, compare=True)))
            (read,) = [fact for fact in facts if isinstance(fact, LogRead)]
            assert read.trimmed
            assert read.first_offset > GENESIS.offset
            assert [fact for fact in facts if isinstance(fact, Broken)] == []
        source.close()
        older = min(await snapshots_on(cluster, 0))
        for index in range(3):
            async with cluster.client(index) as client:
                await client.hset(f"muster:{{catalog}}:snapshot:{older.stream_id}", "0", b"other bytes")
        source = open_source(cluster.nodes.url)
        broken = [fact for fact in audit_log(source, SHARDS, ScanOptions()) if isinstance(fact, Broken)]
        source.close()
        assert {fact.invariant for fact in broken} == {"G12", "L9"}


async def test_a_trimmed_catalog_is_followed_from_its_snapshot_also_after_a_restart(
    tmp_path: Path,
) -> None:
    async with metadata_cluster(tmp_path, 1, shards=SHARDS, catalog_snapshot_records=RECORDS) as cluster:
        await make_it_trimmed(cluster)
        source = open_source(cluster.nodes.url)
        progress = LogProgress()
        for _ in range(2):
            follower = LogFollower(SHARDS, progress, 10_000, FollowOptions())
            await change_many(cluster[0], 10)
            assert list(follower.turn(source)) == []
            assert follower.lag == 0
            assert progress.position == source.acknowledged(SHARDS)
        source.close()


async def test_a_catalog_is_exported_before_it_is_trimmed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"shards": SHARDS, "catalog_snapshot_records": RECORDS, "catalog_export": True}
    async with metadata_cluster(tmp_path / "cluster", 1, **settings) as cluster:
        source = open_source(cluster.nodes.url)
        mark(tmp_path / "export", source.genesis)

        async def exported_and_trimmed() -> bool:
            await change_many(cluster[0], RECORDS // 5)
            done = await asyncio.to_thread(export_log, source, tmp_path / "export", SHARDS)
            assert not done.problem
            problems = await asyncio.to_thread(report_exported, cluster[0].address, [done])
            assert problems == []
            return min(await begins(cluster)) > GENESIS

        await until(exported_and_trimmed, "what was exported is trimmed")
        await change_many(cluster[0], RECORDS)
        assert not (await asyncio.to_thread(export_log, source, tmp_path / "export", SHARDS)).problem
        source.close()
        kept = open_source(str(tmp_path / "export"))
        facts = list(audit_log(kept, SHARDS, ScanOptions()))
        (read,) = [fact for fact in facts if isinstance(fact, LogRead)]
        assert read.first_offset == GENESIS.offset
        assert [fact for fact in facts if isinstance(fact, Broken)] == []
