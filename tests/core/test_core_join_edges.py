"""JoinGroup where it is easy to get wrong: limits to the byte, retries, ids that expire, take-overs."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from conformance import acts
from conformance.acts import DELAY_MS, SESSION_MS
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_coordinator.validation import violations
from muster_core import error_code
from muster_core.events import Attach
from muster_core.record_bounds import GROUP_MAX_BYTES
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2

LEADER_REJOINED = common_pb2.REBALANCE_CAUSE_KIND_LEADER_REJOINED
METADATA_CHANGED = common_pb2.REBALANCE_CAUSE_KIND_METADATA_CHANGED
STATIC_REPLACED = common_pb2.REBALANCE_CAUSE_KIND_STATIC_REPLACED


def with_id(cluster: VirtualShard, name: str, **changes: Any) -> VirtualMember:
    """A dynamic member that has its id and has not used it."""
    who = acts.member(cluster, name)
    answer = acts.ask_join(who, **changes)
    assert (answer.error_code, answer.generation) == (error_code.MEMBER_ID_REQUIRED, -1)
    who.member_id = answer.member_id
    return who


def pending_ids(cluster: VirtualShard) -> list[str]:
    return list(cluster.shard.groups["g"].pending_members)


def timers(cluster: VirtualShard) -> int:
    """How many timers run."""
    return len(cluster.shard._context.purgatory.wheel)


def successor(old: VirtualMember) -> VirtualMember:
    """Another process with the same instance id."""
    new = acts.member(old.cluster, f"{old.name}={old.instance}")
    new.protocols = list(old.protocols)
    return new


# --- the first join of a group


@pytest.mark.row("JG-13")
@pytest.mark.row("JG-14")
@pytest.mark.parametrize("missing", [{"protocol_type": ""}, {"protocols": []}])
@pytest.mark.parametrize("name", ["a", "a=i"])
def test_a_first_join_without_protocols_makes_no_group(name: str, missing: dict[str, Any]) -> None:
    cluster = acts.shard()
    answer = acts.ask_join(acts.member(cluster, name), **missing)
    assert (answer.error_code, answer.generation, answer.member_id) == (
        error_code.INCONSISTENT_GROUP_PROTOCOL,
        -1,
        "",
    )
    assert cluster.shard.groups == {}


def test_a_new_group_is_as_old_as_its_first_join() -> None:
    cluster = acts.shard()
    cluster.advance(5)
    with_id(cluster, "a")
    assert (cluster.state(), cluster.describe().state_since_ms) == ("Empty", cluster.now.wall_ms)


@pytest.mark.row("JG-09")
@pytest.mark.parametrize(("name", "start"), [("worker", "worker-"), ("", "client-")])
def test_an_id_is_the_clients_name_and_a_uuid(name: str, start: str) -> None:
    who = with_id(acts.shard(), name)
    assert who.member_id.startswith(start)
    assert UUID(who.member_id.removeprefix(start)).version == 4


# --- ids that were given out


@pytest.mark.row("PM-02")
def test_a_join_that_is_repeated_has_a_whole_session_to_use_its_id() -> None:
    cluster = acts.shard()
    who = with_id(cluster, "a", request_id="r")
    cluster.advance(SESSION_MS - 1)
    assert acts.ask_join(who, member_id="", request_id="r").member_id == who.member_id
    cluster.advance(SESSION_MS - 1)
    assert pending_ids(cluster) == [who.member_id]
    cluster.advance(1)
    assert pending_ids(cluster) == []


def test_a_repeated_join_gets_its_id_from_a_group_that_gave_out_all_it_may() -> None:
    cluster = acts.shard(max_pending_members=1)
    who = with_id(cluster, "a", request_id="r")
    assert acts.ask_join(who, member_id="", request_id="r").member_id == who.member_id
    assert pending_ids(cluster) == [who.member_id]


def test_the_id_that_waited_longest_makes_room_for_another_one() -> None:
    cluster = acts.shard(max_pending_members=2)
    first, second = with_id(cluster, "a"), with_id(cluster, "b")
    third = with_id(cluster, "c")
    assert pending_ids(cluster) == [second.member_id, third.member_id]
    assert acts.ask_join(first).error_code == error_code.UNKNOWN_MEMBER_ID
    third.join()
    assert third.is_parked
    assert timers(cluster) == 4, "an id, a session, the phase, the search for expired offsets"


@pytest.mark.parametrize(("session_timeout_ms", "lives_ms"), [(1_800_000, 60_000), (10_000, 10_000)])
def test_an_id_that_is_not_used_lives_for_a_minute_at_most(session_timeout_ms: int, lives_ms: int) -> None:
    cluster = acts.shard(max_session_timeout_ms=1_800_000)
    who = with_id(cluster, "a", session_timeout_ms=session_timeout_ms)
    cluster.advance(lives_ms - 1)
    assert pending_ids(cluster) == [who.member_id]
    cluster.advance(1)
    assert pending_ids(cluster) == []


@pytest.mark.row("PM-09")
def test_the_time_of_an_id_that_became_a_member_is_over() -> None:
    cluster = acts.shard(initial_rebalance_delay_ms=2 * SESSION_MS)
    who = with_id(cluster, "a")
    who.join()
    assert timers(cluster) == 3, "its session, the phase, the search for expired offsets"


@pytest.mark.row("PM-05")
@pytest.mark.row("MX-01")
def test_a_phase_that_waits_only_for_whom_it_refuses_ends() -> None:
    cluster = acts.shard(max_size=2)
    first, second = acts.stable(cluster, "a", "b")
    first.join()
    late = acts.member(cluster, "c")
    late.member_id = acts.ask_join(late).member_id
    second.join()
    assert first.is_parked
    late.join()
    answer = late.joined()
    assert (answer.error_code, answer.generation, answer.member_id) == (
        error_code.GROUP_MAX_SIZE_REACHED,
        -1,
        "",
    )
    assert {who.joined().generation for who in (first, second)} == {2}
    assert pending_ids(cluster) == []
    assert timers(cluster) == 4, "two sessions, the wait for syncs, the search for expired offsets"


# --- limits


@pytest.mark.parametrize("name", ["worker", "w" * 100])
@pytest.mark.parametrize("instance", ["", "instance-1"])
@pytest.mark.parametrize(("more", "code"), [(0, error_code.NONE), (1, error_code.GROUP_MAX_SIZE_REACHED)])
def test_the_limit_of_bytes_to_the_byte(name: str, instance: str, more: int, code: int) -> None:
    """A member counts with its name and its instance twice, as its id has them too, and its protocols."""
    metadata = bytes(1_000)
    brings = 192 + 2 * len(name) + 2 * len(instance) + (12 + len("range") + len(metadata)) + (12 + 1)
    cluster = acts.shard(max_group_bytes=brings)
    who = acts.member(cluster, f"{name}={instance}")
    who.protocols = [("range", metadata), ("x" * (1 + more), b"")]
    call = cluster.send(who.join_request())
    if code or not instance:
        assert acts.error_of(cluster.answer(call)) == (code or error_code.MEMBER_ID_REQUIRED)
    else:
        assert cluster.is_parked(call)
    assert bool(cluster.shard.groups) is (code == 0)


@pytest.mark.parametrize("name", ["a", "a=i"])
@pytest.mark.parametrize("knows_its_id", [True, False])
def test_a_member_that_joins_again_counts_once(name: str, knows_its_id: bool) -> None:
    cluster = acts.shard(max_group_bytes=1_500)
    who = acts.member(cluster, name)
    who.protocols = [("range", bytes(1_000))]
    acts.stable(cluster, who)
    who.protocols = [("range", bytes(1_100))]
    again = acts.join_of(who, member_id=who.member_id if knows_its_id else "")
    call = cluster.send(again)
    if knows_its_id or name == "a=i":
        cluster.advance(DELAY_MS)
        assert acts.error_of(cluster.answer(call)) == 0
    else:
        assert acts.error_of(cluster.answer(call)) == error_code.GROUP_MAX_SIZE_REACHED, (
            "this is another member"
        )


def test_a_known_member_may_not_grow_beyond_the_limit_of_bytes() -> None:
    cluster = acts.shard(max_group_bytes=1_500)
    who = acts.member(cluster, "a", protocols=[("range", bytes(1_000))])
    acts.stable(cluster, who)
    who.protocols = [("range", bytes(1_500))]
    assert acts.ask_join(who).error_code == error_code.GROUP_MAX_SIZE_REACHED


def test_a_known_member_stays_in_a_group_that_has_more_bytes_than_it_may() -> None:
    """Its owner has another limit now than when it came."""
    cluster = acts.shard(max_group_bytes=3_000)
    first, other = (acts.member(cluster, name, protocols=[("range", bytes(1_000))]) for name in "ab")
    acts.stable(cluster, first, other)
    cluster.config = replace(cluster.config, max_group_bytes=1_500)
    cluster = cluster.reloaded()
    for who, size_bytes, code in (
        (first, 1_000, error_code.NONE),
        (other, 1_001, error_code.NONE),  # lists of what a member has grow with it, and its generation does
        (other, GROUP_MAX_BYTES, error_code.GROUP_MAX_SIZE_REACHED),
        (other, 100, error_code.NONE),
        (first, 1_400, error_code.GROUP_MAX_SIZE_REACHED),
    ):
        who.protocols = [("range", bytes(size_bytes))]
        call = cluster.send(acts.join_of(who, member_id=who.member_id))
        assert (0 if cluster.is_parked(call) else acts.error_of(cluster.answer(call))) == code


def test_nobody_comes_to_a_group_that_has_more_bytes_than_it_may() -> None:
    cluster = acts.shard(max_group_bytes=3_000)
    members = [acts.member(cluster, name, protocols=[("range", bytes(1_000))]) for name in "ab"]
    acts.stable(cluster, *members)
    cluster.config = replace(cluster.config, max_group_bytes=1_500)
    cluster = cluster.reloaded()
    refused = acts.ask_join(acts.member(cluster, "c", protocols=[("range", b"")]))
    assert refused.error_code == error_code.GROUP_MAX_SIZE_REACHED
    assert "1,500 bytes (MUSTER_GROUP_MAX_GROUP_BYTES)" in refused.error_message


# --- retries


def test_members_that_number_their_joins() -> None:
    cluster = acts.shard()
    leader, follower = acts.joined(cluster, "a", "b")
    acts.assigned([leader, follower])
    follower.protocols = [("range", b"2")]
    follower.join(member_seq=1_000)
    leader.join(member_seq=1_000)
    assert {who.joined().generation for who in (leader, follower)} == {2}
    acts.assigned([leader, follower])
    written = len(cluster.log)
    for seq, code, generation in ((999, error_code.INVALID_REQUEST, -1), (1_000, error_code.NONE, 2)):
        for who in (leader, follower):
            who.protocols = [("range", b"whatever it says now")]
            answer = acts.ask_join(who, member_seq=seq)
            assert (answer.error_code, answer.generation) == (code, generation)
    assert cluster.state() == "Stable"
    assert len(cluster.log) == written
    assert follower.join(member_seq=1_001).is_parked
    assert acts.ask_join(follower, member_seq=1_000).error_code == error_code.INVALID_REQUEST


def test_a_join_without_a_number_lets_no_earlier_one_count() -> None:
    cluster = acts.shard()
    leader, follower = acts.joined(cluster, "a", "b")
    acts.assigned([leader, follower])
    follower.protocols = [("range", b"2")]
    follower.join(member_seq=7)
    leader.join(member_seq=7)
    assert {who.joined().generation for who in (leader, follower)} == {2}
    acts.assigned([leader, follower])
    follower.protocols = [("range", b"3")]
    assert follower.join(member_seq=0).is_parked
    assert acts.ask_join(follower, member_seq=6).error_code == error_code.INVALID_REQUEST


@pytest.mark.row("JG-27")
def test_a_numbered_join_is_answered_again_while_the_group_completes() -> None:
    cluster = acts.shard()
    leader, follower = acts.stable(cluster, "a", "b")
    follower.protocols = [("range", b"2")]
    follower.join(member_seq=7)
    leader.join(member_seq=7)
    for who in (leader, follower):
        assert who.joined().generation == 2
    follower.protocols = [("range", b"3")]
    answer = acts.ask_join(follower, member_seq=7)
    assert (answer.error_code, answer.generation, cluster.state()) == (
        error_code.NONE,
        2,
        "CompletingRebalance",
    )
    assert follower.join(member_seq=8).is_parked
    assert cluster.state() == "PreparingRebalance"


@pytest.mark.row("JG-24")
@pytest.mark.row("JG-27")
@pytest.mark.parametrize("state", ["Stable", "CompletingRebalance"])
def test_the_same_protocols_are_the_same_however_many_others_came_between(state: str) -> None:
    cluster = acts.shard()
    _, follower = acts.in_state(cluster, state)
    for number in range(40):
        other = acts.member(cluster, "x", group=f"other-{number}")
        other.protocols = [("range", b"%d" % number)]
        acts.ask_join(other)
    answer = acts.ask_join(follower)
    assert (answer.error_code, answer.generation, cluster.state()) == (error_code.NONE, 1, state)


@pytest.mark.row("SM-17")
def test_a_repeated_take_over_writes_nothing() -> None:
    cluster = acts.shard()
    _, old = acts.stable(cluster, "a=i", "b=j")
    new = successor(old).join(request_id="r")
    first = new.joined()
    written = len(cluster.log)
    new.member_id = ""
    again = new.join(request_id="r").joined()
    assert (again.member_id, again.generation) == (first.member_id, 1)
    assert len(cluster.log) == written


@pytest.mark.row("SM-02")
def test_a_made_up_id_is_fenced_also_with_the_request_that_once_made_the_real_one() -> None:
    cluster = acts.shard()
    who = acts.member(cluster, "a=i").join(request_id="r")
    cluster.advance(DELAY_MS)
    real = who.joined().member_id
    assert acts.ask_join(who, member_id="made-up", request_id="r").error_code == error_code.FENCED_INSTANCE_ID
    assert acts.ask_join(who, member_id="", request_id="r").member_id == real


# --- answers to who is in already


@pytest.mark.parametrize("call", ["join", "sync"])
def test_any_call_of_a_member_confirms_it_after_a_load(call: str) -> None:
    cluster = acts.shard()
    members = acts.stable(cluster, "a", "b")
    after = cluster.reloaded()

    def confirmed() -> dict[str, bool]:
        return {entry.member_id: entry.confirmed for entry in after.describe().members}

    assert confirmed() == {who.member_id: False for who in members}
    for who in members:
        who.cluster = after
    (acts.ask_join if call == "join" else acts.ask_sync)(members[1])
    assert confirmed() == {members[0].member_id: False, members[1].member_id: True}


@pytest.mark.row("JG-25")
@pytest.mark.row("JG-26")
@pytest.mark.parametrize(("index", "kind"), [(0, LEADER_REJOINED), (1, METADATA_CHANGED)])
def test_why_a_known_member_made_the_group_rebalance(index: int, kind: int) -> None:
    cluster = acts.shard()
    members = acts.stable(cluster, "a", "b")
    who = members[index]
    who.protocols = [("range", b"2")]
    who.join(reason="new code")
    cause = cluster.describe().cause
    assert (cause.kind, cause.member_id, cause.reason) == (kind, who.member_id, "new code")
    members[1 - index].protocols = [("range", b"3")]
    members[1 - index].join(reason="too late to be the cause")
    assert acts.last_record(cluster).generation_started.cause == cause


@pytest.mark.row("JG-28")
def test_new_metadata_while_the_group_completes_is_the_cause_also_of_the_leader() -> None:
    cluster = acts.shard()
    leader, _ = acts.joined(cluster, "a", "b")
    leader.protocols = [("range", b"2")]
    assert leader.join().is_parked
    assert cluster.describe().cause.kind == METADATA_CHANGED


# --- take-over


@pytest.mark.row("SM-04")
@pytest.mark.row("SM-07")
@pytest.mark.parametrize("state", ["Stable", "CompletingRebalance"])
def test_a_take_over_says_in_its_record_whether_it_rebalances(state: str) -> None:
    cluster = acts.shard()
    members = [acts.member(cluster, name) for name in ("a=i", "b=j")]
    acts.joined(cluster, *members)
    if state == "Stable":
        acts.assigned(members)
    new = successor(members[1])
    new.session_timeout_ms = 20_000
    new.join(reason="restarted")
    record = next(r.member_replaced for _, r in reversed(cluster.log) if r.HasField("member_replaced"))
    assert record.HasField("cause") is (state != "Stable")
    if state == "Stable":
        assert new.joined().error_code == 0
        cluster.advance(SESSION_MS - 1)
        members[0].heartbeat()
        cluster.advance(SESSION_MS)
        assert new.heartbeat() == 27, "its own, longer session began with the take-over"
        assert new.member_id in cluster.shard.groups["g"].members
    else:
        assert (record.cause.kind, record.cause.reason) == (STATIC_REPLACED, "restarted")
        assert cluster.describe().cause == record.cause


@pytest.mark.row("SM-19")
@pytest.mark.row("SE-08")
@pytest.mark.parametrize(("waits_ms", "members"), [(299_999, 1), (300_000, 0)])
def test_a_take_over_in_the_first_phase_waits_as_long_as_a_new_member(waits_ms: int, members: int) -> None:
    cluster = acts.shard(initial_rebalance_delay_ms=400_000)
    old = acts.member(cluster, "a=i", rebalance_timeout_ms=900_000).join()
    cluster.advance(1_000)
    new = successor(old).join()
    assert acts.error_of(cluster.answer(old.call_id)) == error_code.FENCED_INSTANCE_ID
    cluster.advance(waits_ms)
    assert len(cluster.shard.groups["g"].members) == members
    assert new.is_parked is bool(members)


@pytest.mark.row("SM-16")
def test_a_take_over_whose_caller_went_away_counts_and_waits_for_nobody() -> None:
    cluster = acts.shard()
    _, old = acts.joined(cluster, "a=i", "b=j")
    cluster.auto_ack = False
    new = successor(old).join()
    cluster.cancel(new.call_id)
    cluster.acknowledge()
    assert cluster.state() == "PreparingRebalance"
    assert cluster.shard.groups["g"].parked_joins == 0
    assert cluster.shard.open_calls == 0


@pytest.mark.row("SM-03")
def test_a_fenced_sync_is_answered_once_and_is_not_the_successors() -> None:
    cluster = acts.shard()
    _, old = acts.joined(cluster, "a=i", "b=j")
    old.sync()
    new = successor(old)
    cluster.auto_ack = False
    new.join()
    assert old.synced().error_code == error_code.FENCED_INSTANCE_ID
    cluster.acknowledge()
    (place,) = [who for who in cluster.shard.groups["g"].members.values() if who.group_instance_id == "j"]
    assert place.sync_call is None
    assert new.is_parked


@pytest.mark.row("SM-03")
def test_a_member_on_a_stream_is_told_that_another_process_took_its_place() -> None:
    cluster = acts.shard()
    _, old = acts.stable(cluster, "a", "b=j")
    place = session_pb2.Attach(
        group_id="g", member_id=old.member_id, group_instance_id=old.instance, generation=1
    )
    cluster.feed(Attach(7, place))
    cluster.pushes.clear()
    successor(old).join().joined()
    (push,) = cluster.pushes
    assert push.stream_id == 7
    assert isinstance(push.message, session_pb2.Fenced)
    assert (push.message.member_id, push.message.error_code) == (old.member_id, error_code.FENCED_INSTANCE_ID)


@pytest.mark.row("SM-04")
@pytest.mark.parametrize(
    ("everybody", "then", "stands"),
    [
        (["range", "sticky"], ["sticky", "range"], True),
        (["range", "sticky"], ["sticky"], False),
        (["sticky", "range"], ["range"], False),
    ],
    ids=["outvoted", "chooses a later name", "chooses an earlier name"],
)
def test_a_take_over_keeps_the_assignment_while_the_choice_of_all_stands(
    everybody: list[str], then: list[str], stands: bool
) -> None:
    cluster = acts.shard()
    members = [acts.member(cluster, name) for name in ("a", "b", "c=i")]
    for member in members:
        member.protocols = [(name, b"m") for name in everybody]
    acts.stable(cluster, *members)
    new = successor(members[2])
    new.protocols = [(name, b"m") for name in then]
    new.join()
    assert cluster.state() == ("Stable" if stands else "PreparingRebalance")
    assert new.is_parked is not stands


# --- who leads


@pytest.mark.parametrize("names", [("a", "z"), ("z", "a")])
def test_who_leads_is_no_matter_of_names(names: tuple[str, str]) -> None:
    """A follower joins and syncs as one, whether its id is before the leader's or after it."""
    cluster = acts.shard()
    leader, follower = acts.joined(cluster, *names)
    follower.sync({follower.member_id: b"mine"})
    assert follower.is_parked
    leader.sync({follower.member_id: b"the leader's"})
    assert follower.synced().assignment == b"the leader's"
    assert follower.join().joined().generation == 1
    assert cluster.state() == "Stable"


