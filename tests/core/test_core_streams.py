"""Members on session streams (docs/safety.md, "Session and disconnect grace")."""

import pytest
from kit.lives.virtual_shard import VirtualMember, VirtualShard, settled
from kit.logs.core_audit import broken_promises
from muster_core import error_code
from muster_core.events import Attach, Beat, Detach, StreamBroken, Unload
from muster_protos.muster.v1 import common_pb2, session_pb2


def attach(member: VirtualMember, stream_id: int = 1) -> int:
    """Puts a member on a stream; returns the error code of the answer."""
    request = session_pb2.Attach(
        group_id=member.group,
        member_id=member.member_id,
        group_instance_id=member.instance,
        generation=member.generation,
    )
    member.cluster.pushes.clear()
    member.cluster.feed(Attach(stream_id, request))
    (push,) = member.cluster.pushes
    assert push.stream_id == stream_id
    assert isinstance(push.message, session_pb2.AttachResult)
    member.cluster.pushes.clear()
    return push.message.error_code


def on_stream(grace_ms: int = 3_000, *names: str) -> tuple[VirtualShard, list[VirtualMember]]:
    cluster = VirtualShard()
    members = [VirtualMember(cluster, name).join(disconnect_grace_ms=grace_ms) for name in names]
    cluster.advance(10_000)
    for member in members:
        member.joined()
    for member in members:
        member.sync(dict.fromkeys(member.members, b"x"))
    for member in members:
        member.synced()
        assert attach(member, stream_id=members.index(member) + 1) == 0
    return cluster, members


def test_one_beat_keeps_everybody_on_the_stream_alive() -> None:
    cluster = VirtualShard()
    members = settled(cluster, "a", "b", "c")
    for member in members[:2]:
        attach(member)
    for _ in range(4):
        cluster.advance(5_000)
        cluster.feed(Beat(1))
    assert {member.member_id for member in cluster.describe().members} == {m.member_id for m in members[:2]}


def test_a_stranger_is_not_attached() -> None:
    cluster = VirtualShard()
    (member,) = settled(cluster, "a")
    member.generation += 1
    assert attach(member) == 22
    member.generation -= 1
    member.member_id = "nobody"
    assert attach(member) == 25
    cluster.advance(9_999)
    cluster.feed(Beat(1))
    cluster.advance(1)
    assert cluster.state() == "Empty", "the beat of a stream without the member must not prolong its session"


def test_a_rebalance_is_pushed_with_its_cause() -> None:
    cluster, (first, _) = on_stream(3_000, "a", "b")
    VirtualMember(cluster, "c").join()
    news = [push for push in cluster.pushes if isinstance(push.message, session_pb2.RebalanceStarted)]
    assert [push.stream_id for push in news] == [1, 2]
    message = news[0].message
    assert isinstance(message, session_pb2.RebalanceStarted)
    assert (message.member_id, message.generation) == (first.member_id, 1)
    assert message.cause.kind == common_pb2.REBALANCE_CAUSE_KIND_MEMBER_JOINED


@pytest.mark.parametrize(("after_ms", "gone"), [(2_999, False), (3_000, True)])
def test_a_broken_stream_gives_its_member_the_grace(after_ms: int, gone: bool) -> None:
    cluster, (first, second) = on_stream(3_000, "a", "b")
    cluster.feed(StreamBroken(2))
    cluster.advance(after_ms)
    assert (first.heartbeat() == 27) is gone
    if gone:
        assert cluster.describe().cause.kind == common_pb2.REBALANCE_CAUSE_KIND_DISCONNECTED
        assert second.heartbeat() == 25


def test_a_grace_of_zero_means_the_whole_session() -> None:
    cluster, (first, second) = on_stream(0, "a", "b")
    cluster.feed(StreamBroken(2))
    cluster.advance(9_999)
    first.heartbeat()
    assert len(cluster.describe().members) == 2
    cluster.advance(1)
    assert second.heartbeat() == 25


