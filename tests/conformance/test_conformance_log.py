"""Rows RF, LD and UL: what is stored, what a load makes of it, and what a member sees of a fail-over."""

from typing import Any

import pytest
from conformance import acts
from conformance.acts import DELAY_MS, REBALANCE_MS, SESSION_MS
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core.error_code import (
    COORDINATOR_NOT_AVAILABLE,
    NONE,
    NOT_COORDINATOR,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)
from muster_core.events import TopicsChanged, Unload
from muster_core.log.application import UnknownCriticalRecord
from muster_core.log.replay import ChainReader, Entry, LogDamaged
from muster_core.position import Position
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2


@pytest.mark.row("RF-01")
@pytest.mark.row("RF-08")
@pytest.mark.row("LD-01")
@pytest.mark.row("LD-03")
@pytest.mark.row("UL-09")
@pytest.mark.row("UL-10")
def test_what_a_life_writes_and_a_load_restores() -> None:
    cluster = acts.shard()
    first, second = acts.stable(cluster, "a=i", "b")
    acts.ask_join(acts.member(cluster, "pending"))
    acts.commit(cluster, first, 5)
    acts.delete_groups(cluster, "none")
    assert cluster.kinds() == ["generation_started", "assignment_committed", "offset_committed"]
    after = cluster.reloaded()
    before_load, loaded = cluster.describe(), after.describe()
    for described in (before_load, loaded):
        described.shard_epoch = described.unused_ids = 0
        for entry in described.members:
            entry.session_remaining_ms, entry.confirmed = 0, True
    assert loaded == before_load
    assert after.shard.groups["g"].static_members == {"i": first.member_id}
    assert acts.fetch(after) == {("t", 0): 5}
    for who in (first, second):
        who.cluster = after
        assert who.heartbeat() == 0
        assert who.sync().synced().assignment == f"for {who.member_id}".encode()


@pytest.mark.row("RF-04")
@pytest.mark.row("RF-05")
def test_a_group_record_that_the_log_does_not_take_in_time() -> None:
    cluster = acts.shard()
    first, second = acts.in_state(cluster, "PreparingRebalance")
    cluster.auto_ack = False
    first.join()
    cluster.advance(4_999)
    assert (first.is_parked, second.is_parked) == (True, True)
    cluster.advance(1)
    assert [who.joined().error_code for who in (first, second)] == [
        COORDINATOR_NOT_AVAILABLE,
        COORDINATOR_NOT_AVAILABLE,
    ]
    queued = cluster.send(first.join_request())
    cluster.advance(5_000)
    assert acts.error_of(cluster.answer(queued)) == COORDINATOR_NOT_AVAILABLE, "nobody waits for ever"
    cluster.acknowledge()
    assert cluster.state() == "CompletingRebalance"
    assert cluster.describe().generation == 2


@pytest.mark.row("RF-13")
def test_fields_of_a_later_version_are_skipped() -> None:
    cluster = acts.shard()
    acts.commit(cluster, offset=5)
    position, record = cluster.log[-1]
    raw = record.offset_committed.SerializeToString() + b"\xfa\x3f\x01x"  # field 1023, one byte
    later = records_pb2.Record(written_at_ms=record.written_at_ms)
    later.offset_committed.ParseFromString(raw)
    after = VirtualShard(cluster.config, [(position, later)])
    assert acts.fetch(after) == {("t", 0): 5}


@pytest.mark.row("RF-14")
@pytest.mark.row("LD-31")
def test_a_critical_record_of_an_unknown_kind_stops_the_load() -> None:
    with pytest.raises(UnknownCriticalRecord, match="1-2"):
        VirtualShard(acts.shard().config, [(Position(1, 2), records_pb2.Record(critical=True))])


@pytest.mark.row("RF-15")
@pytest.mark.row("LD-29")
def test_other_unknown_records_are_skipped_and_counted() -> None:
    after = VirtualShard(acts.shard().config, [(Position(1, 2), records_pb2.Record(written_at_ms=1))])
    assert after.shard.skipped_records == 1
    assert acts.commit(after) == 0


@pytest.mark.row("RF-16")
@pytest.mark.row("LD-31")
def test_bytes_that_are_no_record_stop_the_load() -> None:
    from muster_core.log.chain import BEFORE_GENESIS, chain_hash

    position, raw, nonce = Position(0, 1), b"\xff\xff", bytes(16)
    entry = Entry(position, raw, nonce, chain_hash(BEFORE_GENESIS, position, nonce, raw))
    with pytest.raises(LogDamaged, match="cannot be decoded"):
        ChainReader().read(entry)


