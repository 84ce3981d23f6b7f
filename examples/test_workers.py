"""Tests of the workers beside this file: `pytest -o asyncio_mode=auto`.

They need pytest-asyncio and the extra `testing`; docs/testing.md is the guide.
"""

import blocking_worker
import fenced_sink
import pytest
import worker
from muster.sinks import StaleToken
from muster.testing import FakeBlockingPartition, FakePartition, LocalCluster


async def test_a_worker_is_replaced_when_it_crashes() -> None:
    async with (
        LocalCluster() as cluster,
        cluster.worker(worker.work, group="crawlers", topic="sites", partitions=2) as first,
        cluster.worker(worker.work, group="crawlers", topic="sites", partitions=2) as second,
    ):
        await cluster.until(lambda: len(first.numbers) == len(second.numbers) == 1)
        await cluster.advance(30)
        await second.kill()
        await cluster.until(lambda: len(first.numbers) == 2)
        offsets = await cluster.connect().committed("crawlers")
        assert all(at.offset >= 58 for at in offsets.values())


def test_a_blocking_worker_alone() -> None:
    p = FakeBlockingPartition(FakePartition(committed=10), ends_after=3)
    blocking_worker.work(p)
    assert p.commits == [11, 12, 13]


async def test_blocking_workers_survive_a_coordinator() -> None:
    async with (
        LocalCluster() as cluster,
        cluster.worker(blocking_worker.work, group="crawlers", topic="sites", partitions=2) as blocking,
    ):
        await cluster.until(lambda: len(blocking.numbers) == 2)
        await cluster.kill_coordinator()
        await cluster.advance(30)
        assert len(blocking.numbers) == 2
        offsets = await cluster.connect().committed("crawlers")
        assert all(at.offset >= 50 for at in offsets.values())


async def test_the_database_refuses_a_zombie() -> None:
    crawler = fenced_sink.Crawler(":memory:")
    async with (
        LocalCluster() as cluster,
        cluster.worker(crawler, group="crawlers", topic="sites", partitions=1) as first,
        cluster.worker(crawler, group="crawlers", topic="sites", partitions=1) as second,
    ):
        await cluster.until(lambda: first.owned or second.owned)
        await cluster.advance(10)
        zombie = await cluster.zombie(first if first.owned else second)
        await cluster.advance(10)
        with pytest.raises(StaleToken):
            fenced_sink.store(crawler.connection, zombie, 1_000)
    positions = [row[0] for row in crawler.connection.execute("SELECT position FROM pages")]
    assert positions == list(range(len(positions))), "each row once, and none is missing"
    assert len(positions) >= 35
    crawler.connection.close()
