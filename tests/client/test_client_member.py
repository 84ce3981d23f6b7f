"""A member against a coordinator that answers as the test wants."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import grpc
import muster
import pytest
from client.client_scripted import TOKEN, Break, Coordinator, ScriptedCluster, commit_answer
from kit.waiting import until
from muster import MemberState, TopicPartition
from muster._cluster.link import Outcome
from muster._member import commits
from muster._member.leader import Leader
from muster._member.waits import Waits
from muster._reactions import CONNECTION_LOST
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, discovery_pb2

pytestmark = pytest.mark.cluster

FAST: muster.MemberSettings = {
    "session_timeout_ms": 10_000,
    "heartbeat_interval_ms": 30,
    "rebalance_timeout_ms": 5_000,
    "request_timeout_ms": 2_000,
}
ALL = tuple(TopicPartition("t", n) for n in range(3))


class Story:
    """A member and what it told."""

    def __init__(self, scripted: ScriptedCluster, **settings: Any) -> None:
        self.told: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.changed = asyncio.Event()
        self.connection = muster.Cluster(scripted.address)
        callbacks: dict[str, Any] = {
            f"on_partitions_{what}": partial(self.tell, what) for what in ("assigned", "revoked", "lost")
        }
        self.member = muster.Member(
            self.connection, group_id="g", topics="t", **{**callbacks, **FAST, **settings}
        )

    def tell(self, what: str, partitions: tuple[TopicPartition, ...]) -> None:
        self.told.append((what, partitions))
        self.changed.set()

    @property
    def words(self) -> list[str]:
        return [what for what, _ in self.told]

    async def until(self, *words: str) -> None:
        async with asyncio.timeout(60):
            while self.words[: len(words)] != list(words):
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def joined(scripted: ScriptedCluster, **settings: Any) -> AsyncIterator[Story]:
    story = Story(scripted, **settings)
    try:
        async with story.member:
            await story.until("assigned")
            yield story
    finally:
        await story.connection.close()


def answer(code: common_pb2.ErrorCode.ValueType, **fields: Any) -> Callable[[Any], Any]:
    return lambda _request: coordinator_pb2.HeartbeatResponse(error_code=code, shard_epoch=1, **fields)


async def test_joins_owns_and_leaves(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    async with joined(cluster) as story:
        assert story.told == [("assigned", ALL)]
        assert story.member.state == MemberState.STABLE
        assert story.member.generation == 1
        assert story.member.partitions == ALL
        assert story.member.token(ALL[0]) == TOKEN
    assert story.words == ["assigned", "revoked"]
    [leave] = a.requests("LeaveGroup")
    assert leave.members[0].member_id == "m-1"
    assert leave.members[0].reason
    assert story.member.state.value == "unjoined"


async def test_a_join_and_its_retries_carry_one_request_id(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]

    def unavailable(_request: Any) -> Any:
        raise Break

    a.script["JoinGroup"] = deque([unavailable, unavailable])
    async with joined(cluster):
        joins = a.requests("JoinGroup")
        assert len(joins) == 4
        assert {(j.request_id, j.member_seq) for j in joins} == {(joins[0].request_id, 1)}
        assert [j.member_id for j in joins] == ["", "", "", "m-1"]


async def test_a_coordinator_that_always_asks_for_another_id_is_not_asked_without_a_pause(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = cluster.coordinators[0]
    pauses: list[int] = []

    async def pause(_waits: Waits, _backoff: object, outcome: Outcome[Any]) -> None:
        pauses.append(outcome.code)

    monkeypatch.setattr(Waits, "pause", pause)
    again = coordinator_pb2.JoinGroupResponse(
        error_code=common_pb2.ERROR_CODE_MEMBER_ID_REQUIRED, member_id="m-9", generation=-1, shard_epoch=1
    )
    a.script["JoinGroup"] = deque([again] * 5)
    async with joined(cluster):
        asked = [code for code in pauses if code != CONNECTION_LOST]
        assert asked == [common_pb2.ERROR_CODE_MEMBER_ID_REQUIRED] * 4


async def test_a_code_of_discovery_that_is_not_known_is_no_reason_to_stop(cluster: ScriptedCluster) -> None:
    unknown = discovery_pb2.FindCoordinatorResponse.Result(
        group_id="g", error_code=common_pb2.ErrorCode.ValueType(12_345)
    )
    cluster.script["FindCoordinator"].append(discovery_pb2.FindCoordinatorResponse(results=[unknown]))
    async with joined(cluster) as story:
        assert story.member.partitions == ALL


@pytest.mark.row("SM-39")
async def test_a_static_member_is_not_asked_for_an_id_and_does_not_leave(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    async with joined(cluster, group_instance_id="blue"):
        assert len(a.requests("JoinGroup")) == 1
    assert a.requests("LeaveGroup") == []


@pytest.mark.parametrize(
    ("code", "words", "keeps_id"),
    [
        (common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS, ["assigned", "revoked", "assigned"], True),
        (common_pb2.ERROR_CODE_ILLEGAL_GENERATION, ["assigned", "lost", "assigned"], True),
        (common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID, ["assigned", "lost", "assigned"], False),
    ],
)
async def test_a_heartbeat_asks_for_a_rejoin(
    cluster: ScriptedCluster, code: common_pb2.ErrorCode.ValueType, words: list[str], keeps_id: bool
) -> None:
    a = cluster.coordinators[0]
    async with joined(cluster) as story:
        before = story.member.member_id
        a.script["Heartbeat"].append(answer(code))
        await story.until(*words)
        assert (story.member.member_id == before) is keeps_id
        assert story.member.generation == 2
        last = a.requests("JoinGroup")[-1]
        assert last.member_seq > 1
        assert last.request_id != a.requests("JoinGroup")[0].request_id


@pytest.mark.parametrize(
    "code",
    [
        common_pb2.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS,
        common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE,
        common_pb2.ERROR_CODE_NOT_COORDINATOR,
    ],
)
async def test_a_heartbeat_that_nobody_answers_changes_nothing(
    cluster: ScriptedCluster, code: common_pb2.ErrorCode.ValueType
) -> None:
    a = cluster.coordinators[0]
    async with joined(cluster) as story:
        a.script["Heartbeat"] = deque([answer(code), answer(code)])
        await a.until("Heartbeat", 5)
        assert story.words == ["assigned"]
        assert story.member.generation == 1


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (common_pb2.ERROR_CODE_FENCED_INSTANCE_ID, muster.FencedInstance),
        (common_pb2.ERROR_CODE_GROUP_AUTHORIZATION_FAILED, muster.GroupError),
        (common_pb2.ERROR_CODE_UNKNOWN_SERVER_ERROR, muster.GroupError),
    ],
)
async def test_a_fatal_heartbeat_ends_the_member(
    cluster: ScriptedCluster, code: common_pb2.ErrorCode.ValueType, error: type[Exception]
) -> None:
    a = cluster.coordinators[0]
    story = Story(cluster)
    await story.member.start()
    await story.until("assigned")
    a.script["Heartbeat"].append(answer(code))
    with pytest.raises(error):
        await asyncio.wait_for(story.member.wait(), 60)
    assert story.words == ["assigned", "lost"]
    await story.connection.close()


@pytest.mark.row("MX-12")
@pytest.mark.parametrize(
    "code",
    [
        common_pb2.ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL,
        common_pb2.ERROR_CODE_INVALID_GROUP_ID,
        common_pb2.ERROR_CODE_INVALID_SESSION_TIMEOUT,
        common_pb2.ERROR_CODE_GROUP_MAX_SIZE_REACHED,
        common_pb2.ERROR_CODE_FENCED_INSTANCE_ID,
    ],
)
async def test_a_fatal_join_names_the_code(
    cluster: ScriptedCluster, code: common_pb2.ErrorCode.ValueType
) -> None:
    a = cluster.coordinators[0]
    a.script["JoinGroup"].append(coordinator_pb2.JoinGroupResponse(error_code=code))
    story = Story(cluster)
    await story.member.start()
    with pytest.raises(muster.GroupError, match=common_pb2.ErrorCode.Name(code)[11:]):
        await asyncio.wait_for(story.member.wait(), 60)
    await story.connection.close()


async def test_an_unknown_member_id_in_join_starts_over(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    unknown = coordinator_pb2.JoinGroupResponse(
        error_code=common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID, shard_epoch=1
    )
    a.script["JoinGroup"] = deque([a.join, unknown])
    async with joined(cluster):
        assert [j.member_id for j in a.requests("JoinGroup")] == ["", "m-1", "", "m-2"]


@pytest.mark.parametrize(
    ("code", "member_ids"),
    [
        (common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS, ["", "m-1", "m-1"]),
        (common_pb2.ERROR_CODE_ILLEGAL_GENERATION, ["", "m-1", "m-1"]),
        (common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID, ["", "m-1", "", "m-2"]),
    ],
)
async def test_a_sync_asks_for_a_rejoin(
    cluster: ScriptedCluster, code: common_pb2.ErrorCode.ValueType, member_ids: list[str]
) -> None:
    a = cluster.coordinators[0]
    a.script["SyncGroup"].append(coordinator_pb2.SyncGroupResponse(error_code=code, shard_epoch=1))
    async with joined(cluster) as story:
        assert [j.member_id for j in a.requests("JoinGroup")] == member_ids
        assert story.words == ["assigned"]


async def test_a_sync_is_repeated_with_the_same_assignments_after_a_fail_over(
    cluster: ScriptedCluster,
) -> None:
    a, b = cluster.coordinators
    b.shard_epoch, b.generation = 2, 1

    def fail_over(_request: Any) -> Any:
        cluster.owner = 1
        raise Break

    a.script["SyncGroup"].append(fail_over)
    async with joined(cluster) as story:
        assert b.requests("JoinGroup") == []
        assert b.requests("SyncGroup") == a.requests("SyncGroup")
        assert story.member.generation == 1


async def test_a_hint_is_followed_without_a_lookup(cluster: ScriptedCluster) -> None:
    a, b = cluster.coordinators
    b.shard_epoch = 2
    async with joined(cluster) as story:
        # Who is slow to answer for the first time is asked about, which leads nowhere: b is found without it.
        unknown = discovery_pb2.FindCoordinatorResponse.Result(
            group_id="g", error_code=common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE
        )
        cluster.script["FindCoordinator"].extend(
            [discovery_pb2.FindCoordinatorResponse(results=[unknown])] * 1_000
        )
        a.script["Heartbeat"].append(answer(common_pb2.ERROR_CODE_NOT_COORDINATOR, coordinator=b.where()))
        await b.until("Heartbeat", 2)
        assert story.words == ["assigned"]


async def test_answers_of_a_deposed_coordinator_are_dropped(cluster: ScriptedCluster) -> None:
    a, b = cluster.coordinators
    b.shard_epoch = 5
    async with joined(cluster) as story:
        # Discovery has heard of it too: it is asked where b is slow to answer for the first time.
        cluster.owner = 1
        a.script["Heartbeat"].append(answer(common_pb2.ERROR_CODE_NOT_COORDINATOR, coordinator=b.where()))
        await b.until("Heartbeat")
        stale = coordinator_pb2.HeartbeatResponse(
            error_code=common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID, shard_epoch=4
        )
        b.script["Heartbeat"].append(stale)
        await b.until("Heartbeat", 4)
        assert story.words == ["assigned"]
        assert cluster.asked[-1].seen_epochs == [5]


async def test_an_error_of_an_older_generation_is_dropped(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    late = asyncio.Event()

    async def slow(_request: Any) -> Any:
        await late.wait()
        return coordinator_pb2.HeartbeatResponse(
            error_code=common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID, shard_epoch=1
        )

    async with joined(cluster) as story:
        a.script["Heartbeat"].append(slow)
        await a.until("Heartbeat")
        story.member.rejoin("the test wants it")
        await story.until("assigned", "revoked", "assigned")
        late.set()
        await a.until("Heartbeat", len(a.requests("Heartbeat")) + 3)
        assert story.words == ["assigned", "revoked", "assigned"]
        assert a.requests("JoinGroup")[-1].reason == "the test wants it"


async def test_a_killed_coordinator_is_no_event(cluster: ScriptedCluster) -> None:
    a, b = cluster.coordinators
    b.shard_epoch, b.generation = 2, 1
    async with joined(cluster) as story:
        await a.until("Heartbeat")
        await a.stop()
        cluster.owner = 1
        await b.until("Heartbeat", 2)
        assert story.words == ["assigned"]
        await story.member.commit({ALL[0]: 5})
        assert b.offsets == {("t", 0): 5}


async def test_at_the_end_of_its_life_partitions_are_lost_and_come_back(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    mute = answer(common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE)
    async with joined(cluster, session_timeout_ms=400) as story:
        a.alive = mute
        await story.until("assigned", "lost")
        assert story.member.partitions == ()
        with pytest.raises(muster.CommitFailed):
            await story.member.commit({ALL[0]: 1})
        a.alive = None
        await story.until("assigned", "lost", "assigned")
        assert story.member.partitions == ALL
        assert story.member.generation == 1
        assert len(a.requests("JoinGroup")) == 2
        assert {(h.member_id, h.generation) for h in a.requests("Heartbeat")} == {("m-1", 1)}


async def test_heartbeats_go_on_while_partitions_are_given_up(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    done = asyncio.Event()
    story = Story(cluster)

    async def slow(partitions: tuple[TopicPartition, ...]) -> None:
        await done.wait()
        await story.member.commit({partitions[0]: 9})
        story.tell("revoked", partitions)

    story.member = muster.Member(
        story.connection,
        group_id="g",
        topics=["t"],
        on_partitions_assigned=lambda p: story.tell("assigned", p),
        on_partitions_revoked=slow,
        **FAST,
    )
    async with story.member:
        await story.until("assigned")
        a.alive = answer(common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS)
        await a.until("Heartbeat", len(a.requests("Heartbeat")) + 5)
        assert len(a.requests("JoinGroup")) == 2
        assert story.member.state is MemberState.REBALANCING
        a.alive = None
        done.set()
        await story.until("assigned", "revoked", "assigned")
        assert a.offsets == {("t", 0): 9}
        assert a.requests("OffsetCommit")[0].generation == 1
    await story.connection.close()


async def test_a_commit_is_repeated_with_its_number_until_it_is_known(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]

    def broken(_request: Any) -> Any:
        raise Break(grpc.StatusCode.UNKNOWN)

    loading = [lambda r: commit_answer(r, common_pb2.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS)]
    async with joined(cluster) as story:
        a.script["OffsetCommit"] = deque([broken, *loading])
        await story.member.commit({ALL[1]: 4})
        await story.member.commit({ALL[1]: 6})
        assert [(c.member_seq, c.topics[0].partitions[0].offset) for c in a.requests("OffsetCommit")] == [
            (1, 4),
            (1, 4),
            (1, 4),
            (2, 6),
        ]
        found = await story.member.committed(ALL)
        assert found == {ALL[1]: muster.Committed(6)}


def last_unknown(request: Any) -> Any:
    """An answer that knows all partitions of a commit but the last."""
    answer = commit_answer(request, common_pb2.ERROR_CODE_NONE)
    answer.topics[0].partitions[-1].error_code = common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION
    return answer


async def test_what_was_refused_of_a_commit_is_repeated_under_a_number_of_its_own(
    cluster: ScriptedCluster,
) -> None:
    a = cluster.coordinators[0]
    async with joined(cluster) as story:
        a.script["OffsetCommit"].append(last_unknown)
        await story.member.commit({ALL[0]: 4, ALL[1]: 5})
        assert [
            (c.member_seq, [(p.partition, p.offset) for p in c.topics[0].partitions])
            for c in a.requests("OffsetCommit")
        ] == [(1, [(0, 4), (1, 5)]), (2, [(1, 5)])]


async def test_what_is_refused_is_not_sent_again_while_others_wait_for_the_partition(
    cluster: ScriptedCluster,
) -> None:
    a = cluster.coordinators[0]
    async with joined(cluster) as story:
        a.script["OffsetCommit"].extend([last_unknown] * 10_000)
        commit = asyncio.create_task(story.member.commit({ALL[0]: 4}))
        await until(lambda: len(a.requests("OffsetCommit")) >= 3)
        before = len(a.requests("OffsetCommit"))
        await story.member.close()
        assert len(a.requests("OffsetCommit")) <= before + 1
        with pytest.raises(muster.CommitRejected, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await commit


@pytest.mark.parametrize(
    ("position", "error"),
    [
        (2**63, ValueError),
        (muster.Committed(1, "\ud800"), UnicodeEncodeError),
        (muster.Committed(1, cast(Any, 7)), TypeError),
        (muster.Committed(1, "é" * 40_000), muster.CommitRejected),
    ],
)
async def test_a_commit_that_cannot_be_sent_concerns_no_other(
    cluster: ScriptedCluster, position: int | muster.Committed, error: type[Exception]
) -> None:
    a = cluster.coordinators[0]
    async with joined(cluster) as story:
        commits = [story.member.commit({ALL[n]: at}) for n, at in enumerate((1, position, 3))]
        outcomes = await asyncio.gather(*commits, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), error, type(None)]
    assert a.offsets == {("t", 0): 1, ("t", 2): 3}


async def test_a_failure_that_nobody_foresaw_costs_the_commits_of_one_request(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = asyncio.Event()

    async def fails(*_: object, **__: object) -> None:
        await hold.wait()
        monkeypatch.undo()
        raise KeyError("unforeseen")

    async with joined(cluster) as story:
        monkeypatch.setattr(story.member._link, "call", fails)
        first = asyncio.create_task(story.member.commit({ALL[0]: 1}))
        await asyncio.sleep(0)
        second = asyncio.create_task(story.member.commit({ALL[1]: 2}))
        await asyncio.sleep(0)
        hold.set()
        with pytest.raises(KeyError):
            await first
        await asyncio.wait_for(second, 60)


async def test_commits_are_as_large_as_the_log_has_them(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the topic of each: ten thousand long names were more than a coordinator takes."""
    a = cluster.coordinators[0]
    entry = coordinator_pb2.OffsetCommitRequest.Partition(partition=0, offset=5, leader_epoch=-1)
    monkeypatch.setattr(commits, "MOST_BYTES", entry.ByteSize() + len(ALL[0].topic))
    async with joined(cluster) as story:
        await story.member.commit(dict.fromkeys(ALL[:3], 5))
        sent = [[len(topic.partitions) for topic in one.topics] for one in a.requests("OffsetCommit")]
        assert sent == [[1], [1], [1]]
        assert a.offsets == {(one.topic, one.number): 5 for one in ALL[:3]}