def test_nobody_joins_without_protocols_also_where_all_members_have_left() -> None:
    cluster = VirtualShard()
    first = VirtualMember(cluster, "a").join()
    assert first.is_parked
    assert first.leave() == 0
    second = VirtualMember(cluster, "b", instance="i")
    second.protocols = []
    assert second.join().joined().error_code == error_code.INCONSISTENT_GROUP_PROTOCOL
    second.protocols = [("range", b"m")]
    assert second.join().is_parked
    cluster.advance(60_000)
    assert second.joined().generation == 1


@pytest.mark.parametrize(
    ("name", "instance"),
    [("c" * 255, ""), ("\N{GRINNING FACE}" * 63, ""), ("c", "i" * 249)],
    ids=["a long client id", "one of four bytes a character", "a long instance id"],
)
def test_a_member_id_has_255_bytes_at_most_and_lets_its_member_join_and_sync(
    name: str, instance: str
) -> None:
    cluster = VirtualShard()
    member = VirtualMember(cluster, name, instance=instance)
    assert not violations(member.join_request())
    member.join()
    cluster.advance(cluster.config.initial_rebalance_delay_ms)
    assert member.joined().error_code == error_code.NONE
    assert 200 < len(member.member_id.encode()) <= 255
    assert not violations(member.join_request())
    assert member.sync({member.member_id: b"all"}).synced().assignment == b"all"
    assert member.heartbeat() == error_code.NONE


