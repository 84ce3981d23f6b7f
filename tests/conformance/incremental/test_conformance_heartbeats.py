"""ConsumerGroupHeartbeat: what is asked, what is refused in which order, and what is answered (rows HQ)."""

from typing import Any

import pytest
from conformance.acts import member, stable
from conformance.incremental.lab import AWAY, JOIN, LEAVE, NOTHING, Lab, Owned, heard, t
from kit.lives.virtual_shard import VirtualShard
from muster_core import error_code
from muster_core.error_code import (
    FENCED_INSTANCE_ID,
    FENCED_MEMBER_EPOCH,
    GROUP_ID_NOT_FOUND,
    GROUP_MAX_SIZE_REACHED,
    INVALID_REGULAR_EXPRESSION,
    INVALID_REQUEST,
    UNKNOWN_MEMBER_ID,
    UNRELEASED_INSTANCE_ID,
    UNSUPPORTED_ASSIGNOR,
    UNSUPPORTED_VERSION,
)
from muster_core.features import ALL_FEATURES, Feature
from muster_core.position import Position
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatResponse


def two() -> Lab:
    """`a` is to give back 3, 4 and 5, for which `b` waits."""
    lab = Lab()
    assert lab("a", JOIN) == (1, t(0, 1, 2, 3, 4, 5))
    lab.shares = {"a": t(0, 1, 2), "b": t(3, 4, 5)}
    assert lab("b", JOIN) == (2, NOTHING)
    assert lab("a", 1) == (1, t(0, 1, 2))
    return lab


def answered(lab: Lab, call_id: int) -> ConsumerGroupHeartbeatResponse:
    answer = lab.cluster.answer(call_id)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


@pytest.mark.row("HQ-01")
def test_without_the_feature_no_field_is_looked_at() -> None:
    lab = Lab()
    lab.cluster = VirtualShard(features=ALL_FEATURES - {Feature.INCREMENTAL_GROUPS})
    assert lab("", -7) == UNSUPPORTED_VERSION
    assert lab("a", JOIN) == UNSUPPORTED_VERSION
    assert not lab.cluster.shard.groups


WRONG: list[Any] = [
    pytest.param("", JOIN, {}, marks=pytest.mark.row("HQ-05"), id="no member id, joins"),
    pytest.param("", 1, {}, marks=pytest.mark.row("HQ-05"), id="no member id, stays"),
    pytest.param("", LEAVE, {}, marks=pytest.mark.row("HQ-05"), id="no member id, leaves"),
    pytest.param("a", JOIN, {"group": ""}, marks=pytest.mark.row("HQ-08"), id="no group"),
    pytest.param("a", JOIN, {"group": " \t"}, marks=pytest.mark.row("HQ-08"), id="blank group"),
    pytest.param("a", JOIN, {"instance": ""}, marks=pytest.mark.row("HQ-09"), id="no instance"),
    pytest.param("a", 1, {"instance": " "}, marks=pytest.mark.row("HQ-09"), id="blank instance"),
    pytest.param("a", JOIN, {"rack": ""}, marks=pytest.mark.row("HQ-09"), id="no rack"),
    pytest.param("a", 1, {"rack": "  "}, marks=pytest.mark.row("HQ-09"), id="blank rack"),
    pytest.param("a", JOIN, {"rebalance": None}, marks=pytest.mark.row("HQ-10"), id="no time-out"),
    pytest.param("a", JOIN, {"rebalance": -1}, marks=pytest.mark.row("HQ-10"), id="time-out of -1"),
    pytest.param("a", JOIN, {"owned": None}, marks=pytest.mark.row("HQ-11"), id="no list"),
    pytest.param("a", JOIN, {"owned": {"t": [0]}}, marks=pytest.mark.row("HQ-11"), id="owns something"),
    pytest.param("a", JOIN, {"topics": None}, marks=pytest.mark.row("HQ-12"), id="no subscription"),
    pytest.param("a", AWAY, {}, marks=pytest.mark.row("HQ-13"), id="away without instance"),
    pytest.param("a", -3, {"instance": "i"}, marks=pytest.mark.row("HQ-14"), id="epoch below -2"),
]


