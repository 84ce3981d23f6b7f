"""Rows JG, ID, PM and MX: JoinGroup, the initial delay, pending ids, the limit of members."""

from typing import Any

import pytest
from conformance import acts
from conformance.acts import DELAY_MS, REBALANCE_MS, SESSION_MS
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core.error_code import (
    COORDINATOR_NOT_AVAILABLE,
    GROUP_MAX_SIZE_REACHED,
    INCONSISTENT_GROUP_PROTOCOL,
    INVALID_SESSION_TIMEOUT,
    MEMBER_ID_REQUIRED,
    NONE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)
from muster_core.state.group import Group
from muster_core.state.members.member import Member, elected_protocol
from muster_core.state.members.protocols import Protocols
from muster_core.state.members.terms import Terms
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

UNKNOWN = common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID

# --- what is refused


@pytest.mark.parametrize(
    ("session_ms", "code"),
    [
        pytest.param(999, INVALID_SESSION_TIMEOUT, marks=pytest.mark.row("JG-01")),
        pytest.param(1_000, MEMBER_ID_REQUIRED, marks=pytest.mark.row("JG-01")),
        pytest.param(1_800_000, MEMBER_ID_REQUIRED, marks=pytest.mark.row("JG-02")),
        pytest.param(1_800_001, INVALID_SESSION_TIMEOUT, marks=pytest.mark.row("JG-02")),
    ],
)
def test_session_time_outs_have_limits(session_ms: int, code: int) -> None:
    cluster = acts.shard()
    answer = acts.ask_join(acts.member(cluster, "a"), session_timeout_ms=session_ms)
    assert answer.error_code == code
    assert ("g" in cluster.shard.groups) is (code == MEMBER_ID_REQUIRED)


@pytest.mark.row("JG-03")
@pytest.mark.row("JG-22")
@pytest.mark.parametrize("instance", ["", "i"])
def test_an_unknown_id_makes_no_group(instance: str) -> None:
    cluster = acts.shard()
    answer = acts.ask_join(acts.member(cluster, f"a={instance}"), member_id="stranger")
    assert (answer.error_code, answer.member_id) == (UNKNOWN_MEMBER_ID, "stranger")
    refused = coordinator_pb2.JoinGroupResponse(
        error_code=UNKNOWN, generation=-1, member_id="stranger", shard_epoch=1
    )
    refused.error_message = answer.error_message
    assert answer == refused, "nothing else is filled in"
    assert cluster.shard.groups == {}


@pytest.mark.parametrize(
    ("changes", "empty_group", "code"),
    [
        pytest.param(
            {"protocol_type": "connect"}, False, INCONSISTENT_GROUP_PROTOCOL, marks=pytest.mark.row("JG-12")
        ),
        pytest.param(
            {"protocol_type": ""}, True, INCONSISTENT_GROUP_PROTOCOL, marks=pytest.mark.row("JG-13")
        ),
        pytest.param({"protocols": []}, True, INCONSISTENT_GROUP_PROTOCOL, marks=pytest.mark.row("JG-14")),
        pytest.param(
            {"protocols": [("other", b"")]},
            False,
            INCONSISTENT_GROUP_PROTOCOL,
            marks=pytest.mark.row("JG-15"),
        ),
        pytest.param({"member_id": "stranger"}, False, UNKNOWN_MEMBER_ID, marks=pytest.mark.row("JG-17")),
        pytest.param(
            {"protocol_type": "x", "protocols": [("y", b"")]},
            True,
            MEMBER_ID_REQUIRED,
            marks=pytest.mark.row("JG-42"),
        ),
        pytest.param(
            {"protocols": [("y", b""), ("range", b"")]},
            False,
            MEMBER_ID_REQUIRED,
            marks=pytest.mark.row("JG-43"),
        ),
    ],
)
@pytest.mark.parametrize("name", ["c", "c=i"])
def test_protocols_must_fit(name: str, changes: dict[str, Any], empty_group: bool, code: int) -> None:
    cluster = acts.shard()
    acts.in_state(cluster, "Empty" if empty_group else "Stable")
    call = cluster.send(acts.join_of(acts.member(cluster, name), **changes))
    if code == MEMBER_ID_REQUIRED and name == "c=i":
        assert cluster.is_parked(call)
    else:
        assert acts.error_of(cluster.answer(call)) == code
    assert cluster.state() == (
        "PreparingRebalance" if cluster.shard.open_calls else "Empty" if empty_group else "Stable"
    )


