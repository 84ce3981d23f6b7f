"""Session streams to the millisecond: who is on which, what a beat moves, when a grace ends."""

import pytest
from kit.lives.virtual_shard import VirtualMember, VirtualShard, settled
from muster_core import error_code
from muster_core.config import GroupConfig
from muster_core.events import Attach, Beat, Detach, StreamBroken
from muster_core.waiting.timing_wheel import TimingWheel
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2

UNKNOWN = common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID
NOT_KNOWN_YET = common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE
REBALANCES = common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS
STREAM = 5_000
DISCONNECTED = common_pb2.REBALANCE_CAUSE_KIND_DISCONNECTED
SESSION_EXPIRED = common_pb2.REBALANCE_CAUSE_KIND_SESSION_EXPIRED


def attach(member: VirtualMember, stream_id: int = STREAM) -> session_pb2.AttachResult:
    """Puts a member on a stream; returns the answer, which is the only news there."""
    request = session_pb2.Attach(
        group_id=member.group,
        member_id=member.member_id,
        group_instance_id=member.instance,
        generation=member.generation,
    )
    before = len(member.cluster.pushes)
    member.cluster.feed(Attach(stream_id, request))
    (push,) = (push for push in member.cluster.pushes[before:] if push.stream_id == stream_id)
    assert isinstance(push.message, session_pb2.AttachResult)
    return push.message


def alone(grace_ms: int = 3_000) -> tuple[VirtualShard, VirtualMember]:
    """The only member of a Stable group, on a stream; its session of 10 s has just begun."""
    cluster = VirtualShard()
    member = VirtualMember(cluster, "a").join(disconnect_grace_ms=grace_ms)
    cluster.advance(cluster.config.initial_rebalance_delay_ms)
    member.joined()
    member.sync({member.member_id: b"x"}).synced()
    assert attach(member).error_code == 0
    return cluster, member


def remaining_ms(cluster: VirtualShard) -> int:
    (described,) = cluster.describe().members
    return described.session_remaining_ms


def leaves(cluster: VirtualShard, member: VirtualMember) -> int:
    """Sends that the member leaves; returns the call."""
    leaver = coordinator_pb2.LeaveGroupRequest.Member(member_id=member.member_id)
    return cluster.send(coordinator_pb2.LeaveGroupRequest(group_id="g", members=[leaver]))


def test_an_answer_to_attach_names_member_group_and_epoch() -> None:
    cluster, member = alone()
    after = cluster.reloaded()
    member.cluster = after
    assert attach(member) == session_pb2.AttachResult(group_id="g", member_id=member.member_id, shard_epoch=2)
    member.group = "other"
    assert attach(member) == session_pb2.AttachResult(
        group_id="other", member_id=member.member_id, shard_epoch=2, error_code=UNKNOWN
    )


@pytest.mark.row("HB-08")
def test_attach_answers_as_a_heartbeat_while_the_group_rebalances() -> None:
    cluster = VirtualShard()
    first, second = settled(cluster, "a", "b")
    assert attach(second).error_code == 0
    first.join()
    assert attach(second).error_code == error_code.REBALANCE_IN_PROGRESS
    second.join()
    first.joined()
    second.joined()
    assert cluster.state() == "CompletingRebalance"
    assert attach(second).error_code == 0


def test_attach_begins_a_full_session() -> None:
    cluster, member = alone()
    cluster.advance(9_999)
    attach(member)
    assert remaining_ms(cluster) == 10_000
    cluster.advance(9_999)
    assert cluster.state() == "Stable"
    cluster.advance(1)
    assert cluster.state() == "Empty"


def test_a_member_is_on_one_stream_the_last_it_came_onto() -> None:
    cluster, member = alone()
    attach(member, STREAM + 1)
    cluster.advance(4_000)
    cluster.feed(Beat(STREAM))
    assert remaining_ms(cluster) == 6_000, "it left that stream"
    cluster.feed(StreamBroken(STREAM))
    assert remaining_ms(cluster) == 6_000, "so its end makes it no suspect"
    cluster.feed(Beat(STREAM + 1))
    assert remaining_ms(cluster) == 10_000


