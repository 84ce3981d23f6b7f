"""A cluster in the test's own event loop: real core, real client, a clock that jumps, failures on command."""

import asyncio
import os
import sqlite3
import time
from typing import Any

import muster
import pytest
from muster.sinks import SqlFence, StaleToken
from muster.testing import LocalCluster, StuckTest

KINDS = pytest.mark.parametrize("protocol", ["classic", "incremental"])


async def count(p: muster.Partition) -> None:
    position = await p.committed() or 0
    while True:
        await asyncio.sleep(1)
        position += 1
        await p.commit(position)


def count_blocking(p: muster.BlockingPartition) -> None:
    position = p.committed() or 0
    while not p.wait_ending(1):
        position += 1
        p.commit(position)


async def committed(cluster: LocalCluster, number: int = 0) -> int:
    connection = cluster.connect()
    found = await connection.committed("g", [muster.TopicPartition("t", number)])
    return found[muster.TopicPartition("t", number)].offset if found else 0


@pytest.mark.slow
async def test_ten_minutes_pass_in_a_moment_and_the_work_notices_nothing(
    muster_cluster: LocalCluster,
) -> None:
    async with muster_cluster as cluster:
        async with cluster.worker(count, group="g", topic="t", partitions=2) as worker:
            await cluster.until(lambda: worker.numbers == (0, 1))
            await cluster.advance(600)
            assert 598 <= await committed(cluster) <= 600
        assert not worker.running
        assert await committed(cluster) > 0


@pytest.mark.slow
@pytest.mark.parametrize("work", [count, count_blocking], ids=["async", "blocking"])
async def test_two_workers_share_and_one_takes_over_at_a_stop(
    muster_cluster: LocalCluster, work: Any
) -> None:
    async with muster_cluster as cluster, cluster.worker(work, group="g", topic="t", partitions=4) as first:
        await cluster.until(lambda: len(first.numbers) == 4)
        async with cluster.worker(work, group="g", topic="t", partitions=4) as second:
            await cluster.until(lambda: len(first.numbers) == len(second.numbers) == 2)
            await cluster.advance(60)
        await cluster.until(lambda: len(first.numbers) == 4, within_s=1)
        await cluster.until(lambda: not second.owned)
        assert await committed(cluster) > 50


async def test_a_killed_worker_is_replaced_after_its_grace(muster_cluster: LocalCluster) -> None:
    async with (
        muster_cluster as cluster,
        cluster.worker(count, group="g", topic="t", partitions=2) as first,
        cluster.worker(count, group="g", topic="t", partitions=2) as second,
    ):
        await cluster.until(lambda: len(first.numbers) == len(second.numbers) == 1)
        await second.kill()
        await cluster.until(lambda: len(first.numbers) == 2, within_s=10)


@pytest.mark.slow
async def test_a_worker_without_a_network_stops_before_another_one_begins(
    muster_cluster: LocalCluster,
) -> None:
    owners: list[str] = []

    async def work(p: muster.Partition) -> None:
        owners.append(p.token)
        assert len(owners) == 1, "two owners at a time"
        try:
            await p.ending()
        finally:
            owners.remove(p.token)

    async with (
        muster_cluster as cluster,
        cluster.worker(work, group="g", topic="t", partitions=1) as first,
        cluster.worker(work, group="g", topic="t", partitions=1) as second,
    ):
        await cluster.until(lambda: owners)
        worker, other = (first, second) if first.owned else (second, first)
        with cluster.drop_beats(worker):
            await cluster.until(lambda: not worker.owned)
            await cluster.until(lambda: other.owned)
        await cluster.advance(120)
        assert len(owners) == 1


@pytest.mark.slow
@KINDS
async def test_an_expired_worker_joins_again(muster_cluster: LocalCluster, protocol: Any) -> None:
    async with (
        muster_cluster as cluster,
        cluster.worker(count, group="g", topic="t", partitions=1, protocol=protocol) as worker,
    ):
        await cluster.until(lambda: worker.owned)
        before = worker.owned[0]
        await cluster.expire(worker)
        await cluster.until(lambda: worker.owned)
        after = worker.owned[0]
        assert after.token > before.token
        assert protocol == "incremental" or after.member_id != before.member_id


@pytest.mark.slow
async def test_a_killed_coordinator_is_replaced_and_nothing_acknowledged_is_lost(
    muster_cluster: LocalCluster,
) -> None:
    async with muster_cluster as cluster, cluster.worker(count, group="g", topic="t", partitions=1) as worker:
        await cluster.until(lambda: worker.owned)
        await cluster.advance(30)
        token, before = worker.owned[0].token, await committed(cluster)
        await cluster.kill_coordinator()
        await cluster.advance(30)
        assert worker.owned[0].token == token, "a fail-over is no rebalance"
        assert await committed(cluster) > before + 25