@pytest.mark.parametrize("back", ["heartbeat", "attach"])
def test_a_suspect_that_is_heard_of_again_has_a_full_session(back: str) -> None:
    cluster, (first, second) = on_stream(3_000, "a", "b")
    cluster.feed(StreamBroken(2))
    cluster.advance(2_999)
    first.heartbeat()
    assert (second.heartbeat() if back == "heartbeat" else attach(second, stream_id=9)) == 0
    cluster.advance(9_000)
    first.heartbeat()
    assert len(cluster.describe().members) == 2


def test_a_stream_that_the_server_ended_makes_nobody_suspect() -> None:
    cluster, (first, _) = on_stream(3_000, "a", "b")
    cluster.feed(StreamBroken(2, suspect=False))
    cluster.advance(9_000)
    first.heartbeat()
    assert len(cluster.describe().members) == 2


def test_a_grace_never_prolongs_a_session() -> None:
    cluster, (first, second) = on_stream(3_000, "a", "b")
    cluster.advance(9_000)
    first.heartbeat()
    cluster.feed(StreamBroken(2))
    cluster.advance(1_000)
    assert second.heartbeat() == 25


def test_a_grace_above_the_session_counts_for_nothing() -> None:
    cluster, (first, second) = on_stream(60_000, "a", "b")
    cluster.feed(StreamBroken(2))
    cluster.advance(9_000)
    first.heartbeat()
    cluster.advance(1_000)
    assert second.heartbeat() == 25
    assert "for its session timeout of 10 s" in cluster.describe().cause.sentence
    assert not broken_promises(cluster)


def test_a_removed_member_is_told_on_its_stream() -> None:
    cluster, (_, second) = on_stream(3_000, "a", "b")
    cluster.pushes.clear()
    second.leave("deploy")
    (fenced,) = [push.message for push in cluster.pushes if isinstance(push.message, session_pb2.Fenced)]
    assert (fenced.member_id, fenced.error_code) == (second.member_id, error_code.UNKNOWN_MEMBER_ID)
    assert fenced.cause.sentence.endswith("left the group: deploy.")


def test_a_detached_member_is_not_kept_alive() -> None:
    cluster, (first, second) = on_stream(3_000, "a", "b")
    cluster.feed(Detach(2, session_pb2.Detach(group_id="g", member_id=second.member_id)))
    cluster.advance(9_999)
    cluster.feed(Beat(1))
    cluster.feed(Beat(2))
    cluster.advance(1)
    assert second.heartbeat() == 25
    assert first.heartbeat() == 27


def test_a_static_member_that_did_not_rejoin_is_off_the_stream() -> None:
    """Its beats must not keep a generation alive that is over (conformance RT-02)."""
    cluster = VirtualShard()
    first, second = VirtualMember(cluster, "a", instance="i-1").join(), VirtualMember(cluster, "b").join()
    cluster.advance(10_000)
    for member in (first, second):
        member.joined()
        attach(member, stream_id=1 if member is first else 2)
    second.protocols = [("range", b"other")]
    second.join()
    for _ in range(12):
        cluster.advance(2_500)
        cluster.feed(Beat(1))
        cluster.feed(Beat(2))
    second.joined()
    fenced = [push.message for push in cluster.pushes if isinstance(push.message, session_pb2.Fenced)]
    assert [(message.member_id, message.error_code) for message in fenced] == [
        (first.member_id, error_code.ILLEGAL_GENERATION)
    ]


def test_a_move_is_pushed() -> None:
    cluster, (first, _) = on_stream(3_000, "a", "b")
    cluster.pushes.clear()
    owner = common_pb2.Coordinator(node_id="other", host="h", port=1, shard=0, shard_epoch=9)
    cluster.feed(Unload(owner))
    moves = [
        push.message for push in cluster.pushes if isinstance(push.message, session_pb2.CoordinatorMoved)
    ]
    assert (moves[0].member_id, moves[0].coordinator) == (first.member_id, owner)
    assert len(moves) == 2
