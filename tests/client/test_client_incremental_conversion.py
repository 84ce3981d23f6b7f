"""Classic members whose group becomes an incremental one while they work (INC-140 to INC-144)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import muster
import pytest
from muster._incremental.classic_seat import ClassicSeat
from muster._incremental.membership import Membership
from muster.testing import LocalCluster

AUTO: muster.MemberSettings = {"protocol": "auto"}
CLASSIC: muster.MemberSettings = {"protocol": "classic"}
KEEPING: muster.MemberSettings = {"protocol": "auto", "assignors": ["cooperative-sticky"]}
CONVERT_AFTER_S = 5.0


@pytest.fixture
def converting(muster_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """A cluster that converts groups some seconds after the last join."""
    monkeypatch.setenv("MUSTER_GROUP_CONVERT", "auto")
    monkeypatch.setenv("MUSTER_GROUP_CONVERT_AFTER_MS", str(round(CONVERT_AFTER_S * 1_000)))
    return LocalCluster()


class Worker:
    """A member that notes each of its callbacks."""

    def __init__(self, connection: muster.Cluster, **settings: Any) -> None:
        self.calls: list[tuple[str, tuple[muster.TopicPartition, ...]]] = []

        self.slow_s = 0.0

        def noted(name: str) -> Callable[[tuple[muster.TopicPartition, ...]], Awaitable[None]]:
            async def called(some: tuple[muster.TopicPartition, ...]) -> None:
                self.calls.append((name, some))
                if name == "revoked":
                    await asyncio.sleep(self.slow_s)

            return called

        self.member = muster.Member(
            connection,
            group_id="g",
            topics="t",
            on_partitions_assigned=noted("assigned"),
            on_partitions_revoked=noted("revoked"),
            on_partitions_lost=noted("lost"),
            **settings,
        )

    @property
    def tokens(self) -> dict[muster.TopicPartition, str]:
        return {one: self.member.token(one) for one in self.member.partitions}


async def is_converted(connection: muster.Cluster) -> bool:
    """Whether the group is an incremental one."""
    return [group.type for group in await connection.list_groups()] == ["consumer"]


def share(*workers: Worker, of: int = 6) -> bool:
    """Whether workers have equal shares of all partitions."""
    shares = [worker.member.partitions for worker in workers]
    return {len(one) for one in shares} == {of // len(workers)} and len(set().union(*shares)) == of


async def two_classic(
    cluster: LocalCluster, connection: muster.Cluster, settings: muster.MemberSettings
) -> tuple[Worker, Worker]:
    """Two members of a classic group that can be incremental, after the last that could not left."""
    await connection.create_topic("t", 6)
    old = Worker(connection, **CLASSIC, assignors=settings.get("assignors", ["range"]))
    await old.member.start()
    await cluster.until(lambda: len(old.member.partitions) == 6)
    workers = Worker(connection, **settings), Worker(connection, **settings)
    for worker in workers:
        await worker.member.start()
    await cluster.until(lambda: share(old, *workers))
    await old.member.close()
    await cluster.until(lambda: share(*workers))
    await cluster.advance(1)
    assert not await is_converted(connection)
    for worker in workers:
        worker.calls.clear()
    return workers


async def close(*workers: Worker) -> None:
    for worker in workers:
        await worker.member.close()


@pytest.mark.parametrize("settings", [AUTO, KEEPING], ids=["range", "cooperative-sticky"])
async def test_what_runs_goes_on_under_its_tokens_and_nothing_is_called(
    converting: LocalCluster, settings: muster.MemberSettings
) -> None:
    """INC-140."""
    async with converting as cluster:
        connection = cluster.connect()
        one, two = await two_classic(cluster, connection, settings)
        tokens, generation = (one.tokens, two.tokens), one.member.generation
        await cluster.until(lambda: is_converted(connection))
        for _ in range(20):
            for worker in (one, two):
                await worker.member.commit(dict.fromkeys(worker.member.partitions, 7))
        await cluster.advance(60)
        assert (one.tokens, two.tokens) == tokens
        assert (one.calls, two.calls) == ([], [])
        assert one.member.generation == generation
        three = Worker(connection, protocol="incremental")
        await three.member.start()
        await cluster.until(lambda: share(one, two, three))
        for worker, before in ((one, tokens[0]), (two, tokens[1])):
            gone = {one for call, some in worker.calls if call == "revoked" for one in some}
            kept = {one: token for one, token in worker.tokens.items() if one in before}
            assert gone
            assert kept == {one: token for one, token in before.items() if one not in gone}
        await close(one, two, three)


async def test_a_commit_on_its_way_counts(converting: LocalCluster) -> None:
    """INC-140: each of many commits, some of which are under way at the conversion, is stored."""
    async with converting as cluster:
        connection = cluster.connect()
        one, two = await two_classic(cluster, connection, AUTO)
        (first, *_) = one.member.partitions
        commits = 0
        while not (converted := await is_converted(connection)) or commits % 50:
            commits += 1
            await one.member.commit({first: commits})
            await asyncio.sleep(0.005)
        assert converted
        assert (await connection.committed("g"))[first].offset == commits
        await close(one, two)


@pytest.mark.parametrize("settings", [AUTO, KEEPING], ids=["range", "cooperative-sticky"])
@pytest.mark.parametrize("what", ["coordinator", "connections"])
async def test_a_failure_right_after_the_conversion_costs_nothing(
    converting: LocalCluster, settings: muster.MemberSettings, what: str
) -> None:
    """INC-140, INC-143: whoever has not said a word yet as a member of the other kind lives on."""
    async with converting as cluster:
        connection = cluster.connect()
        one, two = await two_classic(cluster, connection, settings)
        tokens = one.tokens, two.tokens
        await cluster.until(lambda: is_converted(connection))
        if what == "coordinator":
            await cluster.kill_coordinator()
        else:
            cluster._test.broken("connection reset")
        await cluster.advance(60)
        assert (one.tokens, two.tokens) == tokens
        assert (one.calls, two.calls) == ([], [])
        await close(one, two)


async def test_who_heard_of_the_conversion_alone_lives_for_its_classic_session(
    converting: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INC-143: the coordinator dies as soon as it has said so, and is away for longer than a grace."""
    async with converting as cluster:
        connection = cluster.connect()
        one, two = await two_classic(cluster, connection, AUTO)
        tokens = {**one.tokens, **two.tokens}
        kills: list[asyncio.Task[None]] = []
        adopt = Membership.adopt

        def adopt_in_trouble(self: Membership, seat: ClassicSeat) -> None:
            adopt(self, seat)
            if not kills:
                kills.append(asyncio.ensure_future(cluster.kill_coordinator(takeover_s=10)))

        monkeypatch.setattr(Membership, "adopt", adopt_in_trouble)
        await cluster.until(lambda: kills)
        await cluster.until(lambda: is_converted(connection))
        await cluster.advance(60)
        assert {**one.tokens, **two.tokens} == tokens
        assert (one.calls, two.calls) == ([], [])
        await close(one, two)


