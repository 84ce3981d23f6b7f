"""From one generation to the next: which timers run, what each member is answered, what comes too late."""

from typing import Any

import pytest
from conformance import acts
from conformance.acts import DELAY_MS, REBALANCE_MS, SESSION_MS
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core import error_code
from muster_core.events import Attach
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2

JOINED = common_pb2.REBALANCE_CAUSE_KIND_MEMBER_JOINED
REBALANCE_TIMEOUT = common_pb2.REBALANCE_CAUSE_KIND_REBALANCE_TIMEOUT
ONE_SEARCH = 1
"""The timer that looks for expired offsets; it always runs."""


def timers(cluster: VirtualShard) -> int:
    """How many timers run."""
    return len(cluster.shard._context.purgatory.wheel) - ONE_SEARCH


def leaves(cluster: VirtualShard, *who: VirtualMember) -> int:
    """Sends that members leave; returns the call."""
    members = [coordinator_pb2.LeaveGroupRequest.Member(member_id=each.member_id) for each in who]
    return cluster.send(coordinator_pb2.LeaveGroupRequest(group_id="g", members=members))


def on_stream(member: VirtualMember, stream_id: int) -> None:
    """Puts a member on a stream."""
    attach = session_pb2.Attach(
        group_id="g",
        member_id=member.member_id,
        group_instance_id=member.instance,
        generation=member.generation,
    )
    member.cluster.feed(Attach(stream_id, attach))
    member.cluster.pushes.clear()