def test_the_stream_that_a_member_is_taken_from_hears_it_before_the_answer_to_the_other() -> None:
    """Else whoever is there would go on by acknowledgements of beats that do not count for it."""
    cluster, member = alone()
    before = len(cluster.pushes)
    attach(member, STREAM + 1)
    news, answer = cluster.pushes[before:]
    assert news.stream_id == STREAM
    assert news.message == session_pb2.Fenced(
        group_id="g", member_id=member.member_id, error_code=UNKNOWN, shard_epoch=1
    )
    assert answer.stream_id == STREAM + 1
    cluster.feed(StreamBroken(STREAM + 1))
    assert remaining_ms(cluster) == 3_000


def test_a_member_that_comes_again_onto_its_stream_is_not_fenced_there() -> None:
    cluster, member = alone()
    before = len(cluster.pushes)
    attach(member)
    assert [type(push.message) for push in cluster.pushes[before:]] == [session_pb2.AttachResult]


def test_a_stream_that_breaks_does_not_shorten_what_a_heartbeat_promised() -> None:
    """A member that makes calls knows nothing of a stream that a stranger put it on and broke."""
    cluster, member = alone()
    cluster.feed(Detach(STREAM, session_pb2.Detach(group_id="g", member_id=member.member_id)))
    assert member.heartbeat() == 0
    cluster.advance(1_000)
    attach(member, STREAM + 1)
    cluster.feed(StreamBroken(STREAM + 1))
    assert remaining_ms(cluster) == 9_000
    attach(member, STREAM + 2)
    cluster.advance(9_000)
    attach(member, STREAM + 2)
    cluster.feed(StreamBroken(STREAM + 2))
    assert remaining_ms(cluster) == 3_000, "that was long ago"


@pytest.mark.parametrize("from_stream", [STREAM - 1, STREAM, STREAM + 1])
def test_a_member_is_taken_off_the_stream_that_it_is_on(from_stream: int) -> None:
    cluster, member = alone()
    cluster.feed(Detach(int(str(from_stream)), session_pb2.Detach(group_id="g", member_id=member.member_id)))
    cluster.advance(4_000)
    cluster.feed(Beat(STREAM))
    assert remaining_ms(cluster) == (6_000 if from_stream == STREAM else 10_000)


@pytest.mark.parametrize("who", [{"group_id": "g", "member_id": "x"}, {"group_id": "x", "member_id": "x"}])
def test_nobody_is_taken_off_for_a_stranger(who: dict[str, str]) -> None:
    cluster, _ = alone()
    cluster.feed(Detach(STREAM, session_pb2.Detach(**who)))
    cluster.advance(4_000)
    cluster.feed(Beat(STREAM))
    assert remaining_ms(cluster) == 10_000


@pytest.mark.row("SE-02")
def test_a_session_ends_to_the_millisecond_after_the_last_beat() -> None:
    cluster, _ = alone()
    for gap_ms in (7, 2_500, 9_999):
        cluster.advance(gap_ms)
        cluster.feed(Beat(STREAM))
        assert remaining_ms(cluster) == 10_000
    cluster.advance(9_999)
    assert cluster.state() == "Stable"
    cluster.advance(1)
    assert cluster.state() == "Empty"


def test_a_beat_only_moves_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """It carries hundreds of members, so it must not file their timers again."""
    cluster, member = alone()
    filed = []
    monkeypatch.setattr(TimingWheel, "arm", lambda _, timer, deadline_ms: filed.append(timer))
    for gap_ms in (0, 1, 9_000):
        cluster.now_ms += gap_ms
        cluster.feed(Beat(STREAM))
        session = cluster.shard.groups["g"].members[member.member_id].heartbeat
        assert session is not None
        assert session.deadline_ms == cluster.now_ms + 10_000
    assert filed == []