async def test_commits_that_are_large_together_travel_apart(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    cluster.topics["t"] = 100
    async with joined(cluster) as story:
        large = {partition: muster.Committed(1, "x" * 60_000) for partition in story.member.partitions}
        await story.member.commit(large)
    requests = a.requests("OffsetCommit")
    assert sum(len(request.topics[0].partitions) for request in requests) == 100
    assert max(request.ByteSize() for request in requests) < 2 << 20


async def test_a_commit_that_hangs_holds_up_none_of_the_next_ownership(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    long = dict.fromkeys(("request_timeout_ms", "session_timeout_ms", "rebalance_timeout_ms"), 600_000)
    async with joined(cluster, **long) as story:
        a.script["OffsetCommit"].append(lambda _: asyncio.Event().wait())
        hanging = asyncio.create_task(story.member.commit({ALL[0]: 1}))
        await a.until("OffsetCommit")
        a.script["Heartbeat"].append(answer(common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID))
        await story.until("assigned", "lost", "assigned")
        await asyncio.wait_for(story.member.commit({ALL[0]: 2}), 30)
        with pytest.raises(muster.CommitFailed):
            await asyncio.wait_for(hanging, 60)


async def test_commits_that_come_together_travel_together(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    hold = asyncio.Event()

    async def slow(request: Any) -> Any:
        await hold.wait()
        return a.commit(request)

    async with joined(cluster) as story:
        a.script["OffsetCommit"].append(slow)
        first = asyncio.create_task(story.member.commit({ALL[0]: 1}))
        await a.until("OffsetCommit")
        others = [asyncio.create_task(story.member.commit({p: n})) for p in ALL for n in (2, 3)]
        await asyncio.sleep(0)
        hold.set()
        await asyncio.gather(first, *others)
        assert len(a.requests("OffsetCommit")) == 2
        assert set(a.offsets.values()) == {3}


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (common_pb2.ERROR_CODE_ILLEGAL_GENERATION, muster.CommitFailed, ["assigned", "lost", "assigned"]),
        (common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID, muster.CommitFailed, ["assigned", "lost", "assigned"]),
        (
            common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS,
            muster.CommitFailed,
            ["assigned", "revoked", "assigned"],
        ),
        (common_pb2.ERROR_CODE_OFFSET_METADATA_TOO_LARGE, muster.CommitRejected, ["assigned"]),
    ],
)
async def test_a_refused_commit_is_raised_and_logged(
    cluster: ScriptedCluster,
    code: common_pb2.ErrorCode.ValueType,
    error: type[Exception],
    words: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "muster")
    a = cluster.coordinators[0]
    async with joined(cluster) as story:
        a.script["OffsetCommit"].append(lambda r: commit_answer(r, code))
        with pytest.raises(error):
            await story.member.commit({ALL[0]: 1})
        await story.until(*words)
    name = common_pb2.ErrorCode.Name(code).removeprefix("ERROR_CODE_")
    assert f"commit refused of {ALL[0].topic} {ALL[0].number}: {name}" in caplog.text


async def test_a_parked_join_moves_with_its_coordinator(cluster: ScriptedCluster) -> None:
    a, b = cluster.coordinators
    b.shard_epoch, b.generation = 2, 1
    async with joined(cluster, rebalance_timeout_ms=60_000) as story:

        async def parked(_request: Any) -> Any:
            await asyncio.Event().wait()

        a.script["JoinGroup"].append(parked)
        story.member.rejoin("test")
        parked_join = await a.until("JoinGroup", 3)
        cluster.owner = 1
        a.alive = answer(common_pb2.ERROR_CODE_NOT_COORDINATOR, coordinator=b.where())
        # Much later the dead call would end by itself.
        moved = await asyncio.wait_for(b.until("JoinGroup"), 10)
        assert moved == parked_join
        await story.until("assigned", "revoked", "assigned")


async def test_a_leader_rejoins_when_a_topic_grew(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    async with joined(cluster, topic_refresh_interval_ms=100) as story:
        cluster.topics["t"] = 4
        await story.until("assigned", "revoked", "assigned")
        assert story.told[-1][1] == (*ALL, TopicPartition("t", 3))
        assert "t from 3 to 4" in a.requests("JoinGroup")[-1].reason


async def test_a_leader_watches_topics_after_an_error_that_nobody_foresaw(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changes, failures = Leader.changes, iter([KeyError("unforeseen")])

    async def failing(leader: Leader) -> str:
        for failure in failures:
            raise failure
        return await changes(leader)

    monkeypatch.setattr(Leader, "changes", failing)
    async with joined(cluster, topic_refresh_interval_ms=100) as story:
        cluster.topics["t"] = 4
        await story.until("assigned", "revoked", "assigned")
    assert "topics cannot be watched; trying again" in caplog.text
    assert "KeyError: 'unforeseen'" in caplog.text


@pytest.mark.parametrize("topics", [["t", "no such/topic", "x" * 300], ["t", *map(str, range(1_000))]])
async def test_what_another_member_subscribes_to_stops_no_leader(
    cluster: ScriptedCluster, topics: list[str]
) -> None:
    a = cluster.coordinators[0]

    def with_another(request: Any) -> Any:
        response = a.join(request)
        metadata = common_pb2.Subscription(version=1, topics=topics).SerializeToString()
        response.members.add(member_id="other", metadata=metadata)
        return response

    a.script["JoinGroup"] = deque([a.join, with_another])
    async with joined(cluster) as story:
        assert 0 < len(story.member.partitions) < 3


async def test_kept_partitions_keep_their_token(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]

    def kept(request: Any) -> Any:
        response = a.sync(request)
        response.token = "0000000002-0000000000000009"
        response.kept_tokens.add(topic="t", partition=1, token=TOKEN)
        return response

    a.script["SyncGroup"].append(kept)
    async with joined(cluster) as story:
        assert story.member.token(ALL[1]) == TOKEN
        assert story.member.token(ALL[0]) == "0000000002-0000000000000009"


async def test_a_callback_that_raises_ends_the_member(cluster: ScriptedCluster) -> None:
    connection = muster.Cluster(cluster.address)

    def bad(_partitions: tuple[TopicPartition, ...]) -> None:
        raise RuntimeError("boom")

    member = muster.Member(connection, group_id="g", topics="t", on_partitions_assigned=bad, **FAST)
    await member.start()
    with pytest.raises(muster.CallbackFailed, match="on_partitions_assigned") as caught:
        await asyncio.wait_for(member.wait(), 60)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert len(cluster.coordinators[0].requests("LeaveGroup")) == 1
    await connection.close()


async def test_a_member_whose_callback_raises_at_its_close_leaves_after_it_lost_everything(
    cluster: ScriptedCluster,
) -> None:
    def bad(_partitions: tuple[TopicPartition, ...]) -> None:
        raise RuntimeError("boom")

    story = Story(cluster, on_partitions_revoked=bad)
    at_leave: list[tuple[list[str], tuple[TopicPartition, ...]]] = []

    def leave(request: Any) -> Any:
        at_leave.append((story.words, story.member.partitions))
        return cluster.coordinators[0].leave(request)

    cluster.coordinators[0].script["LeaveGroup"].append(leave)
    await story.member.start()
    await story.until("assigned")
    await story.member.close()
    with pytest.raises(muster.CallbackFailed, match="on_partitions_revoked"):
        await story.member.wait()
    await story.connection.close()
    assert at_leave == [(["assigned", "lost"], ())]


@pytest.mark.parametrize(("name", "told"), [("mine", b"gpu"), ("range", b"")])
async def test_rack_and_user_data_reach_an_assignor_of_the_users_own(
    cluster: ScriptedCluster, name: str, told: bytes
) -> None:
    """One of the names of Kafka's assignors gets no user data: its class would take it for its own."""
    seen: list[muster.assignors.MemberSnapshot] = []

    def assign(group: muster.assignors.GroupSnapshot) -> muster.assignors.Assignment:
        seen.extend(group.members.values())
        return dict.fromkeys(group.members, ALL)

    mine = muster.assignors.Assignor(name, assign)
    async with joined(cluster, assignors=[mine], rack_id="zone-a", user_data=b"gpu"):
        assert [(member.rack_id, member.user_data) for member in seen] == [("zone-a", told)]


async def test_an_impossible_assignment_ends_the_member(cluster: ScriptedCluster) -> None:
    twice = muster.assignors.Assignor("mine", lambda g: {m: [ALL[0], ALL[0]] for m in g.members})
    story = Story(cluster, assignors=[twice])
    await story.member.start()
    with pytest.raises(muster.AssignorFailed, match="'mine'"):
        await asyncio.wait_for(story.member.wait(), 60)
    await story.connection.close()


@pytest.mark.parametrize(
    "assign",
    [
        lambda group: dict.fromkeys(group.members, 7),
        lambda group: {m: [("t", "0")] for m in group.members},
        lambda group: {m: [("t", 0.5)] for m in group.members},
        lambda group: {m: iter(ALL) for m in group.members},
    ],
)
async def test_what_is_no_assignment_ends_the_member(cluster: ScriptedCluster, assign: Any) -> None:
    story = Story(cluster, assignors=[muster.assignors.Assignor("mine", assign)])
    await story.member.start()
    with pytest.raises(muster.AssignorFailed, match="'mine'"):
        await asyncio.wait_for(story.member.wait(), 60)
    assert len(cluster.coordinators[0].requests("LeaveGroup")) == 1
    await story.connection.close()


async def test_a_failure_that_nobody_foresaw_is_told_and_ends_the_member(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(cluster)
    await story.member.start()
    await story.until("assigned")

    async def fails(_: Any) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(story.member._way, "_step_out", fails)
    story.member.rejoin("test")
    await story.until("assigned", "lost")
    with pytest.raises(RuntimeError, match="unforeseen"):
        await asyncio.wait_for(story.member.wait(), 60)
    await story.member.close()
    assert len(cluster.coordinators[0].requests("LeaveGroup")) == 1
    await story.connection.close()


async def test_closing_gives_commits_up_that_the_log_does_not_take(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    full = common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE
    async with joined(cluster, rebalance_timeout_ms=500) as story:
        a.script["OffsetCommit"] += [lambda request: commit_answer(request, full)] * 1_000
        commit = asyncio.create_task(story.member.commit({ALL[0]: 3}))
        await a.until("OffsetCommit")
        await asyncio.wait_for(story.member.close(), 60)
        with pytest.raises(muster.CommitFailed):
            await commit


@pytest.mark.parametrize("when", ["on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost"])
async def test_a_callback_may_close_the_member(cluster: ScriptedCluster, when: str) -> None:
    story = Story(cluster)

    async def close(partitions: tuple[TopicPartition, ...]) -> None:
        story.tell("closes", partitions)
        await member.close()

    member = muster.Member(story.connection, group_id="g", topics="t", **{when: close}, **FAST)
    await member.start()
    if when != "on_partitions_assigned":
        await until(lambda: bool(member.partitions))
    if when == "on_partitions_revoked":
        member.rejoin("test")
    if when == "on_partitions_lost":
        cluster.coordinators[0].script["Heartbeat"].append(answer(common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID))
    await asyncio.wait_for(member.wait(), 20)
    assert story.words == ["closes"]
    await story.connection.close()


async def test_a_callback_may_close_the_member_in_a_task_that_it_waits_for(cluster: ScriptedCluster) -> None:
    story = Story(cluster)

    async def close(_: tuple[TopicPartition, ...]) -> None:
        await asyncio.gather(member.close())

    member = muster.Member(story.connection, group_id="g", topics="t", on_partitions_assigned=close, **FAST)
    await member.start()
    await asyncio.wait_for(member.wait(), 20)
    await story.connection.close()


async def test_what_is_not_owned_is_not_committed(cluster: ScriptedCluster) -> None:
    async with joined(cluster) as story:
        with pytest.raises(muster.CommitFailed, match="other-0 failed: they are not, or no longer, owned"):
            await story.member.commit({TopicPartition("other", 0): 1})


async def test_closing_while_the_join_is_parked_leaves(cluster: ScriptedCluster) -> None:
    a: Coordinator = cluster.coordinators[0]

    async def parked(_request: Any) -> Any:
        await asyncio.Event().wait()

    a.script["JoinGroup"] = deque([a.join, parked])
    story = Story(cluster)
    await story.member.start()
    await a.until("JoinGroup", 2)
    await asyncio.wait_for(story.member.close(), 60)
    assert a.requests("LeaveGroup")[0].members[0].member_id == "m-1"
    assert story.words == []
    await story.connection.close()


async def test_a_coordinator_that_does_not_answer_is_left(cluster: ScriptedCluster) -> None:
    a, b = cluster.coordinators
    b.shard_epoch = 2

    async def silent(_request: Any) -> Any:
        await asyncio.Event().wait()

    async with joined(cluster) as story:
        a.alive = silent
        cluster.owner = 1
        await b.until("Heartbeat", 2)
        assert story.words == ["assigned"]


async def slow_to_give_up(scripted: ScriptedCluster, **settings: Any) -> tuple[Story, asyncio.Event]:
    story, cancelled = Story(scripted), asyncio.Event()

    async def never(partitions: tuple[TopicPartition, ...]) -> None:
        story.tell("asked", partitions)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    story.member = muster.Member(
        story.connection,
        group_id="g",
        topics="t",
        on_partitions_assigned=lambda p: story.tell("assigned", p),
        on_partitions_revoked=never,
        on_partitions_lost=lambda p: story.tell("lost", p),
        **{**FAST, **settings},
    )
    await story.member.start()
    await story.until("assigned")
    return story, cancelled


async def test_the_rebalance_time_out_bounds_giving_up(cluster: ScriptedCluster) -> None:
    story, cancelled = await slow_to_give_up(cluster, rebalance_timeout_ms=300)
    story.member.rejoin("test")
    await story.until("assigned", "asked", "assigned")
    assert cancelled.is_set()
    await story.member.close()
    await story.connection.close()


async def test_a_life_that_ends_while_giving_up_loses_the_partitions(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    story, cancelled = await slow_to_give_up(cluster, session_timeout_ms=400, rebalance_timeout_ms=2_000)
    a.alive = answer(common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE)
    story.member.rejoin("test")
    await story.until("assigned", "asked", "lost")
    assert cancelled.is_set()
    a.alive = None
    await story.until("assigned", "asked", "lost", "assigned")
    await story.member.close()
    await story.connection.close()


async def test_a_fenced_member_stops_giving_up(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    story, cancelled = await slow_to_give_up(cluster, rebalance_timeout_ms=2_000)
    a.script["Heartbeat"].append(answer(common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS))
    await story.until("assigned", "asked")
    a.script["Heartbeat"].append(answer(common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID))
    await story.until("assigned", "asked", "lost", "assigned")
    assert cancelled.is_set()
    assert story.member.member_id == "m-2"
    await story.member.close()
    await story.connection.close()


async def test_commits_on_their_way_are_finished_before_the_next_join(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    hold = asyncio.Event()

    async def slow(request: Any) -> Any:
        await hold.wait()
        return a.commit(request)

    async with joined(cluster) as story:
        a.script["OffsetCommit"].append(slow)
        commit = asyncio.create_task(story.member.commit({ALL[0]: 3}))
        await a.until("OffsetCommit")
        story.member.rejoin("test")
        await story.until("assigned", "revoked")
        await a.until("Heartbeat", len(a.requests("Heartbeat")) + 3)
        assert len(a.requests("JoinGroup")) == 2
        hold.set()
        await commit
        await story.until("assigned", "revoked", "assigned")


async def test_work_of_an_earlier_ownership_cannot_commit(cluster: ScriptedCluster) -> None:
    async with joined(cluster) as story:
        old = {ALL[0]: "0000000001-0000000000000003"}
        with pytest.raises(muster.CommitFailed, match="t-0 failed: they are not, or no longer, owned"):
            await story.member.commit_owned({ALL[0]: muster.Committed(1)}, old)
        assert cluster.coordinators[0].requests("OffsetCommit") == []


async def test_all_positions_of_a_group_are_read_page_by_page(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]

    def page(numbers: range, *, more: bool) -> coordinator_pb2.OffsetFetchResponse:
        topic = coordinator_pb2.OffsetFetchResponse.Topic(name="t")
        for number in numbers:
            topic.partitions.add(partition=number, offset=number)
        group = coordinator_pb2.OffsetFetchResponse.Group(
            group_id="g", shard_epoch=1, topics=[topic], more=more
        )
        return coordinator_pb2.OffsetFetchResponse(groups=[group])

    a.script["OffsetFetch"] = deque([page(range(2), more=True), page(range(2, 3), more=False)])
    async with muster.Cluster(cluster.address) as connection:
        assert await connection.committed("g") == {ALL[n]: muster.Committed(n) for n in range(3)}
    asked = [request.groups[0] for request in a.requests("OffsetFetch")]
    assert [(group.limit > 0, group.after_topic, group.after_partition) for group in asked] == [
        (True, "", 0),
        (True, "t", 1),
    ]


async def test_groups_are_listed_page_by_page_and_each_once(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]

    def page(token: str, *names: str) -> coordinator_pb2.ListGroupsResponse:
        groups = [coordinator_pb2.ListGroupsResponse.Group(group_id=name) for name in names]
        return coordinator_pb2.ListGroupsResponse(groups=groups, next_page_token=token)

    a.script["ListGroups"] = deque([page("3/b", "c", "b"), page("", "a", "c")])
    async with muster.Cluster(cluster.address) as connection:
        assert [group.group_id for group in await connection.list_groups()] == ["a", "b", "c"]
    asked = a.requests("ListGroups")
    assert [(request.limit > 0, request.page_token) for request in asked] == [(True, ""), (True, "3/b")]


async def test_a_call_that_waits_for_the_log_says_so_in_the_end(cluster: ScriptedCluster) -> None:
    away = coordinator_pb2.DescribeGroupsResponse.Group(
        group_id="g",
        error_code=common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE,
        error_message="the coordinator cannot reach the log",
    )
    a = cluster.coordinators[0]
    a.script["DescribeGroups"] = deque([coordinator_pb2.DescribeGroupsResponse(groups=[away])] * 1_000)
    async with muster.Cluster(cluster.address, timeout_ms=300) as connection:
        with pytest.raises(muster.ClusterUnavailable, match="the coordinator cannot reach the log"):
            await connection.describe_group("g")