@pytest.mark.row("JG-43")
def test_a_group_keeps_its_kind_while_a_pending_id_holds_its_join_phase_open() -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a")
    pending = acts.member(cluster, "b")
    pending.member_id = acts.ask_join(pending).member_id
    who.protocols = [("range", b"changed")]
    who.join()
    who.leave()
    assert cluster.state() == "PreparingRebalance"
    assert acts.ask_join(pending, protocol_type="other").error_code == INCONSISTENT_GROUP_PROTOCOL
    assert (
        acts.ask_join(acts.member(cluster, "c"), protocol_type="other").error_code
        == INCONSISTENT_GROUP_PROTOCOL
    )
    assert acts.ask_join(acts.member(cluster, "c")).error_code == MEMBER_ID_REQUIRED
    assert cluster.describe().protocol_type == "consumer"


@pytest.mark.row("JG-20")
@pytest.mark.row("SM-25")
@pytest.mark.parametrize("name", ["a", "a=i"])
def test_an_id_of_the_past_is_unknown_to_an_empty_group(name: str) -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, name)
    assert acts.leave(cluster, (who.member_id, who.instance)) == [0]
    cluster.advance(REBALANCE_MS)
    answer = acts.ask_join(who)
    assert (answer.error_code, answer.generation) == (UNKNOWN_MEMBER_ID, -1)
    assert cluster.state() == "Empty"


@pytest.mark.row("JG-21")
def test_a_pending_id_does_not_become_static() -> None:
    cluster = acts.shard()
    who = acts.member(cluster, "a")
    pending = acts.ask_join(who).member_id
    refused = acts.ask_join(who, member_id=pending, group_instance_id="i")
    assert (refused.error_code, refused.member_id) == (-1, "")
    assert cluster.is_parked(cluster.send(acts.join_of(who, member_id=pending))), "the id is still good"


# --- ids


@pytest.mark.row("JG-04")
@pytest.mark.row("JG-05")
@pytest.mark.row("JG-08")
@pytest.mark.row("JG-10")
@pytest.mark.row("SM-01")
def test_the_first_static_join_makes_the_group_and_waits() -> None:
    cluster = acts.shard()
    who = acts.member(cluster, "a=i").join()
    assert who.is_parked
    described = cluster.describe()
    assert (cluster.state(), described.generation) == ("PreparingRebalance", 0)
    assert cluster.kinds() == [], "nothing is written for a join"
    cluster.advance(DELAY_MS)
    answer = who.joined()
    assert (answer.error_code, answer.generation, answer.leader) == (NONE, 1, answer.member_id)
    assert [entry.group_instance_id for entry in answer.members] == ["i"]
    assert cluster.state() == "CompletingRebalance"


@pytest.mark.row("JG-06")
@pytest.mark.row("JG-07")
@pytest.mark.row("PM-01")
@pytest.mark.row("PM-09")
def test_a_dynamic_member_is_told_its_id_first() -> None:
    cluster = acts.shard()
    acts.stable(cluster, "a")
    who = acts.member(cluster, "b")
    given = acts.ask_join(who)
    group = cluster.shard.groups["g"]
    assert given.error_code == MEMBER_ID_REQUIRED
    assert list(group.pending_members) == [given.member_id]
    assert (cluster.state(), group.generation, len(group.members)) == ("Stable", 1, 1)
    call = cluster.send(acts.join_of(who, member_id=given.member_id))
    assert cluster.is_parked(call)
    assert (len(group.pending_members), len(group.members)) == (0, 2)


