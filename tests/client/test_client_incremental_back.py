"""Members of an incremental group that becomes a classic one again while they work (INC-180 to INC-184)."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import muster
import muster_testing.node
import pytest
from muster._reactions import Reaction
from muster._standing.standing import Order
from muster.testing import LocalCluster
from muster_core.features import ALL_FEATURES, Feature
from muster_protos.muster.v1 import common_pb2

AUTO: muster.MemberSettings = {"protocol": "auto"}
KEEPING: muster.MemberSettings = {"protocol": "auto", "assignors": ["cooperative-sticky"]}
EITHER: muster.MemberSettings = {"protocol": "auto", "assignors": ["cooperative-sticky", "range"]}
CONVERT_AFTER_S = 5.0


@pytest.fixture
def reverting(muster_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """A cluster that makes groups classic for members that can be nothing else, and incremental later."""
    monkeypatch.setenv("MUSTER_GROUP_CONVERT", "auto")
    monkeypatch.setenv("MUSTER_GROUP_CONVERT_AFTER_MS", str(round(CONVERT_AFTER_S * 1_000)))
    return LocalCluster()


@pytest.fixture(params=[True, False], ids=["streams", "unary"])
def session(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class Sink:
    """What all workers share: who works on what, and what must not be."""

    def __init__(self) -> None:
        self.owner: dict[muster.TopicPartition, str] = {}
        self.tokens: dict[muster.TopicPartition, str] = {}
        self.wrong: list[str] = []


class Worker:
    """A member that notes each of its callbacks, and tells the sink."""

    def __init__(self, connection: muster.Cluster, sink: Sink, name: str, **settings: Any) -> None:
        self.calls: list[tuple[str, tuple[muster.TopicPartition, ...]]] = []
        self.slow_s = 0.0

        def noted(called: str) -> Callable[[tuple[muster.TopicPartition, ...]], Awaitable[None]]:
            async def note(some: tuple[muster.TopicPartition, ...]) -> None:
                self.calls.append((called, some))
                if called == "assigned":
                    for one in some:
                        token = self.member.token(one)
                        if one in sink.owner:
                            sink.wrong.append(f"{name} begins {one}, which {sink.owner[one]} has")
                        if token < sink.tokens.get(one, ""):
                            sink.wrong.append(f"{name} begins {one} with an older token")
                        sink.owner[one], sink.tokens[one] = name, token
                    return
                if called == "revoked":
                    await asyncio.sleep(self.slow_s)
                for one in some:
                    sink.owner.pop(one, None)

            return note

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

    @property
    def names(self) -> list[str]:
        return [called for called, some in self.calls if some]


async def kind(connection: muster.Cluster) -> str:
    (group,) = await connection.list_groups()
    return group.type


def share(*workers: Worker, of: int = 6) -> bool:
    shares = [worker.member.partitions for worker in workers]
    return {len(one) for one in shares} == {of // len(workers)} and len(set().union(*shares)) == of


class Stage:
    """Two members of an incremental group, and classic ones that come."""

    def __init__(self, cluster: LocalCluster, connection: muster.Cluster) -> None:
        self.cluster = cluster
        self.connection = connection
        self.sink = Sink()
        self.workers: list[Worker] = []

    async def add(self, name: str, **settings: Any) -> Worker:
        worker = Worker(self.connection, self.sink, name, **settings)
        self.workers.append(worker)
        await worker.member.start()
        return worker

    async def begin(self, settings: muster.MemberSettings, *, session: bool = True) -> tuple[Worker, Worker]:
        await self.connection.create_topic("t", 6)
        one = await self.add("one", **settings, session=session)
        two = await self.add("two", **settings, session=session)
        await self.cluster.until(lambda: share(one, two))
        assert await kind(self.connection) == "consumer"
        one.calls.clear()
        two.calls.clear()
        return one, two

    async def end(self) -> None:
        for worker in self.workers:
            await worker.member.close()
        assert self.sink.wrong == []


@pytest.mark.parametrize("old", [{"protocol": "classic"}, {"assignors": ["range"]}], ids=["classic", "range"])
async def test_a_classic_member_comes_in_and_everybody_works_on(
    reverting: LocalCluster, session: bool, old: Any
) -> None:
    """INC-180, INC-181: each partition is stopped once, as in any rebalance, and commits count."""
    async with reverting as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await stage.begin(AUTO, session=session)
        before = [one.member.member_id, two.member.member_id]
        for worker in (one, two):
            await worker.member.commit(dict.fromkeys(worker.member.partitions, 7))
        three = await stage.add("three", **old)
        await cluster.until(lambda: share(one, two, three))
        assert await kind(stage.connection) == "classic"
        assert [one.member.member_id, two.member.member_id] == before, "they go on under their ids"
        for worker in (one, two):
            assert worker.names == ["revoked", "assigned"]
            await worker.member.commit(dict.fromkeys(worker.member.partitions, 9))
        stored = await stage.connection.committed("g")
        assert {stored[p].offset for p in stored} == {7, 9}
        await cluster.advance(60)
        assert share(one, two, three)
        await three.member.close()
        if session:
            await cluster.until(lambda: share(one, two))
            calls = [list(worker.calls) for worker in (one, two)]
            await cluster.advance(CONVERT_AFTER_S + 5)
            assert await kind(stage.connection) == "consumer", "it is an incremental group again"
            assert [list(worker.calls) for worker in (one, two)] == calls
        await stage.end()


async def test_who_has_an_assignor_that_keeps_stops_only_what_moves(reverting: LocalCluster) -> None:
    """INC-181."""
    async with reverting as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await stage.begin(KEEPING)
        tokens = {**one.tokens, **two.tokens}
        three = await stage.add("three", assignors=["cooperative-sticky"])
        await cluster.until(lambda: share(one, two, three))
        for worker in (one, two):
            (gone,) = [some for name, some in worker.calls if name == "revoked"]
            assert len(gone) == 1
            assert worker.tokens.items() <= tokens.items(), "what stays keeps its token"
        await stage.end()


async def test_nobody_keeps_what_the_group_may_give_away(
    reverting: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INC-181: a leader of version 0.1 moves everything, in a cluster that withholds nothing."""
    features = ALL_FEATURES - {Feature.KEPT_PARTITIONS}
    monkeypatch.setattr(muster_testing.node, "ALL_FEATURES", features)
    async with reverting as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await stage.begin(EITHER)
        had = one.member.partitions, two.member.partitions
        for name in ("three", "four"):
            await stage.add(name, assignors=["range"])
        await cluster.until(lambda: sum(bool(w.member.partitions) for w in stage.workers) == 4)
        assert (one.calls[0], two.calls[0]) == (("revoked", had[0]), ("revoked", had[1]))
        await stage.end()


