"""Rows GV and ST: what all calls share, and the state machine."""

from typing import Any

import pytest
from conformance import acts
from conformance.acts import STATES
from kit.lives.virtual_shard import WALL_MS, VirtualShard, settled
from muster_core.error_code import (
    COORDINATOR_NOT_AVAILABLE,
    INVALID_GROUP_ID,
    NOT_COORDINATOR,
    UNKNOWN_MEMBER_ID,
)
from muster_core.events import Request, Unload
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState, IllegalTransition, can_become
from muster_core.state.members.member import Member
from muster_core.state.members.protocols import Protocols
from muster_core.state.members.terms import Terms
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

KINDS = list(acts.calls_of(settled(VirtualShard(), "a")[0]))
OF_ONE_GROUP = ["join", "sync", "heartbeat", "leave", "offset delete"]


@pytest.mark.row("GV-01")
@pytest.mark.row("OF-14")
@pytest.mark.parametrize("kind", KINDS)
def test_who_does_not_serve_answers_15_before_it_looks(kind: str) -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a")
    cluster.suspend()
    assert acts.error_of(cluster.ask(acts.calls_of(who)[kind])) == COORDINATOR_NOT_AVAILABLE
    who.group = ""
    if kind != "list":
        assert acts.error_of(cluster.ask(acts.calls_of(who)[kind])) == COORDINATOR_NOT_AVAILABLE
    cluster.resume()
    who.group = "g"
    assert who.heartbeat() == 0


@pytest.mark.row("GV-02")
@pytest.mark.row("LG-20")
@pytest.mark.parametrize("kind", OF_ONE_GROUP)
def test_an_empty_group_id_is_refused(kind: str) -> None:
    cluster = acts.shard()
    who = acts.member(cluster, "a")
    who.group = ""
    assert acts.error_of(cluster.ask(acts.calls_of(who)[kind])) == INVALID_GROUP_ID
    assert cluster.shard.groups == {}


@pytest.mark.row("GV-03")
@pytest.mark.row("OF-08")
def test_simple_consumers_may_use_the_empty_group_id() -> None:
    cluster = acts.shard()
    assert acts.commit(cluster, offset=5, group_id="") == 0
    assert acts.fetch(cluster, "", t=[0]) == {("t", 0): 5}
    assert cluster.state("") == "Empty"
    assert acts.delete_groups(cluster, "") == [("", 0)]
    assert cluster.state("") == "Dead"


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            "join", marks=[pytest.mark.row("GV-04"), pytest.mark.row("JG-18"), pytest.mark.row("JG-19")]
        ),
        pytest.param("sync", marks=[pytest.mark.row("GV-05"), pytest.mark.row("SG-02")]),
        pytest.param("heartbeat", marks=[pytest.mark.row("GV-06"), pytest.mark.row("HB-02")]),
        pytest.param(
            "leave", marks=[pytest.mark.row("GV-07"), pytest.mark.row("LG-02"), pytest.mark.row("LG-03")]
        ),
        pytest.param("commit", marks=[pytest.mark.row("OC-03")]),
        pytest.param("fetch", marks=pytest.mark.row("GV-08")),
        pytest.param("offset delete", marks=pytest.mark.row("OD-02")),
        pytest.param("describe", marks=pytest.mark.row("GV-09")),
        pytest.param(
            "delete", marks=[pytest.mark.row("GV-09"), pytest.mark.row("DL-03"), pytest.mark.row("DL-07")]
        ),
        pytest.param("history"),
    ],
)
def test_a_shard_that_moved_names_its_owner(kind: str) -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a=i")
    owner = common_pb2.Coordinator(node_id="other", shard_epoch=9)
    cluster.feed(Unload(owner))
    answer: Any = cluster.ask(acts.calls_of(who)[kind])
    assert acts.error_of(answer) == NOT_COORDINATOR
    if kind == "leave":
        assert len(answer.members) == 0
    if kind == "fetch":
        assert len(answer.groups[0].topics) == 0
    named = {"fetch": "groups", "describe": "groups", "delete": "results"}.get(kind)
    assert (getattr(answer, named)[0] if named else answer).coordinator == owner