@pytest.mark.row("JG-09")
@pytest.mark.row("SM-12")
def test_ids_begin_with_the_name_and_never_repeat() -> None:
    cluster = acts.shard()
    given = {acts.ask_join(acts.member(cluster, "a")).member_id for _ in range(20)}
    assert len(given) == 20
    assert all(member_id.startswith("a-") and len(member_id) == len("a-") + 36 for member_id in given)
    acts.stable(cluster, "s=i")
    taken = {acts.ask_join(acts.member(cluster, "s=i")).member_id for _ in range(20)}
    assert len(taken) == 20
    assert all(member_id.startswith("i-") for member_id in taken)


@pytest.mark.row("PM-08")
def test_the_id_of_a_member_does_not_become_pending() -> None:
    cluster = acts.shard()
    who = acts.member(cluster, "a")
    given = acts.ask_join(who, request_id="r")
    cluster.send(acts.join_of(who, member_id=given.member_id, request_id="r"))
    again = acts.ask_join(who, request_id="r")
    assert (again.error_code, again.member_id) == (MEMBER_ID_REQUIRED, given.member_id)
    assert cluster.shard.groups["g"].pending_members == {}


# --- members that join again


@pytest.mark.row("JG-23")
@pytest.mark.row("JG-34")
@pytest.mark.row("JG-45")
def test_the_leader_is_told_who_is_in_and_the_others_are_not() -> None:
    cluster = acts.shard()
    first, second = (acts.member(cluster, name) for name in ("a=i", "b"))
    first.protocols, second.protocols = [("x", b"ax"), ("y", b"ay")], [("y", b"by")]
    for who in (first, second):
        who.join()
    cluster.advance(DELAY_MS * 3)
    answers = [who.joined() for who in (first, second)]
    for answer in answers:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "y")
        assert (answer.generation, answer.leader) == (1, first.member_id)
        assert not answer.skip_assignment
    assert [(m.member_id, m.group_instance_id, m.metadata) for m in answers[0].members] == [
        (first.member_id, "i", b"ay"),
        (second.member_id, "", b"by"),
    ]
    assert list(answers[1].members) == []


@pytest.mark.parametrize(
    ("index", "metadata", "rebalances"),
    [
        pytest.param(1, b"m", False, marks=pytest.mark.row("JG-24")),
        pytest.param(0, b"m", True, marks=pytest.mark.row("JG-25")),
        pytest.param(1, b"changed", True, marks=pytest.mark.row("JG-26")),
    ],
)
def test_a_known_member_joins_a_stable_group_again(index: int, metadata: bytes, rebalances: bool) -> None:
    cluster = acts.shard()
    members = acts.stable(cluster, "a", "b")
    who, other = members[index], members[1 - index]
    who.protocols = [("range", metadata)]
    who.join()
    assert who.is_parked is rebalances
    assert other.heartbeat() == (27 if rebalances else 0)
    if rebalances:
        assert other.join().joined().generation == 2
    answer = who.joined()
    assert (answer.error_code, answer.generation) == (NONE, 2 if rebalances else 1)
    assert answer.leader == members[0].member_id
    assert len(answer.members) == (2 if index == 0 else 0)


@pytest.mark.row("JG-27")
@pytest.mark.row("DS-11")
@pytest.mark.parametrize("index", [0, 1])
def test_a_lost_answer_is_given_again_while_completing(index: int) -> None:
    cluster = acts.shard()
    members = acts.joined(cluster, "a", "b")
    answer = acts.ask_join(members[index])
    assert (answer.error_code, answer.generation, len(answer.members)) == (0, 1, 2 if index == 0 else 0)
    assert cluster.state() == "CompletingRebalance"
    assert cluster.shard.groups["g"].pending_sync == {who.member_id for who in members}


@pytest.mark.parametrize(
    "newcomer",
    [pytest.param(False, marks=pytest.mark.row("JG-28")), pytest.param(True, marks=pytest.mark.row("JG-31"))],
)
def test_parked_syncs_end_when_the_group_prepares_again(newcomer: bool) -> None:
    cluster = acts.shard()
    first, second = acts.joined(cluster, "a", "b")
    second.sync()
    who = acts.member(cluster, "c") if newcomer else first
    who.protocols = [("range", b"changed")]
    who.join()
    assert second.synced().error_code == REBALANCE_IN_PROGRESS
    assert cluster.state() == "PreparingRebalance"


