"""Rows SG, DS, HB, SE, RT and LG: syncs, heartbeats, sessions, rebalance time-outs, leaving."""

from typing import Any

import pytest
from conformance import acts
from conformance.acts import DELAY_MS, REBALANCE_MS, SESSION_MS
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core.error_code import (
    COORDINATOR_NOT_AVAILABLE,
    FENCED_INSTANCE_ID,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    NONE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)
from muster_core.events import TopicsChanged, Unload
from muster_protos.muster.v1 import coordinator_pb2

# --- SG


@pytest.mark.parametrize(
    ("state", "changes", "code"),
    [
        pytest.param("Stable", {"group_id": "none"}, UNKNOWN_MEMBER_ID, marks=pytest.mark.row("SG-01")),
        pytest.param("Empty", {}, UNKNOWN_MEMBER_ID, marks=pytest.mark.row("SG-03")),
        pytest.param("Stable", {"member_id": "x"}, UNKNOWN_MEMBER_ID, marks=pytest.mark.row("SG-04")),
        pytest.param("Stable", {"generation": 0}, ILLEGAL_GENERATION, marks=pytest.mark.row("SG-05")),
        pytest.param("Stable", {"generation": 2}, ILLEGAL_GENERATION, marks=pytest.mark.row("SG-05")),
        pytest.param(
            "Stable",
            {"protocol_type": "x"},
            INCONSISTENT_GROUP_PROTOCOL,
            marks=[pytest.mark.row("SG-07"), pytest.mark.row("SG-20")],
        ),
        pytest.param(
            "Stable",
            {"protocol_name": "x"},
            INCONSISTENT_GROUP_PROTOCOL,
            marks=[pytest.mark.row("SG-08"), pytest.mark.row("SG-20")],
        ),
        pytest.param("Stable", {}, NONE, marks=[pytest.mark.row("SG-09"), pytest.mark.row("SG-17")]),
        pytest.param(
            "Stable",
            {"protocol_type": "consumer", "protocol_name": "range"},
            NONE,
            marks=[pytest.mark.row("SG-10"), pytest.mark.row("SG-19")],
        ),
        pytest.param("PreparingRebalance", {}, REBALANCE_IN_PROGRESS, marks=pytest.mark.row("SG-11")),
        pytest.param(
            "Stable", {"member_id": "x", "generation": 9}, UNKNOWN_MEMBER_ID, marks=pytest.mark.row("SG-06")
        ),
        pytest.param(
            "Stable",
            {"group_instance_id": "x", "generation": 9},
            UNKNOWN_MEMBER_ID,
            marks=pytest.mark.row("SG-06"),
        ),
        pytest.param(
            "Stable",
            {"generation": 9, "protocol_name": "x"},
            ILLEGAL_GENERATION,
            marks=pytest.mark.row("SG-06"),
        ),
        pytest.param(
            "PreparingRebalance", {"generation": 9}, ILLEGAL_GENERATION, marks=pytest.mark.row("SG-06")
        ),
        pytest.param(
            "PreparingRebalance",
            {"protocol_name": "x"},
            INCONSISTENT_GROUP_PROTOCOL,
            marks=pytest.mark.row("SG-06"),
        ),
    ],
)
def test_answers_to_a_sync(state: str, changes: dict[str, Any], code: int) -> None:
    cluster = acts.shard()
    who = acts.in_state(cluster, state)[0]
    answer = acts.ask_sync(who, **changes)
    assert answer.error_code == code
    if code == 0:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
        assert answer.assignment == f"for {who.member_id}".encode()
    else:
        assert (answer.protocol_type, answer.protocol_name, answer.assignment) == ("", "", b"")