def test_a_beat_revives_a_session_whose_end_waits_in_line() -> None:
    """Its timer has fired, but nothing was done yet: the member lives (GRP-05)."""
    cluster = VirtualShard()
    first, second = settled(cluster, "a", "b")
    attach(second)
    cluster.advance(9_999)
    first.heartbeat()
    cluster.auto_ack = False
    leaves(cluster, first)
    cluster.advance(1)
    cluster.feed(Beat(STREAM))
    cluster.acknowledge()
    assert [described.member_id for described in cluster.describe().members] == [second.member_id]
    assert remaining_ms(cluster) == 10_000


def test_a_beat_shortens_a_session_whose_time_out_became_shorter() -> None:
    """A newcomer that is asked to hurry: its session is what its last join says (SE-08)."""
    cluster = VirtualShard(GroupConfig(initial_rebalance_delay_ms=60_000))
    newcomer = VirtualMember(cluster, "a")
    newcomer.session_timeout_ms = 30_000
    newcomer.join()
    newcomer.generation = 0
    attach(newcomer)
    newcomer.session_timeout_ms = 10_000
    newcomer.join()
    cluster.feed(Beat(STREAM))
    cluster.advance(9_999)
    assert newcomer.is_parked
    cluster.advance(1)
    assert newcomer.joined().error_code == error_code.UNKNOWN_MEMBER_ID


def test_a_beat_is_a_sign_of_life_after_a_load_and_a_break_is_none() -> None:
    cluster, member = alone()

    def confirmed() -> bool:
        (described,) = cluster.describe().members
        return described.confirmed

    cluster.suspend()
    cluster.resume()
    assert not confirmed()
    cluster.feed(Beat(STREAM))
    assert confirmed()
    cluster.suspend()
    cluster.resume()
    cluster.feed(StreamBroken(STREAM))
    assert not confirmed()
    member.heartbeat()
    assert confirmed()


def test_a_stream_that_broke_gets_no_news() -> None:
    cluster, member = alone()
    cluster.feed(StreamBroken(STREAM))
    cluster.pushes.clear()
    VirtualMember(cluster, "b").join()
    assert member.heartbeat() == 27
    assert cluster.pushes == []


@pytest.mark.parametrize(("ago_ms", "left_ms"), [(0, 3_000), (250, 2_750), (3_000, 0), (4_000, 0)])
def test_a_grace_begins_when_the_stream_broke_and_not_when_that_was_judged(ago_ms: int, left_ms: int) -> None:
    cluster, _ = alone(3_000)
    cluster.feed(StreamBroken(STREAM, ago_ms=ago_ms))
    if left_ms:
        cluster.advance(left_ms - 1)
        assert cluster.state() == "Stable"
    cluster.advance(1)
    assert cluster.state() == "Empty"


@pytest.mark.parametrize(
    ("grace_ms", "silent_ms", "left_ms", "kind"),
    [
        (3_000, 6_999, 3_000, DISCONNECTED),
        (3_000, 7_000, 3_000, DISCONNECTED),
        (3_000, 7_001, 2_999, DISCONNECTED),
        (0, 7_000, 3_000, SESSION_EXPIRED),
        (1, 0, 1, DISCONNECTED),
        (60_000, 0, 10_000, SESSION_EXPIRED),
    ],
)
def test_a_grace_ends_with_the_session_at_the_latest(
    grace_ms: int, silent_ms: int, left_ms: int, kind: int
) -> None:
    cluster, _ = alone(grace_ms)
    cluster.advance(silent_ms)
    cluster.feed(StreamBroken(STREAM))
    assert remaining_ms(cluster) == left_ms
    cluster.advance(left_ms - 1)
    assert cluster.state() == "Stable"
    cluster.advance(1)
    assert cluster.state() == "Empty"
    assert cluster.describe().cause.kind == kind