@pytest.mark.row("JG-44")
@pytest.mark.parametrize(
    ("protocols", "same"),
    [
        ([("x", b"1"), ("y", b"2")], True),
        ([("y", b"2"), ("x", b"1")], False),
        ([("x", b"1")], False),
        ([("x", b"1"), ("y", b"3")], False),
        ([("x", b"1"), ("y", b"2"), ("z", b"")], False),
    ],
)
def test_what_counts_as_the_same_protocols(protocols: list[tuple[str, bytes]], same: bool) -> None:
    cluster = acts.shard()
    members = [acts.member(cluster, name) for name in ("a", "b")]
    for who in members:
        who.protocols = [("x", b"1"), ("y", b"2")]
    acts.stable(cluster, *members)
    members[1].protocols = protocols
    assert members[1].join().is_parked is not same


@pytest.mark.row("JG-29")
def test_a_rejoin_while_preparing_updates_and_may_end_the_phase() -> None:
    cluster = acts.shard()
    first, second = acts.in_state(cluster, "PreparingRebalance")
    first.protocols, first.session_timeout_ms, first.rebalance_timeout_ms = [("range", b"n")], 20_000, 40_000
    assert first.join().joined().generation == 2
    assert second.joined().generation == 2
    known = cluster.shard.groups["g"].members[first.member_id]
    assert (known.terms.session_timeout_ms, known.terms.rebalance_timeout_ms) == (20_000, 40_000)
    assert known.terms.protocols == (("range", b"n"),)


@pytest.mark.row("JG-30")
@pytest.mark.row("JG-32")
@pytest.mark.row("JG-33")
@pytest.mark.row("LD-33")
def test_a_newcomer_rebalances_and_the_last_to_join_ends_the_phase() -> None:
    cluster = acts.shard()
    members = acts.stable(cluster, "a", "b")
    newcomer = acts.member(cluster, "c").join()
    assert [who.heartbeat() for who in members] == [27, 27]
    before = cluster.now_ms
    assert members[0].join().is_parked
    assert newcomer.is_parked
    members[1].join()
    assert cluster.now_ms == before, "no timer was needed"
    assert {who.joined().generation for who in (*members, newcomer)} == {2}


@pytest.mark.row("JG-16")
def test_a_pending_member_may_correct_its_join() -> None:
    cluster = acts.shard()
    acts.stable(cluster, "a")
    who = acts.member(cluster, "b")
    who.member_id = acts.ask_join(who).member_id
    assert acts.ask_join(who, protocols=[("other", b"")]).error_code == INCONSISTENT_GROUP_PROTOCOL
    assert list(cluster.shard.groups["g"].pending_members) == [who.member_id]
    assert who.join().is_parked


# --- leaders


@pytest.mark.row("JG-35")
@pytest.mark.row("JG-36")
@pytest.mark.row("JG-37")
def test_who_leads() -> None:
    cluster = acts.shard()
    first, second, third = acts.stable(cluster, "a", "b", "c")
    group = cluster.shard.groups["g"]
    assert group.leader == first.member_id, "the first one"
    acts.rejoined(first, third, second)
    assert group.leader == first.member_id, "for as long as it stays"
    acts.assigned([first, second, third])
    second.protocols = [("range", b"changed")]
    second.join()
    third.join()
    cluster.advance(SESSION_MS - 1)
    cluster.advance(1)
    assert second.joined().leader == third.joined().leader in (second.member_id, third.member_id)
    second.leave()
    third.leave()
    assert group.leader == ""


# --- the vote


def group_of(*preferences: str) -> Group:
    group = Group("g", 0, 1)
    group.protocol_type = "consumer"
    for number, preference in enumerate(preferences):
        who = Member(f"m{number}")
        who.terms = Terms(Protocols((name, b"") for name in preference))
        group.add(who)
    return group


