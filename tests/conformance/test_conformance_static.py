"""Rows SM: static members, take-over by a new process, skip_assignment (KIP-345, KIP-814)."""

from typing import Any

import pytest
from conformance import acts
from conformance.acts import REBALANCE_MS, SESSION_MS
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core.error_code import COORDINATOR_NOT_AVAILABLE, FENCED_INSTANCE_ID, NONE, UNKNOWN_MEMBER_ID
from muster_core.state.group import Group
from muster_core.state.members.member import Member
from muster_protos.muster.v1 import coordinator_pb2


def pair(cluster: VirtualShard) -> tuple[VirtualMember, VirtualMember]:
    """A leader and a follower, both static, in a Stable group of generation 1."""
    first, second = acts.stable(cluster, "a=i", "b=j")
    return first, second


def successor(old: VirtualMember) -> VirtualMember:
    """Another process with the same instance id."""
    new = acts.member(old.cluster, f"{old.name}={old.instance}")
    new.protocols = list(old.protocols)
    return new


@pytest.mark.row("SM-02")
@pytest.mark.row("SM-26")
def test_an_instance_id_belongs_to_one_member_id() -> None:
    cluster = acts.shard()
    first, second = pair(cluster)
    for who, member_id in ((first, "made-up"), (first, second.member_id), (second, first.member_id)):
        answer = acts.ask_join(who, member_id=member_id)
        assert (answer.error_code, answer.member_id) == (FENCED_INSTANCE_ID, member_id)
    assert cluster.state() == "Stable"


@pytest.mark.row("SM-27")
def test_a_known_member_with_an_unknown_instance() -> None:
    cluster = acts.shard()
    first, _ = pair(cluster)
    assert acts.ask_join(first, group_instance_id="nobody").error_code == UNKNOWN_MEMBER_ID


@pytest.mark.row("SM-03")
@pytest.mark.row("SM-19")
@pytest.mark.row("SM-38")
@pytest.mark.parametrize("recorded", [True, False])
def test_a_parked_join_is_fenced_by_its_successor(recorded: bool) -> None:
    cluster = acts.shard()
    if recorded:
        leader, old, _ = acts.stable(cluster, "a=i", "b=j", "c=k")
        leader.join()
    else:
        old = acts.member(cluster, "b=j")
    old.join()
    before = cluster.shard.groups["g"].static_members["j"]
    new = successor(old).join()
    answer: Any = cluster.answer(old.call_id)
    assert (answer.error_code, answer.member_id) == (FENCED_INSTANCE_ID, before)
    assert new.is_parked
    assert cluster.state() == "PreparingRebalance"
    assert cluster.shard.groups["g"].static_members["j"] != before


@pytest.mark.row("SM-04")
@pytest.mark.row("SM-05")
@pytest.mark.row("SM-18")
def test_a_parked_sync_is_fenced_and_a_rebalance_follows() -> None:
    cluster = acts.shard()
    first, old = acts.joined(cluster, "a=i", "b=j")
    old.sync()
    new = successor(old).join()
    assert old.synced().error_code == FENCED_INSTANCE_ID
    assert new.is_parked
    assert cluster.state() == "PreparingRebalance"
    assert acts.ask_join(old).error_code == FENCED_INSTANCE_ID
    first.join()
    assert first.joined().generation == new.joined().generation == 2
    assert acts.last_record(cluster).generation_started.cause.member_id == new.member_id


@pytest.mark.row("SM-06")
def test_a_follower_that_joins_again_unchanged_disturbs_nobody() -> None:
    cluster = acts.shard()
    first, second = pair(cluster)
    answer = acts.ask_join(second)
    assert (answer.error_code, answer.generation, answer.leader) == (NONE, 1, first.member_id)
    assert (list(answer.members), answer.member_id, cluster.state()) == ([], second.member_id, "Stable")