async def test_commits_count_all_the_way_back(reverting: LocalCluster) -> None:
    """INC-182: a member that keeps its partitions commits before, in and after the join phase."""
    async with reverting as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await stage.begin(KEEPING)
        two.slow_s = 20
        kept: dict[muster.TopicPartition, int] = dict.fromkeys(one.member.partitions, 0)
        coming = asyncio.create_task(stage.add("three", assignors=["cooperative-sticky"]))
        for position in range(1, 400):
            for partition in kept.keys() & set(one.member.partitions):
                await one.member.commit({partition: position})
                kept[partition] = position
            await asyncio.sleep(0.1)
        three = await coming
        await cluster.until(lambda: share(one, two, three))
        stored = await stage.connection.committed("g")
        assert {p: stored[p].offset for p in kept} == kept
        assert max(kept.values()) == 399
        await stage.end()


async def test_static_members_go_on_and_come_back_to_what_they_had(reverting: LocalCluster) -> None:
    """INC-181: under their instance ids, which a next process takes over in the classic group."""
    async with reverting as cluster:
        stage = Stage(cluster, cluster.connect())
        await stage.connection.create_topic("t", 6)
        one = await stage.add("one", **AUTO, group_instance_id="blue")
        two = await stage.add("two", **AUTO, group_instance_id="green")
        await cluster.until(lambda: share(one, two))
        three = await stage.add("three", protocol="classic")
        await cluster.until(lambda: share(one, two, three))
        assert await kind(stage.connection) == "classic"
        had = two.member.partitions
        await two.member.close()
        stage.workers.remove(two)
        again = await stage.add("again", **AUTO, group_instance_id="green")
        await cluster.until(lambda: share(one, again, three))
        assert again.member.partitions == had
        await stage.end()