@pytest.mark.row("JG-38")
@pytest.mark.parametrize(
    ("preferences", "selected"),
    [
        (["xyz"], "x"),
        (["xy", "yx", "yx"], "y"),
        (["xy", "zxy", "zyx"], "x"),
        (["xy", "zyx", "zyx"], "y"),
        (["x", "yx", "yx", "yx"], "x"),
        (["abc", "bca", "bca", "ca"], "c"),
    ],
)
def test_the_protocol_with_most_votes_among_the_common_ones(preferences: list[str], selected: str) -> None:
    group = group_of(*preferences)
    assert elected_protocol(group.members.values()) == selected


@pytest.mark.row("JG-39")
@pytest.mark.parametrize("order", [("range", "rr"), ("rr", "range")])
def test_equal_votes_go_by_a_rule_and_not_by_who_came_first(order: tuple[str, str]) -> None:
    group = Group("g", 0, 1)
    for number, name in enumerate(order):
        who = Member(f"m{number}")
        who.terms = Terms(Protocols([(name, b""), (order[1 - number], b"")]))
        group.add(who)
    assert elected_protocol(group.members.values()) == "rr", "as Kafka's map has it"


@pytest.mark.row("JG-40")
@pytest.mark.row("JG-41")
def test_a_vote_of_nobody_or_without_candidates_is_an_error() -> None:
    group = group_of("xy")
    with pytest.raises(ValueError, match="no members"):
        elected_protocol([])
    with pytest.raises(KeyError, match="supports none"):
        group.members["m0"].vote({"z"})
    with pytest.raises(KeyError, match="does not support"):
        group.members["m0"].metadata_for("z")


# --- ends of a phase


@pytest.mark.row("JG-46")
@pytest.mark.row("LG-05")
def test_a_phase_without_members_ends_empty() -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a")
    assert who.leave() == 0
    described = cluster.describe()
    assert (cluster.state(), described.generation, described.protocol_name) == ("Empty", 2, "")
    assert (described.leader, len(described.members)) == ("", 0)


@pytest.mark.row("JG-48")
@pytest.mark.row("SG-27")
def test_nobody_is_answered_who_does_not_wait() -> None:
    cluster = acts.shard()
    first, second = acts.in_state(cluster, "PreparingRebalance")
    cluster.cancel(second.call_id)
    assert cluster.shard.groups["g"].parked_joins == 0
    first.join()
    cluster.advance(REBALANCE_MS)
    assert first.joined().generation == 2
    assert second.is_parked, "its call is gone"
    assert cluster.shard.groups["g"].parked_joins == 0
    lone = acts.shard()
    lead, follow = acts.joined(lone, "a", "b")
    follow.sync()
    lone.cancel(follow.call_id)
    assert lead.sync().synced().error_code == 0
    assert follow.is_parked
    assert lone.shard.open_calls == 0


@pytest.mark.row("JG-49")
def test_a_replaced_join_is_answered() -> None:
    cluster = acts.shard()
    _, second = acts.in_state(cluster, "PreparingRebalance")
    old = second.call_id
    second.join()
    answer: Any = cluster.answer(old)
    assert (answer.error_code, answer.member_id) == (REBALANCE_IN_PROGRESS, second.member_id)
    assert second.is_parked


@pytest.mark.row("JG-50")
def test_without_a_rebalance_time_out_the_session_counts() -> None:
    cluster = acts.shard()
    who = acts.member(cluster, "a")
    who.rebalance_timeout_ms = 0
    acts.joined(cluster, who)
    assert cluster.shard.groups["g"].rebalance_timeout_ms == SESSION_MS


@pytest.mark.row("JG-51")
@pytest.mark.parametrize(
    ("reason", "end"), [("", "joined the group."), ("roll-out", "joined the group: roll-out.")]
)
def test_the_reason_of_a_join_is_kept(reason: str, end: str) -> None:
    cluster = acts.shard()
    acts.member(cluster, "a=i").join(reason=reason)
    cluster.advance(DELAY_MS)
    cause = acts.last_record(cluster).generation_started.cause
    assert (cause.reason, cause.sentence.endswith(end)) == (reason, True)


