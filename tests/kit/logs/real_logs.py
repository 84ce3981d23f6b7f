"""Logs that a real cluster wrote, on nodes that nobody writes to any more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path

import muster
from kit.clusters.server_cluster import FAST_GROUPS
from kit.damage.stage import Stage
from kit.logs.mixed_life import MixedLife
from kit.waiting import until
from muster_server.dev.cluster import DevCluster
from muster_server.verify.stored_logs import StoredLogs

TOPIC, PARTITIONS, MEMBERS, GROUPS = "work", 4, 2, 3
SHARDS = 3
_RECORDS = "100"
_TOPICS = 110
"""More than that many records: the catalog gets a snapshot, too."""


class Life(StrEnum):
    """What the logs have been through."""

    FRESH = "fresh"
    """Initialised, claimed and nothing else."""
    WHOLE = "whole"
    """Members came, committed and went."""
    TRIMMED = "trimmed"
    """The same, and the logs, that of the catalog too, were trimmed after snapshots."""
    FIVE = "five"
    """As whole, on five nodes."""
    MIXED = "mixed"
    """As whole, with incremental groups, one of which changes its kind, settings, weights, holds, topics that
    were made again and partitions that were removed."""
    MIXED_TRIMMED = "mixed and trimmed"
    """The same, trimmed after snapshots that members are in."""


@asynccontextmanager
async def real_logs(folder: Path, life: Life) -> AsyncIterator[Stage]:
    """The logs of a cluster, which nobody writes to any more.

    Args:
        folder: for the cluster.
        life: what they have been through.
    """
    trimmed = life in (Life.TRIMMED, Life.MIXED_TRIMMED)
    settings = {
        "MUSTER_SHARD_LOG_SNAPSHOT_RECORDS": _RECORDS if trimmed else "0",
        "MUSTER_SHARD_LOG_RETENTION_MS": "1" if trimmed else "0",
        "MUSTER_METADATA_CATALOG_SNAPSHOT_RECORDS": _RECORDS if trimmed else "0",
    }
    cluster = DevCluster(
        folder,
        redis_nodes=5 if life is Life.FIVE else 3,
        coordinators=1,
        shard_count=SHARDS,
        settings={**FAST_GROUPS, **settings},
    )
    async with cluster:
        assert cluster.nodes is not None
        async with muster.Cluster(cluster.servers) as client, AsyncExitStack() as stack:
            mixed = None
            if life is not Life.FRESH:
                await client.create_topic(TOPIC, PARTITIONS)
                await _work(client)
            if life in (Life.MIXED, Life.MIXED_TRIMMED):
                mixed = await stack.enter_async_context(MixedLife.begun(client))
                await mixed.one_round()
            for number in range(_TOPICS if trimmed else 0):
                await client.create_topic(f"topic-{number}", 1)

            async def enough() -> bool:
                if mixed is not None:
                    await mixed.one_round()
                elif life is not Life.FRESH:
                    await _work(client)
                return not trimmed or await asyncio.to_thread(_begins_trimmed, cluster.redis_url)

            await until(enough, "a log is trimmed")
            cluster.kill_roles()  # before members that stay would leave
        yield Stage(cluster.redis_url, [node.port for node in cluster.nodes], folder)


async def _work(client: muster.Cluster) -> None:
    """Members of some groups come, commit and go."""
    for group in range(GROUPS):
        members = [
            muster.Member(
                client, group_id=f"group-{group}", topics=TOPIC, group_instance_id=name, protocol="classic"
            )
            for name in ("static", "")[:MEMBERS]
        ]
        for member in members:
            await member.start()
        for member in members:
            await until(partial(_has_work, member), f"group-{group} shares the work")
        for position in range(1, 15):
            for member in members:
                if member.partitions:
                    try:
                        await member.commit({member.partitions[0]: position})
                    except muster.CommitFailed:
                        continue
        for member in members:
            await member.close("enough")


async def _has_work(member: muster.Member) -> bool:
    return bool(member.partitions)


def _begins_trimmed(url: str) -> bool:
    with StoredLogs(url) as reader:
        return any(
            node.first(shard, reader.shard_count).offset > 1
            for node in reader.nodes
            for shard in range(reader.shard_count)
        )