async def test_its_number_is_above_those_of_all_its_joins(reverting: LocalCluster) -> None:
    """INC-181: a lower one would be refused as a join that is late."""
    async with reverting as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await stage.begin(AUTO)
        removed = int(common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID)

        def has_joined(number: int) -> bool:
            return one.member._standing.seat.join == number and share(one, two)

        for number in range(2, 5):
            one.member._standing.demand(Order(Reaction.REJOIN_KEEP_ID, removed, "as if it was removed"))
            await cluster.until(partial(has_joined, number))
        three = await stage.add("three", protocol="classic")
        await cluster.until(lambda: share(one, two, three))
        await stage.end()


async def test_a_slow_revoke_goes_on_and_nobody_else_has_it(reverting: LocalCluster) -> None:
    """INC-180: what is on its way back when the group becomes classic stays with whoever has it."""
    async with reverting as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await stage.begin(AUTO)
        one.slow_s = 20
        three = await stage.add("three", **AUTO)
        await cluster.until(lambda: "revoked" in one.names)
        four = await stage.add("four", protocol="classic")
        await cluster.until(lambda: sum(bool(w.member.partitions) for w in stage.workers) == 4)
        assert await kind(stage.connection) == "classic"
        assert "lost" not in one.names + two.names + three.names + four.names
        await stage.end()


@pytest.mark.parametrize("what", ["coordinator", "connections"])
async def test_a_failure_on_the_way_back_costs_nothing(reverting: LocalCluster, what: str) -> None:
    """INC-183: whoever is to join has its session for that, on a stream or not."""
    async with reverting as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await stage.begin(AUTO)
        one.slow_s = two.slow_s = 8
        three = await stage.add("three", protocol="classic")
        await cluster.until(lambda: "revoked" in one.names)
        if what == "coordinator":
            await cluster.kill_coordinator(takeover_s=5)
        else:
            cluster._test.broken("connection reset")
        await cluster.until(lambda: share(one, two, three))
        assert "lost" not in one.names + two.names
        await stage.end()


async def test_one_that_closes_on_the_way_back_leaves(reverting: LocalCluster) -> None:
    """INC-184."""
    async with reverting as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await stage.begin(AUTO)
        one.slow_s = 10
        three = await stage.add("three", protocol="classic")
        await cluster.until(lambda: "revoked" in one.names)
        await one.member.close()
        began_s = cluster.now_s
        await cluster.until(lambda: share(two, three))
        assert cluster.now_s - began_s < 5, "nobody waits for the session of who has left"
        await stage.end()


async def test_a_leader_leads_on(reverting: LocalCluster) -> None:
    """INC-181: a classic candidate stands by, and the leader's block is not cancelled."""
    async with reverting as cluster:
        connection = cluster.connect()
        async with muster.lead("report", cluster=connection) as term:
            token = term.token
            standby = muster.lead("report", cluster=cluster.connect(), protocol="classic")
            waiting = asyncio.create_task(standby.__aenter__())
            await cluster.until(lambda: kind_is(connection, "classic"))
            await cluster.advance(120)
            assert term.is_leader
            assert term.token == token
            assert not waiting.done()
        await cluster.until(lambda: waiting.done())
        await standby.__aexit__(None, None, None)


async def kind_is(connection: muster.Cluster, wanted: str) -> bool:
    return await kind(connection) == wanted


async def test_a_member_that_can_be_nothing_else_keeps_classic_ones_out(reverting: LocalCluster) -> None:
    """INC-184: `protocol="incremental"` does not say that it can be classic."""
    async with reverting as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await stage.begin({"protocol": "incremental"})
        three = await stage.add("three", protocol="classic")
        with pytest.raises(muster.GroupError, match="can only be in an incremental group"):
            await three.member.wait()
        assert (one.calls, two.calls) == ([], [])
        stage.workers.remove(three)
        await stage.end()