@pytest.mark.row("SG-12")
@pytest.mark.row("SG-13")
@pytest.mark.row("SG-19")
@pytest.mark.row("RF-01")
@pytest.mark.row("ST-03")
def test_the_assignment_of_the_leader_is_stored_then_everybody_is_answered() -> None:
    cluster = acts.shard()
    leader, follower = acts.joined(cluster, "a", "b")
    follower.sync()
    assert follower.is_parked
    cluster.auto_ack = False
    leader.sync({leader.member_id: b"1", follower.member_id: b"2"})
    assert leader.is_parked
    assert cluster.state() == "CompletingRebalance"
    record = cluster.waiting[0].records[0].assignment_committed
    assert {row.member_id: row.assignment for row in record.members} == {
        leader.member_id: b"1",
        follower.member_id: b"2",
    }
    cluster.acknowledge()
    answers = [leader.synced(), follower.synced()]
    assert [answer.assignment for answer in answers] == [b"1", b"2"]
    assert {answer.protocol_name for answer in answers} == {"range"}
    assert cluster.state() == "Stable"


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        pytest.param({0: b"x"}, [b"x", b""], marks=pytest.mark.row("SG-14")),
        pytest.param({1: b"y", "stranger": b"z"}, [b"", b"y"], marks=pytest.mark.row("SG-15")),
        pytest.param({}, [b"", b""], marks=pytest.mark.row("SG-16")),
    ],
)
def test_whom_the_leader_leaves_out_gets_nothing(plan: dict[Any, bytes], expected: list[bytes]) -> None:
    cluster = acts.shard()
    members = acts.joined(cluster, "a", "b")
    ids = {0: members[0].member_id, 1: members[1].member_id, "stranger": "stranger"}
    members[1].sync()
    members[0].sync({ids[key]: value for key, value in plan.items()})
    answers = [who.synced() for who in members]
    assert [(answer.error_code, answer.assignment) for answer in answers] == [(0, part) for part in expected]
    assert cluster.state() == "Stable"


@pytest.mark.row("SG-18")
def test_a_repeated_sync_is_answered_and_does_not_prolong_the_session() -> None:
    cluster = acts.shard()
    first, second = acts.stable(cluster, "a", "b")
    cluster.advance(SESSION_MS - 1)
    assert acts.ask_sync(first).assignment == f"for {first.member_id}".encode()
    assert second.heartbeat() == 0
    cluster.advance(1)
    assert (second.heartbeat(), acts.ask_heartbeat(first)) == (27, 25)


@pytest.mark.row("SG-21")
def test_an_assignment_that_the_log_does_not_take_in_time_is_retriable_and_may_land() -> None:
    cluster = acts.shard()
    leader, follower = acts.joined(cluster, "a", "b")
    follower.sync()
    cluster.auto_ack = False
    leader.sync({follower.member_id: b"2"})
    cluster.advance(4_999)
    assert (leader.is_parked, follower.is_parked) == (True, True)
    cluster.advance(1)
    assert (leader.synced().error_code, follower.synced().error_code) == (
        COORDINATOR_NOT_AVAILABLE,
        COORDINATOR_NOT_AVAILABLE,
    )
    cluster.acknowledge()
    assert cluster.state() == "Stable", "no rebalance: the assignment stands"
    assert follower.sync().synced().assignment == b"2"


@pytest.mark.row("SG-22")
@pytest.mark.row("PT-17")
def test_a_group_does_not_move_on_while_its_assignment_is_on_the_way() -> None:
    cluster = acts.shard()
    leader, follower = acts.joined(cluster, "a", "b")
    cluster.auto_ack = False
    leader.sync({leader.member_id: b"1"})
    first = cluster.send(follower.join_request(member_seq=0))
    leaving = cluster.send(
        coordinator_pb2.LeaveGroupRequest(
            group_id="g", members=[coordinator_pb2.LeaveGroupRequest.Member(member_id=follower.member_id)]
        )
    )
    assert (cluster.state(), cluster.is_parked(first), cluster.is_parked(leaving)) == (
        "CompletingRebalance",
        True,
        True,
    )
    cluster.acknowledge()
    assert leader.synced().assignment == b"1"
    assert acts.error_of(cluster.answer(first)) == 0, "in order: still a member"
    assert len(cluster.waiting) == 1
    cluster.acknowledge()
    assert acts.error_of(cluster.answer(leaving)) == 0
    assert leader.heartbeat() == 27


