"""The workers of the pages, as their readers run them: each a process, all on one cluster."""

import asyncio
import os
import sys
from pathlib import Path

import muster
import pytest
from docs.docs_blocks import Block, blocks
from kit.clusters.server_cluster import running
from kit.collector import Collector
from kit.waiting import until

PATIENCE_S = 90.0
WORKERS = [block for block in blocks() if block.group]
PARKS = "docs/guides/failing-work.md"
REPORTS = "crawlers-with-lag"
MEASURES = "crawlers-with-metrics"


@pytest.mark.parametrize("block", [block for block in blocks() if not block.group], ids=str)
def test_a_block_that_starts_no_worker_runs(block: Block) -> None:
    exec(compile(block.code, str(block), "exec"), {"__name__": "block"})


async def works(block: Block, folder: Path, servers: str, collector: Collector) -> None:
    """Runs a worker until its group did what its page shows, and ends it with SIGTERM."""
    program = folder / f"{block.group}.py"
    program.write_text(block.code, "utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(program),
        env={
            **os.environ,
            "MUSTER_SERVERS": servers,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
        },
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    log = asyncio.ensure_future(process.stderr.read())
    try:
        async with muster.Cluster(servers) as cluster:

            async def got_somewhere() -> bool:
                if process.returncode is not None:
                    raise AssertionError(f"{block} ended by itself: {(await log).decode()}")
                if block.page == PARKS:
                    return bool(await cluster.parked(block.group))
                if block.group == REPORTS:
                    return any(found.end for found in await cluster.progress(block.group))
                if block.group == MEASURES and "muster_client_commits" not in collector.metrics():
                    return False
                return bool(await cluster.committed(block.group))

            await until(got_somewhere, f"{block} works", PATIENCE_S)
        process.terminate()
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0, (await log).decode()
    finally:
        if process.returncode is None:
            process.kill()
        await log


@pytest.mark.cluster
async def test_the_workers_of_the_pages_work_and_end_in_order(tmp_path: Path) -> None:
    assert len({block.group for block in WORKERS}) == len(WORKERS), "each needs a group of its own"
    assert {REPORTS, MEASURES} <= {block.group for block in WORKERS}
    with Collector() as collector:
        async with (
            running(tmp_path / "cluster", redis_nodes=1, coordinators=1) as cluster,
            asyncio.TaskGroup() as tasks,
        ):
            for block in WORKERS:
                tasks.create_task(works(block, tmp_path, cluster.servers, collector))
