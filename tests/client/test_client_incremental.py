"""Members of incremental groups on a real core, in virtual time: only what moves stops."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import muster
import pytest
from muster import TopicPartition
from muster._incremental.membership import Asked, Membership
from muster._reactions import Reaction
from muster.testing import LocalCluster
from muster_protos.muster.v1 import common_pb2

SETTINGS: muster.MemberSettings = {"protocol": "incremental", "heartbeat_interval_ms": 500}
PARTITIONS = 12
CLASSIC: muster.MemberSettings = {"protocol": "classic"}
EXPIRED_S = 60
"""Longer than a session."""


@pytest.fixture(autouse=True, params=[True, False], ids=["streams", "unary"])
def _session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "session", request.param)


class Log:
    """What the work of all workers did.

    Attributes:
        begun: who began a partition, and under which token.
        wrong: what must not be.
    """

    def __init__(self) -> None:
        self.begun = defaultdict[int, list[tuple[str, str]]](list)
        self.wrong: list[str] = []
        self._running = defaultdict[int, set[str]](set)
        self._done: dict[int, int] = {}

    def work_of(self, name: str, drain_s: float = 0) -> Callable[[muster.Partition], Awaitable[None]]:
        """Work that commits ten times in a second, and ends after so long."""

        async def work(p: muster.Partition) -> None:
            self.begun[p.number].append((name, p.token))
            self._running[p.number].add(name)
            try:
                position = await p.committed() or 0
                if position < self._done.get(p.number, 0):
                    self.wrong.append(f"progress of {p.number} went back")
                while True:
                    if self._running[p.number] != {name}:
                        self.wrong.append(f"{p.number} is worked on by {self._running[p.number]}")
                    await asyncio.sleep(0.1)
                    position += 1
                    await p.commit(position)
                    self._done[p.number] = position
            finally:
                try:
                    if drain_s:
                        await asyncio.sleep(drain_s)
                finally:
                    self._running[p.number].discard(name)

        return work

    def check(self, cluster: LocalCluster) -> None:
        """Tokens grow with each owner, and nothing was wrong."""
        assert not self.wrong
        for begun in self.begun.values():
            tokens = [token for _, token in begun]
            assert tokens == sorted(set(tokens))


def worker(cluster: LocalCluster, log: Log, name: str, drain_s: float = 0, **settings: Any) -> Any:
    return cluster.worker(
        log.work_of(name, drain_s),
        group="g",
        topic="t",
        partitions=PARTITIONS,
        **{**SETTINGS, **settings},
    )


def shares(*workers: Any) -> bool:
    """Whether workers have everything, in fair shares."""
    owned = [number for one in workers for number in one.numbers]
    sizes = [len(one.numbers) for one in workers]
    return sorted(owned) == list(range(PARTITIONS)) and max(sizes) - min(sizes) <= 1


@pytest.mark.slow
async def test_one_joins_and_leaves_and_the_others_go_on(muster_cluster: LocalCluster) -> None:
    log = Log()
    async with muster_cluster as cluster, worker(cluster, log, "a") as a, worker(cluster, log, "b") as b:
        await cluster.until(lambda: shares(a, b))
        before = {number: list(begun) for number, begun in log.begun.items()}
        stayed = {**a.owned, **b.owned}
        async with worker(cluster, log, "c") as c:
            await cluster.until(lambda: shares(a, b, c))
            moved = set(c.numbers)
            assert len(moved) == PARTITIONS // 3
            for number in set(range(PARTITIONS)) - moved:
                assert log.begun[number] == before[number], "it was begun again"
                assert {**a.owned, **b.owned}[number] is stayed[number]
            await cluster.advance(5)
        await cluster.until(lambda: shares(a, b), within_s=5)
        for number in set(range(PARTITIONS)) - moved:
            assert log.begun[number] == before[number], "it was begun again"
        log.check(cluster)


@pytest.mark.slow
async def test_commits_go_on_while_others_come_and_go(muster_cluster: LocalCluster) -> None:
    gaps_s: list[float] = []
    async with muster_cluster as cluster:

        async def work(p: muster.Partition) -> None:
            position = await p.committed() or 0
            while True:
                began_s = cluster.now_s
                await asyncio.sleep(0.1)
                position += 1
                await p.commit(position)
                gaps_s.append(cluster.now_s - began_s)

        def one() -> Any:
            return cluster.worker(work, group="g", topic="t", partitions=2, **SETTINGS)

        async with one() as a, one() as b:
            await cluster.until(lambda: len(a.numbers) == len(b.numbers) == 1)
            for _ in range(3):
                async with one():
                    await cluster.advance(5)
        assert max(gaps_s) < 1


async def test_what_moves_waits_for_work_that_takes_its_time_and_nothing_else_does(
    muster_cluster: LocalCluster,
) -> None:
    log = Log()
    async with muster_cluster as cluster, worker(cluster, log, "a", drain_s=20) as a:
        await cluster.until(lambda: shares(a))
        async with worker(cluster, log, "b") as b:
            await cluster.until(lambda: len(a.numbers) + len(b.numbers) == PARTITIONS and b.numbers)
            assert shares(a, b)
            assert sum(len(begun) for begun in log.begun.values()) == PARTITIONS * 3 // 2
        log.check(cluster)


@pytest.mark.slow
async def test_what_was_taken_before_its_member_heard_of_it_is_free_at_once(
    muster_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INC-48: not when the member asks the next time, which on a stream is half a minute later."""
    is_heard = False
    hear = Membership.hear

    def lose(self: Membership, asked: Asked, *answer: Any) -> Reaction:
        is_lost = asked.joins and asked.request.client_id == "one" and not is_heard
        return Reaction.RETRY if is_lost else hear(self, asked, *answer)

    monkeypatch.setattr(Membership, "hear", lose)
    log = Log()
    async with muster_cluster as cluster, worker(cluster, log, "one", client_id="one") as one:
        await cluster.advance(1)
        async with worker(cluster, log, "two") as two:
            await cluster.advance(1)
            is_heard = True
            await cluster.until(lambda: shares(one, two), within_s=5)
            log.check(cluster)


