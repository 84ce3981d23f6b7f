"""Rows RF and LD that concern single records: what each holds, and what a load makes of it alone."""

from typing import Any

import pytest
from conformance import acts, acts_offsets
from conformance.acts_offsets import stored_commit, stored_generation, stored_member
from kit.lives.virtual_shard import WALL_MS
from muster_core.events import TopicsChanged
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2


@pytest.mark.row("RF-03")
@pytest.mark.row("LD-04")
def test_a_simple_group_is_its_offsets_and_nothing_else() -> None:
    cluster = acts.shard()
    acts.commit(cluster, offset=5)
    assert cluster.kinds() == ["offset_committed"]
    record = acts.last_record(cluster)
    assert record == records_pb2.Record(
        written_at_ms=WALL_MS + cluster.now_ms,
        offset_committed=records_pb2.OffsetCommitted(
            group_id="g",
            generation=-1,
            member_id="",
            member_seq=0,
            offsets=[
                records_pb2.CommittedOffset(topic="t", partition=0, offset=5, leader_epoch=-1, metadata="")
            ],
        ),
    )
    after = acts_offsets.from_records(record)
    described = after.describe()
    assert (after.state(), described.protocol_type, described.generation) == ("Empty", "", 0)
    assert acts.fetch(after) == {("t", 0): 5}


@pytest.mark.row("RF-02")
def test_an_empty_generation_names_neither_protocol_nor_leader() -> None:
    cluster = acts.shard()
    acts.in_state(cluster, "Empty")
    started = acts.last_record(cluster).generation_started
    assert (started.protocol_type, started.protocol_name, started.leader) == ("consumer", "", "")
    assert (len(started.members), started.generation) == (0, cluster.describe().generation)


@pytest.mark.row("RF-08")
@pytest.mark.parametrize("state", acts.STATES)
def test_what_is_never_written(state: str) -> None:
    cluster = acts.shard()
    first, second = acts.in_state(cluster, state)
    before = len(cluster.appends)
    for who in (first, second):
        acts.ask_heartbeat(who)
        acts.ask_heartbeat(who, generation=99)
    acts.ask_join(acts.member(cluster, "pending"))
    acts.ask_join(acts.member(cluster, "refused"), protocol_type="")
    acts.ask_sync(second, member_id="stranger")
    cluster.send(acts.join_of(acts.member(cluster, "parked=i")))
    assert cluster.describe().state == coordinator_pb2.GROUP_STATE_PREPARING_REBALANCE
    assert len(cluster.appends) == before


@pytest.mark.row("RF-13")
@pytest.mark.row("LD-29")
def test_what_a_later_version_adds_is_passed_over() -> None:
    unknown_kind = records_pb2.Record.FromString(b"\xea\x3f\x02\x08\x01")  # field 1021, a message
    assert unknown_kind.WhichOneof("kind") is None
    cluster = acts_offsets.from_records(stored_commit(1), unknown_kind, stored_commit(2))
    assert (cluster.shard.skipped_records, acts.fetch(cluster)) == (1, {("t", 0): 2})


@pytest.mark.row("LD-19")
@pytest.mark.parametrize("metadata", [b"foreign", b"", b"\xff\xff"])
def test_a_group_loads_with_metadata_that_cannot_be_read(metadata: bytes) -> None:
    members = [stored_member("a", acts.subscription("t")), stored_member("b", metadata)]
    plan = records_pb2.AssignmentCommitted(
        group_id="g",
        generation=1,
        leader="a",
        members=[records_pb2.MemberAssignment(member_id=who.member_id) for who in members],
    )
    cluster = acts_offsets.from_records(
        stored_generation(members),
        records_pb2.Record(assignment_committed=plan),
        stored_commit(5, topic="other"),
    )
    assert cluster.state() == "Stable"
    assert cluster.shard.groups["g"].subscribed_topics is None
    assert acts.delete_offsets(cluster, "other") == (0, [86]), "it counts as subscribed to everything"
    cluster.feed(TopicsChanged(frozenset({"t"})))
    assert cluster.state() == "Stable", "and to nothing that a change of topics could tell it"


