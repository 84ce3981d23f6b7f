"""What raises the epoch of a group (rows GE), and how its target comes about (rows TA)."""

from typing import Any

import pytest
from conformance.incremental.lab import AWAY, JOIN, LEAVE, NOTHING, Lab, Owned, heard, listed, t
from muster_core.catalog import Catalog
from muster_core.incremental.partitions import Partitions
from muster_core.incremental.targets.target import Topics
from muster_core.protocol.incremental.topics import topics_of
from muster_protos.muster.log.v1 import incremental_pb2
from muster_protos.muster.v1.coordinator_pb2 import LeaveGroupRequest

ALL = t(0, 1, 2, 3, 4, 5)
NOBODYS: Partitions = frozenset()


def two(**said: Any) -> Lab:
    """`a` (instance `i`) and `b` have three partitions each, at epoch 2."""
    lab = Lab()
    lab("a", JOIN, instance="i", **said)
    lab("b", JOIN)
    lab("a", 1)
    lab("a", 1, lab.has("a"))
    lab("b", 2)
    lab("b", 2)
    assert lab.epochs == (2, 2)
    lab.written()
    lab.asked.clear()
    return lab


# --- what raises it


@pytest.mark.row("GE-02")
@pytest.mark.row("TA-01")
@pytest.mark.row("PR-01")
@pytest.mark.row("PR-02")
def test_a_member_that_joins_with_topics_raises_it_and_has_the_target_computed() -> None:
    lab = two()
    appends = len(lab.cluster.appends)
    lab("c", JOIN)
    assert lab.written() == ["member_subscribed", "epoch_raised", "target_assigned", "member_stepped"]
    assert len(lab.cluster.appends) == appends + 1
    assert (lab.epochs, len(lab.asked)) == ((3, 3), 1)


@pytest.mark.row("GE-03")
def test_a_member_without_topics_changes_nothing() -> None:
    lab = two()
    assert lab("c", JOIN, topics=[]) == (2, NOTHING)
    assert lab.epochs == (2, 2)
    assert lab("d", JOIN, regex="nothing") == (2, NOTHING)
    assert lab.asked == []


@pytest.mark.row("GE-04")
def test_other_topics_raise_it() -> None:
    lab = two()
    lab("b", 2, topics=["t", "u"])
    assert lab.epochs == (3, 3)
    assert lab.written()[:2] == ["member_subscribed", "epoch_raised"]


@pytest.mark.row("GE-05")
def test_the_order_of_topics_does_not_count() -> None:
    lab = two(topics=["t", "u"])
    assert lab("a", 2, topics=["u", "t"], instance="i") == (2, None)
    assert lab("a", 2, topics=["u", "t", "u"], instance="i") == (2, None)
    assert lab.written() == []


@pytest.mark.row("GE-10")
@pytest.mark.parametrize("how", ["leaves", "expires", "does not give back", "is removed"])
def test_a_member_that_goes_raises_it(how: str) -> None:
    lab = two()
    if how == "leaves":
        lab("a", LEAVE, instance="i")
    elif how == "is removed":
        lab.put_out(LeaveGroupRequest.Member(member_id="a"))
    elif how == "expires":
        lab.cluster.advance(44_000)
        lab("b", 2)
        lab.cluster.advance(1_000)
    else:
        lab("a", 2, instance="i", rebalance=20_000)
        lab.shares = {"a": NOTHING, "b": ALL}
        lab("b", 2, topics=["t", "u"])
        lab("a", 2, instance="i")
        lab.written()
        lab.cluster.advance(20_000)
    epoch = 4 if how == "does not give back" else 3
    assert lab.epochs == (epoch, epoch - 1)
    assert list(lab.group.members) == ["b"]
    assert lab.written() == ["member_removed", "epoch_raised"]


@pytest.mark.row("GE-12")
@pytest.mark.row("GS-01")
def test_the_last_member_leaves_an_empty_group_that_has_nothing_to_assign() -> None:
    lab = Lab()
    lab("a", JOIN)
    lab("a", LEAVE)
    assert lab.epochs == (2, 1)
    assert lab.describe().state == "Empty"
    assert lab.written()[-2:] == ["member_removed", "epoch_raised"]
    assert lab("b", JOIN) == (3, ALL)


@pytest.mark.row("GE-13")
@pytest.mark.parametrize("topics", [{"t": 7}, {}, {"t": 6, "u": 1}], ids=["grown", "deleted", "created"])
def test_a_topic_that_changes_raises_it_with_the_next_heartbeat(topics: dict[str, int]) -> None:
    lab = two(topics=["t", "u"])
    lab.tell(topics)
    assert lab.epochs == (2, 2)
    lab("b", 2)
    assert lab.epochs == (3, 3)
    lab("b", 3)
    assert lab.epochs == (3, 3)