@pytest.mark.parametrize(("who", "epoch", "said"), WRONG)
def test_a_request_that_is_wrong_by_itself_is_refused(who: str, epoch: int, said: dict[str, Any]) -> None:
    lab = Lab()
    lab("a", JOIN)
    lab.written()
    request = lab.request(who, epoch, **said)
    if "owned" in said:
        request.ClearField("owned")
        if said["owned"]:
            request.owned.topics.add(topic="t", partitions=[0])
    assert heard(lab.answer(request)) == INVALID_REQUEST
    assert lab.written() == []


@pytest.mark.row("HQ-12")
@pytest.mark.parametrize("said", [{"topics": []}, {"regex": ""}, {"topics": [], "regex": ""}])
def test_a_member_may_have_no_topics(said: dict[str, Any]) -> None:
    lab = Lab()
    assert lab("a", JOIN, **said) == (1, NOTHING)
    assert "a" in lab.group.members


@pytest.mark.row("HQ-15")
@pytest.mark.parametrize("epoch", [JOIN, 1, LEAVE])
def test_an_assignor_that_there_is_not_is_refused_last_and_always(epoch: int) -> None:
    lab = Lab()
    lab("a", JOIN)
    lab.written()
    assert lab("a", epoch, assignor="sticky") == UNSUPPORTED_ASSIGNOR
    assert lab("", epoch, assignor="sticky") == INVALID_REQUEST
    assert lab.written() == []
    assert lab("b", JOIN, assignor="range") == (2, NOTHING)


@pytest.mark.row("HQ-16")
@pytest.mark.parametrize("epoch", [1, 77, LEAVE, AWAY])
def test_only_a_join_makes_a_group(epoch: int) -> None:
    lab = Lab()
    assert lab("a", epoch, instance="i") == GROUP_ID_NOT_FOUND
    assert not lab.cluster.shard.groups


@pytest.mark.row("HQ-17")
@pytest.mark.row("MG-04")
@pytest.mark.row("MG-07")
def test_a_classic_group_is_taken_over_by_a_join_when_it_is_empty() -> None:
    lab = Lab(min_session_timeout_ms=1_000, initial_rebalance_delay_ms=100)
    (classic,) = stable(lab.cluster, "c")
    for epoch in (JOIN, 1, LEAVE):
        assert lab("a", epoch) == GROUP_ID_NOT_FOUND
    assert classic.heartbeat() == error_code.NONE
    classic.leave()
    for epoch in (1, LEAVE, AWAY):
        assert lab("a", epoch, instance="i") == GROUP_ID_NOT_FOUND
    joined = lab.answer(lab.request("a", JOIN))
    assert joined.member_epoch > classic.generation
    assert joined.assignment.given
    assert lab.describe().state == "Stable"
    assert member(lab.cluster, "d").join().joined().error_code == error_code.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.row("HQ-18")
def test_a_full_group_refuses_strangers_before_it_looks_for_them() -> None:
    lab = Lab(max_size=2)
    lab("a", JOIN)
    lab("b", JOIN)
    assert lab("c", JOIN) == GROUP_MAX_SIZE_REACHED
    assert lab("c", 5) == GROUP_MAX_SIZE_REACHED
    assert lab("c", LEAVE) == UNKNOWN_MEMBER_ID
    assert lab("a", 1) == (1, t(0, 1, 2))


@pytest.mark.row("HQ-19")
def test_a_full_group_refuses_a_replacement_as_kafka_4_1_does() -> None:
    lab = Lab(max_size=2)
    lab("a", JOIN, instance="i")
    lab("b", JOIN)
    lab("a", AWAY, instance="i")
    assert lab("c", JOIN, instance="i") == GROUP_MAX_SIZE_REACHED


@pytest.mark.row("HQ-19")
def test_whoever_names_its_join_takes_a_place_in_a_full_group() -> None:
    lab = Lab(max_size=2)
    lab("b", JOIN)

    def join(who: str, process: bytes, replaces: Position | None = None) -> ConsumerGroupHeartbeatResponse:
        request = lab.request(who, JOIN, instance="i")
        request.member_seq, request.process_id = 1, process * 16
        if replaces is not None:
            request.replaces.CopyFrom(replaces.to_proto())
        return lab.answer(request)

    assert not join("a", b"1").error_code
    held = lab.member("a").assigned
    refused = join("c", b"2")
    assert refused.error_code == UNRELEASED_INSTANCE_ID
    leave = lab.request("a", AWAY, instance="i")
    leave.member_seq, leave.process_id = 1, b"1" * 16
    assert heard(lab.answer(leave)) == (AWAY, None)
    assert not join("c", b"2", Position.from_proto(refused.holder)).error_code
    assert lab.member("c").assigned == held
    assert len(lab.group.members) == 2
    assert lab("d", JOIN) == GROUP_MAX_SIZE_REACHED


