"""What a worker does alike in groups of both kinds: pauses, drains, and ends in order."""

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import Literal

import muster
import pytest
from muster.testing import LocalCluster

pytestmark = pytest.mark.parametrize("protocol", ["classic", "incremental"])


async def test_a_pause_lasts_as_long_as_a_process_keeps_the_partition(
    muster_cluster: LocalCluster, protocol: Literal["classic", "incremental"]
) -> None:
    """Whoever else gets it works on it, and so does this process when it comes back."""
    begun: set[int] = set()
    first: dict[int, muster.Partition] = {}

    async def pausing(p: muster.Partition) -> None:
        if p.number not in first:
            first[p.number] = p
            p.pause()
        await p.resumed()
        begun.add(p.number)
        await p.ending()

    async def work(p: muster.Partition) -> None:
        await p.ending()

    async with muster_cluster as cluster:
        runs = partial(cluster.worker, group="g", topic="t", partitions=4, protocol=protocol)
        async with runs(pausing) as one:
            await cluster.until(lambda: len(one.numbers) == 4)
            async with runs(work) as two:
                await cluster.until(lambda: len(one.numbers) == len(two.numbers) == 2)
                moved = set(two.numbers)
                await cluster.advance(30)
                assert begun == set()
            await cluster.until(lambda: begun == moved)
            await cluster.advance(30)
            assert begun == moved, "the others were never given up"
            for partition in first.values():
                partition.resume()
            await cluster.until(lambda: begun == set(range(4)))


async def test_a_drain_has_a_limit_and_nobody_waits_for_longer(
    muster_cluster: LocalCluster,
    protocol: Literal["classic", "incremental"],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who is stopped says that it leaves as soon as its work has ended, or the limit is over."""

    async def stubborn(_partition: muster.Partition) -> None:
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(600)

    async def work(p: muster.Partition) -> None:
        await p.ending()

    async with muster_cluster as cluster:
        runs = partial(cluster.worker, group="g", topic="t", partitions=2, protocol=protocol)
        async with runs(work) as two:
            async with runs(stubborn, drain_timeout_ms=2_000) as one:
                await cluster.until(lambda: len(one.numbers) == len(two.numbers) == 1)
                began_s = cluster.now_s
            assert 1.9 < cluster.now_s - began_s < 3
            await cluster.until(lambda: len(two.numbers) == 2)
            assert cluster.now_s - began_s < 4, "nobody waits for its session"
    [said] = [r.getMessage().splitlines()[0] for r in caplog.records if r.levelno == logging.ERROR]
    assert "did not end within drain_timeout_ms (2000) and is cut off" in said
