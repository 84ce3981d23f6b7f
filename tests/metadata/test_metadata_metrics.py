from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kit.metadata.metadata_instances import Instance, Writer
from kit.scrape import Scrape, scrape
from kit.waiting import until
from muster_metadata import metrics
from muster_metadata.operator.initialise import initialise
from muster_metadata.server import MetadataServer
from muster_metadata.settings import MetadataSettings
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.addresses import Address
from muster_runtime.telemetry import TelemetrySettings
from muster_runtime.telemetry.process_telemetry import ProcessTelemetry
from muster_server.dev.redis_nodes import RedisNodes

pytestmark = pytest.mark.cluster

SHARDS = 4


@asynccontextmanager
async def counted(folder: Path) -> AsyncIterator[tuple[Instance, RedisNodes, int]]:
    """An instance on three nodes, and the port of its numbers."""
    nodes = RedisNodes(folder, 3)
    await nodes.start()
    await initialise(nodes.url, SHARDS)
    telemetry = ProcessTelemetry(
        TelemetrySettings(prometheus_listen=Address("127.0.0.1", 0), collect_timeout_ms=20_000),
        ["metadata"],
        "1",
    )
    port = await telemetry.start()
    settings = MetadataSettings.model_validate({"redis_url": nodes.url, "listen": "127.0.0.1:0"})
    instance = await Instance(MetadataServer(settings, telemetry=telemetry)).start()
    try:
        yield instance, nodes, port
    finally:
        await instance.stop()
        await telemetry.stop()
        await nodes.stop()


async def tells(port: int, holds: Callable[[Scrape], bool]) -> Scrape:
    async def read() -> Scrape | None:
        told = await scrape(port)
        return told if holds(told) else None

    return await until(read, "the numbers")


async def test_steps_and_nodes_are_told(tmp_path: Path) -> None:
    async with counted(tmp_path) as (instance, nodes, port):
        idle = await tells(port, lambda told: told.value("muster_redis_connected") == 3)
        ends = ("", "_bucket")
        assert [m.name for m in metrics.ALL if not {m.name + end for end in ends} & idle.names] == []
        writer = Writer(1)
        assert (await writer.claim(instance)).outcome == metadata_pb2.LOG_OUTCOME_OK
        assert (await writer.send(instance, writer.batch(b"one"))).outcome == metadata_pb2.LOG_OUTCOME_OK
        stranger = Writer(1, "c-2")
        assert (await stranger.claim(instance)).outcome == metadata_pb2.LOG_OUTCOME_OK
        assert (await writer.send(instance, writer.batch(b"two"))).outcome == metadata_pb2.LOG_OUTCOME_FENCED
        told = await scrape(port)
        assert told.value("muster_metadata_ready") == 1
        assert told.value("muster_log_quorum_outcomes_total", step="claim", outcome="OK") == 2
        assert told.value("muster_log_quorum_outcomes_total", step="append", outcome="OK") == 1
        assert told.value("muster_log_quorum_outcomes_total", step="append", outcome="FENCED") == 1
        assert told.value("muster_log_quorum_duration_seconds_count", step="append") == 2
        for node in ("1", "2", "3"):
            assert told.value("muster_redis_reply_duration_seconds_count", node=node) > 0

        await nodes[0].kill()
        told = await tells(port, lambda told: told.value("muster_redis_connected") == 2)
        assert told.value("muster_redis_connected", node="1") == 0
        assert told.value("muster_redis_connections_lost_total", node="1") == 1
        assert (
            await stranger.send(instance, stranger.batch(b"three"))
        ).outcome == metadata_pb2.LOG_OUTCOME_OK
        await nodes[0].start()
        told = await tells(port, lambda told: told.value("muster_log_repairs_total", result="done") >= 1)
        told = await tells(port, lambda told: told.value("muster_logs_behind") == 0)
        assert told.value("muster_redis_connected", node="1") == 1