@pytest.mark.row("LD-06")
@pytest.mark.row("LD-08")
def test_of_the_records_of_one_offset_the_last_one_counts() -> None:
    gone = records_pb2.OffsetTombstone(
        group_id="g", topics=[common_pb2.TopicPartitions(topic="t", partitions=[0, 7])], reason="deleted"
    )
    tombstone = records_pb2.Record(offset_tombstone=gone)
    cases: list[tuple[list[records_pb2.Record], dict[tuple[str, int], int]]] = [
        ([stored_commit(1), stored_commit(2)], {("t", 0): 2}),
        ([stored_commit(2), stored_commit(1)], {("t", 0): 1}),
        ([stored_commit(1), stored_commit(3, topic="other"), tombstone], {("other", 0): 3}),
        ([stored_commit(1), tombstone, stored_commit(2)], {("t", 0): 2}),
        ([tombstone], {}),
    ]
    for records, offsets in cases:
        assert acts.fetch(acts_offsets.from_records(*records)) == offsets


@pytest.mark.row("LD-07")
@pytest.mark.row("LD-33")
def test_the_tombstone_of_a_group_takes_all_before_it() -> None:
    tombstone = records_pb2.Record(group_tombstone=records_pb2.GroupTombstone(group_id="g", reason="deleted"))
    started = stored_generation([stored_member("a", b"m")])
    cases: list[tuple[list[records_pb2.Record], str, dict[tuple[str, int], int]]] = [
        ([stored_commit(1), stored_generation([], generation=2), tombstone], "Dead", {}),
        ([stored_commit(1), tombstone, stored_commit(2)], "Empty", {("t", 0): 2}),
        ([stored_commit(1), tombstone, started], "CompletingRebalance", {}),
        ([tombstone], "Dead", {}),
    ]
    for records, state, offsets in cases:
        for cluster in (loaded := acts_offsets.from_records(*records), loaded.reloaded()):
            assert (cluster.state(), acts.fetch(cluster)) == (state, offsets)


@pytest.mark.row("LD-17")
@pytest.mark.row("LD-18")
@pytest.mark.parametrize(
    ("members", "protocol_type", "topics"),
    [
        ([("a", ["t"]), ("b", ["u", "t"])], "consumer", {"t", "u"}),
        ([("a", [])], "consumer", set()),
        ([], "consumer", set()),
        ([("a", ["t"])], "connect", None),
    ],
)
def test_subscribed_topics_follow_from_the_record(
    members: list[tuple[str, list[str]]], protocol_type: str, topics: set[str] | None
) -> None:
    stored: list[Any] = [stored_member(name, acts.subscription(*wanted)) for name, wanted in members]
    cluster = acts_offsets.from_records(stored_generation(stored, protocol_type=protocol_type))
    assert cluster.shard.groups["g"].subscribed_topics == topics


@pytest.mark.row("LD-17")
def test_subscribed_topics_follow_a_member_that_joins_again() -> None:
    """A rejoin of one member with one protocol: only its subscription is new."""
    cluster = acts.shard()
    (member,) = acts.joined(cluster, "a")
    for topics in (["t"], ["u"], ["t", "u"]):
        member.protocols = [("range", acts.subscription(*topics))]
        member.join()
        assert cluster.shard.groups["g"].subscribed_topics == frozenset(topics)


@pytest.mark.row("LD-03")
def test_instance_ids_are_known_after_a_load() -> None:
    members = [stored_member("a-1", b"m", instance="a"), stored_member("b-1", b"m")]
    cluster = acts_offsets.from_records(stored_generation(members))
    assert cluster.shard.groups["g"].static_members == {"a": "a-1"}
    who = acts.member(cluster, "a=a")
    who.member_id, who.generation = "b-1", 1
    assert acts.ask_heartbeat(who) == 82
    who.member_id = "a-1"
    assert acts.ask_heartbeat(who) == 0