@pytest.mark.row("JG-11")
@pytest.mark.row("PT-22")
def test_a_first_generation_that_the_log_does_not_take_in_time() -> None:
    cluster = acts.shard()
    cluster.auto_ack = False
    who = acts.member(cluster, "a=i").join()
    cluster.advance(DELAY_MS + 4_999)
    assert who.is_parked
    cluster.advance(1)
    answer = who.joined()
    assert (answer.error_code, answer.generation) == (COORDINATOR_NOT_AVAILABLE, -1), (
        "retriable; nothing is rolled back"
    )
    cluster.acknowledge()
    assert cluster.describe().generation == 1, "it may still land, and then it counts"


# --- ID: the initial delay


def parked_after(cluster: VirtualShard, who: VirtualMember, ms: int) -> bool:
    cluster.advance(ms)
    return who.is_parked


@pytest.mark.row("ID-01")
def test_the_initial_delay_to_the_millisecond() -> None:
    cluster = acts.shard()
    who = acts.member(cluster, "a=i").join()
    assert parked_after(cluster, who, DELAY_MS - 1)
    assert not parked_after(cluster, who, 1)


@pytest.mark.row("ID-02")
def test_a_second_member_extends_the_delay() -> None:
    cluster = acts.shard()
    first = acts.member(cluster, "a=i").join()
    cluster.advance(DELAY_MS - 1)
    second = acts.member(cluster, "b=j").join()
    assert parked_after(cluster, first, DELAY_MS)
    assert not parked_after(cluster, first, 1)
    assert {who.joined().generation for who in (first, second)} == {1}
    assert len(first.members) == 2