@pytest.mark.row("SG-23")
@pytest.mark.row("SE-06")
def test_followers_do_not_wait_for_a_dead_leader() -> None:
    cluster = acts.shard()
    leader, follower = acts.joined(cluster, "a", "b")
    follower.sync()
    cluster.advance(SESSION_MS - 1)
    assert follower.is_parked
    cluster.advance(1)
    assert follower.synced().error_code == REBALANCE_IN_PROGRESS
    assert acts.ask_heartbeat(leader) == 25
    assert cluster.state() == "PreparingRebalance"


@pytest.mark.row("SG-24")
@pytest.mark.row("SE-07")
def test_who_waits_is_alive_and_its_session_starts_with_the_answer() -> None:
    cluster = acts.shard()
    leader, follower = acts.joined(cluster, "a", "b")
    follower.sync()
    for _ in range(2):
        cluster.advance(SESSION_MS - 1)
        assert leader.heartbeat() == 0
    assert follower.is_parked
    leader.sync().synced()
    assert follower.synced().error_code == 0
    cluster.advance(SESSION_MS - 1)
    assert leader.heartbeat() == 0
    assert cluster.state() == "Stable"
    cluster.advance(1)
    assert leader.heartbeat() == 27


@pytest.mark.row("SG-25")
def test_the_second_sync_of_a_leader_gets_the_first_assignment() -> None:
    cluster = acts.shard()
    (leader,) = acts.joined(cluster, "a")
    cluster.auto_ack = False
    first = cluster.send(
        acts.sync_of(
            leader,
            assignments=[
                coordinator_pb2.SyncGroupRequest.Assignment(member_id=leader.member_id, assignment=b"1")
            ],
        )
    )
    second = cluster.send(
        acts.sync_of(
            leader,
            assignments=[
                coordinator_pb2.SyncGroupRequest.Assignment(member_id=leader.member_id, assignment=b"2")
            ],
        )
    )
    assert len(cluster.waiting) == 1
    cluster.acknowledge()
    answers: list[Any] = [cluster.answer(first), cluster.answer(second)]
    assert [(answer.error_code, answer.assignment) for answer in answers] == [(NONE, b"1"), (NONE, b"1")]


# --- DS: the wait for syncs


def waiting(cluster: VirtualShard) -> tuple[VirtualMember, VirtualMember]:
    first, second = acts.joined(
        cluster, *(acts.member(cluster, n, rebalance_timeout_ms=5_000 + 1_000 * (n == "b")) for n in "ab")
    )
    return first, second


@pytest.mark.row("DS-01")
@pytest.mark.row("DS-02")
@pytest.mark.row("RT-04")
@pytest.mark.row("RT-07")
def test_who_never_syncs_is_removed_after_the_longest_time_out() -> None:
    cluster = acts.shard()
    members = waiting(cluster)
    since = cluster.now_ms - DELAY_MS  # the phase ended with the second delay of three
    cluster.advance(6_000 - (cluster.now_ms - since) - 1)
    assert [who.heartbeat() for who in members] == [0, 0]
    cluster.advance(1)
    assert [acts.ask_heartbeat(who) for who in members] == [25, 25]
    assert (cluster.state(), cluster.describe().generation) == ("Empty", 2)


@pytest.mark.parametrize(
    ("syncing", "codes", "state"),
    [
        pytest.param(
            [0],
            [REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID],
            "PreparingRebalance",
            marks=pytest.mark.row("DS-03"),
        ),
        pytest.param(
            [1],
            [UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS],
            "PreparingRebalance",
            marks=pytest.mark.row("DS-04"),
        ),
        pytest.param(
            [0, 1], [NONE, NONE], "Stable", marks=[pytest.mark.row("DS-05"), pytest.mark.row("DS-09")]
        ),
    ],
)
def test_only_those_who_did_not_sync_are_removed(syncing: list[int], codes: list[int], state: str) -> None:
    cluster = acts.shard()
    members = waiting(cluster)
    for index in syncing:
        members[index].sync()
    group = cluster.shard.groups["g"]
    assert group.pending_sync == {members[index].member_id for index in {0, 1} - set(syncing)}
    cluster.advance(5_000)
    assert group.state.value == ("CompletingRebalance" if syncing == [1] else "Stable")
    for who in members:
        assert who.heartbeat() == 0
    cluster.advance(1_000)
    assert cluster.state() == state
    if syncing == [1]:
        assert members[1].synced().error_code == REBALANCE_IN_PROGRESS
    assert [acts.ask_heartbeat(who) for who in members] == codes