@pytest.mark.row("LD-21")
def test_sessions_run_from_the_load_for_the_time_that_the_record_says() -> None:
    members = [stored_member("a", b"m", instance="a"), stored_member("b", b"m")]
    members[1].session_timeout_ms = 2 * acts.SESSION_MS
    for each in members:
        each.rebalance_timeout_ms = 10 * acts.SESSION_MS
    cluster = acts_offsets.from_records(stored_generation(members))
    cluster.advance(acts.SESSION_MS - 1)
    assert (cluster.state(), len(cluster.describe().members)) == ("CompletingRebalance", 2)
    cluster.advance(1)
    assert [entry.member_id for entry in cluster.describe().members] == ["b"]
    cluster.advance(acts.SESSION_MS - 1)
    assert [entry.member_id for entry in cluster.describe().members] == ["b"]
    cluster.advance(1)
    assert (cluster.state(), cluster.describe().generation) == ("Empty", 2)


# --- what a record does is the same live and in a load


@pytest.mark.row("LD-01")
@pytest.mark.row("DG-02")
def test_an_assignment_is_shown_until_a_generation_passed_without_one() -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a")
    given = f"for {who.member_id}".encode()
    for metadata, shown in ((b"second", given), (b"third", b"")):
        who.protocols = [("range", metadata)]
        acts.rejoined(who)
        for each in (cluster, cluster.reloaded()):
            (entry,) = each.describe().members
            assert (each.state(), entry.assignment) == ("CompletingRebalance", shown)


@pytest.mark.row("RF-07")
@pytest.mark.row("LD-03")
def test_a_take_over_gives_a_new_token_and_new_topics() -> None:
    cluster = acts.shard()
    who = acts_offsets.subscriber(cluster, "a=i", "t")
    acts.stable(cluster, who)
    before = cluster.describe().members[0].token
    again = acts_offsets.subscriber(cluster, "a=i", "u")
    again.join().joined()
    position, record = cluster.log[-1]
    assert record.WhichOneof("kind") == "member_replaced"
    for each in (cluster, cluster.reloaded()):
        again.cluster = each
        assert again.sync().synced().token == position.token > before
        assert each.shard.groups["g"].subscribed_topics == frozenset({"u"})
        assert each.shard.groups["g"].unfinished is None


@pytest.mark.row("RF-07")
@pytest.mark.row("UL-11")
def test_a_take_over_that_needs_a_rebalance_is_finished_after_a_load() -> None:
    cluster = acts.shard()
    first, second = acts.joined(cluster, "a=i", "b=j")
    acts.member(cluster, "b=j").join()
    assert (cluster.state(), acts.last_record(cluster).WhichOneof("kind")) == (
        "PreparingRebalance",
        "member_replaced",
    )
    after = cluster.reloaded()
    assert (after.state(), after.describe().cause) == ("PreparingRebalance", cluster.describe().cause)
    for each in (cluster, after):
        first.cluster = second.cluster = each
        assert (acts.ask_heartbeat(first), acts.ask_heartbeat(second)) == (27, 82)


def test_the_history_says_when_and_what_moved_and_where_it_was_cut() -> None:
    cluster = acts.shard(history_moves=2)
    began_ms = cluster.now_ms
    (who,) = acts.joined(cluster, "a")
    message = common_pb2.Assignment(version=1)
    message.partitions.add(topic="t", partitions=[0, 1, 2])
    who.sync({who.member_id: message.SerializeToString()}).synced()
    for each in (cluster, cluster.reloaded()):
        answer = each.ask(coordinator_pb2.GroupHistoryRequest(group_id="g"))
        assert isinstance(answer, coordinator_pb2.GroupHistoryResponse)
        (entry,) = answer.generations
        assert entry.started_at_ms == WALL_MS + began_ms + acts.DELAY_MS
        assert entry.assigned_at_ms == WALL_MS + cluster.now_ms
        assert [(move.partition, move.to_member_id) for move in entry.moves] == [
            (0, who.member_id),
            (1, who.member_id),
        ]
        assert entry.moves_truncated