@pytest.mark.row("GE-17")
@pytest.mark.parametrize("said", [{"rack": "r"}, {"rebalance": 9_000}, {"assignor": "uniform"}])
def test_what_does_not_concern_the_assignment_is_noted_alone(said: dict[str, Any]) -> None:
    lab = two()
    assert lab("b", 2, **said) == (2, None)
    assert lab.written() == ["member_subscribed"]
    assert lab.epochs == (2, 2)


@pytest.mark.row("GE-18")
def test_who_goes_for_a_while_comes_back_or_says_it_twice_does_not_raise_it() -> None:
    lab = two()
    lab("a", AWAY, instance="i")
    lab("a2", JOIN, instance="i")
    lab("b", 2, lab.has("b"), topics=["t"], rebalance=60_000)
    new = Lab()
    new("a", JOIN)
    new("a", JOIN)
    assert (lab.epochs, new.epochs) == ((2, 2), (1, 1))


@pytest.mark.row("GE-19")
def test_other_settings_do_not_raise_it() -> None:
    lab = two()
    later = lab.reloaded(
        incremental_session_timeout_ms=60_000,
        incremental_heartbeat_interval_ms=9_000,
        incremental_assignment_interval_ms=1_000,
    )
    later("b", 2)
    assert later.epochs == (2, 2)
    assert later.answer(later.request("b", 2)).heartbeat_interval_ms == 9_000


@pytest.mark.row("GE-20")
@pytest.mark.row("GE-21")
def test_topics_are_compared_when_one_of_the_groups_changed_or_a_subscription_did() -> None:
    lab = two()
    lab.tell({"t": 8}, {"other"})
    lab("b", 2)
    assert lab.epochs == (2, 2)  # nobody said that `t` changed
    lab.tell({"t": 8}, {"t"})
    lab("b", 2)
    assert lab.epochs == (3, 3)
    lab.tell({"t": 9}, {"other"})
    lab("b", 3, topics=["t", "u"])
    assert lab.epochs == (4, 4)
    assert sum(len(member.target) for member in lab.group.members.values()) == 9


@pytest.mark.row("GE-21")
@pytest.mark.row("GE-22")
@pytest.mark.row("LR-05")
def test_after_a_load_topics_are_compared_once() -> None:
    lab = two()
    same = lab.reloaded()
    same.written()
    assert same("b", 2) == (2, None)
    assert same.written() == []
    other = lab.reloaded({"t": 8})
    other("b", 2)
    assert other.epochs == (3, 3)


TOPICS = Catalog(9, {"t": 3, "u": 2, "v": 1}, {}, {"t": 1, "u": 2, "v": 3})


def hash_of(names: list[str], **changes: Any) -> bytes:
    fields = {"partitions": TOPICS.partitions, "incarnations": TOPICS.incarnations, "removed": {}} | changes
    return Topics(fields["partitions"], fields["incarnations"], fields["removed"]).hash_of(names)


@pytest.mark.row("GE-23")
def test_a_topic_counts_by_its_name_its_life_and_its_partitions() -> None:
    before = hash_of(["t"])
    assert before == hash_of(["t"], partitions={"x": 9, "t": 3}, incarnations={"t": 1, "x": 7})
    assert before != hash_of(["t"], partitions={"t": 4})
    assert before != hash_of(["t"], incarnations={"t": 2})
    assert before != hash_of(["t"], removed={"t": frozenset({1})})
    assert before != hash_of(["u"], partitions={"u": 3}, incarnations={"u": 1})


@pytest.mark.row("GE-24")
def test_the_topics_of_a_group_count_in_any_order_if_they_are_there() -> None:
    assert hash_of(["t", "u"]) == hash_of(["u", "t"]) == hash_of(["t", "none", "u"])
    assert hash_of(["t", "u"]) != hash_of(["t"])
    assert hash_of([]) == hash_of(["none"]) == b""
    assert topics_of(TOPICS).hash_of(["t"]) == hash_of(["t"])


@pytest.mark.row("GE-26")
@pytest.mark.parametrize("how", ["leaves", "expires"])
def test_who_goes_has_no_target_computed_and_the_next_heartbeat_of_anybody_does(how: str) -> None:
    lab = two()
    lab("c", JOIN)
    lab.asked.clear()
    if how == "leaves":
        lab("a", LEAVE, instance="i")
    else:
        lab.cluster.advance(44_000)
        for who in ("b", "c"):
            lab(who, lab.member(who).epoch, lab.has(who))
        lab.asked.clear()
        lab.cluster.advance(1_000)
    assert (lab.epochs, lab.asked) == ((4, 3), [])
    lab("c", 3)
    assert (lab.epochs, len(lab.asked)) == ((4, 4), 1)


# --- the target


@pytest.mark.row("TA-02")
def test_a_target_that_is_not_out_of_date_is_kept() -> None:
    lab = two()
    for _ in range(3):
        lab("a", 2, lab.has("a"), instance="i", topics=["t"], rebalance=60_000)
        lab("b", 2)
    assert lab.asked == []