async def test_who_has_given_everything_up_in_order_to_join_is_told_its_list(
    converting: LocalCluster,
) -> None:
    """INC-141: one waits in a join phase, for another one that takes its time to stop."""
    async with converting as cluster:
        connection = cluster.connect()
        one, two = await two_classic(cluster, connection, AUTO)
        tokens = {**one.tokens, **two.tokens}
        two.slow_s = 30
        one.member.rejoin("to see what happens")
        await cluster.until(lambda: is_converted(connection))
        await cluster.advance(40)
        assert {**one.tokens, **two.tokens} == tokens, "the last stored assignment holds"
        assert [call for call, _ in one.calls] == ["revoked", "assigned"]
        assert [call for call, _ in two.calls] == ["revoked", "assigned"]
        await close(one, two)


async def test_a_newcomer_that_was_no_member_yet_joins(converting: LocalCluster) -> None:
    """INC-141: its join is answered with the conversion alone."""
    async with converting as cluster:
        connection = cluster.connect()
        one, two = await two_classic(cluster, connection, AUTO)
        two.slow_s = 30
        three = Worker(connection, **AUTO)
        await three.member.start()
        await cluster.until(lambda: is_converted(connection))
        await cluster.until(lambda: share(one, two, three))
        assert [call for call, _ in three.calls] == ["assigned"] * len(three.calls)
        await close(one, two, three)


async def test_a_classic_member_says_that_it_can_be_no_other(converting: LocalCluster) -> None:
    """INC-144: a group with one that was asked to be classic stays so."""
    async with converting as cluster:
        connection = cluster.connect()
        await connection.create_topic("t", 6)
        old = Worker(connection, **CLASSIC)
        new = Worker(connection, **AUTO)
        await old.member.start()
        await cluster.until(lambda: len(old.member.partitions) == 6)
        await new.member.start()
        await cluster.until(lambda: share(old, new))
        await cluster.advance(60)
        assert not await is_converted(connection)
        await close(old, new)
