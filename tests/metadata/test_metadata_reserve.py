"""A node that reached its `maxmemory`: what gives ownership or makes room passes, nothing else (LOG-68)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kit.metadata.metadata_instances import MetadataCluster, Writer, metadata_cluster
from kit.waiting import until
from muster_protos.muster.internal.v1 import metadata_pb2
from redis.asyncio import Redis

pytestmark = pytest.mark.cluster

OK = metadata_pb2.LOG_OUTCOME_OK
REFUSED = metadata_pb2.LOG_OUTCOME_REFUSED


@asynccontextmanager
async def full(cluster: MetadataCluster, share: float = 1.0) -> AsyncIterator[list["Redis"]]:
    """All nodes hold so much of their `maxmemory`, and more than that, meanwhile."""
    clients: list[Redis] = [Redis.from_url(cluster.nodes[index].url) for index in range(len(cluster.nodes))]
    try:
        for client in clients:
            await client.setrange("filler", 16 << 20, "x")
            used = (await client.info("memory"))["used_memory"]
            await client.config_set("maxmemory", int((used - (768 << 10)) / share))
        yield clients
    finally:
        for client in clients:
            await client.config_set("maxmemory", "0")
            await client.aclose()


def first(writer: Writer, record: bytes, *, frees: bool = False) -> metadata_pb2.AppendStep:
    batch = writer.batch(record)
    batch.first_attempt, batch.frees = True, frees
    return batch


@pytest.mark.parametrize("nodes", [1, 3])
async def test_what_makes_room_passes_where_all_else_is_refused(tmp_path: Path, nodes: int) -> None:
    async with metadata_cluster(tmp_path, nodes) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        assert (await writer.append(cluster[0], b"w:before")).outcome == OK
        async with full(cluster):
            ordinary = first(writer, b"w:ordinary")
            assert (await writer.send(cluster[0], ordinary)).outcome == REFUSED
            ordinary.frees = True  # something that frees waits behind it
            assert (await writer.send(cluster[0], ordinary)).outcome == OK
            assert (await writer.send(cluster[0], first(writer, b"w:freeing", frees=True))).outcome == OK
            assert (await writer.check(cluster[0])).outcome == OK
        assert (await writer.append(cluster[0], b"w:after")).outcome == OK


async def test_a_shard_gets_a_new_owner_while_its_nodes_are_out_of_memory(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        before, after = Writer(0, "c-1"), Writer(0, "c-2")
        await before.own(cluster[0])
        async with full(cluster):
            assert (await after.claim(cluster[0])).outcome == OK
            assert (await before.check(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_FENCED
            assert (await after.send(cluster[0], first(after, b"w:x"))).outcome == REFUSED


async def test_the_reserve_ends_a_tenth_above(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        async with full(cluster, share=1.3):
            assert (await writer.send(cluster[0], first(writer, b"w:x", frees=True))).outcome == REFUSED


async def test_what_was_exported_is_noted_on_full_nodes(tmp_path: Path) -> None:
    """Where the audit exports logs, nothing is trimmed before that is said: no room could be made."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        assert (await writer.append(cluster[0], b"w:1")).outcome == OK
        end = writer.end
        report = metadata_pb2.ReportExportedRequest(shard=0, position=end.position.to_proto(), hash=end.hash)
        async with full(cluster) as clients:
            assert (await cluster[0].stub.ReportExported(report)).outcome == OK
            for client in clients:
                assert await client.get("muster:{0}:exported") == end.position.stream_id.encode()


async def test_a_doubt_is_noted_on_full_nodes(tmp_path: Path) -> None:
    """An owner may still write to the others; the node that lost its file would come back without that."""
    async with metadata_cluster(tmp_path, 3) as cluster, full(cluster) as clients:
        await clients[2].config_set("appendonly", "no")
        run = str((await clients[2].info("server"))["run_id"])

        async def noted() -> bool:
            return all([await client.hexists("muster:doubts", run) for client in clients[:2]])

        await until(noted, "the other nodes know")
