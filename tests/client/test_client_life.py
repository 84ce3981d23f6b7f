"""How long a member may work: what its life is counted from, and which clock it is counted with."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import muster
import pytest
import pytest_asyncio
from client.client_scripted import TOKEN, ScriptedCluster, commit_answer
from client.client_streams import StreamingCoordinator
from kit.waiting import until
from muster import MemberState, TopicPartition
from muster._clock import boot_ms
from muster._session.sessions import ExpiringAddresses
from muster._work.runner import WorkRunner
from muster_protos.muster.v1 import common_pb2, session_pb2

pytestmark = pytest.mark.cluster

ALL = tuple(TopicPartition("t", n) for n in range(3))
LONGEST_MS = 1_800_000
LATER_TOKEN = "0000000001-0000000000000099"


class World:
    """One coordinator and one member, whose machine can be put to sleep."""

    def __init__(self, cluster: ScriptedCluster, a: StreamingCoordinator) -> None:
        self.cluster, self.a = cluster, a
        self.connection = muster.Cluster(cluster.address)
        self.told: list[str] = []
        self.members: list[muster.Member] = []
        self.slept_ms = 0

    async def start(self, **settings: Any) -> muster.Member:
        member = muster.Member(
            self.connection,
            group_id="g",
            topics="t",
            on_partitions_assigned=lambda _: self.told.append("assigned"),
            on_partitions_revoked=lambda _: self.told.append("revoked"),
            on_partitions_lost=lambda _: self.told.append("lost"),
            **{"beat_interval_ms": 100, "heartbeat_interval_ms": 100, "request_timeout_ms": 2_000} | settings,
        )
        self.members.append(member)
        await member.start()
        return member

    async def join(self, **settings: Any) -> muster.Member:
        member = await self.start(**settings)
        await until(lambda: bool(member.partitions))
        return member

    async def told_so(self, *words: str) -> None:
        await until(lambda: self.told == list(words), f"told {words}")


@pytest_asyncio.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    a = StreamingCoordinator("a")
    cluster = ScriptedCluster([a])
    await cluster.start()
    made = World(cluster, a)

    class Clock:
        """`time`, but for the boot clock, which runs on while the machine sleeps."""

        monotonic = staticmethod(time.monotonic)

        @staticmethod
        def clock_gettime_ns(clock: int) -> int:
            return time.clock_gettime_ns(clock) + made.slept_ms * 1_000_000

    monkeypatch.setattr("muster._clock.time", Clock)
    try:
        yield made
    finally:
        await asyncio.gather(*(member.close() for member in made.members))
        await made.connection.close()
        await cluster.stop()


async def test_a_member_that_wakes_from_sleep_owns_nothing_before_it_was_told(world: World) -> None:
    member = await world.join(session_timeout_ms=LONGEST_MS, group_instance_id="blue")
    world.a.mute = True
    world.slept_ms += LONGEST_MS
    assert member.partitions == ()
    with pytest.raises(muster.CommitFailed):
        member.token(ALL[0])
    with pytest.raises(muster.CommitFailed):
        await member.commit_owned({ALL[0]: muster.Committed(1)}, {ALL[0]: TOKEN})


async def test_a_member_that_wakes_from_sleep_is_told_soon_that_it_lost_its_partitions(world: World) -> None:
    """Soon: the rest of its life, half an hour by a clock that stood still, is not waited for."""
    await world.join(session_timeout_ms=LONGEST_MS, group_instance_id="blue")
    await world.cluster.stop()
    world.slept_ms += LONGEST_MS
    await world.told_so("assigned", "lost")


async def test_work_does_not_begin_on_what_was_lost_meanwhile_and_begins_when_it_comes_back(
    world: World,
) -> None:
    began: list[TopicPartition] = []

    async def work(partition: muster.Partition) -> None:
        began.append(TopicPartition(partition.topic, partition.number))
        await asyncio.Event().wait()

    runner = WorkRunner(work)

    def assigned(partitions: tuple[TopicPartition, ...]) -> None:
        if not world.told:
            runner.start(member, partitions[:1])
            world.slept_ms += LONGEST_MS
        world.told.append("assigned")
        runner.start(member, partitions)

    def lost(_: tuple[TopicPartition, ...]) -> None:
        world.told.append("lost")
        runner.end()

    member = muster.Member(
        world.connection,
        group_id="g",
        topics="t",
        session_timeout_ms=LONGEST_MS,
        beat_interval_ms=100,
        on_partitions_assigned=assigned,
        on_partitions_lost=lost,
    )
    world.members.append(member)
    await member.start()
    await world.told_so("assigned", "lost", "assigned")
    await until(lambda: sorted(began[-3:]) == list(ALL))
    assert not runner.failed.is_set()
    await runner.end_and_wait()


async def test_a_commit_on_its_way_ends_with_a_life_that_was_slept_through(world: World) -> None:
    member = await world.join(session_timeout_ms=LONGEST_MS, group_instance_id="blue")
    await world.cluster.stop()
    commit = asyncio.create_task(member.commit({ALL[0]: 5}))
    await asyncio.sleep(0)
    world.slept_ms += LONGEST_MS
    with pytest.raises(muster.CommitFailed):
        await asyncio.wait_for(commit, 30)


@pytest.mark.parametrize("on_a_stream", [True, False])
async def test_neither_a_join_nor_a_sync_counts_as_a_beat(world: World, on_a_stream: bool) -> None:
    """The server prolongs no session for a SyncGroup, and the answer to a JoinGroup may be old."""
    a, acknowledged = world.a, asyncio.Event()

    async def held(default: Callable[[Any], Any], request: Any) -> Any:
        await acknowledged.wait()
        return default(request)

    a.mute = True
    a.script["Attach"].append(None)
    a.script["Heartbeat"].append(lambda request: held(a.heartbeat, request))
    member = await world.start(session=on_a_stream, disconnect_grace_ms=10_000)
    await until(lambda: member.state is MemberState.STABLE)
    await a.until("Attach" if on_a_stream else "Heartbeat")
    assert (member.partitions, world.told) == ((), [])
    acknowledged.set()
    a.mute = False
    if on_a_stream:
        a.streams[0].end(grpc.StatusCode.UNAVAILABLE)
    await world.told_so("assigned")


async def test_beats_of_a_new_stream_count_when_the_member_is_on_it_and_not_before(world: World) -> None:
    a = world.a
    await world.join(disconnect_grace_ms=400)
    a.script["Attach"].append(None)
    a.streams[0].end(grpc.StatusCode.UNAVAILABLE)
    await a.until("Attach", 2)
    await world.told_so("assigned", "lost")
    acknowledged = len(a.streams[1].frames("beat"))
    assert acknowledged > 0
    a.streams[1].end(grpc.StatusCode.UNAVAILABLE)
    await world.told_so("assigned", "lost", "assigned")


def not_sure(member: muster.Member, shard_epoch: int = 1) -> session_pb2.BeatAck:
    """A beat did not count, since the coordinator is not sure of its lease."""
    missed = session_pb2.UnheardMember(
        group_id="g",
        member_id=member.member_id,
        error_code=common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE,
        unsure=True,
        shard_epoch=shard_epoch,
    )
    return session_pb2.BeatAck(unheard=[missed])


async def test_a_member_keeps_its_partitions_while_its_coordinator_is_not_sure(world: World) -> None:
    a = world.a
    member = await world.join(disconnect_grace_ms=400, session_timeout_ms=60_000)
    before = len(a.requests("Beat"))
    a.unsure = lambda: not_sure(member)
    world.slept_ms += 100
    await a.until("Beat", before + 10)
    world.slept_ms += 30_000
    assert member.partitions == ALL
    assert len(a.streams) == 1, "it stays on the stream"
    assert len(a.requests("Attach")) == 1
    a.unsure = None
    await a.until("Beat", len(a.requests("Beat")) + 3)
    assert world.told == ["assigned"]
    a.mute = True
    world.slept_ms += 400
    assert member.partitions == (), "the grace counts again"


async def test_it_is_told_when_the_grace_ends_that_counts_again(world: World) -> None:
    """Nobody waits any more for the end of the session, which `unsure` had made the end of its life."""
    a = world.a
    member = await world.join(disconnect_grace_ms=400, session_timeout_ms=LONGEST_MS)
    a.unsure = lambda: not_sure(member)
    await a.until("Beat", len(a.requests("Beat")) + 3)
    a.unsure = None
    await a.until("Beat", len(a.requests("Beat")) + 3)
    await world.cluster.stop()
    await world.told_so("assigned", "lost")


async def test_it_gives_them_up_when_its_session_ends(world: World) -> None:
    a = world.a
    member = await world.join(disconnect_grace_ms=400, session_timeout_ms=20_000)
    a.unsure = lambda: not_sure(member)
    await a.until("Beat", len(a.requests("Beat")) + 3)
    world.slept_ms += 20_000
    await world.told_so("assigned", "lost")
    a.unsure = None
    await world.told_so("assigned", "lost", "assigned")
    assert len(a.requests("JoinGroup")) == 2, "with the same id and generation"


async def test_it_keeps_them_through_connections_that_break_meanwhile(world: World) -> None:
    a = world.a
    member = await world.join(disconnect_grace_ms=400, session_timeout_ms=60_000)
    refused = session_pb2.AttachResult(
        error_code=common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE, shard_epoch=1, unsure=True
    )
    a.script["Attach"] += [refused, refused, refused]
    a.streams[0].end(grpc.StatusCode.UNAVAILABLE)
    await a.until("Attach", 2)
    await asyncio.sleep(0.05)
    world.slept_ms += 30_000
    assert member.partitions == ALL
    await a.until("Attach", 5)
    await until(lambda: len(a.streams[-1].frames("beat")) >= 3)
    assert world.told == ["assigned"]


async def test_unsure_of_an_epoch_before_is_dropped(world: World) -> None:
    """Who lost the group says so too, and does not know who counts what by now."""
    a = world.a
    a.shard_epoch = 7
    member = await world.join(disconnect_grace_ms=400, session_timeout_ms=60_000)
    a.unsure = lambda: not_sure(member, shard_epoch=6)
    a.script["Attach"] += [None] * 50
    await world.told_so("assigned", "lost")
    a.unsure = None
    a.script["Attach"].clear()
    a.streams[-1].end(grpc.StatusCode.UNAVAILABLE)
    await world.told_so("assigned", "lost", "assigned")


async def test_it_goes_on_asking_for_somebody_who_is_sure(world: World) -> None:
    a, b = world.a, StreamingCoordinator("b", shard_epoch=2)
    await b.start()
    world.cluster.coordinators.append(b)
    member = await world.join(disconnect_grace_ms=400, session_timeout_ms=60_000)
    a.unsure = lambda: not_sure(member)
    asked = len(world.cluster.asked)
    await until(lambda: len(world.cluster.asked) >= asked + 2)
    world.cluster.owner = 1
    await b.until("Attach")
    await until(lambda: len(b.streams[0].frames("beat")) >= 3)
    assert world.told == ["assigned"]


async def test_a_beat_names_the_newest_acknowledgement_that_was_read_on_its_stream(world: World) -> None:
    a = world.a
    await world.join()
    await a.until("Beat", 4)
    assert a.streams[0].frames("hello")[0].knows_unsure
    for stream in a.streams:
        for beat in stream.frames("beat"):
            assert beat.acknowledged < beat.number
    await until(lambda: a.streams[0].frames("beat")[-1].acknowledged >= 2)
    a.streams[0].end(grpc.StatusCode.UNAVAILABLE)
    await until(lambda: len(a.streams) == 2 and bool(a.streams[1].frames("beat")))
    assert a.streams[1].frames("beat")[0].acknowledged == 0


@pytest.mark.parametrize("commits_again", [False, True])
async def test_a_commit_of_an_ownership_that_ended_while_it_waited_is_not_sent(
    world: World, commits_again: bool
) -> None:
    a, stored = world.a, asyncio.Event()
    member = await world.join()

    async def slow(request: Any) -> Any:
        await stored.wait()
        return a.commit(request)

    def given_later(request: Any) -> Any:
        answer = a.sync(request)
        answer.token = LATER_TOKEN
        return answer

    a.script["OffsetCommit"].append(slow)
    a.script["SyncGroup"].append(given_later)
    first = asyncio.create_task(member.commit({ALL[0]: 1}))
    await a.until("OffsetCommit")
    second = asyncio.create_task(member.commit({ALL[1]: 1}))
    await asyncio.sleep(0)
    news = session_pb2.Fenced(
        group_id="g",
        member_id=member.member_id,
        error_code=common_pb2.ERROR_CODE_ILLEGAL_GENERATION,
        shard_epoch=1,
    )
    await a.streams[0].say(fenced=news)
    await world.told_so("assigned", "lost", "assigned")
    assert member.token(ALL[1]) == LATER_TOKEN
    third = asyncio.create_task(member.commit({ALL[1]: 2})) if commits_again else None
    with pytest.raises(muster.CommitFailed, match="ended before it was known"):
        await first  # in flight: whether it is stored is not known, and nothing waits for it
    with pytest.raises(muster.CommitFailed, match=r"no longer owned|ended before it was sent"):
        await second
    if third is not None:
        await third
        assert a.offsets[ALL[1]] == 2
    stored.set()
    assert len(a.requests("OffsetCommit")) == 1 + commits_again


async def test_a_commit_is_not_repeated_once_its_member_has_another_seat(world: World) -> None:
    a, answered = world.a, asyncio.Event()
    member = await world.join()

    async def later(request: Any) -> Any:
        await answered.wait()
        return commit_answer(request, common_pb2.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS)

    a.script["OffsetCommit"].append(later)
    commit = asyncio.create_task(member.commit({ALL[0]: 1}))
    await a.until("OffsetCommit")
    news = session_pb2.Fenced(
        group_id="g",
        member_id=member.member_id,
        error_code=common_pb2.ERROR_CODE_ILLEGAL_GENERATION,
        shard_epoch=1,
    )
    await a.streams[0].say(fenced=news)
    await world.told_so("assigned", "lost", "assigned")
    answered.set()
    with pytest.raises(muster.CommitFailed):
        await commit
    assert len(a.requests("OffsetCommit")) == 1


async def test_addresses_are_forgotten_when_nothing_holds_for_them_any_more(world: World) -> None:
    addresses = ExpiringAddresses()
    for number in range(1_000):
        addresses.add(f"10.0.0.{number}:7410", 60_000)
    assert addresses.holds("10.0.0.7:7410")
    world.slept_ms += 60_000
    assert not addresses.holds("10.0.0.7:7410")
    addresses.add("10.0.1.1:7410", 60_000)
    assert len(addresses) == 1


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Beat", {"beat_interval_ms": 30_000, "disconnect_grace_ms": 0}),
        ("Heartbeat", {"session": False, "heartbeat_interval_ms": 40_000}),
    ],
)
async def test_several_beats_fit_into_a_life_whatever_their_interval(
    world: World, kind: str, settings: dict[str, Any]
) -> None:
    await world.join(session_timeout_ms=45_000, rebalance_timeout_ms=4_500, **settings)
    for stream in tuple(world.a.streams):  # the next one is opened for the member
        await stream.part(session_pb2.GOODBYE_REASON_AGE)
        await world.a.until("Session", 2)
    before = len(world.a.seen)
    await until(lambda: [what for what, _ in world.a.seen[before:]].count(kind) >= 5)
    assert world.told == ["assigned"]


async def test_beats_while_a_join_of_its_own_is_parked_do_not_prolong_what_it_keeps(world: World) -> None:
    a = world.a
    member = await world.join(
        assignors=["cooperative-sticky"], session_timeout_ms=30_000, rebalance_timeout_ms=2_000
    )
    a.script["JoinGroup"].extend([lambda _: asyncio.Event().wait()] * 10)
    joins = len(a.requests("JoinGroup"))
    member.rejoin("of its own accord")
    await a.until("JoinGroup", joins + 1)
    # The join phase began with this call, and nobody tells its member. Should the connection break now, the
    # others no longer wait for it.
    longest_ms = boot_ms() + 2_000
    await until(lambda: boot_ms() > longest_ms - 1_000)
    assert member._standing.life.ends_at_ms <= longest_ms
    await world.told_so("assigned", "lost")
