"""Incremental groups while the coordinator is not sure of its lease (docs/safety.md, INC-90)."""

import pytest
from core.test_core_conversions import stable
from core.test_core_reversions import AUTO, CLASSIC, INCREMENTAL, both
from kit.lives.incremental_shard import LEAVE, incremental_of, incremental_shard
from kit.lives.stream_member import StreamMember, on_streams
from kit.lives.virtual_shard import VirtualShard
from muster_core import error_code
from muster_core.events import Unload
from muster_protos.muster.v1 import group_conversion_pb2, session_pb2
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatResponse


def test_what_is_stored_without_a_lease_is_told_when_it_is_held_again() -> None:
    cluster = incremental_shard()
    first, second = on_streams(cluster, "a", "b")
    had = first.has
    cluster.auto_ack = False
    cluster.send(second.request(LEAVE), place=second.place)
    cluster.suspend()
    cluster.acknowledge()
    assert "b" not in incremental_of(cluster).members
    assert first.listen() == []
    cluster.resume()
    (news,) = first.listen()
    assert news.error_code == error_code.NONE
    assert len(had) == 2
    assert len(first.has) == 4


def given_up(cluster: VirtualShard, member: StreamMember) -> int:
    """A member subscribes to nothing that there is, and its call waits for the log."""
    request = member.request(member.epoch)
    request.topics.names.append("another")
    return cluster.send(request, place=member.place)


@pytest.mark.parametrize("why", ["lease", "slow log", "cancelled"])
def test_who_asked_and_was_not_answered_is_told_what_that_changed(why: str) -> None:
    """INC-90: the answer is not heard, so that what it would have said is news."""
    cluster = incremental_shard()
    (member,) = on_streams(cluster, "a")
    assert member.has
    cluster.auto_ack = False
    call_id = given_up(cluster, member)
    if why == "lease":
        cluster.suspend()
    elif why == "slow log":
        cluster.advance(cluster.config.append_timeout_ms)
        answer = cluster.answer(call_id)
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        assert answer.error_code == error_code.COORDINATOR_NOT_AVAILABLE
    else:
        cluster.cancel(call_id)
    cluster.acknowledge()
    if why == "lease":
        assert member.listen() == []
        cluster.resume()
    assert len(member.listen()) == 1
    assert member.has == frozenset()


def kinds_told(cluster: VirtualShard) -> list[str]:
    """Kinds of news, in order."""
    return [type(push.message).__name__ for push in cluster.pushes]


@pytest.mark.parametrize("kind", [CLASSIC, INCREMENTAL])
@pytest.mark.parametrize("ends", [False, True])
def test_that_a_group_is_of_the_other_kind_is_told_when_the_lease_is_held_again(
    kind: group_conversion_pb2.GroupKind.ValueType, *, ends: bool
) -> None:
    cluster = incremental_shard(config=AUTO)
    if kind == CLASSIC:
        both(cluster, "a", on_streams=True)
    else:
        stable(cluster, "a")
    cluster.auto_ack = False
    cluster.send(group_conversion_pb2.ConvertGroupRequest(group_id="g", kind=kind))
    cluster.suspend()
    cluster.pushes.clear()
    cluster.acknowledge()
    assert cluster.kinds()[-1] in ("group_reverted", "group_converted")
    assert kinds_told(cluster) == []
    if ends:
        cluster.feed(Unload(None))
    else:
        cluster.resume()
    (told,) = [one.message for one in cluster.pushes]
    assert isinstance(told, session_pb2.GroupChanged)
