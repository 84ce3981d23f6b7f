"""Partitions that are owned without a cluster."""

import asyncio
import inspect
from typing import Any, cast

import muster
import pytest
from muster.testing import FakeBlockingPartition, FakePartition


async def test_a_work_function_alone() -> None:
    async def work(p: muster.Partition) -> None:
        position = await p.committed() or 0
        for _ in range(3):
            position += 1
            await p.commit(position)

    p = FakePartition("sites", 4, committed=10)
    await work(p)
    assert p.commits == [11, 12, 13]
    assert (p.topic, p.number, p.group, p.generation, await p.committed()) == ("sites", 4, "group", 1, 13)


async def test_a_lost_partition_refuses_commits_and_is_ending() -> None:
    p = FakePartition()
    waiting = asyncio.ensure_future(p.ending())
    p.lose()
    await waiting
    assert p.is_ending
    with pytest.raises(muster.CommitFailed):
        await p.commit(1)
    assert p.commits == []


async def test_calls_fail_as_they_are_told() -> None:
    p = FakePartition()
    p.fail_next(muster.ClusterUnavailable("no server"), muster.CommitFailed([], "moved"))
    with pytest.raises(muster.ClusterUnavailable):
        await p.committed()
    with pytest.raises(muster.CommitFailed):
        await p.commit(1)
    await p.commit(2, "m")
    assert p.entries == [muster.Committed(2, "m")]


async def test_wrong_use_fails_as_with_a_cluster() -> None:
    with pytest.raises(TypeError):
        await FakePartition().commit(cast(Any, "5"))


def test_a_blocking_work_alone() -> None:
    def work(p: muster.BlockingPartition) -> None:
        position = p.committed() or 0
        while not p.wait_ending(60):
            position += 1
            p.commit(position)

    p = FakeBlockingPartition(ends_after=3)
    work(p)
    assert p.commits == [1, 2, 3]


def test_a_blocking_fake_pauses_and_is_lost() -> None:
    p = FakeBlockingPartition(FakePartition(committed=1))
    p.pause()
    assert not p.wait_resumed()
    p.resume()
    assert p.wait_resumed()
    p.alive()
    p.lose()
    assert p.wait_ending(60)
    with pytest.raises(muster.CommitFailed):
        p.commit(2)


def test_tokens_grow_with_the_epoch() -> None:
    assert FakePartition(epoch=10).token > FakePartition(epoch=9).token


def test_fakes_have_all_that_partitions_have() -> None:
    for fake, real in ((FakePartition, muster.Partition), (FakeBlockingPartition, muster.BlockingPartition)):
        assert issubclass(fake, real)
        for name, _ in inspect.getmembers(real, callable):
            assert hasattr(fake, name)


def test_fixtures(fake_partition: FakePartition, fake_blocking_partition: FakeBlockingPartition) -> None:
    assert fake_partition.commits == fake_blocking_partition.commits == []