@pytest.mark.row("ID-03")
@pytest.mark.row("ID-04")
@pytest.mark.parametrize(
    ("rebalance_ms", "ends_ms"),
    [(DELAY_MS // 2, DELAY_MS), (DELAY_MS, DELAY_MS), (DELAY_MS + 1, DELAY_MS + 1), (250, 250), (300, 300)],
)
def test_extensions_never_pass_the_rebalance_time_out(rebalance_ms: int, ends_ms: int) -> None:
    cluster = acts.shard()
    first = acts.member(cluster, "m=i0", rebalance_timeout_ms=rebalance_ms).join()
    for step in range(1, ends_ms):
        cluster.advance(1)
        if step % 50 == 25:
            acts.member(cluster, "m", instance=f"i{step}", rebalance_timeout_ms=rebalance_ms).join()
        assert first.is_parked, f"after {step} ms"
    cluster.advance(1)
    assert first.joined().error_code == 0


@pytest.mark.row("ID-05")
def test_the_initial_delay_does_not_end_early() -> None:
    cluster = acts.shard()
    first, second = acts.member(cluster, "a=i").join(), acts.member(cluster, "b=j").join()
    first.join()
    second.join()
    assert cluster.shard.groups["g"].all_joined
    assert parked_after(cluster, first, 2 * DELAY_MS - 1)
    assert not parked_after(cluster, first, 1)


@pytest.mark.row("ID-06")
def test_also_a_group_that_became_empty_gathers() -> None:
    cluster = acts.shard()
    acts.in_state(cluster, "Empty")
    first = acts.member(cluster, "c=i").join()
    cluster.advance(DELAY_MS - 1)
    acts.member(cluster, "d=j").join()
    assert parked_after(cluster, first, DELAY_MS)
    assert not parked_after(cluster, first, 1)
    assert first.joined().generation == 3


@pytest.mark.row("ID-07")
def test_a_delay_of_a_group_that_is_gone_does_nothing() -> None:
    from muster_core.events import Unload

    cluster = acts.shard()
    acts.member(cluster, "a=i").join()
    cluster.feed(Unload())
    written = len(cluster.log)
    cluster.deadline_ms = cluster.now_ms
    cluster.advance(10 * DELAY_MS)
    assert len(cluster.log) == written


@pytest.mark.row("ID-08")
@pytest.mark.row("SE-08")
def test_a_new_member_does_not_wait_for_ever() -> None:
    cluster = acts.shard(initial_rebalance_delay_ms=400_000)
    who = acts.member(cluster, "a=i", rebalance_timeout_ms=900_000).join()
    assert parked_after(cluster, who, 299_999)
    assert not parked_after(cluster, who, 1)
    answer = who.joined()
    assert (answer.error_code, answer.member_id, answer.generation) == (UNKNOWN_MEMBER_ID, "", -1)
    cluster.advance(100_000)
    assert cluster.state() == "Empty"
    assert cluster.kinds()[-1] == "generation_started"
    assert cluster.describe().generation == 1


@pytest.mark.row("ID-09")
def test_without_a_delay_the_next_tick_answers() -> None:
    cluster = acts.shard(initial_rebalance_delay_ms=0)
    assert acts.member(cluster, "a=i").join().joined().generation == 1


@pytest.mark.row("ID-10")
def test_one_big_jump_is_one_step() -> None:
    from muster_core.events import Tick

    cluster = acts.shard()
    first = acts.member(cluster, "a=i").join()
    acts.member(cluster, "b=j").join()
    cluster.now_ms += 50 * DELAY_MS
    cluster.feed(Tick())
    assert parked_after(cluster, first, DELAY_MS - 1), "the second wait counts from after the jump"
    assert not parked_after(cluster, first, 1)


# --- PM: ids that were given out


def pending(cluster: VirtualShard, name: str, session_ms: int = 2_000) -> VirtualMember:
    who = acts.member(cluster, name, session_timeout_ms=session_ms)
    answer = acts.ask_join(who)
    assert answer.error_code == MEMBER_ID_REQUIRED
    who.member_id = answer.member_id
    return who


@pytest.mark.row("PM-02")
@pytest.mark.row("SE-16")
def test_an_id_that_is_not_used_is_forgotten() -> None:
    cluster = acts.shard()
    (first,) = acts.stable(cluster, "a")
    second = pending(cluster, "b")
    cluster.advance(1_999)
    assert list(cluster.shard.groups["g"].pending_members) == [second.member_id]
    cluster.advance(1)
    assert cluster.shard.groups["g"].pending_members == {}
    assert (cluster.state(), first.heartbeat()) == ("Stable", 0)
    assert acts.ask_join(second).error_code == UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("joins", marks=[pytest.mark.row("PM-03"), pytest.mark.row("PM-04")]),
        pytest.param("expires", marks=pytest.mark.row("PM-05")),
        pytest.param("leaves", marks=[pytest.mark.row("PM-06"), pytest.mark.row("PM-11")]),
    ],
)
def test_a_join_phase_waits_for_pending_ids(end: str) -> None:
    cluster = acts.shard()
    first, second = acts.in_state(cluster, "PreparingRebalance")
    third = pending(cluster, "c")
    first.join()
    assert first.is_parked
    assert second.is_parked
    if end == "joins":
        third.join()
    elif end == "leaves":
        assert acts.leave(cluster, (third.member_id, "")) == [0]
    else:
        assert parked_after(cluster, first, 1_999)
        cluster.advance(1)
    assert (first.joined().generation, cluster.state()) == (2, "CompletingRebalance")
    assert len(first.members) == (3 if end == "joins" else 2)
    cluster.advance(1_999)
    if end == "joins":
        assert third.joined().error_code == third.heartbeat() == 0
    cluster.advance(1_999)
    assert cluster.state() == "CompletingRebalance", "no timer of the id is left"


@pytest.mark.row("PM-07")
def test_a_pending_id_is_no_member() -> None:
    cluster = acts.shard()
    acts.stable(cluster, "a")
    who = pending(cluster, "b")
    assert acts.ask_heartbeat(who, generation=1) == 25
    assert acts.ask_sync(who, generation=1).error_code == UNKNOWN_MEMBER_ID


@pytest.mark.row("PM-10")
@pytest.mark.row("PM-12")
def test_pending_ids_end_with_a_leave_and_with_a_load() -> None:
    cluster = acts.shard()
    acts.stable(cluster, "a")
    gone, lost = pending(cluster, "b"), pending(cluster, "c")
    assert acts.leave(cluster, (gone.member_id, "")) == [0]
    assert list(cluster.shard.groups["g"].pending_members) == [lost.member_id]
    after = cluster.reloaded()
    lost.cluster = after
    assert acts.ask_join(lost).error_code == UNKNOWN_MEMBER_ID


# --- MX: the limit of members


