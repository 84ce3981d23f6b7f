"""A member that keeps its partitions while its group rebalances (KIP-429)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import muster
import pytest
from client.client_scripted import TOKEN, Coordinator, ScriptedCluster, commit_answer
from client.test_client_member import ALL, FAST, Story, answer, joined
from kit.waiting import until
from muster import TopicPartition
from muster._backoff import Backoff
from muster._member import commits
from muster._member.leader import Leader
from muster._messages import decode_assignment, encode_assignment, encode_subscription
from muster.assignors import COOPERATIVE_STICKY, Assignor
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

pytestmark = pytest.mark.cluster

REBALANCES = answer(common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS)
LATER = "0000000002-0000000000000009"
COOPERATIVE = ("cooperative-sticky",)
EITHER = ("cooperative-sticky", "range")


def given(*numbers: int, token: str = TOKEN, protocol: str = "cooperative-sticky") -> Any:
    """The answer to a SyncGroup."""
    return coordinator_pb2.SyncGroupResponse(
        protocol_type="consumer",
        protocol_name=protocol,
        assignment=encode_assignment(ALL[number] for number in numbers),
        token=token,
        shard_epoch=1,
    )


def said(request: coordinator_pb2.JoinGroupRequest) -> tuple[list[int], bool, int]:
    """What a join says that its member owns, whether it keeps it, and since which generation."""
    [message] = {protocol.metadata for protocol in request.protocols}
    subscription = common_pb2.Subscription.FromString(message)
    numbers = [number for entry in subscription.owned_partitions for number in entry.partitions]
    return numbers, subscription.keeps_owned, subscription.generation


def choosing(a: Coordinator, protocol: str, *, withholds_kept: bool) -> Callable[[Any], Any]:
    """The answer to a JoinGroup of a group that uses some protocol."""

    def join(request: Any) -> Any:
        response = a.join(request)
        if response.error_code == common_pb2.ERROR_CODE_NONE:
            response.protocol_name = protocol
            response.withholds_kept = withholds_kept
        return response

    return join


class Parked:
    """A call that is answered when the test says so."""

    def __init__(self, default: Callable[[Any], Any]) -> None:
        self.go = asyncio.Event()
        self._default = default

    async def __call__(self, request: Any) -> Any:
        await self.go.wait()
        return self._default(request)


@asynccontextmanager
async def rejoining(cluster: ScriptedCluster, **settings: Any) -> AsyncIterator[tuple[Story, Parked]]:
    """A member whose second join is parked; it owns everything."""
    a = cluster.coordinators[0]
    async with joined(cluster, assignors=COOPERATIVE, **settings) as story:
        await a.until("Heartbeat", 2)
        parked = Parked(a.join)
        a.script["JoinGroup"].extend([parked] * 1_000)
        a.script["Heartbeat"].append(REBALANCES)
        await a.until("JoinGroup", 3)
        yield story, parked


async def test_only_what_moves_is_revoked_and_the_second_rebalance_follows(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    async with rejoining(cluster) as (story, parked):
        assert story.member.partitions == ALL
        assert story.member.token(ALL[2]) == TOKEN
        a.script["SyncGroup"].extend([given(0, 1), given(0, 1)])
        parked.go.set()
        third = await a.until("JoinGroup", 4)
        assert story.told == [("assigned", ALL), ("revoked", ALL[2:]), ("assigned", ())]
        assert said(a.requests("JoinGroup")[2]) == ([0, 1, 2], True, 1)
        assert said(third) == ([0, 1], True, 2)
        assert third.reason == "it has released t 2"
        await until(lambda: story.told[3:] == [("assigned", ())], "the member has the third generation")
        assert story.member.partitions == ALL[:2]


async def test_what_comes_is_assigned_after_what_goes_was_revoked(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    a.script["SyncGroup"].append(given(0, 1))
    async with joined(cluster, assignors=COOPERATIVE) as story:
        a.script["SyncGroup"].append(given(1, 2))
        a.script["Heartbeat"].append(REBALANCES)
        await story.until("assigned", "revoked", "assigned")
        assert story.told[1:3] == [("revoked", ALL[:1]), ("assigned", ALL[2:])]


async def test_a_new_token_is_another_ownership(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    async with joined(cluster, assignors=COOPERATIVE) as story:
        a.script["SyncGroup"].append(given(0, 1, 2, token=LATER))
        a.script["Heartbeat"].append(REBALANCES)
        await story.until("assigned", "revoked", "assigned")
        assert story.told[1:] == [("revoked", ALL), ("assigned", ALL)]
        assert story.member.token(ALL[0]) == LATER
        await a.until("Heartbeat", len(a.requests("Heartbeat")) + 3)
        assert len(a.requests("JoinGroup")) == 3, "nobody waits for it to release anything"


@pytest.mark.parametrize(
    ("assignors", "chosen", "withholds", "keeps"),
    [
        (COOPERATIVE, "cooperative-sticky", False, True),
        (EITHER, "cooperative-sticky", False, False),
        (EITHER, "cooperative-sticky", True, True),
        (EITHER, "range", True, False),
        ((Assignor("own", lambda _: {}, cooperative=True), "range"), "range", True, False),
    ],
)
async def test_the_groups_protocol_and_coordinator_say_whether_a_member_keeps(
    cluster: ScriptedCluster, assignors: Any, chosen: str, withholds: bool, keeps: bool
) -> None:
    a = cluster.coordinators[0]
    a.script["JoinGroup"].extend([choosing(a, chosen, withholds_kept=withholds)] * 3)
    async with joined(cluster, assignors=assignors) as story:
        a.script["Heartbeat"].append(REBALANCES)
        assert said(await a.until("JoinGroup", 3)) == ([0, 1, 2], keeps, 1)
        await until(lambda: story.member.generation == 2, "the member has joined again")
        assert ("revoked" in story.words) is not keeps


async def test_a_member_that_kept_partitions_in_an_eager_generation_releases_them(
    cluster: ScriptedCluster,
) -> None:
    a = cluster.coordinators[0]
    joins = [choosing(a, "cooperative-sticky", withholds_kept=True)] * 2
    joins += [choosing(a, "range", withholds_kept=True)] * 2
    a.script["JoinGroup"].extend(joins)
    async with joined(cluster, assignors=EITHER) as story:
        a.script["SyncGroup"].append(given(0, protocol="range"))
        a.script["Heartbeat"].append(REBALANCES)
        fourth = await a.until("JoinGroup", 4)
        assert story.told[1:4] == [("revoked", ALL[1:]), ("assigned", ()), ("revoked", ALL[:1])]
        assert said(fourth) == ([0], False, 2)


async def test_who_kept_partitions_in_an_eager_generation_keeps_them_no_longer(
    cluster: ScriptedCluster,
) -> None:
    """It would release some of them after the next one: yet another rebalance, which stops everybody."""
    a = cluster.coordinators[0]
    joins = [choosing(a, "cooperative-sticky", withholds_kept=True)] * 2
    joins += [choosing(a, "range", withholds_kept=True)] * 2
    a.script["JoinGroup"].extend(joins)
    async with joined(cluster, assignors=EITHER) as story:
        rebalances = coordinator_pb2.SyncGroupResponse(
            error_code=common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS, shard_epoch=1
        )
        a.script["SyncGroup"].append(rebalances)
        a.script["Heartbeat"].append(REBALANCES)
        fourth = await a.until("JoinGroup", 4)
        assert said(a.requests("JoinGroup")[2]) == ([0, 1, 2], True, 1)
        assert said(fourth) == ([0, 1, 2], False, 1)
        assert story.told[1:] == [("revoked", ALL)]


async def test_work_commits_through_a_rebalance(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    async with rejoining(cluster) as (story, parked):
        await story.member.commit({ALL[0]: 1})
        assert a.requests("OffsetCommit")[-1].generation == 1

        def later(request: Any) -> Any:
            parked.go.set()
            if request.generation == 2:
                return a.commit(request)
            return commit_answer(request, common_pb2.ERROR_CODE_ILLEGAL_GENERATION)

        sync = Parked(a.sync)
        a.script["SyncGroup"].append(sync)
        a.script["OffsetCommit"].extend([later] * 50)
        commit = asyncio.create_task(story.member.commit({ALL[0]: 2}))
        await a.until("SyncGroup", 2)
        await a.until("Heartbeat", len(a.requests("Heartbeat")) + 40)
        assert {request.generation for request in a.requests("OffsetCommit")} == {1}
        sync.go.set()
        await commit
        assert a.requests("OffsetCommit")[-1].generation == 2
        assert a.offsets["t", 0] == 2
        assert story.words[0] == "assigned"
        assert "lost" not in story.words


async def test_a_commit_that_was_late_for_its_generation_is_sent_with_the_next_one_at_once(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRP-46: it waited for a tenth of a second then, or for three."""
    paused: list[bool] = []

    class Counted(Backoff):
        async def pause(self, *, connection_broken: bool = False) -> None:
            paused.append(connection_broken)

    monkeypatch.setattr(commits, "Backoff", Counted)
    a = cluster.coordinators[0]
    async with rejoining(cluster) as (story, parked):
        late = Parked(lambda request: commit_answer(request, common_pb2.ERROR_CODE_ILLEGAL_GENERATION))
        sync = Parked(a.sync)
        a.script["OffsetCommit"].append(late)
        a.script["SyncGroup"].append(sync)
        commit = asyncio.create_task(story.member.commit({ALL[0]: 1}))
        await a.until("OffsetCommit", 1)
        parked.go.set()
        await a.until("SyncGroup", 2)
        late.go.set()
        await a.until("Heartbeat", len(a.requests("Heartbeat")) + 10)
        sync.go.set()
        await commit
        assert [request.generation for request in a.requests("OffsetCommit")] == [1, 2]
        assert not paused