def beating(cluster: VirtualShard, ms: int, *members: VirtualMember) -> None:
    """Lets time pass while members beat, the last time at its end."""
    while ms > 0:
        step_ms = min(ms, SESSION_MS // 2)
        cluster.advance(step_ms)
        ms -= step_ms
        for who in members:
            who.heartbeat()


def test_no_timer_is_left_of_what_has_ended() -> None:
    """A timer too many would one day end something that has just begun."""
    cluster = acts.shard()
    first, second = acts.joined(cluster, "a", "b")
    assert timers(cluster) == 3, "two sessions, the wait for syncs"
    first.protocols = [("range", b"2")]
    first.join()
    assert timers(cluster) == 3, "two sessions, the join phase"
    second.join()
    assert timers(cluster) == 3, "two sessions, the wait for syncs"
    for who in (first, second):
        who.joined()
    acts.assigned([first, second])
    assert timers(cluster) == 2, "two sessions"
    second.leave()
    assert timers(cluster) == 2, "a session, the join phase"
    first.leave()
    assert (cluster.state(), timers(cluster)) == ("Empty", 0)


# --- the start of a phase


def test_who_is_told_of_a_rebalance_and_what() -> None:
    cluster = acts.shard()
    first, second, third = acts.stable(cluster, "a", "b", "c")
    on_stream(first, 7)
    on_stream(second, 8)
    first.join(reason="new topics")
    cause = cluster.describe().cause
    (push,) = cluster.pushes
    assert push.stream_id == 8, "whoever joins knows, and the third is on no stream"
    assert push.message == session_pb2.RebalanceStarted(
        group_id="g", member_id=second.member_id, generation=1, cause=cause, shard_epoch=1
    )
    assert cluster.shard.groups["g"].generation == 1
    assert third.heartbeat() == 27


@pytest.mark.row("JG-28")
@pytest.mark.row("SE-07")
def test_a_sync_that_a_rebalance_ends_is_a_sign_of_life() -> None:
    cluster = acts.shard()
    first, second = acts.joined(cluster, "a", "b")
    second.sync()
    cluster.advance(SESSION_MS - 1)
    first.protocols = [("range", b"2")]
    first.join()
    assert second.synced().error_code == error_code.REBALANCE_IN_PROGRESS
    cluster.advance(SESSION_MS - 1)
    assert len(cluster.describe().members) == 2
    cluster.advance(1)
    assert [entry.member_id for entry in cluster.describe().members] == [first.member_id]


@pytest.mark.row("DG-02")
def test_a_generation_that_was_not_assigned_leaves_nobody_an_assignment() -> None:
    cluster = acts.shard()
    first, second = acts.stable(cluster, "a", "b")
    acts.rejoined(first, second)
    assert [entry.assignment for entry in cluster.describe().members] == [
        f"for {entry.member_id}".encode() for entry in cluster.describe().members
    ], "what they hold until they are told otherwise"
    second.protocols = [("range", b"2")]
    second.join()
    assert cluster.state() == "PreparingRebalance"
    assert [entry.assignment for entry in cluster.describe().members] == [b"", b""]


# --- sessions that end in line


@pytest.mark.parametrize("heard", [False, True])
def test_a_session_that_ended_in_line_counts_only_if_the_member_was_not_heard_of(heard: bool) -> None:
    cluster = acts.shard()
    first, second, third = acts.stable(cluster, "a", "b", "c")
    cluster.advance(SESSION_MS - 1)
    first.heartbeat()
    second.heartbeat()
    cluster.auto_ack = False
    leaves(cluster, second)
    cluster.advance(1)
    if heard:
        assert third.heartbeat() == 0
    cluster.auto_ack = True
    while cluster.waiting:
        cluster.acknowledge()
    left = {entry.member_id for entry in cluster.describe().members}
    assert left == {first.member_id} | ({third.member_id} if heard else set())


def test_a_member_that_left_while_its_session_ended_in_line_leaves_once() -> None:
    cluster = acts.shard()
    first, second, third = acts.stable(cluster, "a", "b", "c")
    cluster.advance(SESSION_MS - 1)
    first.heartbeat()
    second.heartbeat()
    cluster.auto_ack = False
    leaves(cluster, second)
    leaves(cluster, third)
    cluster.advance(1)
    cluster.auto_ack = True
    while cluster.waiting:
        cluster.acknowledge()
    assert cluster.kinds().count("member_left") == 2
    assert [entry.member_id for entry in cluster.describe().members] == [first.member_id]


# --- the end of a phase


@pytest.mark.row("RT-01")
@pytest.mark.row("JG-36")
def test_the_record_of_a_generation_is_made_of_those_who_are_back() -> None:
    cluster = acts.shard()
    members = [acts.member(cluster, name, rebalance_timeout_ms=5_000) for name in ("a=i", "b", "c")]
    for who in members:
        who.protocols = [("x", b""), ("y", b"")]
    members[1].protocols = [("y", b""), ("x", b"")]
    members[2].protocols = [("y", b""), ("x", b"")]
    acts.stable(cluster, *members)
    assert cluster.describe().protocol_name == "y"
    members[2].protocols = [("x", b"new"), ("y", b"")]
    members[2].join(reason="new code")
    cause = cluster.describe().cause
    cluster.advance(5_000)
    record = acts.last_record(cluster).generation_started
    assert [entry.member_id for entry in record.members] == [members[0].member_id, members[2].member_id]
    assert (record.generation, record.leader) == (2, members[2].member_id), "the old one did not come"
    assert (record.protocol_type, record.protocol_name) == ("consumer", "x"), "the vote of who stays"
    assert record.cause == cause
    answer = members[2].joined()
    assert (answer.leader, answer.protocol_name, len(answer.members)) == (members[2].member_id, "x", 2)
    assert answer.cause == cause
    assert acts.ask_heartbeat(members[1]) == 25


@pytest.mark.row("GV-01")
@pytest.mark.row("SE-07")
@pytest.mark.parametrize("call", ["join", "sync"])
def test_a_slow_log_ends_the_wait_and_begins_the_sessions(call: str) -> None:
    cluster = acts.shard()
    first, second, third = acts.joined(cluster, "a", "b", "c")
    if call == "join":
        acts.assigned([first, second, third])
        first.join()
        third.protocols = [("range", b"2")]
        third.join()
    else:
        third.sync()
    cluster.auto_ack = False
    if call == "join":
        second.join()
    else:
        first.sync({third.member_id: b"x"})
    cluster.advance(4_999)
    assert second.heartbeat() == (27 if call == "join" else 0)
    cluster.advance(1)
    refused: Any = cluster.answer(third.call_id)
    assert refused.error_code == error_code.COORDINATOR_NOT_AVAILABLE
    assert "in time" in refused.error_message
    remaining_ms = {entry.member_id: entry.session_remaining_ms for entry in cluster.describe().members}
    assert (remaining_ms[first.member_id], remaining_ms[third.member_id]) == (SESSION_MS, SESSION_MS)
    assert remaining_ms[second.member_id] == (SESSION_MS if call == "join" else SESSION_MS - 1)
    assert cluster.shard.open_calls == 0


# --- after a suspension


@pytest.mark.row("RT-01")
def test_a_suspended_phase_has_its_whole_time_again() -> None:
    cluster = acts.shard()
    first, second = acts.in_state(cluster, "PreparingRebalance")
    beating(cluster, REBALANCE_MS - 1, first)
    cluster.suspend()
    cluster.resume()
    assert timers(cluster) == 3, "two sessions, one phase"
    second.join()
    beating(cluster, REBALANCE_MS - 1, first)
    assert second.is_parked
    cluster.advance(1)
    assert second.joined().generation == 2
    assert acts.ask_heartbeat(first) == 25


@pytest.mark.row("RT-07")
def test_a_suspended_wait_for_syncs_has_its_whole_time_again() -> None:
    cluster = acts.shard()
    members = acts.joined(cluster, "a", "b")
    beating(cluster, REBALANCE_MS - 1_000, *members)
    cluster.suspend()
    cluster.resume()
    assert timers(cluster) == 3, "two sessions, one wait"
    beating(cluster, REBALANCE_MS - 1, *members)
    assert cluster.state() == "CompletingRebalance"
    cluster.advance(1)
    assert cluster.state() == "Empty"


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance"])
def test_a_suspension_while_a_record_is_in_flight_leaves_one_wait(state: str) -> None:
    cluster = acts.shard()
    first, second = acts.in_state(cluster, state)
    cluster.auto_ack = False
    if state == "Stable":
        leaves(cluster, second)
    else:
        first.join()
    cluster.suspend()
    cluster.resume()
    cluster.auto_ack = True
    cluster.acknowledge()
    expected = 2 if state == "Stable" else 3
    assert timers(cluster) == expected, "the sessions, and what follows the record"


def acknowledged_and_resumed(cluster: VirtualShard, first: str) -> None:
    """The record in flight is stored, and the lease held again, in this order or in the other."""
    for step in ("stored", "held") if first == "stored" else ("held", "stored"):
        cluster.acknowledge() if step == "stored" else cluster.resume()
    cluster.auto_ack = True


@pytest.mark.parametrize("first", ["stored", "held"])
def test_silence_that_waited_in_line_is_forgotten_with_a_suspension(first: str) -> None:
    cluster = acts.shard()
    members = acts.joined(cluster, "a", "b", "c")
    for who in members:
        who.sync({})
    cluster.auto_ack = False
    leaves(cluster, members[2])
    cluster.advance(SESSION_MS)
    cluster.suspend()
    acknowledged_and_resumed(cluster, first)
    cluster.advance(SESSION_MS - 1)
    assert [who.member_id for who in cluster.describe().members] == [who.member_id for who in members[:2]]
    cluster.advance(1)
    assert cluster.describe().members == []


@pytest.mark.parametrize("first", ["stored", "held"])
def test_a_phase_whose_end_waited_in_line_has_its_whole_time_again(first: str) -> None:
    """Its members' calls were refused by the suspension, so it would end without them."""
    cluster = acts.shard()
    one, two, three = acts.joined(cluster, "a", "b", "c")
    one.protocols = [("range", b"other")]
    one.join()
    assert cluster.state() == "PreparingRebalance"
    beating(cluster, REBALANCE_MS - 1, two, three)
    cluster.auto_ack = False
    leaves(cluster, three)
    cluster.advance(1)
    cluster.suspend()
    acknowledged_and_resumed(cluster, first)
    assert timers(cluster) == 3, "two sessions, one phase"
    one.join()
    beating(cluster, REBALANCE_MS - 1, two)
    assert one.is_parked
    two.join()
    assert (one.joined().generation, two.joined().generation) == (2, 2)


SUSPENDED = pytest.mark.parametrize(
    ("suspended_ms", "then_ms"), [(2_000, 0), (500, 600)], ids=["meanwhile", "after it"]
)
"""What was due a second later, and a record of the group is stored when it is over."""


@SUSPENDED
def test_a_phase_that_comes_due_after_a_suspension_has_its_whole_time_again(
    suspended_ms: int, then_ms: int
) -> None:
    cluster = acts.shard()
    one, two, three = acts.joined(cluster, "a", "b", "c")
    one.protocols = [("range", b"other")]
    one.join()
    beating(cluster, REBALANCE_MS - 1_000, two, three)
    cluster.auto_ack = False
    leaves(cluster, three)
    suspended_while_a_record_is_on_its_way(cluster, suspended_ms, then_ms)
    assert (cluster.state(), timers(cluster)) == ("PreparingRebalance", 3), "two sessions, one phase"
    one.join()
    two.join()
    assert (one.joined().generation, two.joined().generation) == (2, 2)


@SUSPENDED
def test_a_wait_for_syncs_that_comes_due_after_a_suspension_has_its_whole_time_again(
    suspended_ms: int, then_ms: int
) -> None:
    cluster = acts.shard()
    members = acts.joined(cluster, "a", "b", "c")
    beating(cluster, REBALANCE_MS - 1_000, *members)
    cluster.auto_ack = False
    members[0].sync({})
    suspended_while_a_record_is_on_its_way(cluster, suspended_ms, then_ms)
    assert (cluster.state(), timers(cluster)) == ("Stable", 4), "three sessions, one wait"
    beating(cluster, REBALANCE_MS - 1, *members)
    assert len(cluster.describe().members) == 3


def suspended_while_a_record_is_on_its_way(cluster: VirtualShard, ms: int, then_ms: int) -> None:
    """The lease is lost and held again, and the record is stored so much later."""
    cluster.suspend()
    cluster.advance(ms)
    cluster.resume()
    cluster.advance(then_ms)
    cluster.auto_ack = True
    cluster.acknowledge()


# --- the wait for syncs


@pytest.mark.row("DS-01")
@pytest.mark.parametrize(("late", "others"), [(1, ""), (2, " and 1 other"), (3, " and 2 others")])
def test_who_did_not_sync_in_time_is_named(late: int, others: str) -> None:
    cluster = acts.shard()
    members = acts.joined(cluster, "a", "b", "c", "d")
    for who in members[: 4 - late]:
        who.sync({})
    began_ms = cluster.shard.groups["g"].state_since_ms
    cause = None
    for _ in range(REBALANCE_MS // 1_000 + 1):
        cluster.advance(1_000)
        for who in members:
            acts.ask_heartbeat(who)
        if cluster.state() == "PreparingRebalance":
            cause = cluster.describe().cause
            break
    assert cause is not None
    first = members[4 - late]
    assert (cause.kind, cause.member_id) == (REBALANCE_TIMEOUT, first.member_id)
    assert f"Member {first.member_id} at 10.0.0.1{others} did not ask" in cause.sentence
    assert cause.at_ms >= began_ms
    left = {entry.member_id for entry in cluster.describe().members}
    assert left == {who.member_id for who in members[: 4 - late]}


@pytest.mark.row("DS-06")
def test_a_wait_for_syncs_that_ends_in_line_does_not_reach_the_next_generation() -> None:
    cluster = acts.shard()
    members = [acts.member(cluster, name, rebalance_timeout_ms=SESSION_MS) for name in ("a", "b", "c")]
    acts.joined(cluster, *members)
    wait_ms = cluster.shard.groups["g"].state_since_ms + SESSION_MS - cluster.now.wall_ms
    cluster.advance(wait_ms - 1)
    for who in members:
        assert who.heartbeat() == 0
    cluster.auto_ack = False
    leaves(cluster, members[2])
    for who in members[:2]:
        who.protocols = [("range", b"2")]
        who.join()
    cluster.advance(1)
    for _ in range(2):
        cluster.acknowledge()
    assert {who.joined().generation for who in members[:2]} == {2}
    assert [who.heartbeat() for who in members[:2]] == [0, 0]
    assert (cluster.state(), len(cluster.waiting)) == ("CompletingRebalance", 0)


# --- removals


@pytest.mark.row("MX-07")
@pytest.mark.row("LG-07")
def test_who_is_in_its_first_phase_goes_without_a_record() -> None:
    cluster = acts.shard()
    (first,) = acts.stable(cluster, "a")
    newcomer = acts.member(cluster, "b").join()
    assert acts.leave(cluster, (newcomer.member_id, ""), (first.member_id, "")) == [0, 0]
    assert newcomer.joined().error_code == error_code.UNKNOWN_MEMBER_ID
    assert cluster.kinds()[-2:] == ["member_left", "generation_started"]
    record = next(r.member_left for _, r in reversed(cluster.log) if r.HasField("member_left"))
    assert (record.member_id, record.generation, record.group_id) == (first.member_id, 1, "g")
    assert record.cause.member_id == newcomer.member_id, "of a batch the first one"
    assert (cluster.state(), timers(cluster)) == ("Empty", 0)


# --- the initial delay


@pytest.mark.row("ID-04")
@pytest.mark.parametrize("longest_ms", [DELAY_MS * 2, DELAY_MS * 2 + 1, DELAY_MS * 5 // 2])
def test_the_delay_is_extended_by_what_is_left_of_the_time_out(longest_ms: int) -> None:
    cluster = acts.shard()
    first = acts.member(cluster, "a=i", rebalance_timeout_ms=longest_ms).join()
    for number in range(3):
        cluster.advance(DELAY_MS // 2)
        if number != 1:
            acts.member(cluster, "m", instance=f"n{number}", rebalance_timeout_ms=longest_ms).join()
    cluster.advance(longest_ms - 3 * (DELAY_MS // 2) - 1)
    assert first.is_parked
    cluster.advance(1)
    assert first.joined().error_code == 0


@pytest.mark.row("ID-02")
def test_the_delay_is_extended_once_for_whoever_came() -> None:
    cluster = acts.shard()
    first = acts.member(cluster, "a=i").join()
    acts.member(cluster, "b=j").join()
    cluster.advance(2 * DELAY_MS - 1)
    assert first.is_parked
    cluster.advance(1)
    assert first.joined().error_code == 0


# --- who leads


@pytest.mark.row("JG-36")
@pytest.mark.row("SM-22")
def test_the_first_who_is_back_leads_in_place_of_one_who_is_not() -> None:
    cluster = acts.shard()
    names = ("a=i", "b=j", "c=k")
    members = [acts.member(cluster, name, rebalance_timeout_ms=5_000) for name in names]
    acts.stable(cluster, *members)
    for who in members[1:]:
        who.protocols = [("range", b"2")]
        who.join()
    cluster.advance(5_000)
    assert [who.joined().leader for who in members[1:]] == [members[1].member_id] * 2


@pytest.mark.row("JG-34")
@pytest.mark.parametrize("names", [("a", "z"), ("z", "a")])
def test_only_the_leader_is_told_not_to_assign(names: tuple[str, str]) -> None:
    cluster = acts.shard()
    leader, follower = acts.stable(cluster, *names)
    leader.protocols = [("range", b"2")]
    leader.join(member_seq=1)
    follower.join(member_seq=1)
    for who in (leader, follower):
        assert who.joined().generation == 2
    acts.assigned([leader, follower])
    answers = [acts.ask_join(who, member_seq=1) for who in (leader, follower)]
    assert [answer.skip_assignment for answer in answers] == [True, False]
