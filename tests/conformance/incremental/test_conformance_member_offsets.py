"""Offsets of incremental groups (rows OV), and what the groups look like (rows GS)."""

from typing import Any

import pytest
from conformance.incremental.lab import AWAY, JOIN, LEAVE, NOTHING, Lab, t
from muster_core.config import GroupConfig
from muster_core.error_code import (
    GROUP_ID_NOT_FOUND,
    GROUP_SUBSCRIBED_TO_TOPIC,
    NON_EMPTY_GROUP,
    NONE,
    OFFSET_METADATA_TOO_LARGE,
    STALE_MEMBER_EPOCH,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from muster_core.incremental.targets.target import are_alike
from muster_protos.muster.v1.coordinator_pb2 import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)

ALL = t(0, 1, 2, 3, 4, 5)


def one() -> Lab:
    """`a` has everything, at epoch 1."""
    lab = Lab()
    assert lab("a", JOIN) == (1, ALL)
    return lab


def two() -> Lab:
    """`a` is to give half of what it has to `b`, at epoch 1; `b` waits at 2."""
    lab = one()
    lab.shares = {"a": t(0, 1, 2), "b": t(3, 4, 5)}
    assert lab("b", JOIN) == (2, NOTHING)
    assert lab("a", 1) == (1, t(0, 1, 2))
    return lab


# --- commits


@pytest.mark.row("OV-01")
def test_a_commit_from_outside_makes_a_group_of_offsets() -> None:
    lab = Lab()
    assert lab.commit("", -1) == [NONE]
    assert lab.fetch() == (NONE, [7])
    assert lab.cluster.state() == "Empty"


@pytest.mark.row("OV-02")
def test_a_commit_of_a_member_to_no_group_is_refused() -> None:
    lab = Lab()
    assert lab.commit("a", 1) == [GROUP_ID_NOT_FOUND]
    assert not lab.cluster.shard.groups


@pytest.mark.row("OV-03")
def test_a_commit_from_outside_to_a_group_without_members_is_taken() -> None:
    lab = one()
    lab("a", LEAVE)
    assert lab.commit("", -1) == [NONE]
    assert lab.fetch() == (NONE, [7])


@pytest.mark.parametrize(
    ("who", "epoch", "code"),
    [
        pytest.param("", -1, UNKNOWN_MEMBER_ID, marks=pytest.mark.row("OV-04"), id="outsider"),
        pytest.param("x", 1, UNKNOWN_MEMBER_ID, marks=pytest.mark.row("OV-05"), id="stranger"),
        pytest.param("a", 1, NONE, marks=pytest.mark.row("OV-07"), id="present"),
        pytest.param("a", 2, STALE_MEMBER_EPOCH, marks=pytest.mark.row("OV-08"), id="ahead"),
        pytest.param("b", 1, STALE_MEMBER_EPOCH, marks=pytest.mark.row("OV-09"), id="behind"),
    ],
)
def test_a_commit_names_the_epoch_of_its_member(who: str, epoch: int, code: int) -> None:
    lab = two()
    lab.written()
    assert lab.commit(who, epoch) == [code]
    assert lab.fetch() == (NONE, [7 if code == NONE else -1])


@pytest.mark.row("OV-07")
def test_a_commit_at_the_present_epoch_may_be_of_any_partition_as_in_kafka() -> None:
    lab = two()
    assert lab.commit("b", 2, ("t", 0), ("t", 5)) == [NONE, NONE]


@pytest.mark.row("OV-10")
def test_a_commit_at_another_epoch_stores_nothing() -> None:
    lab = two()
    lab.written()
    assert lab.commit("b", 1, ("t", 0), ("t", 5)) == [STALE_MEMBER_EPOCH] * 2
    assert lab.written() == []