@pytest.mark.row("HQ-20")
def test_an_expression_that_is_none_is_refused_and_nothing_written() -> None:
    lab = Lab()
    assert lab("a", JOIN, regex="(") == INVALID_REGULAR_EXPRESSION
    assert lab.written() == []
    lab("a", JOIN)
    lab.written()
    assert lab("a", 1, regex="[") == INVALID_REGULAR_EXPRESSION
    assert lab.written() == []
    assert lab.member("a").told.topic_regex == ""


@pytest.mark.row("HQ-24")
@pytest.mark.parametrize(
    ("who", "epoch", "said", "code"),
    [
        ("x", 7, {"group": "none", "instance": "i", "regex": "("}, GROUP_ID_NOT_FOUND),
        ("x", 7, {"instance": "none", "regex": "("}, GROUP_MAX_SIZE_REACHED),
        ("a", 7, {"instance": "none", "regex": "("}, UNKNOWN_MEMBER_ID),
        ("b", 7, {"instance": "i", "regex": "("}, FENCED_INSTANCE_ID),
        ("b", JOIN, {"instance": "i", "regex": "("}, UNRELEASED_INSTANCE_ID),
        ("b", 7, {"regex": "("}, FENCED_MEMBER_EPOCH),
        ("b", 2, {"regex": "("}, INVALID_REGULAR_EXPRESSION),
    ],
    ids=["group", "size", "instance", "other instance", "held instance", "epoch", "expression"],
)
def test_what_is_wrong_in_several_ways_is_refused_in_kafkas_order(
    who: str, epoch: int, said: dict[str, Any], code: int
) -> None:
    lab = Lab(max_size=2)
    lab("a", JOIN, instance="i")
    lab("b", JOIN)
    assert lab(who, epoch, **said) == code


@pytest.mark.row("HQ-25")
def test_an_answer_has_the_id_the_epoch_after_the_request_and_the_interval() -> None:
    lab = two()
    answer = lab.answer(lab.request("a", 1, t(0, 1, 2)))
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("a", 2, 5_000)
    other = Lab(incremental_heartbeat_interval_ms=7_000)
    assert other.answer(other.request("a", JOIN)).heartbeat_interval_ms == 7_000


@pytest.mark.row("HQ-26")
def test_a_join_is_always_answered_with_a_list() -> None:
    lab = Lab()
    assert lab("a", JOIN) == (1, t(0, 1, 2, 3, 4, 5))
    assert lab("b", JOIN) == (2, NOTHING)
    assert lab("b", JOIN) == (2, NOTHING)  # once more


@pytest.mark.row("HQ-27")
def test_whoever_says_everything_is_told_everything() -> None:
    lab = Lab()
    lab("a", JOIN)
    everything: Owned = t(0, 1, 2, 3, 4, 5)
    assert lab("a", 1, everything, topics=["t"], rebalance=60_000) == (1, everything)
    for part in ({"topics": ["t"]}, {"rebalance": 60_000}):
        assert lab("a", 1, everything, **part) == (1, None)
    assert lab("a", 1, topics=["t"], rebalance=60_000) == (1, None)
    assert lab("a", 1, everything, regex="", rebalance=60_000) == (1, everything)


@pytest.mark.row("HQ-28")
@pytest.mark.row("HQ-29")
def test_a_list_is_answered_where_the_request_changed_it() -> None:
    lab = two()
    assert lab("a", 1, t(0, 1, 2)) == (2, None)  # the epoch advances, the list stays
    assert lab("b", 2) == (2, t(3, 4, 5))
    assert lab("b", 2) == (2, None)


@pytest.mark.row("HQ-30")
def test_a_list_of_more_than_one_has_is_no_error() -> None:
    lab = two()
    assert lab("a", 1, {"t": [0, 1, 2], "u": [7]}) == (2, None)
    assert lab("a", 2, t(0, 1, 2, 3, 4, 5)) == (2, None)
    assert lab("b", 2, t(0)) == (2, t(3, 4, 5))
    assert lab("a", 1, t(0, 1, 2, 5)) == FENCED_MEMBER_EPOCH  # but no proof for the epoch before