@pytest.mark.row("SM-07")
@pytest.mark.row("SM-10")
@pytest.mark.row("SM-11")
@pytest.mark.row("RF-07")
def test_a_follower_is_taken_over_without_a_rebalance() -> None:
    cluster = acts.shard()
    first, old = pair(cluster)
    new = successor(old)
    cluster.auto_ack = False
    new.join()
    assert new.is_parked
    record = cluster.waiting[0].records[0].member_replaced
    assert (record.old_member_id, record.generation) == (old.member_id, 1)
    cluster.acknowledge()
    answer = new.joined()
    assert (answer.error_code, answer.generation, answer.leader) == (NONE, 1, first.member_id)
    assert record.member.member_id == answer.member_id != old.member_id
    assert (list(answer.members), answer.skip_assignment, cluster.state()) == ([], False, "Stable")
    assert acts.ask_join(old).error_code == FENCED_INSTANCE_ID
    old.instance = ""
    assert acts.ask_join(old).error_code == UNKNOWN_MEMBER_ID
    assert new.sync().synced().assignment == f"for {old.member_id}".encode(), "the place and what it had"


@pytest.mark.row("SM-08")
@pytest.mark.row("JG-34")
def test_a_leader_is_taken_over_and_told_not_to_assign() -> None:
    cluster = acts.shard()
    old, second = pair(cluster)
    new = successor(old).join()
    answer = new.joined()
    assert (answer.error_code, answer.generation, answer.skip_assignment) == (NONE, 1, True)
    assert answer.leader == answer.member_id == new.member_id
    assert {entry.member_id for entry in answer.members} == {new.member_id, second.member_id}
    assert cluster.state() == "Stable"


@pytest.mark.parametrize(
    ("protocols", "generation"),
    [
        pytest.param([("x", b"1"), ("y", b"new")], 1, marks=pytest.mark.row("SM-13")),
        pytest.param([("y", b"1")], 2, marks=pytest.mark.row("SM-14")),
    ],
)
def test_a_take_over_with_other_protocols(protocols: list[tuple[str, bytes]], generation: int) -> None:
    cluster = acts.shard()
    first, old = (acts.member(cluster, name) for name in ("a=i", "b=j"))
    first.protocols, old.protocols = [("x", b""), ("y", b"")], [("x", b""), ("y", b"")]
    acts.stable(cluster, first, old)
    new = successor(old)
    new.protocols = protocols
    new.join()
    if generation == 2:
        assert new.is_parked
        assert first.join().joined().protocol_name == "y"
    assert new.joined().generation == generation
    assert cluster.shard.groups["g"].members[new.member_id].terms.protocols == tuple(protocols)
    after = cluster.reloaded()
    assert after.shard.groups["g"].members[new.member_id].terms.protocols == tuple(protocols)


@pytest.mark.row("SM-15")
def test_a_take_over_brings_its_time_outs_once_they_are_stored() -> None:
    cluster = acts.shard()
    _, old = pair(cluster)
    new = successor(old)
    new.session_timeout_ms, new.rebalance_timeout_ms = 20_000, 50_000
    cluster.auto_ack = False
    new.join()
    known = cluster.shard.groups["g"].members[old.member_id]
    assert (known.terms.session_timeout_ms, known.terms.rebalance_timeout_ms) == (SESSION_MS, REBALANCE_MS)
    cluster.acknowledge()
    known = cluster.shard.groups["g"].members[new.joined().member_id]
    assert (known.terms.session_timeout_ms, known.terms.rebalance_timeout_ms) == (20_000, 50_000)
    cluster.auto_ack = True
    cluster.advance(SESSION_MS)
    assert new.heartbeat() == 27, "the other one expired, this one did not"


