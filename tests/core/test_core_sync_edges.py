"""SyncGroup and Heartbeat: names that differ, calls that replace others, tokens that are kept."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from conformance import acts
from conformance.acts import SESSION_MS
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core import error_code
from muster_core.protocol import kept_tokens
from muster_core.state.plan import Plan
from muster_protos.muster.v1 import common_pb2, coordinator_pb2


def owning(*partitions: int, keeps: bool = True, topic: str = "t") -> bytes:
    """The published subscription of a member that owns partitions of a topic."""
    owned = [common_pb2.TopicPartitions(topic=topic, partitions=partitions)] if partitions else []
    return common_pb2.Subscription(
        version=1, topics=["t"], owned_partitions=owned, keeps_owned=keeps
    ).SerializeToString()


def given(*partitions: int, topic: str = "t") -> bytes:
    """The published assignment of partitions of a topic."""
    entry = common_pb2.TopicPartitions(topic=topic, partitions=partitions)
    return common_pb2.Assignment(version=1, partitions=[entry]).SerializeToString()


def kept(answer: coordinator_pb2.SyncGroupResponse) -> dict[tuple[str, int], str]:
    return {(entry.topic, entry.partition): entry.token for entry in answer.kept_tokens}


def heartbeat(who: VirtualMember, **changes: Any) -> coordinator_pb2.HeartbeatResponse:
    fields = {"group_id": "g", "member_id": who.member_id, "generation": who.generation, **changes}
    answer = who.cluster.ask(coordinator_pb2.HeartbeatRequest(**fields))
    assert isinstance(answer, coordinator_pb2.HeartbeatResponse)
    return answer


@pytest.mark.row("SG-07")
@pytest.mark.row("SG-08")
@pytest.mark.row("SG-20")
@pytest.mark.parametrize("field", ["protocol_type", "protocol_name"])
@pytest.mark.parametrize("wrong", ["a", "z"])
def test_another_protocol_is_refused_and_both_are_named(field: str, wrong: str) -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a")
    answer = acts.ask_sync(who, **{field: wrong})
    assert answer.error_code == error_code.INCONSISTENT_GROUP_PROTOCOL
    assert "'consumer'" in answer.error_message
    assert "'range'" in answer.error_message


@pytest.mark.row("SG-25")
def test_a_second_sync_takes_the_place_of_the_first() -> None:
    cluster = acts.shard()
    leader, follower = acts.joined(cluster, "a", "b")
    first = follower.sync().call_id
    second = follower.sync().call_id
    replaced: Any = cluster.answer(first)
    assert replaced.error_code == error_code.REBALANCE_IN_PROGRESS
    assert cluster.is_parked(second)
    leader.sync({follower.member_id: b"2"})
    answer: Any = cluster.answer(second)
    assert (answer.error_code, answer.assignment) == (error_code.NONE, b"2")
    assert answer.token == cluster.log[-1][0].token
    assert leader.synced().shard_epoch == 1


@pytest.mark.parametrize(
    "plan", [(given(1, 2), given(3, 2)), (given(1, 2, 2), given(3))], ids=["two members", "one member"]
)
def test_a_plan_that_gives_a_partition_more_than_once_is_refused(plan: tuple[bytes, bytes]) -> None:
    cluster = acts.shard()
    leader, follower = acts.joined(cluster, "a", "b")
    follower.sync()
    stored = len(cluster.log)
    answer = leader.sync(dict(zip((leader.member_id, follower.member_id), plan, strict=True))).synced()
    assert answer.error_code == common_pb2.ERROR_CODE_INVALID_REQUEST
    assert "assignments: t/2 is given more than once" in answer.error_message
    assert len(cluster.log) == stored
    leader.sync({leader.member_id: given(1), follower.member_id: given(2)})
    assert leader.synced().assignment == given(1)
    assert follower.synced().assignment == given(2)


def test_a_plan_that_gives_more_partitions_than_it_may_is_refused() -> None:
    cluster = VirtualShard(replace(acts.shard().config, max_partitions=3))
    leader, follower = acts.joined(cluster, "a", "b")
    follower.sync()
    stored = len(cluster.log)
    refused = leader.sync({leader.member_id: given(1, 2), follower.member_id: given(3, 4)}).synced()
    assert refused.error_code == common_pb2.ERROR_CODE_INVALID_REQUEST
    assert (
        refused.error_message == "assignments: more than 3 partitions are given, which is as many as may be"
    )
    assert len(cluster.log) == stored
    assert leader.sync({leader.member_id: given(1, 2), follower.member_id: given(3)}).synced().error_code == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([range(4)], []),
        ([range(2)], [range(1), range(1)]),
        ([()] * 4, []),
    ],
)
def test_of_a_plan_that_gives_too_many_partitions_only_their_number_is_read(
    first: list[Sequence[int]], second: list[Sequence[int]]
) -> None:
    """LIM-17: to list a million of them takes longer than others may wait."""
    request = coordinator_pb2.SyncGroupRequest()
    for member_id, entries in (("a", first), ("b", second), ("c", [])):
        topics = [
            common_pb2.TopicPartitions(topic=f"{member_id}{number}", partitions=some)
            for number, some in enumerate(entries)
        ]
        assignment = common_pb2.Assignment(version=1, partitions=topics).SerializeToString()
        request.assignments.add(member_id=member_id, assignment=assignment)
    plan = Plan()
    assert [*plan.read(request, "abc", 3)] == []
    assert plan.partitions > 3
    assert sum(map(len, plan._given.values())) <= 2


def test_what_a_plan_gives_to_strangers_is_not_looked_at() -> None:
    """A leader may name a hundred thousand."""
    request = coordinator_pb2.SyncGroupRequest()
    for member_id in ("stranger", "a"):
        topics = [common_pb2.TopicPartitions(topic=member_id, partitions=range(3))]
        assignment = common_pb2.Assignment(version=1, partitions=topics).SerializeToString()
        request.assignments.add(member_id=member_id, assignment=assignment)
    plan = Plan()
    assert [*plan.read(request, {"a"}, 3)] == []
    assert (plan.partitions, [*plan.topics], [*plan.assignments]) == (3, ["a"], ["a"])


@pytest.mark.row("SG-24")
def test_the_session_of_whoever_is_answered_begins_with_the_answer() -> None:
    cluster = acts.shard()
    leader, follower, absent = acts.joined(cluster, "a", "b", "c")
    follower.sync()
    cluster.advance(SESSION_MS - 1)
    leader.sync({})
    remaining_ms = {entry.member_id: entry.session_remaining_ms for entry in cluster.describe().members}
    assert remaining_ms == {
        leader.member_id: SESSION_MS,
        follower.member_id: SESSION_MS,
        absent.member_id: 1,
    }


@pytest.mark.row("DS-05")
def test_the_record_of_an_assignment_names_leader_and_generation() -> None:
    cluster = acts.shard()
    members = acts.stable(cluster, "a", "b")
    acts.rejoined(*members)
    acts.assigned(members)
    record = acts.last_record(cluster).assignment_committed
    assert (record.group_id, record.generation, record.leader) == ("g", 2, members[0].member_id)


@pytest.mark.row("HB-08")
def test_a_heartbeat_tells_why_the_group_rebalances() -> None:
    cluster = acts.shard()
    first, second = acts.stable(cluster, "a", "b")
    assert heartbeat(first) == coordinator_pb2.HeartbeatResponse(shard_epoch=1)
    second.leave("moved")
    answer = heartbeat(first)
    assert answer == coordinator_pb2.HeartbeatResponse(
        error_code=common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS,
        error_message="the group rebalances; join again",
        cause=cluster.describe().cause,
        shard_epoch=1,
    )
    assert answer.cause.reason == "moved"


@pytest.mark.row("HB-01")
@pytest.mark.row("GV-02")
@pytest.mark.parametrize(
    ("group_id", "code"), [("nobody", error_code.UNKNOWN_MEMBER_ID), ("", error_code.INVALID_GROUP_ID)]
)
def test_a_heartbeat_to_a_group_that_does_not_exist(group_id: str, code: int) -> None:
    cluster = acts.shard()
    (who,) = acts.stable(cluster, "a")
    answer = heartbeat(who, group_id=group_id)
    assert (answer.error_code, answer.shard_epoch) == (code, 1)
    assert answer.error_message


@pytest.mark.parametrize(
    ("subscribed", "assigned", "stays"),
    [
        (owning(0, 1), given(0, 1), {("t", 0), ("t", 1)}),
        (owning(1), given(0, 1), {("t", 1)}),
        (owning(0, 1), given(1, 2), {("t", 1)}),
        (owning(0, 1, keeps=False), given(0, 1), set()),
        (owning(0, 1, topic="u"), given(0, 1), set()),
        (owning(0, 1), given(0, 1, topic="u"), set()),
        (owning(0, 1), b"foreign", set()),
        (b"foreign", given(0, 1), set()),
        (owning(0, 1), b"", set()),
    ],
)
def test_which_partitions_keep_their_token(
    subscribed: bytes, assigned: bytes, stays: set[tuple[str, int]]
) -> None:
    """Those that were its own, that it says it never gave up, and that it is given again (GRP-24, GRP-25)."""
    cluster = acts.shard()
    who = acts.member(cluster, "a")
    who.protocols = [("range", owning())]
    acts.joined(cluster, who)
    before = who.sync({who.member_id: given(0, 1)}).synced()
    assert kept(before) == {}
    who.protocols = [("range", subscribed)]
    acts.rejoined(who)
    after = who.sync({who.member_id: assigned}).synced()
    assert kept(after) == dict.fromkeys(stays, before.token)
    assert after.token > before.token


@pytest.mark.parametrize(
    ("limits", "said", "stays"),
    [
        ({"max_kept_tokens": 2}, (0, 1, 2), {("t", 0), ("t", 1)}),
        ({"max_kept_tokens": 0}, (0, 1, 2), set()),
        ({"max_partitions": 3}, (0, 1, 2), {("t", 0), ("t", 1), ("t", 2)}),
        ({"max_partitions": 3}, (0, 1, 2, 3), set()),
    ],
)
def test_more_tokens_than_may_be_kept_are_new(
    limits: dict[str, Any], said: tuple[int, ...], stays: set[tuple[str, int]]
) -> None:
    """Each is named one by one, and so is what members say that they own (LIM-17)."""
    cluster = VirtualShard(replace(acts.shard().config, **limits))
    who = acts.member(cluster, "a")
    who.protocols = [("range", owning())]
    acts.joined(cluster, who)
    before = who.sync({who.member_id: given(0, 1, 2)}).synced()
    who.protocols = [("range", owning(*said))]
    acts.rejoined(who)
    after = who.sync({who.member_id: given(0, 1, 2)}).synced()
    assert kept(after) == dict.fromkeys(stays, before.token)


def test_many_tokens_that_are_asked_for_again_are_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small call must not cost the loop tens of milliseconds each time (LIM-53)."""
    cluster: VirtualShard = acts.shard()
    first, second = acts.member(cluster, "a"), acts.member(cluster, "b")
    mine, others = range(kept_tokens.MANY + 1), range(kept_tokens.MANY + 1, 2 * kept_tokens.MANY + 2)
    for who, parts in ((first, mine), (second, others)):
        who.protocols = [("range", owning(*parts))]
    acts.joined(cluster, first, second)
    plan = {first.member_id: given(*mine), second.member_id: given(*others)}
    first.sync(plan)
    second.sync()
    acts.rejoined(first, second)
    first.sync(plan)
    second.sync()
    once = [who.synced() for who in (first, second)]
    written: list[int] = []
    write = kept_tokens._write

    def noted(answer: coordinator_pb2.SyncGroupResponse, tokens: Any) -> None:
        written.append(len(tokens))
        write(answer, tokens)

    monkeypatch.setattr(kept_tokens, "_write", noted)
    for who, before in zip((first, second), once, strict=True):
        for _ in range(3):
            who.sync()
            assert who.synced() == before
    assert [len(kept(answer)) for answer in once] == [len(mine), len(others)]
    assert len(written) <= 2


def test_what_another_member_owned_is_kept_by_nobody() -> None:
    cluster: VirtualShard = acts.shard()
    first, second = acts.member(cluster, "a"), acts.member(cluster, "b")
    for who in (first, second):
        who.protocols = [("range", owning())]
    acts.joined(cluster, first, second)
    first.sync({first.member_id: given(0), second.member_id: given(1)})
    second.sync()
    tokens = [who.synced().token for who in (first, second)]
    for who in (first, second):
        who.protocols = [("range", owning(0, 1))]
    acts.rejoined(first, second)
    first.sync({first.member_id: given(1), second.member_id: given(0)})
    second.sync()
    assert [kept(who.synced()) for who in (first, second)] == [{}, {}]
    assert tokens[0] == tokens[1]
