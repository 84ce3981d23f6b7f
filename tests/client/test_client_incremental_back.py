"""Members of an incremental group that becomes a classic one again while they work (INC-180 to INC-184)."""

import asyncio
from functools import partial
from typing import Any

import muster
import muster_testing.node
import pytest
from client.changing_kind import AUTO, CONVERT_AFTER_S, KEEPING, Stage, Worker, is_of, share
from muster._member.joiner import Joiner
from muster._member.participation import Participation
from muster._reactions import Reaction
from muster._session.callers import Callers
from muster._standing.standing import Order
from muster.testing import LocalCluster
from muster_core.features import ALL_FEATURES, Feature
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

EITHER: muster.MemberSettings = {"protocol": "auto", "assignors": ["cooperative-sticky", "range"]}


@pytest.fixture(params=[True, False], ids=["streams", "unary"])
def session(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def two_incremental(
    stage: Stage, settings: muster.MemberSettings, *, session: bool = True
) -> tuple[Worker, Worker]:
    """Two members of an incremental group."""
    await stage.connection.create_topic("t", 6)
    one = await stage.add("one", **settings, session=session)
    two = await stage.add("two", **settings, session=session)
    await stage.cluster.until(lambda: share(one, two))
    assert await is_of("consumer", stage.connection)
    one.calls.clear()
    two.calls.clear()
    return one, two


@pytest.mark.parametrize("old", [{"protocol": "classic"}, {"assignors": ["range"]}], ids=["classic", "range"])
async def test_a_classic_member_comes_in_and_everybody_works_on(
    changing_kind: LocalCluster, session: bool, old: Any
) -> None:
    """INC-180, INC-181: each partition is stopped once, as in any rebalance, and commits count."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await two_incremental(stage, AUTO, session=session)
        before = [one.member.member_id, two.member.member_id]
        for worker in (one, two):
            await worker.member.commit(dict.fromkeys(worker.member.partitions, 7))
        three = await stage.add("three", **old)
        await cluster.until(lambda: share(one, two, three))
        assert await is_of("classic", stage.connection)
        assert [one.member.member_id, two.member.member_id] == before, "they go on under their ids"
        for worker in (one, two):
            assert worker.names == ["revoked", "assigned"]
            await worker.member.commit(dict.fromkeys(worker.member.partitions, 9))
        stored = await stage.connection.committed("g")
        assert {stored[p].offset for p in stored} == {7, 9}
        await cluster.advance(60)
        assert share(one, two, three)
        await stage.close(three)
        if session:
            await cluster.until(lambda: share(one, two))
            calls = [list(worker.calls) for worker in (one, two)]
            await cluster.advance(CONVERT_AFTER_S + 5)
            assert await is_of("consumer", stage.connection), "it is an incremental group again"
            assert [list(worker.calls) for worker in (one, two)] == calls
        await stage.close()


async def test_who_has_an_assignor_that_keeps_stops_only_what_moves(changing_kind: LocalCluster) -> None:
    """INC-181."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await two_incremental(stage, KEEPING)
        tokens = {**one.tokens, **two.tokens}
        three = await stage.add("three", assignors=["cooperative-sticky"])
        await cluster.until(lambda: share(one, two, three))
        for worker in (one, two):
            (gone,) = [some for name, some in worker.calls if name == "revoked"]
            assert len(gone) == 1
            assert worker.tokens.items() <= tokens.items(), "what stays keeps its token"
        await stage.close()


@pytest.mark.parametrize("settings", [KEEPING, AUTO], ids=["keeping", "eager"])
async def test_a_join_phase_may_outlast_a_session(
    changing_kind: LocalCluster, session: bool, settings: muster.MemberSettings
) -> None:
    """INC-183: who waits for others, or ends its own work, is alive for as long as the join phase waits."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        brief: Any = {**settings, "session_timeout_ms": 6_000, "rebalance_timeout_ms": 60_000}
        one, two = await two_incremental(stage, brief, session=session)
        two.slow_s = 30
        three = await stage.add("three", assignors=["cooperative-sticky" if settings is KEEPING else "range"])
        await cluster.until(lambda: share(one, two, three))
        assert await is_of("classic", stage.connection)
        assert "lost" not in one.names + two.names
        await stage.close()


async def test_who_hears_it_as_an_answer_beats_too(
    changing_kind: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INC-183."""
    monkeypatch.setattr(Callers, "became_classic", lambda _callers, _news: None)
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await two_incremental(stage, AUTO)
        one.slow_s = two.slow_s = 25
        three = await stage.add("three", assignors=["range"])
        await cluster.until(lambda: is_of("classic", stage.connection))
        for worker in (one, two):
            assert isinstance(worker.member._way, Participation)
            worker.member._way.went_off()  # it asks at once
        await cluster.until(lambda: "revoked" in one.names and "revoked" in two.names)
        await cluster.advance(15)
        group = await stage.connection.describe_group("g")
        lefts_ms = {member.member_id: member.session_remaining_ms for member in group.members}
        whole_ms = muster.MemberConfig().session_timeout_ms
        for worker in (one, two):
            assert lefts_ms[worker.member.member_id] > whole_ms - 5_000, "the coordinator counts its beats"
        await cluster.until(lambda: share(one, two, three))
        assert "lost" not in one.names + two.names
        await stage.close()


async def test_a_join_phase_that_goes_on_without_a_member_takes_what_it_has(
    changing_kind: LocalCluster,
) -> None:
    """INC-183: a life is no longer than the join phase waits for it, however often it beats."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        brief: Any = {**AUTO, "session_timeout_ms": 6_000, "rebalance_timeout_ms": 20_000}
        one, two = await two_incremental(stage, brief)
        two.slow_s = 120
        await stage.add("three", assignors=["range"], rebalance_timeout_ms=20_000)
        await cluster.until(lambda: "revoked" in two.names)
        began_s = cluster.now_s
        await cluster.until(lambda: "lost" in two.names)
        assert 15 < cluster.now_s - began_s < 20
        two.slow_s = 0
        await cluster.until(lambda: share(*stage.workers))
        assert "lost" not in one.names
        await stage.close()


async def test_what_is_kept_costs_one_rebalance_and_not_one_for_each_member(
    changing_kind: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INC-181: one member has released and joins again before the other one has asked for its assignment.

    That one must not keep everything once more: it would release some of it after the next generation, and
    the eager member, which stops everything in each rebalance, would begin a second time.
    """
    sync = Joiner.sync

    async def late(joiner: Joiner, joined: coordinator_pb2.JoinGroupResponse) -> Any:
        if joined.leader != joined.member_id:
            await asyncio.sleep(3)
        return await sync(joiner, joined)

    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        await stage.connection.create_topic("t", 6)
        zero = await stage.add("zero", **{**EITHER, "protocol": "classic"})
        await cluster.until(lambda: share(zero))
        one, two = [await stage.add(name, **EITHER) for name in ("one", "two")]
        await cluster.until(lambda: share(zero, one, two))
        await stage.close(zero)
        await cluster.until(lambda: is_of("consumer", stage.connection))
        assert share(one, two), "they were in a classic generation that withholds what is kept"
        one.calls.clear()
        two.calls.clear()
        monkeypatch.setattr(Joiner, "sync", late)
        three = await stage.add("three", assignors=["range"])
        await cluster.until(lambda: share(*stage.workers))
        await cluster.advance(30)
        assert three.names == ["assigned"]
        assert max(worker.names.count("assigned") for worker in (one, two)) <= 1
        await stage.close()


async def test_nobody_keeps_what_the_group_may_give_away(
    changing_kind: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INC-181: a leader of version 0.1 moves everything, in a cluster that withholds nothing."""
    features = ALL_FEATURES - {Feature.KEPT_PARTITIONS}
    monkeypatch.setattr(muster_testing.node, "ALL_FEATURES", features)
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await two_incremental(stage, EITHER)
        had = one.member.partitions, two.member.partitions
        for name in ("three", "four"):
            await stage.add(name, assignors=["range"])
        await cluster.until(lambda: sum(bool(w.member.partitions) for w in stage.workers) == 4)
        assert (one.calls[0], two.calls[0]) == (("revoked", had[0]), ("revoked", had[1]))
        await stage.close()


async def test_commits_count_all_the_way_back(changing_kind: LocalCluster) -> None:
    """INC-182: a member that keeps its partitions commits before, in and after the join phase."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await two_incremental(stage, KEEPING)
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
        await stage.close()


async def test_static_members_go_on_and_come_back_to_what_they_had(changing_kind: LocalCluster) -> None:
    """INC-181: under their instance ids, which a next process takes over in the classic group."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        await stage.connection.create_topic("t", 6)
        one = await stage.add("one", **AUTO, group_instance_id="blue")
        two = await stage.add("two", **AUTO, group_instance_id="green")
        await cluster.until(lambda: share(one, two))
        three = await stage.add("three", protocol="classic")
        await cluster.until(lambda: share(one, two, three))
        assert await is_of("classic", stage.connection)
        had = two.member.partitions
        await stage.close(two)
        again = await stage.add("again", **AUTO, group_instance_id="green")
        await cluster.until(lambda: share(one, again, three))
        assert again.member.partitions == had
        await stage.close()


async def test_its_number_is_above_those_of_all_its_joins(changing_kind: LocalCluster) -> None:
    """INC-181: a lower one would be refused as a join that is late."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await two_incremental(stage, AUTO)
        removed = int(common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID)

        def has_joined(number: int) -> bool:
            return one.member._standing.seat.join == number and share(one, two)

        for number in range(2, 5):
            one.member._standing.demand(Order(Reaction.REJOIN_KEEP_ID, removed, "as if it was removed"))
            await cluster.until(partial(has_joined, number))
        three = await stage.add("three", protocol="classic")
        await cluster.until(lambda: share(one, two, three))
        await stage.close()


async def test_a_slow_revoke_goes_on_and_nobody_else_has_it(changing_kind: LocalCluster) -> None:
    """INC-180: what is on its way back when the group becomes classic stays with whoever has it."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await two_incremental(stage, AUTO)
        one.slow_s = 20
        three = await stage.add("three", **AUTO)
        await cluster.until(lambda: "revoked" in one.names)
        four = await stage.add("four", protocol="classic")
        await cluster.until(lambda: sum(bool(w.member.partitions) for w in stage.workers) == 4)
        assert await is_of("classic", stage.connection)
        assert "lost" not in one.names + two.names + three.names + four.names
        await stage.close()


@pytest.mark.parametrize("what", ["coordinator", "connections"])
async def test_a_failure_on_the_way_back_costs_nothing(changing_kind: LocalCluster, what: str) -> None:
    """INC-183: whoever is to join has its session for that, on a stream or not."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await two_incremental(stage, AUTO)
        one.slow_s = two.slow_s = 8
        three = await stage.add("three", protocol="classic")
        await cluster.until(lambda: "revoked" in one.names)
        if what == "coordinator":
            await cluster.kill_coordinator(takeover_s=5)
        else:
            cluster._test.broken("connection reset")
        await cluster.until(lambda: share(one, two, three))
        assert "lost" not in one.names + two.names
        await stage.close()


async def test_one_that_closes_on_the_way_back_leaves(changing_kind: LocalCluster) -> None:
    """INC-184."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await two_incremental(stage, AUTO)
        one.slow_s = 10
        three = await stage.add("three", protocol="classic")
        await cluster.until(lambda: "revoked" in one.names)
        await stage.close(one)
        began_s = cluster.now_s
        await cluster.until(lambda: share(two, three))
        assert cluster.now_s - began_s < 5, "nobody waits for the session of who has left"
        await stage.close()


async def test_a_leader_leads_on(changing_kind: LocalCluster) -> None:
    """INC-181: a classic candidate stands by, and the leader's block is not cancelled."""
    async with changing_kind as cluster:
        connection = cluster.connect()
        async with muster.lead("report", cluster=connection) as term:
            token = term.token
            standby = muster.lead("report", cluster=cluster.connect(), protocol="classic")
            waiting = asyncio.create_task(standby.__aenter__())
            await cluster.until(lambda: is_of("classic", connection))
            await cluster.advance(120)
            assert term.is_leader
            assert term.token == token
            assert not waiting.done()
        await cluster.until(lambda: waiting.done())
        await standby.__aexit__(None, None, None)


@pytest.mark.parametrize("settings", [AUTO, EITHER], ids=["default", "either"])
async def test_a_classic_member_that_shares_no_assignor_stops_nobody(
    changing_kind: LocalCluster, settings: muster.MemberSettings
) -> None:
    """INC-184, INC-150: it is refused, not all who are there."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await two_incremental(stage, settings)
        three = await stage.add("three", assignors=["sticky"])
        with pytest.raises(muster.GroupError, match="could use none of sticky in a classic group"):
            await three.member.wait()
        assert (one.calls, two.calls) == ([], [])
        assert await is_of("consumer", stage.connection)
        stage.workers.remove(three)
        await stage.close()


async def test_a_member_that_can_be_nothing_else_keeps_classic_ones_out(changing_kind: LocalCluster) -> None:
    """INC-184: `protocol="incremental"` does not say that it can be classic."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await two_incremental(stage, {"protocol": "incremental"})
        three = await stage.add("three", protocol="classic")
        with pytest.raises(muster.GroupError, match="can only be in an incremental group"):
            await three.member.wait()
        assert (one.calls, two.calls) == ([], [])
        stage.workers.remove(three)
        await stage.close()