DEAD_ROWS = {
    "join": ["JG-18", "JG-19", "SM-24"],
    "sync": ["SG-02"],
    "heartbeat": ["HB-02"],
    "leave": ["LG-02", "LG-03"],
    "offset delete": ["OD-02"],
    "delete": ["DL-07"],
}


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        pytest.param(kind, code, marks=[pytest.mark.row(row) for row in DEAD_ROWS[kind]], id=kind)
        for kind, code in [
            ("join", 25),
            ("sync", 25),
            ("heartbeat", 25),
            ("leave", 0),
            ("offset delete", 69),
            ("delete", 69),
        ]
    ],
)
def test_a_deleted_group_is_forgotten_in_the_same_step(kind: str, code: int) -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a=i")
    acts.leave(cluster, ("", "i"))
    cluster.advance(acts.REBALANCE_MS)
    cluster.auto_ack = False
    deleting = cluster.send(coordinator_pb2.DeleteGroupsRequest(group_ids=["g"]))
    waiting = cluster.send(acts.calls_of(who)[kind])
    cluster.acknowledge()
    assert acts.error_of(cluster.answer(deleting)) == 0
    answer = cluster.answer(waiting)
    assert acts.error_of(answer) == code, "never a Dead group, but none"
    if isinstance(answer, coordinator_pb2.LeaveGroupResponse):
        assert [entry.error_code for entry in answer.members] == [UNKNOWN_MEMBER_ID]
    assert "g" not in cluster.shard.groups


@pytest.mark.row("GV-25")
def test_the_longest_retention_does_not_overflow() -> None:
    retention_ms = 2_147_483_647 * 60_000
    cluster = acts.shard(offsets_retention_ms=retention_ms, retention_check_interval_ms=retention_ms)
    acts.commit(cluster, group_id="older")
    cluster.advance(1)
    acts.commit(cluster, group_id="younger")
    cluster.advance(retention_ms - 1)
    assert (cluster.state("older"), cluster.state("younger")) == ("Dead", "Empty")


# --- the state machine

LEGAL = {
    "Empty": {"PreparingRebalance", "Dead"},
    "PreparingRebalance": {"CompletingRebalance", "Empty", "Dead"},
    "CompletingRebalance": {"Stable", "PreparingRebalance", "Dead"},
    "Stable": {"PreparingRebalance", "Dead"},
    "Dead": {"Dead"},
}
TRANSITION_ROWS = {
    ("Empty", "PreparingRebalance"): "ST-01",
    ("Stable", "PreparingRebalance"): "ST-01",
    ("CompletingRebalance", "PreparingRebalance"): "ST-01",
    ("PreparingRebalance", "CompletingRebalance"): "ST-02",
    ("PreparingRebalance", "Empty"): "ST-02",
    ("CompletingRebalance", "Stable"): "ST-03",
    ("Empty", "Stable"): "ST-05",
    ("Empty", "CompletingRebalance"): "ST-05",
    ("Stable", "Stable"): "ST-06",
    ("PreparingRebalance", "PreparingRebalance"): "ST-07",
    ("PreparingRebalance", "Stable"): "ST-07",
    ("CompletingRebalance", "CompletingRebalance"): "ST-08",
    ("Dead", "PreparingRebalance"): "ST-09",
    ("Dead", "CompletingRebalance"): "ST-09",
    ("Dead", "Stable"): "ST-09",
}


def transition(before: GroupState, after: GroupState) -> Any:
    row = TRANSITION_ROWS.get((before.value, after.value), "ST-04" if after is GroupState.DEAD else "")
    marks = [pytest.mark.row(row)] if row else []
    return pytest.param(before, after, marks=marks, id=f"{before.value}-{after.value}")


@pytest.mark.parametrize(
    ("before", "after"), [transition(before, after) for before in GroupState for after in GroupState]
)
def test_transitions(before: GroupState, after: GroupState) -> None:
    group = Group("g", 0, 1)
    group.state = before
    legal = after.value in LEGAL[before.value]
    assert can_become(before, after) is legal
    if legal:
        group.become(after, 77)
        assert (group.state, group.state_since_ms) == (after, 77)
    else:
        with pytest.raises(IllegalTransition, match=f"from {before.value} to {after.value}"):
            group.become(after, 77)
        assert (group.state, group.state_since_ms) == (before, 0)


@pytest.mark.parametrize("state", GroupState)
def test_a_state_is_sent_under_its_name(state: GroupState) -> None:
    assert coordinator_pb2.GroupState.Name(state.proto) == f"GROUP_STATE_{state.name}"