def test_refusals_say_what_is_wrong_and_what_to_do() -> None:
    cluster = VirtualShard()
    member = acts.member(cluster, "a")
    member.join()
    cluster.advance(cluster.config.initial_rebalance_delay_ms)
    member.joined()
    for who, generation, text in [
        ("nobody", 1, "no such member"),
        (member.member_id, 7, "another generation"),
    ]:
        for call in (
            coordinator_pb2.HeartbeatRequest(group_id="g", member_id=who, generation=generation),
            coordinator_pb2.SyncGroupRequest(group_id="g", member_id=who, generation=generation),
        ):
            answer = cluster.ask(call)
            assert isinstance(answer, coordinator_pb2.HeartbeatResponse | coordinator_pb2.SyncGroupResponse)
            assert text in answer.error_message
            assert "join" in answer.error_message


def test_a_static_join_takes_no_id_of_another_member() -> None:
    """The id is made of a name and the `request_id`, which both may be those of a dynamic member."""
    cluster = acts.shard()
    dynamic = acts.member(cluster, "x")
    dynamic.join(request_id="r")
    static = VirtualMember(cluster, "other", instance="x").join(request_id="r")
    cluster.advance(3 * DELAY_MS)
    assert dynamic.joined().error_code == static.joined().error_code == error_code.NONE
    assert static.member_id != dynamic.member_id
    assert acts.ask_join(dynamic, request_id="r", member_id="").member_id == dynamic.member_id
    assert set(cluster.shard.groups["g"].members) == {static.member_id, dynamic.member_id}


