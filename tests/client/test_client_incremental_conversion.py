"""Classic members whose group becomes an incremental one while they work (INC-140 to INC-144)."""

import asyncio

import muster
import pytest
from client.changing_kind import AUTO, KEEPING, Stage, Worker, is_of, share
from muster._incremental.classic_seat import ClassicSeat
from muster._incremental.membership import Membership
from muster.testing import LocalCluster

CLASSIC: muster.MemberSettings = {"protocol": "classic"}


async def two_classic(stage: Stage, settings: muster.MemberSettings) -> tuple[Worker, Worker]:
    """Two members of a classic group that can be incremental, after the last that could not left."""
    await stage.connection.create_topic("t", 6)
    old = await stage.add("old", **CLASSIC, assignors=settings.get("assignors", ["range"]))
    await stage.cluster.until(lambda: len(old.member.partitions) == 6)
    one, two = await stage.add("one", **settings), await stage.add("two", **settings)
    await stage.cluster.until(lambda: share(old, one, two))
    await stage.close(old)
    await stage.cluster.until(lambda: share(one, two))
    await stage.cluster.advance(1)
    assert not await is_of("consumer", stage.connection)
    for worker in (one, two):
        worker.calls.clear()
    return one, two


@pytest.mark.parametrize("settings", [AUTO, KEEPING], ids=["range", "cooperative-sticky"])
async def test_what_runs_goes_on_under_its_tokens_and_nothing_is_called(
    changing_kind: LocalCluster, settings: muster.MemberSettings
) -> None:
    """INC-140."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await two_classic(stage, settings)
        tokens, generation = (one.tokens, two.tokens), one.member.generation
        await cluster.until(lambda: is_of("consumer", stage.connection))
        for _ in range(20):
            for worker in (one, two):
                await worker.member.commit(dict.fromkeys(worker.member.partitions, 7))
        await cluster.advance(60)
        assert (one.tokens, two.tokens) == tokens
        assert (one.calls, two.calls) == ([], [])
        assert one.member.generation == generation
        three = await stage.add("three", protocol="incremental")
        await cluster.until(lambda: share(one, two, three))
        for worker, before in ((one, tokens[0]), (two, tokens[1])):
            gone = {one for call, some in worker.calls if call == "revoked" for one in some}
            kept = {one: token for one, token in worker.tokens.items() if one in before}
            assert gone
            assert kept == {one: token for one, token in before.items() if one not in gone}
        await stage.close()


async def test_a_commit_on_its_way_counts(changing_kind: LocalCluster) -> None:
    """INC-140: each of many commits, some of which are under way at the conversion, is stored."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, _ = await two_classic(stage, AUTO)
        (first, *_) = one.member.partitions
        commits = 0
        while not (converted := await is_of("consumer", stage.connection)) or commits % 50:
            commits += 1
            await one.member.commit({first: commits})
            await asyncio.sleep(0.005)
        assert converted
        assert (await stage.connection.committed("g"))[first].offset == commits
        await stage.close()


@pytest.mark.parametrize("settings", [AUTO, KEEPING], ids=["range", "cooperative-sticky"])
@pytest.mark.parametrize("what", ["coordinator", "connections"])
async def test_a_failure_right_after_the_conversion_costs_nothing(
    changing_kind: LocalCluster, settings: muster.MemberSettings, what: str
) -> None:
    """INC-140, INC-143: whoever has not said a word yet as a member of the other kind lives on."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await two_classic(stage, settings)
        tokens = one.tokens, two.tokens
        await cluster.until(lambda: is_of("consumer", stage.connection))
        if what == "coordinator":
            await cluster.kill_coordinator()
        else:
            cluster._test.broken("connection reset")
        await cluster.advance(60)
        assert (one.tokens, two.tokens) == tokens
        assert (one.calls, two.calls) == ([], [])
        await stage.close()


async def test_who_heard_of_the_conversion_alone_lives_for_its_classic_session(
    changing_kind: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INC-143: the coordinator dies as soon as it has said so, and is away for longer than a grace."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await two_classic(stage, AUTO)
        tokens = {**one.tokens, **two.tokens}
        kills: list[asyncio.Task[None]] = []
        adopt = Membership.adopt

        def adopt_in_trouble(self: Membership, seat: ClassicSeat) -> None:
            adopt(self, seat)
            if not kills:
                kills.append(asyncio.ensure_future(cluster.kill_coordinator(takeover_s=10)))

        monkeypatch.setattr(Membership, "adopt", adopt_in_trouble)
        await cluster.until(lambda: kills)
        await cluster.until(lambda: is_of("consumer", stage.connection))
        await cluster.advance(60)
        assert {**one.tokens, **two.tokens} == tokens
        assert (one.calls, two.calls) == ([], [])
        await stage.close()


async def test_who_has_given_everything_up_in_order_to_join_is_told_its_list(
    changing_kind: LocalCluster,
) -> None:
    """INC-141: one waits in a join phase, for another one that takes its time to stop."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await two_classic(stage, AUTO)
        tokens = {**one.tokens, **two.tokens}
        two.slow_s = 30
        one.member.rejoin("to see what happens")
        await cluster.until(lambda: is_of("consumer", stage.connection))
        await cluster.advance(40)
        assert {**one.tokens, **two.tokens} == tokens, "the last stored assignment holds"
        assert [call for call, _ in one.calls] == ["revoked", "assigned"]
        assert [call for call, _ in two.calls] == ["revoked", "assigned"]
        await stage.close()


async def test_a_newcomer_that_was_no_member_yet_joins(changing_kind: LocalCluster) -> None:
    """INC-141: its join is answered with the conversion alone."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        one, two = await two_classic(stage, AUTO)
        two.slow_s = 30
        three = await stage.add("three", **AUTO)
        await cluster.until(lambda: is_of("consumer", stage.connection))
        await cluster.until(lambda: share(one, two, three))
        assert [call for call, _ in three.calls] == ["assigned"] * len(three.calls)
        await stage.close()


async def test_a_classic_member_says_that_it_can_be_no_other(changing_kind: LocalCluster) -> None:
    """INC-144: a group with one that was asked to be classic stays so."""
    async with changing_kind as cluster:
        stage = Stage(cluster, cluster.connect())
        await stage.connection.create_topic("t", 6)
        old = await stage.add("old", **CLASSIC)
        await cluster.until(lambda: len(old.member.partitions) == 6)
        new = await stage.add("new", **AUTO)
        await cluster.until(lambda: share(old, new))
        await cluster.advance(60)
        assert not await is_of("consumer", stage.connection)
        await stage.close()