@pytest.mark.parametrize("state", ["Stable", "CompletingRebalance"])
@pytest.mark.parametrize("name", ["c", "c=i"])
@pytest.mark.row("MX-01")
@pytest.mark.row("MX-09")
def test_a_full_group_takes_nobody(state: str, name: str) -> None:
    cluster = acts.shard(max_size=2)
    acts.in_state(cluster, state)
    answer = acts.ask_join(acts.member(cluster, name), protocols=[])
    assert (answer.error_code, answer.member_id) == (GROUP_MAX_SIZE_REACHED, "")
    assert cluster.state() == state


@pytest.mark.parametrize(
    "static",
    [
        pytest.param(
            False, marks=[pytest.mark.row("MX-02"), pytest.mark.row("MX-03"), pytest.mark.row("MX-04")]
        ),
        pytest.param(True, marks=pytest.mark.row("MX-05")),
    ],
)
def test_exactly_the_limit_gets_in(static: bool) -> None:
    cluster = acts.shard(max_size=3)
    members = [acts.member(cluster, f"m{n}" + (f"=i{n}" if static else "")) for n in range(5)]
    if not static:
        for who in members:
            who.member_id = acts.ask_join(who).member_id
    for who in members:
        who.join()
    cluster.advance(10 * DELAY_MS)
    assert [who.joined().error_code for who in members] == [
        NONE,
        NONE,
        NONE,
        GROUP_MAX_SIZE_REACHED,
        GROUP_MAX_SIZE_REACHED,
    ]
    again = [acts.ask_join(who) for who in members]
    assert [answer.error_code for answer in again] == [
        NONE,
        NONE,
        NONE,
        GROUP_MAX_SIZE_REACHED,
        GROUP_MAX_SIZE_REACHED,
    ]


@pytest.mark.row("MX-06")
def test_a_parked_member_may_join_again() -> None:
    cluster = acts.shard(max_size=2)
    first, second = acts.member(cluster, "a=i").join(), acts.member(cluster, "b=j").join()
    known = cluster.shard.groups["g"].members
    first.member_id, second.member_id = known
    for who in (first, second, first):
        assert who.join().is_parked
    assert cluster.shard.groups["g"].parked_joins == 2


@pytest.mark.row("MX-07")
@pytest.mark.row("MX-10")
@pytest.mark.row("LD-22")
def test_a_loaded_group_over_the_limit_shrinks_at_once() -> None:
    large = acts.shard()
    members = acts.stable(large, "a", "b", "c", "d")
    small = VirtualShard(acts.shard(max_size=2).config, large.log)
    assert small.state() == "PreparingRebalance"
    for who in members:
        who.cluster = small
        assert acts.commit(small, who) == 0, "kept meanwhile, so that they can commit"
        assert who.heartbeat() == 27
    for who in reversed(members):
        who.join()
    assert [who.joined().error_code for who in reversed(members)] == [
        NONE,
        NONE,
        GROUP_MAX_SIZE_REACHED,
        GROUP_MAX_SIZE_REACHED,
    ]
    assert len(small.shard.groups["g"].members) == 2


@pytest.mark.row("MX-08")
@pytest.mark.parametrize(
    ("state", "who", "code"),
    [
        ("Empty", "new", NONE),
        ("PreparingRebalance", "parked", NONE),
        ("PreparingRebalance", "known", NONE),
        ("CompletingRebalance", "known", NONE),
        ("CompletingRebalance", "new", GROUP_MAX_SIZE_REACHED),
        ("Stable", "known", NONE),
        ("Stable", "new", GROUP_MAX_SIZE_REACHED),
    ],
)
def test_whom_a_group_at_its_limit_takes(state: str, who: str, code: int) -> None:
    cluster = acts.shard(max_size=2)
    members = acts.in_state(cluster, state)
    joiner = {"new": acts.member(cluster, "c=i"), "parked": members[1], "known": members[0]}[who]
    call = cluster.send(joiner.join_request())
    cluster.advance(0 if state != "Empty" else DELAY_MS)
    if cluster.is_parked(call):
        assert code == 0
    else:
        assert acts.error_of(cluster.answer(call)) == code
