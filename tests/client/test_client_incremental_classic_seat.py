"""What a classic member goes on with when its group becomes an incremental one, and for how long."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import muster
import pytest_asyncio
from client.client_scripted import ScriptedCluster
from client.client_streams import StreamingCoordinator
from kit.waiting import until
from muster._blocked.stand_in import Ward
from muster._clock import boot_ms
from muster._incremental.classic_seat import ClassicSeat
from muster._incremental.membership import Membership, Phase, Way
from muster._incremental.requests import NOWHERE, Identity, Place
from muster._reactions import Call, Reaction
from muster._session.transport import Vitals
from muster._standing.life import Life
from muster._standing.seat import Caller, Pulse, Seat
from muster._standing.standing import Standing
from muster._values import TopicPartition
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatResponse

CONVERTED = common_pb2.ERROR_CODE_GROUP_CONVERTED
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
TOKEN = Place(1, 5).token
START_MS, SESSION_MS, GRACE_MS = 100_000, 45_000, 3_000


def seat(*runs: TopicPartition, generation: int = 4, ends_ms: int = START_MS + SESSION_MS) -> ClassicSeat:
    return ClassicSeat(
        member_id="m",
        generation=generation,
        member_seq=7,
        process_id=b"p" * 16,
        version=Place(1, 9) if runs else NOWHERE,
        runs=dict.fromkeys(runs, TOKEN),
        acknowledged_ms=START_MS,
        life_ends_at_ms=ends_ms,
    )


def adopted(from_seat: ClassicSeat) -> Membership:
    identity = Identity("g", "m", ("t",), rebalance_timeout_ms=20_000)
    one = Membership(identity, Life(SESSION_MS, GRACE_MS), patience_ms=9_000)
    one.adopt(from_seat)
    return one


def answer(version: int, *partitions: TopicPartition) -> ConsumerGroupHeartbeatResponse:
    message = ConsumerGroupHeartbeatResponse(member_epoch=4, version=Place(1, version).to_proto())
    message.assignment.SetInParent()
    for topic, number in partitions:
        message.assignment.given.add(topic=topic, partitions=[number], token=Place(1, 5).to_proto())
    return message


def test_its_first_request_names_what_it_was_and_runs() -> None:
    """INC-140."""
    one = adopted(seat(A, B))
    request = one.ask(START_MS).request
    assert (request.member_epoch, request.member_seq, request.process_id) == (4, 7, b"p" * 16)
    assert (Place.of(request.version), list(request.owned.topics[0].partitions)) == (Place(1, 9), [0, 1])
    assert one.next_move(START_MS) is None


def test_who_gave_everything_up_names_no_version_and_nothing() -> None:
    """INC-141."""
    one = adopted(seat())
    asked = one.ask(START_MS)
    assert asked.request.HasField("owned")
    assert not asked.request.owned.topics
    assert Place.of(asked.request.version) == NOWHERE
    one.hear(asked, answer(9, A), START_MS + 10)
    move = one.next_move(START_MS + 10)
    assert move is not None
    assert (move.way, move.partitions) == (Way.BEGIN, (A,))


def test_who_was_in_no_generation_joins_under_the_next_number() -> None:
    """INC-141."""
    one = adopted(seat(generation=-1))
    request = one.ask(START_MS).request
    assert (request.member_epoch, request.member_seq, request.member_id) == (0, 8, "m")


def test_it_lives_for_its_classic_session_until_the_first_answer_and_by_that_from_then_on() -> None:
    """INC-143."""
    one = adopted(seat(A))
    asked = one.ask(START_MS + 30_000)
    assert one.next_move(START_MS + 30_000) is None, "a grace would have ended long ago"
    one.hear(asked, answer(9, A), START_MS + 30_010)
    assert one.next_move(START_MS + 30_000 + GRACE_MS - 10) is None
    over = one.next_move(START_MS + 30_000 + GRACE_MS)
    assert over is not None
    assert over.way is Way.LOSE
    silent = adopted(seat(A))
    assert silent.next_move(START_MS + SESSION_MS - 1) is None
    over = silent.next_move(START_MS + SESSION_MS)
    assert over is not None
    assert over.way is Way.LOSE


def test_what_is_taken_at_once_is_given_back_in_time_counted_from_its_last_classic_beat() -> None:
    """INC-45, INC-140: there is no beat of the new kind before the first answer."""
    one = adopted(seat(A, B))
    asked = one.ask(START_MS + 1_000)
    one.hear(asked, answer(12, A), START_MS + 1_010)
    move = one.next_move(START_MS + 1_010)
    assert move is not None
    assert (move.way, move.partitions) == (Way.GIVE_BACK, (B,))
    assert START_MS + 19_000 < move.until_ms < START_MS + 20_000


def test_one_that_was_removed_meanwhile_loses_all_and_joins_anew() -> None:
    one = adopted(seat(A))
    gone = ConsumerGroupHeartbeatResponse(error_code=common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID)
    one.hear(one.ask(START_MS), gone, START_MS + 10)
    move = one.next_move(START_MS + 10)
    assert move is not None
    assert (move.way, one.phase) == (Way.LOSE, Phase.OUT)
    one.ended(move.partitions)
    assert one.ask(START_MS + 20).request.member_seq == 8


# The news


def standing(*, acknowledged_ms: int) -> Standing:
    """A classic member that holds a partition, on a stream."""
    one = Standing(Caller("g"), Life(SESSION_MS, GRACE_MS, 300_000), seat=Seat("m", 4), owned={A: TOKEN})
    one.holding = True
    one.life.renew(acknowledged_ms)
    return one


def test_the_news_gives_it_its_session_and_no_reason_to_stop() -> None:
    """INC-140, INC-143."""
    now_ms = boot_ms()
    one = standing(acknowledged_ms=now_ms)
    one.react(Call.HEARTBEAT, common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS, one.seat, "")
    one.hear(Pulse(one.seat, CONVERTED, 0, on_stream=True))
    order = one.take_order()
    assert order is not None
    assert (order.reaction, order.loses, one.holds) == (Reaction.CONVERT, False, True)
    assert one.life.ends_at_ms == now_ms + SESSION_MS - SESSION_MS // 1_000
    one.hear(Pulse(one.seat, common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID, 0, on_stream=True))
    order = one.take_order()
    assert order is not None
    assert order.loses, "it is none any more"


def test_the_news_brings_no_life_back_and_is_for_the_present_seat() -> None:
    """INC-143."""
    one = standing(acknowledged_ms=boot_ms() - GRACE_MS)
    one.hear(Pulse(one.seat, CONVERTED, 0, on_stream=True))
    assert not one.alive
    other = standing(acknowledged_ms=boot_ms())
    other.hear(Pulse(Seat("m", 3), CONVERTED, 0, on_stream=True))
    assert other.take_order() is None
    assert other.life.remaining_ms(boot_ms()) <= GRACE_MS


def test_a_blocked_loop_whose_thread_hears_it_lives_for_its_session() -> None:
    """SES-51."""
    now_ms = boot_ms()
    one = standing(acknowledged_ms=now_ms)

    class Route:
        address, shard_epoch = None, 7

    vitals = Vitals(one.caller, one.seat, interval_ms=100, timeout_ms=1_000, beat_interval_ms=100)
    ward = Ward(vitals, Route(), one.life, 60_000)
    ward.answered(now_ms + 100, coordinator_pb2.HeartbeatResponse(shard_epoch=7))
    ward.answered(now_ms + 200, coordinator_pb2.HeartbeatResponse(error_code=CONVERTED, shard_epoch=7))
    assert not ward.is_due(1_000)
    assert one.life.ends_at_ms == now_ms + 100 + SESSION_MS - SESSION_MS // 1_000
    dead = standing(acknowledged_ms=now_ms - GRACE_MS)
    ward = Ward(vitals, Route(), dead.life, 60_000)
    ward.answered(now_ms, coordinator_pb2.HeartbeatResponse(error_code=CONVERTED, shard_epoch=7))
    assert not dead.alive


# On a stream whose other end is a script


class World:
    """One coordinator that does as it is told, and one member of it."""

    def __init__(self, cluster: ScriptedCluster, a: StreamingCoordinator) -> None:
        self.a = a
        self.connection = muster.Cluster(cluster.address)
        self.told: list[str] = []
        self.member: muster.Member | None = None

    async def join(self, **settings: Any) -> muster.Member:
        """A classic member that can be incremental, at work on a stream."""
        member = self.begin(**settings)
        await member.start()
        await until(lambda: self.told == ["assigned"], "it works")
        return member

    def begin(self, **settings: Any) -> muster.Member:
        """A member that is to ask first whether the group is incremental, and hears that it is not."""
        is_classic = ConsumerGroupHeartbeatResponse(error_code=common_pb2.ERROR_CODE_GROUP_ID_NOT_FOUND)
        self.a.script["ConsumerGroupHeartbeat"].append(is_classic)
        self.member = muster.Member(
            self.connection,
            group_id="g",
            topics="t",
            on_partitions_assigned=lambda _: self.told.append("assigned"),
            on_partitions_revoked=lambda _: self.told.append("revoked"),
            on_partitions_lost=lambda _: self.told.append("lost"),
            **{"protocol": "auto", "beat_interval_ms": 100, **settings},
        )
        return self.member


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    a = StreamingCoordinator("a")
    cluster = ScriptedCluster([a])
    await cluster.start()
    made = World(cluster, a)
    try:
        yield made
    finally:
        if made.member is not None:
            await made.member.close()
        await made.connection.close()
        await cluster.stop()


def unchanged(_: Any) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        member_epoch=1, shard_epoch=1, heartbeat_interval_ms=1_000, session_timeout_ms=SESSION_MS
    )


async def test_classic_news_that_comes_later_is_dropped(world: World) -> None:
    """INC-142: a fence, a rebalance and an Attach that were on their way."""
    a = world.a
    member = await world.join()
    joined = a.requests("JoinGroup")[-1]
    assert len(joined.process_id) == 16
    who: dict[str, Any] = {"group_id": "g", "member_id": member.member_id}
    a.script["ConsumerGroupHeartbeat"].extend([unchanged] * 50)
    await a.streams[-1].say(
        group_changed=session_pb2.GroupChanged(**who, error_code=CONVERTED, shard_epoch=1)
    )
    first = await a.until("ConsumerGroupHeartbeat", 2)
    assert (first.member_id, first.member_seq, first.process_id) == (
        member.member_id,
        joined.member_seq,
        joined.process_id,
    )
    unknown = common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID
    await a.streams[-1].say(
        fenced=session_pb2.Fenced(**who, error_code=unknown, shard_epoch=1),
        rebalance_started=session_pb2.RebalanceStarted(**who, generation=1, shard_epoch=1),
        attach_result=session_pb2.AttachResult(**who, error_code=unknown, shard_epoch=1),
    )
    joins = len(a.requests("JoinGroup"))
    await member.commit({member.partitions[0]: 3})
    commit = a.requests("OffsetCommit")[-1]
    assert commit.topics[0].partitions[0].HasField("token"), "it commits as an incremental member"
    await asyncio.sleep(0.3)
    assert (world.told, len(a.requests("JoinGroup"))) == (["assigned"], joins)


async def test_a_join_alone_prolongs_nothing(world: World) -> None:
    """INC-143: who was removed is answered so, too; who keeps partitions has its grace."""
    a = world.a
    member = await world.join(assignors=["cooperative-sticky"], disconnect_grace_ms=1_000)
    silent = [lambda _: asyncio.Event().wait()] * 10
    a.script["ConsumerGroupHeartbeat"].extend(silent)
    a.script["JoinGroup"].append(coordinator_pb2.JoinGroupResponse(error_code=CONVERTED))
    member.rejoin("to hear it")
    await a.until("ConsumerGroupHeartbeat", 2)
    assert member._standing.life.remaining_ms(boot_ms()) <= 1_000
    await until(lambda: world.told == ["assigned", "lost"], "its life is over")


async def test_an_id_that_comes_with_the_news_alone_is_the_members(world: World) -> None:
    """INC-73: the answer to its JoinGroup, which gave the id, was lost."""
    a = world.a
    news = coordinator_pb2.JoinGroupResponse(error_code=CONVERTED, member_id="i-1")
    a.script["JoinGroup"].append(news)
    await world.begin(group_instance_id="i").start()
    assert (await a.until("ConsumerGroupHeartbeat", 2)).member_id == "i-1"