@pytest.mark.slow
async def test_an_owner_that_does_not_say_that_it_waits_removes_nobody_who_works(
    muster_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INC-48, with a coordinator from before `awaits_owned`: others wait longer, within the time for that."""
    is_heard = False
    hear, take = Membership.hear, Membership._take

    def lose(self: Membership, asked: Asked, *answer: Any) -> Reaction:
        is_lost = asked.joins and asked.request.client_id == "one" and not is_heard
        return Reaction.RETRY if is_lost else hear(self, asked, *answer)

    def take_unsaid(self: Membership, answer: Any, acknowledged_ms: int) -> None:
        answer.ClearField("awaits_owned")
        take(self, answer, acknowledged_ms)

    monkeypatch.setattr(Membership, "hear", lose)
    monkeypatch.setattr(Membership, "_take", take_unsaid)
    log = Log()
    brief: Any = {"rebalance_timeout_ms": 12_000}
    async with muster_cluster as cluster, worker(cluster, log, "one", client_id="one", **brief) as one:
        await cluster.advance(1)
        async with worker(cluster, log, "two", **brief) as two:
            await cluster.advance(1)
            is_heard = True
            await cluster.until(lambda: shares(one, two), within_s=8)
            begun = {number: list(who) for number, who in log.begun.items()}
            await cluster.advance(60)
            assert shares(one, two)
            assert log.begun == begun, "nobody was removed"
            log.check(cluster)


async def test_what_was_taken_before_it_was_begun_is_free_though_a_callback_takes_long(
    muster_cluster: LocalCluster,
) -> None:
    """INC-48: nothing that runs has to end for it."""
    half = PARTITIONS // 2
    async with muster_cluster as cluster:
        connection = cluster.connect()
        await connection.create_topic("t", half)
        async with muster.Member(
            connection,
            group_id="g",
            topics="t",
            on_partitions_assigned=lambda _: asyncio.sleep(20),
            **SETTINGS,
        ) as slow:
            await cluster.until(lambda: len(slow.partitions) == half)
            await connection.alter_topic("t", PARTITIONS)
            await cluster.advance(2)
            assert len(slow.partitions) == half, "it is called back about the first ones still"
            async with worker(cluster, Log(), "other") as other:
                await cluster.until(lambda: len(other.numbers) == half, within_s=5)
                assert other.numbers == tuple(range(half, PARTITIONS))


async def test_one_that_is_killed_is_replaced_when_its_session_ends(muster_cluster: LocalCluster) -> None:
    log = Log()
    async with muster_cluster as cluster, worker(cluster, log, "a") as a, worker(cluster, log, "b") as b:
        await cluster.until(lambda: shares(a, b))
        stayed = dict(a.owned)
        await b.kill()
        await cluster.until(lambda: shares(a), within_s=5 if SETTINGS["session"] else EXPIRED_S)
        assert all(a.owned[number] is partition for number, partition in stayed.items())
        log.check(cluster)


@pytest.mark.slow
async def test_one_that_is_killed_is_replaced_when_the_time_that_it_asked_for_is_over(
    muster_cluster: LocalCluster,
) -> None:
    log = Log()
    times: muster.MemberSettings = {"session_timeout_ms": 20_000, "disconnect_grace_ms": 15_000}
    async with (
        muster_cluster as cluster,
        worker(cluster, log, "a", **times) as a,
        worker(cluster, log, "b", **times) as b,
    ):
        await cluster.until(lambda: shares(a, b))
        await b.kill()
        await cluster.advance(6)
        assert len(a.numbers) == PARTITIONS // 2
        await cluster.until(lambda: shares(a), within_s=15)
        log.check(cluster)


@pytest.mark.slow
async def test_a_dead_coordinator_stops_nothing(muster_cluster: LocalCluster) -> None:
    log = Log()
    async with muster_cluster as cluster, worker(cluster, log, "a") as a, worker(cluster, log, "b") as b:
        await cluster.until(lambda: shares(a, b))
        await cluster.kill_coordinator()
        await cluster.advance(EXPIRED_S)
        assert shares(a, b)
        assert sum(len(begun) for begun in log.begun.values()) <= 2 * PARTITIONS
        begun = {number: list(some) for number, some in log.begun.items()}
        async with worker(cluster, log, "c") as c:
            await cluster.until(lambda: shares(a, b, c))
            stay = set(a.numbers) | set(b.numbers)
            assert all(log.begun[number] == begun[number] for number in stay)
        log.check(cluster)


@pytest.mark.slow
async def test_one_that_hears_nothing_stops_before_another_begins(muster_cluster: LocalCluster) -> None:
    log = Log()
    async with muster_cluster as cluster, worker(cluster, log, "a") as a, worker(cluster, log, "b") as b:
        await cluster.until(lambda: shares(a, b))
        with cluster.drop_beats(b):
            await cluster.until(lambda: not b.numbers, within_s=EXPIRED_S)
            assert len(a.numbers) == PARTITIONS // 2
            await cluster.until(lambda: shares(a), within_s=EXPIRED_S)
        await cluster.until(lambda: shares(a, b), within_s=EXPIRED_S)
        log.check(cluster)


@pytest.mark.slow
@pytest.mark.row("CL-17")
async def test_a_static_worker_is_away_for_a_while_and_comes_back_to_its_own(
    muster_cluster: LocalCluster,
) -> None:
    log = Log()
    async with muster_cluster as cluster, worker(cluster, log, "a") as a:
        async with worker(cluster, log, "b", group_instance_id="i") as b:
            await cluster.until(lambda: shares(a, b))
            own = set(b.numbers)
        await cluster.advance(10)
        assert len(a.numbers) == PARTITIONS // 2
        async with worker(cluster, log, "b2", group_instance_id="i") as b:
            await cluster.until(lambda: shares(a, b))
            assert set(b.numbers) == own
        log.check(cluster)


async def test_nobody_works_untold_for_longer_than_it_is_waited_for(muster_cluster: LocalCluster) -> None:
    """INC-47: what it is to give back may be in an answer that was lost, and is another one's after that."""
    async with muster_cluster as cluster:
        log = Log()
        async with worker(
            cluster, log, "one", session_timeout_ms=20_000, disconnect_grace_ms=0, rebalance_timeout_ms=4_000
        ) as one:
            await cluster.until(lambda: len(one.owned) == PARTITIONS)
            with cluster.drop_beats(one):
                await cluster.advance(4.1)
                assert not one.owned
            await cluster.until(lambda: len(one.owned) == PARTITIONS)
        assert not log.wrong


async def test_a_static_worker_that_was_killed_is_replaced_and_nothing_moves_meanwhile(
    muster_cluster: LocalCluster,
) -> None:
    """INC-145; without a stream nobody knows that it was killed, and its place is free with its session."""
    log = Log()
    async with muster_cluster as cluster, worker(cluster, log, "a") as a:
        async with worker(cluster, log, "b", group_instance_id="i") as b:
            await cluster.until(lambda: shares(a, b))
            own = set(b.numbers)
            await b.kill()
        await cluster.advance(20)
        assert len(a.numbers) == PARTITIONS // 2
        async with worker(cluster, log, "b2", group_instance_id="i") as b:
            await cluster.until(lambda: shares(a, b), within_s=2 if SETTINGS["session"] else EXPIRED_S)
            if SETTINGS["session"]:
                assert set(b.numbers) == own
        log.check(cluster)


async def test_who_does_not_give_back_in_time_loses_it_and_is_replaced(muster_cluster: LocalCluster) -> None:
    told: list[tuple[str, tuple[TopicPartition, ...]]] = []
    hung = asyncio.Event()
    impatient: muster.MemberSettings = {**SETTINGS, "rebalance_timeout_ms": 10_000}

    async def hang(partitions: tuple[TopicPartition, ...]) -> None:
        told.append(("revoked", partitions))
        await hung.wait()

    async with muster_cluster as cluster:
        connection = cluster.connect()
        await connection.create_topic("t", PARTITIONS)
        async with muster.Member(
            connection,
            group_id="g",
            topics="t",
            on_partitions_assigned=lambda some: told.append(("assigned", some)),
            on_partitions_revoked=hang,
            on_partitions_lost=lambda some: told.append(("lost", some)),
            **impatient,
        ) as member:
            await cluster.until(lambda: len(member.partitions) == PARTITIONS)
            async with worker(cluster, Log(), "b") as b:
                await cluster.until(lambda: "lost" in [what for what, _ in told])
                assert not b.numbers, "others have it before it is lost"
                assert told[1:3] == [("revoked", told[1][1]), ("lost", told[1][1])]
                assert set(member.partitions) == set(told[0][1]) - set(told[1][1])
                await cluster.until(lambda: len(told) > 3)  # it was removed
                assert sorted(told[1][1] + told[3][1]) == list(told[0][1])
                hung.set()
                await cluster.until(lambda: told[-1][0] == "assigned")
                await cluster.until(lambda: len(b.numbers) == len(member.partitions) == PARTITIONS // 2)


@pytest.mark.row("CE-12")
@pytest.mark.row("CE-16")
async def test_commits_count_for_the_ownership_that_made_them(muster_cluster: LocalCluster) -> None:
    async with muster_cluster as cluster:
        connection = cluster.connect()
        await connection.create_topic("t", 2)
        where = TopicPartition("t", 0)
        async with muster.Member(connection, group_id="g", topics="t", **SETTINGS) as member:
            await cluster.until(lambda: len(member.partitions) == 2)
            assert member.state.value == "stable"
            assert member.generation > 0
            await member.commit({where: 7})
            assert (await member.committed([where]))[where].offset == 7
            with pytest.raises(muster.CommitFailed):
                await member.commit({TopicPartition("t", 5): 7})
        assert member.state.value == "unjoined"
        assert member.partitions == ()


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (CLASSIC, SETTINGS, "GROUP_ID_NOT_FOUND.*classic"),
        (SETTINGS, CLASSIC, "INCONSISTENT_GROUP_PROTOCOL.*an incremental group takes protocol='auto'"),
    ],
    ids=["classic", "incremental"],
)
async def test_groups_have_members_of_one_kind(
    muster_cluster: LocalCluster, first: Any, second: Any, why: str
) -> None:
    async with muster_cluster as cluster:
        connection = cluster.connect()
        await connection.create_topic("t", 2)
        async with muster.Member(connection, group_id="g", topics="t", **first) as member:
            await cluster.until(lambda: len(member.partitions) == 2)
            other = muster.Member(connection, group_id="g", topics="t", **second)
            await other.start()
            with pytest.raises(muster.GroupError, match=why):
                await other.wait()
        async with muster.Member(connection, group_id="g", topics="t", **second) as later:
            await cluster.until(lambda: len(later.partitions) == 2)  # an empty group changes its kind