async def test_what_is_revoked_is_committed_before(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    story = Story(cluster, assignors=COOPERATIVE)

    async def give_up(partitions: tuple[TopicPartition, ...]) -> None:
        await story.member.commit(dict.fromkeys(partitions, 7))
        story.tell("revoked", partitions)

    settings: muster.MemberSettings = {**FAST, "assignors": COOPERATIVE}
    story.member = muster.Member(
        story.connection,
        group_id="g",
        topics="t",
        on_partitions_assigned=lambda p: story.tell("assigned", p),
        on_partitions_revoked=give_up,
        **settings,
    )
    async with story.member:
        await story.until("assigned")
        a.script["SyncGroup"].extend([given(0, 1), given(0, 1)])
        a.script["Heartbeat"].append(REBALANCES)
        await a.until("JoinGroup", 4)
        assert a.offsets == {("t", 2): 7}
    await story.connection.close()


async def test_a_life_that_ends_while_the_join_is_parked_loses_what_is_kept(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    async with rejoining(cluster, session_timeout_ms=400) as (story, parked):
        a.alive = answer(common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE)
        await story.until("assigned", "lost")
        assert story.member.partitions == ()
        a.alive = None
        parked.go.set()
        await story.until("assigned", "lost", "assigned")
        assert story.told[2] == ("assigned", ALL)


@pytest.mark.parametrize("says_so", ["JoinGroup", "Heartbeat"])
async def test_a_removal_while_it_joins_loses_what_is_kept(cluster: ScriptedCluster, says_so: str) -> None:
    a = cluster.coordinators[0]
    gone = common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID
    async with rejoining(cluster) as (story, parked):
        refused = coordinator_pb2.JoinGroupResponse(error_code=gone, generation=-1, shard_epoch=1)
        parked._default = lambda _: refused
        a.script["JoinGroup"].clear()
        if says_so == "Heartbeat":
            a.script["Heartbeat"].append(answer(gone))
            await story.until("assigned", "lost")
        parked.go.set()
        await story.until("assigned", "lost", "assigned")
        assert said(a.requests("JoinGroup")[3]) == ([], False, -1)
        assert story.member.member_id == "m-2"


async def test_closing_while_it_joins_gives_up_what_is_kept(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    async with rejoining(cluster) as (story, _):
        await story.member.close()
        assert story.told == [("assigned", ALL), ("revoked", ALL)]
        assert len(a.requests("LeaveGroup")) == 1


@pytest.mark.parametrize("keeps", [True, False])
async def test_what_nobody_keeps_is_given_at_once(keeps: bool) -> None:
    """A coordinator that does not withhold has members give everything up: nothing is left to wait for."""

    async def read_topics(names: Iterable[str]) -> list[muster.Topic]:
        return [muster.Topic(name, 4) for name in names]

    def member(member_id: str, owned: Sequence[int]) -> coordinator_pb2.JoinGroupResponse.Member:
        metadata = encode_subscription(
            ("t",),
            owned=[muster.TopicPartition("t", number) for number in owned],
            keeps_owned=keeps and bool(owned),
            generation=1,
            rack_id="",
        )
        return coordinator_pb2.JoinGroupResponse.Member(member_id=member_id, metadata=metadata)

    members = [member("old", range(4)), member("new", ())]
    made = await Leader(read_topics).assign(COOPERATIVE_STICKY, members)
    counts = {entry.member_id: len(decode_assignment(entry.assignment) or ()) for entry in made}
    assert counts == {"old": 2, "new": 0 if keeps else 2}
