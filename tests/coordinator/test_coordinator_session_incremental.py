"""Members of incremental groups on session streams of coordinators on the real log."""

import os
import signal

import pytest
from coordinator.coordinator_cluster import kill, owns
from coordinator.real_cluster import SHARDS, RealCluster
from coordinator.session_client import Session
from coordinator.stream_caller import StreamCaller
from coordinator.test_coordinator_incremental import GROUP, begun, topics_of
from kit.waiting import until
from muster_coordinator.session.outbox import MESSAGE_MAX_BYTES, Outbox, Queued
from muster_coordinator.settings import GroupSettings, SessionSettings
from muster_coordinator.shard.process_room import ALIKE_FACTOR, AT_ONCE_MAX
from muster_core import error_code
from muster_protos.muster.v1 import discovery_pb2, session_pb2

PARTITIONS = 4


@pytest.mark.cluster
async def test_a_kill_of_the_coordinator_and_a_join_touch_only_what_moves(single: RealCluster) -> None:
    first = await begun(single)
    second = await single.add("b")
    one, two, three = (StreamCaller(GROUP, "t", name) for name in ("one", "two", "three"))
    assert not (await one.join(single.caller(first))).error_code
    await one.has(PARTITIONS)
    assert not (await two.join(single.caller(first))).error_code
    await two.has(2)
    await one.has(2)
    before = one.owned | two.owned
    one.stopped.clear()
    await kill(first)
    await owns(second, SHARDS)
    for member in (one, two):
        assert not (await member.resume(single.caller(second))).error_code
    assert one.owned | two.owned == before
    assert not (await three.join(single.caller(second))).error_code
    await three.has(1)
    moved = three.owned.keys()
    assert one.stopped | two.stopped == moved
    assert one.owned | two.owned == {each: token for each, token in before.items() if each not in moved}
    for member in (one, two, three):
        await member.close()


@pytest.mark.cluster
async def test_a_process_that_dies_and_one_that_leaves_give_to_the_others(single: RealCluster) -> None:
    coordinator = await begun(single)
    caller = single.caller(coordinator)
    one, two, three = (StreamCaller(GROUP, "t", name) for name in ("one", "two", "three"))
    for count, member in enumerate((one, two, three)):
        assert not (await member.join(caller)).error_code
        await member.has((4, 2, 1)[count])
    await two.close()  # suspect, and gone after the grace
    await three.has(2)
    assert (await three.leave()).member_epoch == -1
    await one.has(PARTITIONS)
    assert (await one.session.beat()).number
    await one.close()
    await three.close()


@pytest.mark.cluster
async def test_a_large_group_on_streams_is_assigned_by_another_process(single: RealCluster) -> None:
    """INC-34, INC-107."""
    coordinator = await begun(single)
    many = AT_ONCE_MAX * ALIKE_FACTOR + 2
    await single.change_topic(create=discovery_pb2.Topic(name="large", partitions=many))
    await until(lambda: "large" in topics_of(coordinator))
    one, two = (StreamCaller(GROUP, "large", name) for name in ("one", "two"))
    assert not (await one.join(single.caller(coordinator))).error_code
    await one.has(many)
    assert coordinator._parts is not None
    pid = coordinator._parts.aside.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert not (await two.join(single.caller(coordinator))).error_code
    await two.has(many // 2)
    await one.has(many // 2)
    assert coordinator._parts.aside.pid not in {pid, None}
    for member in (one, two):
        await member.close()


def test_the_setting_of_the_pause_reaches_the_core() -> None:
    """INC-106."""
    assert GroupSettings().to_config().incremental_assignment_interval_ms == -1
    assert GroupSettings(assignment_interval_ms=70).to_config().incremental_assignment_interval_ms == 70


@pytest.mark.cluster
async def test_a_stream_is_told_who_owns_the_group(single: RealCluster) -> None:
    first = await begun(single)
    second = await single.add("b")
    member = StreamCaller(GROUP, "t", "one")
    answer = await member.join(single.caller(second))
    assert answer.error_code == error_code.NOT_COORDINATOR
    assert answer.coordinator.node_id == "a"
    assert not (await member.join(single.caller(first))).error_code
    await member.has(PARTITIONS)
    await member.close()


@pytest.mark.cluster
async def test_a_stream_takes_members_up_to_its_limit(single: RealCluster) -> None:
    coordinator = await begun(single, session=SessionSettings(max_members=1))
    session = await Session(single.caller(coordinator).channel).hello()
    one, two = StreamCaller(GROUP, "t", "one"), StreamCaller(GROUP, "t", "two")
    for member in (one, two):
        member.session = session
    asked = [await session.ask(consumer_group_heartbeat=each.joining(), connection=1) for each in (one, two)]
    assert not asked[0].consumer_group_heartbeat.error_code
    assert asked[1].refused.status == 8
    await session.close()


def waiting(outbox: Outbox) -> list[int]:
    message = outbox.take()
    assert isinstance(message, session_pb2.SessionResponse)
    return [frame.member_news.member_seq for frame in message.frames]


def test_the_newest_news_of_a_member_take_the_place_of_those_that_wait() -> None:
    queued = Queued()
    outbox = Outbox(1 << 20, queued)
    for number in range(3):
        outbox.frame(100, ("g", "a")).member_news.member_seq = number
    outbox.frame(100, ("g", "b")).member_news.member_seq = 7
    assert waiting(outbox) == [2, 7]
    outbox.written()
    assert queued.bytes == 0
    outbox.frame(100, ("g", "a")).member_news.member_seq = 3
    assert waiting(outbox) == [3]


def test_what_takes_the_place_of_less_is_counted() -> None:
    queued = Queued()
    outbox = Outbox(1 << 20, queued)
    outbox.frame(100, "a")
    outbox.frame(MESSAGE_MAX_BYTES // 2, "a")
    assert queued.bytes >= MESSAGE_MAX_BYTES // 2
    outbox.clear()
    assert queued.bytes == 0