@pytest.mark.row("ST-10")
@pytest.mark.parametrize("state", GroupState)
def test_from_which_states_a_rebalance_may_start(state: GroupState) -> None:
    group = Group("g", 0, 1)
    group.state = state
    assert group.can_rebalance is (state not in (GroupState.PREPARING_REBALANCE, GroupState.DEAD))


@pytest.mark.row("ST-11")
def test_each_transition_stamps_the_state_and_a_load_knows_it() -> None:
    cluster = acts.shard()
    (who,) = acts.joined(cluster, "a")
    since = cluster.describe().state_since_ms
    assert since == WALL_MS + 10_000 + acts.DELAY_MS
    cluster.advance(40)
    who.sync().synced()
    assert cluster.describe().state_since_ms == since + 140
    who.leave()
    cluster.advance(1_000)
    emptied = cluster.describe().state_since_ms
    assert cluster.state() == "Empty"
    assert emptied >= since + 140
    assert cluster.reloaded().describe().state_since_ms == emptied


@pytest.mark.row("ST-12")
@pytest.mark.row("LS-03")
@pytest.mark.parametrize("state", STATES)
def test_states_are_matched_whatever_their_case(state: str) -> None:
    cluster = acts.shard()
    acts.in_state(cluster, state)
    for name in (state, state.lower(), state.upper()):
        answer: Any = cluster.ask(coordinator_pb2.ListGroupsRequest(states=[name]))
        assert [group.group_id for group in answer.groups] == ["g"]
    others = [other for other in STATES if other != state]
    answer = cluster.ask(coordinator_pb2.ListGroupsRequest(states=[*others, "nonsense"]))
    assert len(answer.groups) == 0


@pytest.mark.row("ST-13")
@pytest.mark.parametrize(
    ("kind", "metadata", "subscribed"),
    [
        ("consumer", acts.subscription("t"), {"t": True, "other": False}),
        ("consumer", b"foreign", {"t": True, "other": True}),
        ("connect", acts.subscription("t"), {"t": False, "other": False}),
    ],
)
def test_who_is_subscribed_to_a_topic(kind: str, metadata: bytes, subscribed: dict[str, bool]) -> None:
    group = Group("g", 0, 1)
    who = Member("m")
    who.terms = Terms(Protocols([("range", metadata)]))
    group.protocol_type, group.protocol_name = kind, "range"
    group.add(who)
    group.recompute_subscribed_topics()
    assert {topic: group.is_subscribed_to(topic) for topic in subscribed} == subscribed


@pytest.mark.row("ST-15")
@pytest.mark.row("UL-02")
@pytest.mark.row("UL-03")
@pytest.mark.row("RF-06")
@pytest.mark.row("PT-19")
def test_all_that_is_parked_is_answered_when_the_shard_goes() -> None:
    for state, parked in (("PreparingRebalance", 1), ("CompletingRebalance", 1)):
        cluster = acts.shard()
        members = acts.in_state(cluster, state)
        if state == "CompletingRebalance":
            members[1].sync()
        assert cluster.shard.open_calls == parked
        cluster.feed(Unload())
        answer: Any = cluster.answer(members[1].call_id)
        assert answer.error_code == NOT_COORDINATOR
        if state == "PreparingRebalance":
            assert (answer.member_id, answer.generation) == (members[1].member_id, -1)
        else:
            assert answer.assignment == b""
        assert cluster.shard.open_calls == 0
        cluster.feed(Request(999, members[0].join_request()))
        assert acts.error_of(cluster.answer(999)) == NOT_COORDINATOR


@pytest.mark.row("ST-16")
def test_counts_of_supporters_follow_the_members() -> None:
    group = Group("g", 0, 1)
    for name, protocols in (("a", ("x", "y")), ("b", ("y", "z"))):
        who = Member(name)
        who.terms = Terms(Protocols((protocol, b"") for protocol in protocols))
        group.add(who)
    group.protocol_type = "consumer"
    group.become(GroupState.PREPARING_REBALANCE, 0)
    assert not group.accepts_protocols("consumer", Protocols([("x", b"")]))
    assert group.accepts_protocols("consumer", Protocols([("y", b"")]))
    second = group.members["b"]

    def widen() -> None:
        second.terms = Terms(Protocols([("x", b"")]))

    group.set_protocols(second, widen)
    assert group.accepts_protocols("consumer", Protocols([("x", b"")]))
    assert not group.accepts_protocols("consumer", Protocols([("y", b"")]))
    group.remove("b")
    assert group.accepts_protocols("consumer", Protocols([("y", b"")]))