@pytest.mark.slow
@KINDS
async def test_a_fenced_sink_refuses_a_zombie(muster_cluster: LocalCluster, protocol: Any) -> None:
    fence = SqlFence("sqlite")
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute(fence.create_table)

    def write(p: muster.Partition) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            fence.check(connection, p)
        finally:
            connection.execute("COMMIT")

    async def work(p: muster.Partition) -> None:
        while True:
            write(p)
            await asyncio.sleep(1)

    async with (
        muster_cluster as cluster,
        cluster.worker(work, group="g", topic="t", partitions=1, protocol=protocol) as first,
        cluster.worker(work, group="g", topic="t", partitions=1, protocol=protocol) as second,
    ):
        await cluster.until(lambda: first.owned or second.owned)
        zombie = await cluster.zombie(first if first.owned else second)
        await cluster.advance(2)
        with pytest.raises(StaleToken):
            write(zombie)
        with pytest.raises(muster.CommitFailed):
            await zombie.commit(7)
        assert await zombie.committed() is None
        with pytest.raises(AssertionError, match="does not own partition 3"):
            await cluster.zombie(first, 3)
    connection.close()


@pytest.mark.slow
async def test_work_that_fails_is_tried_again_and_then_parked(muster_cluster: LocalCluster) -> None:
    calls: list[float] = []

    async with muster_cluster as cluster:

        async def work(p: muster.Partition) -> None:
            calls.append(cluster.now_s)
            raise ValueError("bad input")

        async with cluster.worker(work, group="g", topic="t", partitions=1, retry_attempts=4):
            connection = cluster.connect()

            async def parked() -> object:
                return await connection.parked("g")

            await cluster.until(parked)
            assert len(calls) == 4
            assert calls[-1] - calls[0] >= 0.8 * (1 + 2 + 4)


@pytest.mark.slow
async def test_an_idle_work_is_stopped_by_the_same_clock(muster_cluster: LocalCluster) -> None:
    calls = 0

    async def work(p: muster.Partition) -> None:
        nonlocal calls
        calls += 1
        await p.ending()

    async with (
        muster_cluster as cluster,
        cluster.worker(work, group="g", topic="t", max_idle_ms=30_000),
    ):
        await cluster.connect().ensure_topic("t", 1)
        await cluster.until(lambda: calls == 3, within_s=200)


async def test_time_stands_still_while_a_thread_works(muster_cluster: LocalCluster) -> None:
    async with muster_cluster as cluster:
        before_s = cluster.now_s
        async with asyncio.timeout(1):
            await asyncio.to_thread(time.sleep, 0.05)
        assert cluster.now_s == before_s

        slept: list[float] = []

        def work(p: muster.BlockingPartition) -> None:
            before_s = cluster.now_s
            time.sleep(0.05)
            slept.append(cluster.now_s - before_s)

        async with cluster.worker(work, group="g", topic="t", partitions=1):
            await cluster.until(lambda: slept)
    assert slept == [0]


async def test_the_failure_of_a_worker_is_the_failure_of_the_test(muster_cluster: LocalCluster) -> None:
    async def work(p: muster.Partition) -> None:
        raise ValueError("no")

    async with muster_cluster as cluster:
        with pytest.raises(muster.WorkFailed):
            async with cluster.worker(work, group="g", topic="t", partitions=1, on_error="exit"):
                await cluster.until(lambda: False)


async def test_a_condition_that_does_not_come_true_says_who_owns_what(muster_cluster: LocalCluster) -> None:
    async with muster_cluster as cluster, cluster.worker(count, group="g", topic="t", partitions=1):
        with pytest.raises(AssertionError, match=r"after 30 s of the test's clock; workers own .*\(0,\)"):
            await cluster.until(lambda: False, within_s=30)


def test_a_test_that_waits_for_ever_is_told_so() -> None:
    async def main() -> None:
        async with LocalCluster():
            await asyncio.Event().wait()

    with pytest.raises(StuckTest, match="an hour more than it asked for"):
        asyncio.run(main())
    assert "MUSTER_SERVERS" not in os.environ


@pytest.mark.slow
def test_it_runs_without_any_plugin() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with (
            LocalCluster() as cluster,
            cluster.worker(count, group="g", topic="t", partitions=1) as worker,
        ):
            await cluster.until(lambda: worker.owned)
            await asyncio.sleep(1_000)
        assert loop.time() - began_s >= 1_000, "the clock of a loop never goes back"
        await asyncio.sleep(0.001)
        return loop.time()

    asyncio.run(main())


async def test_one_at_a_time(muster_cluster: LocalCluster) -> None:
    async with muster_cluster:
        with pytest.raises(muster.MusterError, match="one at a time"):
            async with LocalCluster():
                pass


async def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.testing._servers.ENTRY_POINTS", "muster.none")
    with pytest.raises(muster.MusterError, match=r"pip install 'muster-client\[testing\]'"):
        async with LocalCluster():
            pass