@pytest.mark.row("LD-30")
@pytest.mark.row("LD-31")
def test_a_log_that_contradicts_itself_is_not_taken_for_empty() -> None:
    stray = records_pb2.Record(
        assignment_committed=records_pb2.AssignmentCommitted(group_id="g", generation=1)
    )
    with pytest.raises(KeyError):
        VirtualShard(acts.shard().config, [(Position(1, 2), stray)])


@pytest.mark.row("LD-02")
@pytest.mark.row("LD-18")
def test_a_group_without_members_loads_empty() -> None:
    cluster = acts.shard()
    who = acts.in_state(cluster, "Empty")[0]
    acts.commit(cluster, None, 5)
    after = cluster.reloaded()
    assert (after.state(), after.describe().generation) == ("Empty", cluster.describe().generation)
    assert after.shard.groups["g"].subscribed_topics == frozenset()
    assert acts.fetch(after) == {("t", 0): 5}
    who.cluster = after
    assert acts.ask_heartbeat(who) == 25


@pytest.mark.row("LD-17")
@pytest.mark.parametrize("topic", ["t", "u"])
def test_subscriptions_are_read_again(topic: str) -> None:
    cluster = acts.shard()
    who = acts.member(cluster, "a=i")
    who.protocols = [("range", acts.subscription("t"))]
    acts.stable(cluster, who)
    after = cluster.reloaded()
    assert after.shard.groups["g"].subscribed_topics == frozenset({"t"})
    after.feed(TopicsChanged(frozenset({topic})))
    assert after.state() == ("PreparingRebalance" if topic == "t" else "Stable")


@pytest.mark.row("LD-20")
def test_all_protocols_are_known_after_a_load() -> None:
    cluster = acts.shard()
    who = acts.member(cluster, "a")
    who.protocols = [("x", b"1"), ("y", b"2")]
    acts.stable(cluster, who)
    after = cluster.reloaded()
    assert after.shard.groups["g"].members[who.member_id].terms.protocols == (("x", b"1"), ("y", b"2"))
    newcomer = acts.member(after, "b")
    newcomer.protocols = [("y", b"")]
    assert newcomer.join().is_parked, "a protocol that was not selected is common still"


@pytest.mark.row("LD-21")
@pytest.mark.row("UL-13")
@pytest.mark.parametrize("state", ["Stable", "CompletingRebalance"])
def test_everybody_has_a_full_session_after_a_load(state: str) -> None:
    cluster = acts.shard()
    first, second = acts.in_state(cluster, state)
    cluster.advance(SESSION_MS - 1)
    after = cluster.reloaded()
    after.advance(SESSION_MS - 1)
    first.cluster = after
    assert (after.state(), first.heartbeat()) == (state, 0)
    assert {m.member_id: m.confirmed for m in after.describe().members} == {
        first.member_id: True,
        second.member_id: False,
    }
    after.advance(1)
    assert first.heartbeat() == 27
    assert [m.member_id for m in after.describe().members] == [first.member_id]


@pytest.mark.row("LD-24")
def test_a_group_is_made_once() -> None:
    cluster = acts.shard()
    acts.commit(cluster)
    group = cluster.shard.groups["g"]
    assert cluster.shard._context.application.group("g", 99) is group


@pytest.mark.row("LD-33")
def test_every_load_gives_the_same_view() -> None:
    cluster = acts.shard()
    members = acts.stable(cluster, "a", "b", "c")
    members[1].leave()
    acts.rejoined(members[0], members[2])
    acts.assigned([members[0], members[2]])
    acts.commit(cluster, members[0], 7)
    acts.commit(cluster, group_id="gone")
    acts.delete_groups(cluster, "gone")
    once, twice = cluster.reloaded(), cluster.reloaded().reloaded()
    for shard in (once, twice):
        assert [m.member_id for m in shard.describe().members] == sorted(
            who.member_id for who in (members[0], members[2])
        )
        assert (shard.state(), shard.state("gone"), acts.fetch(shard)) == ("Stable", "Dead", {("t", 0): 7})


# --- UL