async def test_a_member_knows_and_counts_why_its_list_changed(
    muster_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with muster_cluster as cluster:
        connection = cluster.connect()
        await connection.create_topic("t", 2)
        kinds: dict[str, list[int]] = {"one": [], "two": []}

        def member(name: str) -> muster.Member:
            made = muster.Member(connection, group_id="g", topics="t", **SETTINGS)
            monkeypatch.setattr(made.metrics, "rebalanced", kinds[name].append)
            return made

        joined = common_pb2.REBALANCE_CAUSE_KIND_MEMBER_JOINED
        left = common_pb2.REBALANCE_CAUSE_KIND_MEMBER_LEFT
        async with member("one") as one:
            await cluster.until(lambda: len(one.partitions) == 2)
            async with member("two") as two:
                await cluster.until(lambda: len(one.partitions) == len(two.partitions) == 1)
                assert one.last_cause is not None
                assert two.last_cause is not None
                assert two.member_id in one.last_cause.sentence
            await cluster.until(lambda: len(one.partitions) == 2)
            assert one.last_cause is not None
            assert one.last_cause.reason == "the member was closed"
        assert kinds == {"one": [joined, joined, left], "two": [joined]}


def _has(member: muster.Member, number: int) -> bool:
    return len(member.partitions) == number


async def test_the_id_of_a_member_says_whose_it_is(muster_cluster: LocalCluster) -> None:
    async with muster_cluster as cluster:
        connection = cluster.connect()
        await connection.create_topic("t", 2)
        for client_id, begins in (("billing-7", "billing-7-"), ("ä" * 120, "ä" * 109 + "-"), ("", "")):
            settings: muster.MemberSettings = {**SETTINGS, "client_id": client_id}
            async with muster.Member(connection, group_id="g", topics="t", **settings) as one:
                await cluster.until(partial(_has, one, 2))
                assert one.member_id.startswith(begins)
                assert len(one.member_id.encode()) == len(begins.encode()) + 36