@pytest.mark.row("SM-16")
@pytest.mark.row("SM-17")
def test_a_take_over_that_the_log_does_not_take_in_time_is_retriable_and_may_land() -> None:
    cluster = acts.shard()
    _, old = pair(cluster)
    new = successor(old)
    cluster.auto_ack = False
    new.join(request_id="r")
    cluster.advance(4_999)
    assert new.is_parked
    cluster.advance(1)
    assert new.joined().error_code == COORDINATOR_NOT_AVAILABLE
    assert old.heartbeat() == 15, "the old one stays until the log has the new one, but works on no longer"
    cluster.acknowledge()
    answer = new.join(request_id="r").joined()
    assert (answer.error_code, answer.generation) == (NONE, 1), "the retry meets its own id"
    assert old.heartbeat() == 82


@pytest.mark.row("SM-20")
def test_an_empty_group_knows_no_instances() -> None:
    cluster = acts.shard()
    first, second = pair(cluster)
    assert acts.leave(cluster, ("", "i"), ("", "j")) == [0, 0]
    assert cluster.state() == "Empty"
    assert cluster.shard.groups["g"].static_members == {}
    assert successor(first).join().is_parked
    assert acts.ask_join(second).error_code == UNKNOWN_MEMBER_ID


@pytest.mark.row("SM-21")
def test_a_leader_that_rejoins_rebalances_and_waits_for_the_others() -> None:
    cluster = acts.shard()
    first, second = pair(cluster)
    first.join()
    assert first.is_parked
    cluster.advance(SESSION_MS - 1)
    assert first.is_parked
    assert second.member_id in cluster.shard.groups["g"].members
    cluster.advance(1)
    assert first.joined().generation == 2
    assert [entry.member_id for entry in cluster.describe().members] == [first.member_id]


@pytest.mark.row("SM-22")
@pytest.mark.row("SM-32")
def test_a_leader_that_does_not_rejoin_stays_a_member_and_loses_the_lead() -> None:
    cluster = acts.shard()
    first, second = (acts.member(cluster, n, rebalance_timeout_ms=5_000) for n in ("a=i", "b=j"))
    acts.stable(cluster, first, second)
    second.protocols = [("range", b"changed")]
    second.join()
    cluster.advance(4_999)
    assert second.is_parked
    cluster.advance(1)
    answer = second.joined()
    assert (answer.generation, answer.leader) == (2, second.member_id)
    assert {entry.member_id for entry in answer.members} == {first.member_id, second.member_id}


@pytest.mark.row("SM-23")
def test_one_rebalance_for_a_leader_and_a_follower_with_other_protocols() -> None:
    cluster = acts.shard()
    first, second = (acts.member(cluster, name) for name in ("a=i", "b=j"))
    first.protocols = second.protocols = [("x", b""), ("y", b"")]
    acts.stable(cluster, first, second)
    first.join()
    second.protocols = [("y", b"")]
    second.join()
    answers = [who.joined() for who in (first, second)]
    assert [(answer.generation, answer.protocol_name) for answer in answers] == [(2, "y"), (2, "y")]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("sync", marks=pytest.mark.row("SM-28")),
        pytest.param("heartbeat", marks=[pytest.mark.row("SM-29"), pytest.mark.row("HB-10")]),
        pytest.param("commit", marks=[pytest.mark.row("SM-30"), pytest.mark.row("OC-11")]),
        pytest.param("leave", marks=pytest.mark.row("LG-08")),
    ],
)
def test_an_instance_id_with_a_wrong_member_id_is_fenced(kind: str) -> None:
    cluster = acts.shard()
    first, second = pair(cluster)

    def outcome(member_id: str) -> int:
        if kind == "sync":
            return acts.ask_sync(first, member_id=member_id).error_code
        if kind == "heartbeat":
            return acts.ask_heartbeat(first, member_id=member_id)
        if kind == "commit":
            return acts.commit(cluster, first, member_id=member_id)
        return acts.leave(cluster, (member_id, first.instance))[0]

    assert [outcome("made-up"), outcome(second.member_id), outcome(first.member_id)] == [82, 82, 0]