@pytest.mark.row("OV-12")
def test_a_topic_that_there_is_not_is_refused_by_itself() -> None:
    lab = one()
    assert lab.commit("a", 1, ("t", 0), ("none", 0), ("t", 99)) == [
        NONE,
        UNKNOWN_TOPIC_OR_PARTITION,
        UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert lab.fetch() == (NONE, [7])


@pytest.mark.row("OV-13")
def test_metadata_that_is_too_long_is_refused() -> None:
    lab = one()
    longest = GroupConfig().offset_metadata_max_bytes
    assert lab.commit("a", 1, metadata="x" * (longest + 1)) == [OFFSET_METADATA_TOO_LARGE]
    assert lab.fetch() == (NONE, [-1])
    assert lab.commit("a", 1, metadata="x" * longest) == [NONE]


@pytest.mark.row("OV-14")
@pytest.mark.row("OV-15")
def test_a_member_that_is_away_commits_with_its_epoch_alone() -> None:
    lab = Lab()
    lab("a", JOIN, instance="i")
    lab("a", AWAY, instance="i")
    assert lab.commit("a", 1) == [STALE_MEMBER_EPOCH]
    assert lab.commit("a", AWAY) == [NONE]


@pytest.mark.row("OV-16")
def test_what_is_to_be_given_back_is_committed() -> None:
    lab = two()
    assert lab.owes("a") == t(3, 4, 5)
    assert lab.commit("a", 1, ("t", 3)) == [NONE]


# --- fetches


@pytest.mark.row("OV-21")
def test_whoever_does_not_say_who_it_is_is_answered() -> None:
    lab = two()
    lab.commit("a", 1)
    assert lab.fetch() == (NONE, [7])


@pytest.mark.parametrize(
    ("who", "epoch", "code"),
    [
        pytest.param("x", 1, UNKNOWN_MEMBER_ID, marks=pytest.mark.row("OV-22"), id="stranger"),
        pytest.param("", 1, UNKNOWN_MEMBER_ID, marks=pytest.mark.row("OV-22"), id="nobody"),
        pytest.param("b", 1, STALE_MEMBER_EPOCH, marks=pytest.mark.row("OV-23"), id="behind"),
        pytest.param("b", 3, STALE_MEMBER_EPOCH, marks=pytest.mark.row("OV-23"), id="ahead"),
        pytest.param("b", 2, NONE, marks=pytest.mark.row("OV-23"), id="present"),
    ],
)
def test_a_fetch_of_a_member_names_its_epoch(who: str, epoch: int, code: int) -> None:
    lab = two()
    assert lab.fetch(who, epoch)[0] == code


@pytest.mark.row("OV-24")
def test_a_group_that_there_is_not_has_no_offsets() -> None:
    lab = Lab()
    assert lab.fetch(group="none") == (NONE, [-1])
    assert lab.fetch("a", 3, group="none") == (NONE, [-1])


@pytest.mark.row("OV-25")
def test_a_fetch_is_judged_by_what_is_stored() -> None:
    lab = one()
    lab.cluster.auto_ack = False
    lab.shares = {"a": ALL}
    lab.cluster.send(lab.request("b", JOIN, topics=["u"]))
    lab.cluster.send(lab.request("a", 1))  # brings it to epoch 2, when that is stored
    assert lab.fetch("a", 1) == (NONE, [-1])
    assert lab.fetch("a", 2)[0] == STALE_MEMBER_EPOCH
    while lab.cluster.waiting:
        lab.cluster.acknowledge()
    assert lab.fetch("a", 2) == (NONE, [-1])


# --- deletions


def delete_offsets(lab: Lab, *topics: str) -> list[int]:
    request = OffsetDeleteRequest(group_id="g")
    for topic in topics:
        request.topics.add(topic=topic, partitions=[0])
    answer = lab.cluster.ask(request)
    assert isinstance(answer, OffsetDeleteResponse)
    return [entry.error_code for topic in answer.topics for entry in topic.partitions]


@pytest.mark.row("OV-26")
def test_offsets_of_topics_that_nobody_subscribes_to_are_deleted_with_members_there() -> None:
    lab = Lab({"t": 2, "u": 1})
    lab("a", JOIN)
    lab.commit("a", 1, ("t", 0), ("u", 0))
    assert delete_offsets(lab, "t", "u") == [GROUP_SUBSCRIBED_TO_TOPIC, NONE]
    offsets = lab.cluster.shard.groups["g"].offsets
    assert offsets.get(("t", 0)) is not None
    assert offsets.get(("u", 0)) is None


@pytest.mark.row("OV-27")
def test_offsets_expire_by_their_time_but_not_of_subscribed_topics() -> None:
    lab = Lab({"t": 2, "u": 1}, offsets_retention_ms=600_000)
    lab("a", JOIN)
    lab.commit("a", 1, ("t", 0), ("u", 0))
    offsets = lab.cluster.shard.groups["g"].offsets
    for _ in range(40):
        lab.cluster.advance(30_000)
        lab("a", 1)
    assert offsets.get(("t", 0)) is not None
    assert offsets.get(("u", 0)) is None
    lab("a", LEAVE)
    lab.cluster.advance(2_000_000)
    assert "g" not in lab.cluster.shard.groups


def delete_group(lab: Lab) -> int:
    answer = lab.cluster.ask(DeleteGroupsRequest(group_ids=["g"]))
    assert isinstance(answer, DeleteGroupsResponse)
    return answer.results[0].error_code


@pytest.mark.row("OV-28")
@pytest.mark.row("PR-05")
def test_a_group_is_deleted_when_it_is_empty_with_all_that_it_has() -> None:
    lab = one()
    lab.commit("a", 1)
    assert delete_group(lab) == NON_EMPTY_GROUP
    lab("a", LEAVE)
    lab.written()
    assert delete_group(lab) == NONE
    assert lab.written() == ["group_tombstone"]
    assert lab.fetch() == (NONE, [-1])
    assert "g" not in lab.reloaded().cluster.shard.groups


# --- what groups look like


@pytest.mark.row("GS-03")
@pytest.mark.row("GS-04")
@pytest.mark.row("GS-02")
def test_a_group_is_what_its_epochs_and_members_make_it() -> None:
    lab = one()
    assert lab.describe().state == "Stable"
    lab.shares = {"a": t(0, 1, 2), "b": t(3, 4, 5)}
    lab("b", JOIN)
    states = [lab.describe().state]
    lab("a", 1)
    lab("a", 1, t(0, 1, 2))
    states.append(lab.describe().state)
    lab("b", 2)
    states.append(lab.describe().state)
    lab("b", LEAVE)
    states.append(lab.describe().state)
    assert states == ["Reconciling", "Reconciling", "Stable", "Assigning"]


@pytest.mark.row("GS-05")
def test_a_member_that_is_away_keeps_its_group_reconciling() -> None:
    lab = Lab()
    lab("a", JOIN, instance="i")
    lab("a", AWAY, instance="i")
    assert lab.describe().state == "Reconciling"


@pytest.mark.row("GS-09")
@pytest.mark.row("GS-10")
def test_a_group_is_described_with_what_each_has_gives_back_and_should_have() -> None:
    lab = Lab()
    lab("a", JOIN, instance="i", rack="r")
    lab.shares = {"a": t(0, 1, 2), "b": t(3, 4, 5)}
    lab("b", JOIN, regex="x.*", topics=["t", "u"])
    lab("a", 1)
    group = lab.describe()
    assert (group.group_epoch, group.assignment_epoch, group.server_assignor) == (2, 2, "uniform")
    a, b = group.members
    assert (a.member_id, a.group_instance_id, a.rack_id, a.member_epoch) == ("a", "i", "r", 1)
    assert (b.member_id, list(b.topics), b.topic_regex, b.member_epoch) == ("b", ["t", "u"], "x.*", 2)
    assert partitions(a.assigned) == t(0, 1, 2)
    assert partitions(a.revoking) == t(3, 4, 5)
    assert partitions(b.target) == t(3, 4, 5)
    assert not b.assigned


def partitions(topics: Any) -> dict[str, list[int]]:
    return {entry.topic: list(entry.partitions) for entry in topics}


@pytest.mark.row("GS-11")
def test_topics_that_are_gone_are_left_out_of_the_picture() -> None:
    lab = Lab({"t": 1, "u": 1})
    lab("a", JOIN, topics=["t", "u"])
    lab.tell({"t": 1})
    (member,) = lab.describe().members
    assert (partitions(member.assigned), partitions(member.target)) == (t(0), t(0))
    assert lab.has("a") == {"t": [0], "u": [0]}


@pytest.mark.row("GS-12")
def test_what_is_no_incremental_group_is_not_described() -> None:
    lab = Lab()
    lab.commit("", -1)
    assert lab.describe().error_code == GROUP_ID_NOT_FOUND
    assert lab.describe("none").error_code == GROUP_ID_NOT_FOUND


@pytest.mark.row("GS-15")
@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ([], [], True),
        (["sTaBlE"], [], True),
        (["Reconciling"], [], False),
        ([], ["Consumer"], True),
        ([], ["classic"], False),
    ],
)
def test_groups_are_listed_by_state_and_type_in_any_case(
    states: list[str], types: list[str], found: bool
) -> None:
    lab = one()
    answer = lab.cluster.ask(ListGroupsRequest(states=states, types=types))
    assert isinstance(answer, ListGroupsResponse)
    assert [(group.group_id, group.type) for group in answer.groups] == [("g", "consumer")] * found


@pytest.mark.row("GS-16")
@pytest.mark.row("TA-09")
@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [
        ({"topics": ["t", "u"]}, {"topics": ["u", "t"]}, True),
        ({"topics": ["t"]}, {"topics": ["t", "u"]}, False),
        ({"regex": "t.*"}, {"regex": "t.*"}, True),
        ({"regex": "t.*"}, {"regex": "t"}, False),
        ({"regex": "t.*"}, {"regex": "t.*", "topics": ["u"]}, False),
    ],
)
def test_when_all_subscribe_alike(first: dict[str, Any], second: dict[str, Any], alike: bool) -> None:
    lab = Lab({"t": 2, "u": 2})
    lab("a", JOIN, **first)
    lab("b", JOIN, **second)
    assert are_alike(lab.group) is alike