@pytest.mark.row("UL-01")
@pytest.mark.parametrize("state", acts.STATES)
def test_an_unloaded_shard_holds_nothing(state: str) -> None:
    cluster = acts.shard()
    acts.in_state(cluster, state)
    group = cluster.shard.groups["g"]
    cluster.feed(Unload())
    assert (group.state.value, cluster.shard.groups, cluster.shard.open_calls) == ("Dead", {}, 0)


@pytest.mark.row("UL-08")
@pytest.mark.row("UL-06")
def test_after_the_unload_everybody_is_sent_on() -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a")
    cluster.feed(Unload(common_pb2.Coordinator(node_id="other")))
    for kind, call in acts.calls_of(who).items():
        assert acts.error_of(cluster.ask(call)) == NOT_COORDINATOR, kind
    cluster.feed(Unload())
    assert acts.error_of(cluster.ask(who.join_request())) == NOT_COORDINATOR, "once more does nothing"


def halfway(cluster: VirtualShard, what: str) -> tuple[VirtualMember, VirtualMember]:
    first, second = acts.stable(cluster, "a", "b")
    if what == "left":
        second.leave()
    elif what == "started":
        acts.rejoined(first, second)
    return first, second


@pytest.mark.row("UL-11")
@pytest.mark.parametrize(
    ("what", "state", "code"),
    [("left", "PreparingRebalance", REBALANCE_IN_PROGRESS), ("started", "CompletingRebalance", NONE)],
)
def test_a_load_goes_on_with_what_was_begun(what: str, state: str, code: int) -> None:
    cluster = acts.shard()
    first, _ = halfway(cluster, what)
    cause = cluster.describe().cause
    after = cluster.reloaded()
    first.cluster = after
    assert (after.state(), first.heartbeat()) == (state, code)
    assert after.describe().cause == cause
    if what == "left":
        assert first.join().joined().generation == 2
    assert first.sync({first.member_id: b"x"}).synced().assignment == b"x"


@pytest.mark.row("UL-11")
@pytest.mark.parametrize(("what", "wait_ms"), [("left", REBALANCE_MS), ("started", REBALANCE_MS)])
def test_what_was_begun_ends_by_a_timer_after_a_load(what: str, wait_ms: int) -> None:
    cluster = acts.shard()
    for who in halfway(cluster, what):
        who.session_timeout_ms = 60_000
    after = cluster.reloaded()
    after.advance(wait_ms)
    assert after.state() == "Empty"


@pytest.mark.row("UL-12")
@pytest.mark.row("RF-08")
def test_a_member_whose_generation_was_never_written_starts_over() -> None:
    cluster = acts.shard()
    acts.stable(cluster, "a")
    who = acts.member(cluster, "b").join()
    assert who.is_parked
    after = cluster.reloaded()
    who.cluster, who.generation = after, 2
    assert acts.ask_heartbeat(who) == 25
    assert acts.ask_join(who).error_code == UNKNOWN_MEMBER_ID
    assert after.state() == "Stable"


@pytest.mark.row("UL-09")
def test_unload_and_load_give_the_same_group() -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a")
    cluster.feed(Unload())
    after = cluster.reloaded()
    who.cluster = after
    assert who.heartbeat() == 0
    assert acts.commit(after, who, 4) == 0


@pytest.mark.row("PT-20")
@pytest.mark.row("PT-21")
@pytest.mark.row("PT-25")
def test_state_changes_only_when_a_record_is_acknowledged() -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a")
    cluster.auto_ack = False
    call = cluster.send(acts.calls_of(who)["leave"])
    cluster.advance(5_000)
    answer: Any = cluster.answer(call)
    assert acts.error_of(answer) == COORDINATOR_NOT_AVAILABLE, "there is nothing to roll back"
    assert (cluster.state(), len(cluster.describe().members)) == ("Stable", 1)
    cluster.acknowledge()
    assert len(cluster.describe().members) == 0


@pytest.mark.row("PT-23")
def test_appends_of_one_turn_keep_their_order() -> None:
    cluster = acts.shard(initial_rebalance_delay_ms=DELAY_MS)
    cluster.auto_ack = False
    for offset in range(3):
        cluster.send(acts.commit_of(offset=offset))
    ids = [append.append_id for append in cluster.waiting]
    assert ids == sorted(ids)
    assert [append.records[0].offset_committed.offsets[0].offset for append in cluster.waiting] == [0, 1, 2]