@pytest.mark.row("HQ-31")
def test_no_list_while_something_is_to_be_given_back_says_that_it_is_still_there() -> None:
    lab = two()
    assert lab("a", 1) == (1, None)
    assert lab.owes("a") == t(3, 4, 5)
    assert lab("b", 2) == (2, None)
    assert lab.has("b") == NOTHING


@pytest.mark.row("HQ-32")
def test_what_is_not_said_is_as_before() -> None:
    lab = Lab()
    lab("a", JOIN, rack="r", rebalance=9_000, assignor="range", instance="i")
    told = lab.member("a").told
    lab.written()
    assert lab("a", 1, instance="i") == (1, None)
    assert lab.written() == []
    lab("a", 1, instance="i", rebalance=8_000)
    assert (told.rack_id, told.topics, told.server_assignor) == ("r", frozenset({"t"}), "range")
    now = lab.member("a").told
    assert (now.rack_id, now.topics, now.server_assignor) == ("r", frozenset({"t"}), "range")
    assert now.rebalance_timeout_ms == 8_000


@pytest.mark.row("HQ-33")
def test_another_client_id_or_host_is_noted_and_does_nothing_else() -> None:
    lab = Lab()
    lab("a", JOIN)
    lab.written()
    request = lab.request("a", 1)
    request.client_id = "other"
    assert heard(lab.answer(request)) == (1, None)
    assert lab.written() == ["member_subscribed"]
    assert heard(answered(lab, lab.cluster.send(request, host="10.9.9.9"))) == (1, None)
    assert lab.written() == ["member_subscribed"]
    assert (lab.member("a").told.client_id, lab.member("a").told.host) == ("other", "10.9.9.9")
    assert lab.epochs == (1, 1)


@pytest.mark.row("HQ-34")
@pytest.mark.parametrize(
    ("who", "epoch", "owned"),
    [("b", 2, t(3, 4, 5)), ("a", 1, t(0, 1, 2, 3, 4, 5)), ("b", 2, NOTHING), ("a", 1, t(0, 1, 2))],
    ids=["settled", "gives back", "waits", "has given back"],
)
def test_a_request_that_is_made_twice_counts_once(who: str, epoch: int, owned: Owned) -> None:
    lab = two()
    if (who, owned) == ("b", t(3, 4, 5)):
        lab("a", 1, t(0, 1, 2))
        lab("b", 2)
    everything = {"topics": ["t"], "rebalance": 60_000}
    first = lab(who, epoch, owned, **everything)
    lab.written()
    assert lab(who, epoch, owned, **everything) == first
    assert lab.written() == []


@pytest.mark.row("HQ-35")
@pytest.mark.parametrize("epoch", [LEAVE, AWAY])
def test_a_leave_is_answered_with_its_epoch_and_nothing_else(epoch: int) -> None:
    lab = Lab()
    lab("a", JOIN, instance="i")
    answer = lab.answer(lab.request("a", epoch, instance="i"))
    assert heard(answer) == (epoch, None)
    assert (answer.member_id, answer.heartbeat_interval_ms) == ("a", 0)


@pytest.mark.row("HQ-36")
@pytest.mark.row("MI-03")
@pytest.mark.row("GS-13")
def test_nothing_is_answered_or_shown_that_is_not_stored() -> None:
    lab = Lab()
    lab.cluster.auto_ack = False
    join = lab.cluster.send(lab.request("a", JOIN))
    while lab.cluster.is_parked(join):
        assert lab.describe().error_code == GROUP_ID_NOT_FOUND
        lab.cluster.acknowledge()
    assert heard(answered(lab, join)) == (1, t(0, 1, 2, 3, 4, 5))
    assert len(lab.describe().members) == 1
    lab.cluster.send(lab.request("b", JOIN))
    plain = lab.cluster.send(lab.request("a", 1, t(0, 1, 2, 3, 4, 5)))
    assert lab.cluster.is_parked(plain)  # whatever it writes itself
    assert len(lab.describe().members) == 1
    while lab.cluster.waiting:
        lab.cluster.acknowledge()
    assert not lab.cluster.is_parked(plain)
    assert len(lab.describe().members) == 2


@pytest.mark.row("HQ-37")
def test_a_topic_that_there_is_not_counts_when_it_appears() -> None:
    lab = Lab({"t": 2})
    assert lab("a", JOIN, topics=["t", "later"]) == (1, t(0, 1))
    lab.tell({"t": 2, "later": 1})
    assert lab("a", 1) == (2, {"t": [0, 1], "later": [0]})