@pytest.mark.row("SM-31")
def test_a_follower_that_does_not_rejoin_stays_and_is_assigned_to() -> None:
    cluster = acts.shard()
    first, second = (acts.member(cluster, n, rebalance_timeout_ms=5_000) for n in ("a=i", "b=j"))
    acts.stable(cluster, first, second)
    first.join()
    cluster.advance(4_999)
    assert first.is_parked
    cluster.advance(1)
    assert first.joined().generation == 2
    assert len(first.members) == 2
    first.sync({second.member_id: b"kept"}).synced()
    second.generation = 2
    assert second.sync().synced().assignment == b"kept"


def absent(cluster: VirtualShard, session_ms: int = 60_000) -> VirtualMember:
    """The only member is static, has not rejoined and lives on; a newcomer made the group prepare."""
    who = acts.member(cluster, "a=i", rebalance_timeout_ms=5_000, session_timeout_ms=session_ms)
    acts.stable(cluster, who)
    guest = acts.member(cluster, "c", rebalance_timeout_ms=5_000).join()
    assert guest.leave() == 0
    assert cluster.state() == "PreparingRebalance"
    return who


@pytest.mark.row("SM-33")
@pytest.mark.row("RT-05")
def test_with_only_absent_static_members_the_phase_waits_on() -> None:
    cluster = acts.shard()
    who = absent(cluster)
    written = len(cluster.log)
    for _ in range(5):
        cluster.advance(5_000)
        assert (cluster.state(), cluster.describe().generation) == ("PreparingRebalance", 1)
    assert len(cluster.log) == written
    assert who.heartbeat() == 27


@pytest.mark.row("SM-34")
def test_the_session_of_the_last_absent_member_ends_the_group() -> None:
    cluster = acts.shard()
    absent(cluster, session_ms=12_000)
    cluster.advance(11_999)
    assert cluster.state() == "PreparingRebalance"
    cluster.advance(1)
    described = cluster.describe()
    assert (cluster.state(), described.generation, described.leader) == ("Empty", 2, "")


@pytest.mark.row("SM-35")
def test_an_absent_member_may_still_come_back() -> None:
    cluster = acts.shard()
    who = absent(cluster)
    cluster.advance(7_000)
    new = successor(who).join()
    answer = new.joined()
    assert (answer.error_code, answer.generation, cluster.state()) == (NONE, 2, "CompletingRebalance")


@pytest.mark.row("SM-36")
@pytest.mark.row("SM-37")
@pytest.mark.row("SM-38")
def test_the_books_of_static_members_are_strict() -> None:
    group = Group("g", 0, 1)
    group.add(Member("a", "i"))
    group.add(Member("b", "j"))
    group.pending_sync = {"a", "b"}
    with pytest.raises(ValueError, match="is taken"):
        group.add(Member("c", "i"))
    with pytest.raises(KeyError):
        group.replace("nobody", "x")
    replaced = group.replace("a", "new")
    assert (replaced.member_id, group.leader, group.static_members["i"]) == ("new", "new", "new")
    assert (list(group.members), group.pending_sync) == (["new", "b"], {"new", "b"})


@pytest.mark.row("SE-15")
def test_the_session_of_a_replaced_member_does_nothing() -> None:
    cluster = acts.shard()
    first, old = pair(cluster)
    cluster.advance(SESSION_MS - 1)
    first.heartbeat()
    new = successor(old).join()
    assert new.joined().error_code == 0
    cluster.advance(2)
    assert (first.heartbeat(), new.heartbeat()) == (0, 0)


@pytest.mark.row("GV-24")
@pytest.mark.parametrize("instance", ["x" * 250, ".", "..", "a b", "ü", "a/b"])
def test_instance_ids_have_a_shape(instance: str) -> None:
    from muster_coordinator.validation import violations

    cluster = acts.shard()
    request = acts.member(cluster, "a").join_request()
    request.group_instance_id = instance
    assert [violation.field for violation in violations(request)] == ["group_instance_id"]
    request.group_instance_id = "x" * 249
    assert list(violations(request)) == []
    assert isinstance(request, coordinator_pb2.JoinGroupRequest)