@pytest.mark.row("DS-06")
@pytest.mark.row("DS-07")
def test_a_new_rebalance_ends_the_wait_for_syncs() -> None:
    cluster = acts.shard()
    first, second = waiting(cluster)
    cluster.advance(3_000)
    first.protocols = [("range", b"changed")]
    first.join()
    group = cluster.shard.groups["g"]
    assert group.pending_sync == set()
    second.join()
    assert {who.joined().generation for who in (first, second)} == {2}
    assert group.pending_sync == {first.member_id, second.member_id}
    cluster.advance(5_999)
    assert [who.heartbeat() for who in (first, second)] == [0, 0], "the old wait is over, the new one is not"
    cluster.advance(1)
    assert cluster.state() == "Empty"


@pytest.mark.row("DS-08")
@pytest.mark.row("DS-10")
def test_only_members_are_waited_for() -> None:
    cluster = acts.shard()
    first, second = waiting(cluster)
    group = cluster.shard.groups["g"]
    assert acts.ask_sync(first, member_id="stranger").error_code == UNKNOWN_MEMBER_ID
    assert group.pending_sync == {first.member_id, second.member_id}
    group.remove(second.member_id)
    assert group.pending_sync == {first.member_id}


# --- HB


@pytest.mark.parametrize(
    ("state", "changes", "code"),
    [
        pytest.param("Stable", {"group_id": "none"}, UNKNOWN_MEMBER_ID, marks=pytest.mark.row("HB-01")),
        pytest.param("Empty", {}, UNKNOWN_MEMBER_ID, marks=pytest.mark.row("HB-03")),
        pytest.param("Stable", {"member_id": "x"}, UNKNOWN_MEMBER_ID, marks=pytest.mark.row("HB-04")),
        pytest.param("Stable", {"generation": 0}, ILLEGAL_GENERATION, marks=pytest.mark.row("HB-05")),
        pytest.param("Stable", {"generation": 2}, ILLEGAL_GENERATION, marks=pytest.mark.row("HB-05")),
        pytest.param("Stable", {}, NONE, marks=[pytest.mark.row("HB-06"), pytest.mark.row("HB-11")]),
        pytest.param("CompletingRebalance", {}, NONE, marks=pytest.mark.row("HB-07")),
        pytest.param("PreparingRebalance", {}, REBALANCE_IN_PROGRESS, marks=pytest.mark.row("HB-08")),
        pytest.param(
            "Stable", {"member_id": "x", "generation": 9}, UNKNOWN_MEMBER_ID, marks=pytest.mark.row("HB-09")
        ),
        pytest.param(
            "Stable",
            {"group_instance_id": "x", "generation": 9},
            UNKNOWN_MEMBER_ID,
            marks=pytest.mark.row("HB-09"),
        ),
        pytest.param(
            "PreparingRebalance", {"generation": 9}, ILLEGAL_GENERATION, marks=pytest.mark.row("HB-09")
        ),
    ],
)
def test_answers_to_a_heartbeat(state: str, changes: dict[str, Any], code: int) -> None:
    cluster = acts.shard()
    who = acts.in_state(cluster, state)[0]
    assert acts.ask_heartbeat(who, **changes) == code


@pytest.mark.parametrize(
    ("state", "row"),
    [
        pytest.param(state, row, marks=pytest.mark.row(row))
        for state, row in [
            ("Stable", "HB-06"),
            ("CompletingRebalance", "HB-07"),
            ("PreparingRebalance", "HB-08"),
        ]
    ],
)
def test_a_heartbeat_restarts_the_session_in_every_state(state: str, row: str) -> None:
    cluster = acts.shard()
    who = acts.in_state(cluster, state)[0]
    spent = SESSION_MS - cluster.describe().members[0].session_remaining_ms
    cluster.advance(SESSION_MS - spent - 1)
    assert who.heartbeat() in (0, 27)
    cluster.advance(SESSION_MS - 1)
    assert who.member_id in cluster.shard.groups["g"].members
    cluster.advance(1)
    group = cluster.shard.groups["g"]
    assert who.member_id not in group.members, row