@pytest.mark.row("TA-03")
@pytest.mark.row("TA-04")
@pytest.mark.row("GS-07")
@pytest.mark.row("GS-02")
def test_an_interval_holds_the_next_target_back() -> None:
    lab = Lab(incremental_assignment_interval_ms=5_000)
    assert lab("a", JOIN) == (1, ALL)
    lab.cluster.advance(4_995)
    assert lab("b", JOIN) == (1, NOTHING)  # the target before
    assert lab.epochs == (2, 1)
    assert lab.describe().state == "Assigning"
    assert lab("a", 1) == (1, None)
    assert (len(lab.asked), lab.member("b").waits) == (1, False)
    lab.cluster.advance(5)
    assert lab.epochs == (2, 2)  # though nobody asked; Kafka waits for a heartbeat
    assert lab("b", 1) == (2, None)
    assert lab.member("b").waits


@pytest.mark.row("TA-03")
def test_without_an_interval_each_change_has_its_target() -> None:
    lab = Lab()
    for who in "abcd":
        lab(who, JOIN)
    assert (lab.epochs, len(lab.asked)) == ((4, 4), 4)


@pytest.mark.row("TA-06")
@pytest.mark.parametrize(
    ("votes", "winner"),
    [
        ([None, None], "uniform"),
        ([None, "range"], "range"),
        (["range", "range", "uniform"], "range"),
        (["uniform", "range", "uniform"], "uniform"),
    ],
)
def test_the_assignor_with_most_votes_is_asked(votes: list[str | None], winner: str) -> None:
    lab = Lab()
    for number, vote in enumerate(votes):
        lab(f"m{number}", JOIN, assignor=vote)
    assert lab.group.server_assignor == winner


@pytest.mark.row("TA-07")
@pytest.mark.row("TA-08")
@pytest.mark.row("TA-09")
def test_what_the_assignor_is_asked() -> None:
    lab = two(rack="r")
    lab.tell({"t": 6, "u": 2})
    before = {who: lab.member(who).target for who in ("a", "b")}
    lab("a", AWAY, instance="i")
    lab("c", JOIN, rack="s", topics=["u", "none"], regex="t.*")
    question = lab.asked[-1]
    assert sorted(question.candidates) == ["a", "b", "c"]  # who is away, and who joins
    assert question.topics == {"t": [0, 1, 2, 3, 4, 5], "u": [0, 1]}
    a, b, c = (question.candidates[who] for who in "abc")
    assert (a.rack_id, a.group_instance_id, a.topics, a.before) == ("r", "i", frozenset({"t"}), before["a"])
    assert (b.rack_id, b.group_instance_id, b.before) == ("", "", before["b"])
    assert (c.rack_id, c.topics, c.before) == ("s", frozenset({"u", "none"}), NOBODYS)  # not resolved yet


@pytest.mark.row("TA-08")
def test_what_a_member_should_have_had_counts_and_not_what_it_has() -> None:
    lab = two()
    lab.shares = {"a": ALL}
    lab("b", 2, topics=["t", "u"])
    assert lab.has("a") != ALL
    lab("c", JOIN)
    assert listed(lab.asked[-1].candidates["a"].before) == ALL


def targeted(lab: Lab) -> incremental_pb2.TargetAssigned:
    return next(
        record.target_assigned
        for _, record in reversed(lab.cluster.log)
        if record.HasField("target_assigned")
    )


@pytest.mark.row("TA-11")
@pytest.mark.row("TA-17")
def test_a_target_is_stored_as_what_it_changes() -> None:
    lab = two()
    lab("b", 2, topics=["t", "u"])
    record = targeted(lab)
    assert (record.epoch, len(record.changes)) == (3, 0)
    lab.shares = {"a": t(0, 1, 2), "b": t(4, 5), "c": t(3)}
    lab.shares["a"] = listed(lab.member("a").target)
    kept = lab.member("b").target
    lab.shares["b"] = listed(sorted(kept)[1:])
    lab.shares["c"] = listed(sorted(kept)[:1])
    lab("c", JOIN)
    assert [change.member_id for change in targeted(lab).changes] == ["b", "c"]


@pytest.mark.row("TA-12")
def test_whoever_the_assignor_leaves_out_gets_nothing() -> None:
    lab = two()
    lab.shares = {"a": ALL}
    lab("b", 2, topics=["t", "u"])
    assert lab.member("b").target == frozenset()


@pytest.mark.row("TA-14")
def test_a_group_without_topics_has_targets_of_nothing() -> None:
    lab = Lab()
    assert lab("a", JOIN, topics=["none"]) == (1, NOTHING)
    assert lab("b", JOIN, topics=["nothing"]) == (2, NOTHING)
    assert lab.epochs == (2, 2)
    assert heard(lab.answer(lab.request("a", 1))) == (2, None)
    assert lab.describe().state == "Stable"


def spread(lab: Lab) -> list[Owned]:
    return [listed(member.target) for member in lab.group.members.values()]


@pytest.mark.row("TA-16")
def test_equal_groups_have_equal_targets() -> None:
    first, second = two(), two()
    for lab in (first, second):
        lab("c", JOIN)
    assert spread(first) == spread(second)