# --- ids of members that are gone


def test_a_static_join_that_is_retried_after_its_member_was_removed_gets_another_id() -> None:
    """GRP-28: its answer was lost, and it comes again when the member has expired."""
    cluster = acts.shard()
    acts.stable(cluster, "a=i")
    lost = acts.member(cluster, "b=j").join(request_id="r")
    cluster.advance(10 * SESSION_MS)
    first = lost.joined().member_id
    assert "j" not in cluster.shard.groups["g"].static_members, "it has expired"
    for where in (cluster, cluster.reloaded()):
        again = acts.member(where, "b=j").join(request_id="r")
        where.advance(3 * DELAY_MS)
        assert again.joined().error_code == error_code.NONE
        assert again.member_id != first


def test_a_late_copy_of_a_static_join_brings_no_id_back_that_was_replaced() -> None:
    cluster = acts.shard()
    _, old = acts.stable(cluster, "a=i", "b=j")
    ids = [successor(old).join(request_id=name).joined().member_id for name in ("r", "s", "r")]
    assert len({old.member_id, *ids}) == 4


def test_a_late_copy_of_an_answered_join_ends_no_join_phase() -> None:
    """GRP-36: the member works on until it is told, and the others must not get its partitions before."""
    cluster = acts.shard()
    who = with_id(cluster, "a").join(member_seq=1)
    cluster.advance(3 * DELAY_MS)
    who.joined()
    who.sync({who.member_id: b"all"}).synced()
    other = with_id(cluster, "b").join(member_seq=1)
    copy = acts.ask_join(who, member_seq=1)
    assert (copy.error_code, cluster.state()) == (error_code.REBALANCE_IN_PROGRESS, "PreparingRebalance")
    assert who.join(member_seq=2).joined().generation == other.joined().generation == 2


def test_late_copies_of_a_dynamic_members_joins_do_not_bring_it_back() -> None:
    cluster = acts.shard()
    acts.stable(cluster, "a")
    who = with_id(cluster, "b", request_id="r")
    first = who.member_id
    who.join(request_id="r")
    cluster.send(
        coordinator_pb2.LeaveGroupRequest(
            group_id="g", members=[coordinator_pb2.LeaveGroupRequest.Member(member_id=first)]
        )
    )
    assert acts.ask_join(who, member_id="", request_id="r").member_id != first
    assert acts.ask_join(who, member_id=first, request_id="r").error_code == error_code.UNKNOWN_MEMBER_ID


def test_a_group_forgets_which_join_made_an_id_when_the_id_is_gone() -> None:
    cluster = acts.shard()
    acts.stable(cluster, "a")
    group = cluster.shard.groups["g"]
    for number in range(5):
        with_id(cluster, "b", request_id=str(number))
    assert len(group._ids._made_for) == 6
    cluster.advance(2 * SESSION_MS)
    assert group._ids._made_for == {}