# --- SE and RT: time


@pytest.mark.row("SE-01")
@pytest.mark.row("SE-17")
@pytest.mark.row("RF-02")
@pytest.mark.parametrize("name", ["a", pytest.param("a=i", marks=pytest.mark.row("SE-11"))])
def test_the_session_ends_to_the_millisecond(name: str) -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, name)
    cluster.advance(SESSION_MS - 1)
    assert cluster.state() == "Stable"
    cluster.advance(1)
    assert (cluster.state(), cluster.describe().generation) == ("Empty", 2)
    assert cluster.kinds()[-2:] == ["member_left", "generation_started"]
    emptied = acts.last_record(cluster).generation_started
    assert (list(emptied.members), emptied.protocol_name, emptied.leader) == ([], "", "")
    assert acts.ask_heartbeat(who) == 25


@pytest.mark.parametrize(
    "sign",
    [
        pytest.param("heartbeat", marks=pytest.mark.row("SE-02")),
        pytest.param("commit", marks=[pytest.mark.row("SE-03"), pytest.mark.row("OC-14")]),
    ],
)
@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance"])
def test_signs_of_life(sign: str, state: str) -> None:
    cluster = acts.shard()
    who = acts.in_state(cluster, state)[0]
    for _ in range(3):
        cluster.advance(SESSION_MS // 2)
        if sign == "heartbeat":
            assert who.heartbeat() in (0, 27)
        else:
            assert acts.commit(cluster, who) == 0
    cluster.advance(SESSION_MS - 1)
    assert who.member_id in cluster.shard.groups["g"].members
    cluster.advance(1)
    assert who.member_id not in cluster.shard.groups["g"].members


@pytest.mark.row("SE-04")
def test_the_others_learn_that_one_expired() -> None:
    cluster = acts.shard()
    first, _ = acts.stable(cluster, "a", "b")
    cluster.advance(SESSION_MS - 1)
    assert first.heartbeat() == 0
    cluster.advance(1)
    assert (first.heartbeat(), cluster.state()) == (27, "PreparingRebalance")
    assert len(cluster.describe().members) == 1


@pytest.mark.row("SE-05")
@pytest.mark.row("RT-06")
def test_a_phase_ends_when_whom_it_waits_for_expires() -> None:
    cluster = acts.shard()
    first, second = acts.in_state(cluster, "PreparingRebalance")
    left = cluster.describe().members
    remaining = next(m.session_remaining_ms for m in left if m.member_id == first.member_id)
    cluster.advance(remaining - 1)
    assert second.is_parked
    cluster.advance(1)
    assert second.joined().generation == 2
    second.sync({}).synced()
    for _ in range(REBALANCE_MS // 5_000 + 1):
        cluster.advance(5_000)
        assert second.heartbeat() == 0, "the timer of the old phase does nothing"


@pytest.mark.row("SE-09")
@pytest.mark.row("SE-10")
@pytest.mark.parametrize("synced", [False, True])
def test_after_its_first_phase_a_member_has_a_normal_session(synced: bool) -> None:
    cluster = acts.shard()
    who = acts.member(cluster, "a=i").join()
    cluster.advance(DELAY_MS)
    assert who.joined().error_code == 0
    if synced:
        who.sync().synced()
    cluster.advance(SESSION_MS - 1)
    assert who.member_id in cluster.shard.groups["g"].members
    cluster.advance(1)
    assert cluster.state() == "Empty"
    cluster.advance(300_000)
    assert cluster.describe().generation == 2


@pytest.mark.row("SE-12")
@pytest.mark.row("UL-04")
def test_timers_of_a_shard_that_is_gone_do_nothing() -> None:
    cluster = acts.shard()
    acts.stable(cluster, "a", "b")
    cluster.feed(Unload())
    written = len(cluster.log)
    assert cluster.deadline_ms is None
    cluster.deadline_ms = cluster.now_ms + 1
    cluster.advance(10 * SESSION_MS)
    assert (len(cluster.log), cluster.shard.groups) == (written, {})


@pytest.mark.row("SE-13")
@pytest.mark.row("SE-14")
def test_the_timer_of_a_removed_member_is_gone_with_it() -> None:
    cluster = acts.shard()
    first, second = acts.stable(cluster, "a", "b")
    cluster.advance(SESSION_MS // 2)
    assert second.leave() == 0
    acts.rejoined(first)
    acts.assigned([first])
    cluster.advance(SESSION_MS - 1)
    assert first.heartbeat() == 0
    assert (cluster.state(), cluster.describe().generation) == ("Stable", 2), "no second rebalance"


def slow(cluster: VirtualShard, name: str, rebalance_ms: int = 4_000) -> VirtualMember:
    return acts.member(cluster, name, rebalance_timeout_ms=rebalance_ms)


@pytest.mark.row("RT-01")
@pytest.mark.row("RT-03")
@pytest.mark.row("RT-04")
def test_who_beats_but_does_not_rejoin_is_dropped_after_the_longest_time_out() -> None:
    cluster = acts.shard()
    members = acts.stable(cluster, slow(cluster, "a"), slow(cluster, "b", 3_000))
    newcomer = slow(cluster, "c", 50_000)
    newcomer.member_id = acts.ask_join(newcomer).member_id
    members[0].join()
    for _ in range(4):
        cluster.advance(999)
        assert members[1].heartbeat() == 27
    newcomer.join()  # too late to lengthen the wait: it was read when the phase began
    cluster.advance(3)
    assert members[0].is_parked
    cluster.advance(1)
    assert members[0].joined().generation == newcomer.joined().generation == 2
    assert acts.ask_heartbeat(members[1]) == 25
    members[0].sync({}).synced()
    cluster.advance(SESSION_MS - 1)
    assert members[0].heartbeat() == 0, "its timer went with it"


@pytest.mark.row("RT-02")
def test_a_static_member_that_does_not_rejoin_is_kept_for_one_session() -> None:
    cluster = acts.shard()
    first, second = slow(cluster, "a"), slow(cluster, "b=j")
    second.session_timeout_ms = 3_000
    acts.stable(cluster, first, second)
    first.join()
    for wait_ms in (2_000, 1_999):
        cluster.advance(wait_ms)
        assert (second.heartbeat(), first.is_parked) == (27, True)
    cluster.advance(1)
    assert len(first.joined().members) == 2
    first.sync({}).synced()
    cluster.advance(2_999)
    assert second.heartbeat() == 22, "which does not prolong its session"
    assert first.heartbeat() == 0
    cluster.advance(1)
    assert (first.heartbeat(), acts.ask_heartbeat(second)) == (27, 25)


# --- LG


@pytest.mark.row("LG-01")
@pytest.mark.parametrize("count", [1, 3])
def test_leaving_an_unknown_group(count: int) -> None:
    assert acts.leave(acts.shard(), *[(f"m{n}", "") for n in range(count)]) == [25] * count


@pytest.mark.row("LG-04")
@pytest.mark.row("LG-10")
@pytest.mark.row("LG-11")
def test_who_is_not_in_cannot_leave() -> None:
    cluster = acts.shard()
    acts.stable(cluster, "a=i", "b")
    assert acts.leave(cluster, ("stranger", ""), ("", "nobody"), ("", "")) == [25, 25, 25]
    assert cluster.state() == "Stable"


@pytest.mark.row("LG-06")
@pytest.mark.row("LG-22")
@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("", " left the group."),
        ("scaled down", " left the group: scaled down."),
        ("scaled down.", " left the group: scaled down."),
    ],
)
def test_the_others_learn_that_one_left_and_why(reason: str, end: str) -> None:
    cluster = acts.shard()
    first, second = acts.stable(cluster, "a", "b")
    assert second.leave(reason) == 0
    assert (first.heartbeat(), cluster.state()) == (27, "PreparingRebalance")
    cause = cluster.describe().cause
    assert (cause.member_id, cause.reason) == (second.member_id, reason)
    assert cause.sentence.endswith(end)


@pytest.mark.row("LG-07")
@pytest.mark.row("LG-18")
@pytest.mark.parametrize("parked_one", [True, False])
def test_leaving_while_the_group_prepares(parked_one: bool) -> None:
    cluster = acts.shard()
    first, second = acts.in_state(cluster, "PreparingRebalance")
    leaver = second if parked_one else first
    assert acts.leave(cluster, (leaver.member_id, "")) == [0]
    answer: Any = cluster.answer(second.call_id)
    if parked_one:
        assert (answer.error_code, answer.member_id) == (UNKNOWN_MEMBER_ID, "")
        assert first.join().joined().generation == 2
    else:
        assert (answer.error_code, answer.generation) == (NONE, 2)


@pytest.mark.row("LG-09")
@pytest.mark.row("LG-12")
def test_static_members_are_removed_by_their_instance() -> None:
    cluster = acts.shard()
    acts.stable(cluster, "a=i", "b=j")
    assert acts.leave(cluster, ("", "i"), ("", "j")) == [0, 0]
    assert (cluster.state(), cluster.describe().generation) == ("Empty", 2)
    removed = [record.member_left for _, record in cluster.log if record.HasField("member_left")]
    assert "removed by an operator" in removed[0].cause.sentence


@pytest.mark.parametrize(
    ("batch", "codes"),
    [
        pytest.param([("wrong", "i"), ("", "j")], [FENCED_INSTANCE_ID, NONE], marks=pytest.mark.row("LG-13")),
        pytest.param([("", "nobody"), ("", "j")], [UNKNOWN_MEMBER_ID, NONE], marks=pytest.mark.row("LG-14")),
        pytest.param(
            [("", "nobody"), ("<pending>", "")], [UNKNOWN_MEMBER_ID, NONE], marks=pytest.mark.row("LG-15")
        ),
        pytest.param(
            [("<leader>", "i"), ("<follower>", "j"), ("<pending>", ""), ("unknown", "")],
            [NONE, NONE, NONE, UNKNOWN_MEMBER_ID],
            marks=pytest.mark.row("LG-16"),
        ),
    ],
)
def test_a_batch_has_a_result_for_each(batch: list[tuple[str, str]], codes: list[int]) -> None:
    cluster = acts.shard()
    first, second = acts.stable(cluster, "a=i", "b=j")
    pending = acts.ask_join(acts.member(cluster, "c")).member_id
    ids = {"<leader>": first.member_id, "<follower>": second.member_id, "<pending>": pending}
    assert acts.leave(cluster, *[(ids.get(who, who), instance) for who, instance in batch]) == codes
    assert (pending in cluster.shard.groups["g"].pending_members) is ("<pending>" not in dict(batch))


@pytest.mark.row("LG-17")
def test_a_batch_starts_one_rebalance() -> None:
    cluster = acts.shard()
    first, *others = acts.stable(cluster, "a", "b", "c", "d")
    before = len(cluster.appends)
    assert acts.leave(cluster, *[(who.member_id, "") for who in others]) == [0, 0, 0]
    assert [[r.WhichOneof("kind") for r in append.records] for append in cluster.appends[before:]] == [
        ["member_left"] * 3
    ]
    assert first.join().joined().generation == 2


@pytest.mark.row("LG-19")
@pytest.mark.row("PM-10")
def test_a_member_removed_while_it_syncs_is_answered() -> None:
    cluster = acts.shard()
    _, follower = acts.joined(cluster, "a", "b")
    follower.sync()
    assert acts.leave(cluster, (follower.member_id, "")) == [0]
    assert follower.synced().error_code == UNKNOWN_MEMBER_ID


def test_a_topic_change_is_no_sign_of_life() -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a")
    cluster.advance(SESSION_MS - 1)
    cluster.feed(TopicsChanged(frozenset({"t"})))
    cluster.advance(1)
    assert acts.ask_heartbeat(who) == 25