def test_a_session_that_has_ended_gets_no_grace() -> None:
    """The rule SES-08, also while the end of the session waits in line for a record in flight."""
    cluster = VirtualShard()
    first = VirtualMember(cluster, "a").join()
    second = VirtualMember(cluster, "b").join(disconnect_grace_ms=3_000)
    cluster.advance(6_000)
    for member in (first, second):
        member.joined()
    attach(second)
    cluster.advance(9_999)
    first.heartbeat()
    cluster.auto_ack = False
    leaves(cluster, first)
    cluster.advance(1)
    cluster.feed(StreamBroken(STREAM))
    cluster.acknowledge()
    assert [record.WhichOneof("kind") for record in cluster.waiting[0].records] == ["member_left"]
    assert cluster.waiting[0].records[0].member_left.cause.kind == SESSION_EXPIRED


def test_who_waits_is_no_suspect_and_has_a_full_session_with_its_answer() -> None:
    """A parked call is a sign of life that outlasts the stream (SE-07)."""
    cluster = VirtualShard()
    first = VirtualMember(cluster, "a").join()
    second = VirtualMember(cluster, "b").join(disconnect_grace_ms=1_000)
    cluster.advance(6_000)
    for member in (first, second):
        member.joined()
    attach(second)
    second.sync()
    cluster.advance(9_999)
    first.heartbeat()
    cluster.advance(5_000)
    cluster.feed(StreamBroken(STREAM))
    cluster.advance(3_000)
    assert second.is_parked
    first.sync({}).synced()
    assert second.synced().error_code == 0
    cluster.advance(9_999)
    first.heartbeat()
    cluster.advance(1)
    assert cluster.describe().cause.kind == SESSION_EXPIRED


def test_a_suspect_that_came_back_and_fell_silent_later_was_not_disconnected() -> None:
    """The cause that operators read is the last thing that happened to the member (SES-13)."""
    cluster, member = alone()
    cluster.feed(StreamBroken(STREAM))
    assert member.heartbeat() == 0
    cluster.advance(10_000)
    assert cluster.describe().cause.kind == SESSION_EXPIRED


def test_who_is_about_to_go_hears_it_at_once_and_does_not_come_back_onto_a_stream() -> None:
    """The record that removes it may take long; then others get what it owned (GRP-37)."""
    cluster = VirtualShard()
    first, second = settled(cluster, "a", "b")
    attach(second)
    cluster.auto_ack = False
    cluster.pushes.clear()
    leaves(cluster, second)
    (fenced,) = (push.message for push in cluster.pushes)
    assert isinstance(fenced, session_pb2.Fenced)
    assert (fenced.error_code, fenced.cause.member_id) == (UNKNOWN, second.member_id)
    assert attach(second, STREAM + 1).error_code == NOT_KNOWN_YET
    assert cluster.shard.streams == 0
    cluster.acknowledge()
    assert attach(second, STREAM + 1).error_code == UNKNOWN
    assert first.heartbeat() == REBALANCES


def test_a_stream_of_the_process_before_does_not_carry_the_one_that_took_its_place() -> None:
    """It came back while the record was on its way: its beats would be acknowledged for ever (GRP-37)."""
    cluster = VirtualShard()
    old = VirtualMember(cluster, "a", instance="i-1").join()
    cluster.advance(cluster.config.initial_rebalance_delay_ms)
    old.joined()
    old.sync({old.member_id: b"everything"}).synced()
    cluster.auto_ack = False
    new = VirtualMember(cluster, "a", instance="i-1").join()
    assert attach(old).error_code == NOT_KNOWN_YET
    cluster.acknowledge()
    new.joined()
    assert cluster.shard.streams == 0, "beats of the old process count for nobody"


def test_a_newcomer_whose_call_was_cancelled_waits_on_when_it_calls_again() -> None:
    """Whoever is parked is alive: the session that ran since the cancellation does not end then (SE-08)."""
    cluster = VirtualShard(GroupConfig(initial_rebalance_delay_ms=60_000))
    newcomer = VirtualMember(cluster, "a")
    newcomer.rebalance_timeout_ms = 300_000
    newcomer.join()
    cluster.cancel(newcomer.call_id)
    cluster.advance(5_000)
    newcomer.join()
    cluster.advance(50_000)
    assert newcomer.is_parked
    cluster.advance(5_000)
    assert newcomer.joined().generation == 1
