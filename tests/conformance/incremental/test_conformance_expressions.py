"""Subscriptions by expressions (rows RX), and what they do to the epoch of a group (rows GE)."""

import pytest
from conformance.incremental.lab import JOIN, LEAVE, NOTHING, Lab, t
from kit.lives.server_assignors import answer_to
from muster_core.error_code import TOPIC_AUTHORIZATION_FAILED
from muster_core.events import Resolve

TOPICS = {"t": 2, "u": 2, "uu": 1}


def both() -> Lab:
    """`a` subscribes to `t`, and `b` to `u.*`, which is resolved."""
    lab = Lab(TOPICS)
    assert lab("a", JOIN) == (1, t(0, 1))
    assert lab("b", JOIN, regex="u.*") == (1, NOTHING)
    assert lab.epochs == (2, 1)
    assert lab("b", 1) == (2, {"u": [0, 1], "uu": [0]})
    lab("a", 1)
    lab.written()
    return lab


@pytest.mark.row("RX-01")
def test_the_whole_name_has_to_match() -> None:
    lab = Lab(TOPICS)
    lab("a", JOIN, regex="u")
    assert lab("a", 1) == (2, {"u": [0, 1]})


@pytest.mark.row("RX-02")
def test_all_expressions_of_a_group_are_looked_up_aside_and_stored_with_one_epoch() -> None:
    lab = Lab(TOPICS)
    lab.cluster.works = None
    lab("a", JOIN, regex="t")
    lab.cluster.work.clear()
    later = lab.reloaded(TOPICS)
    later.cluster.works = None
    later("b", JOIN, regex="u.*")
    (work,) = later.cluster.work
    assert isinstance(work, Resolve)
    assert work.expressions == ("t", "u.*")
    later.written()
    later.cluster.work.clear()
    later.cluster.feed(answer_to(work))
    assert later.written() == ["expression_resolved", "expression_resolved", "epoch_raised"]


@pytest.mark.row("RX-03")
def test_expressions_are_looked_up_when_one_is_new_or_topics_are_and_not_too_often() -> None:
    lab = both()
    lab("a", lab.member("a").epoch, regex="t", topics=[])
    assert "t" not in lab.group.expressions  # 10 s since the last look are not over
    lab.cluster.advance(10_001)
    lab("b", 2)
    assert lab.group.expressions["t"] == {"t"}
    lab.cluster.works = None
    lab.cluster.advance(10_001)
    lab("b", lab.member("b").epoch)
    assert not lab.cluster.work  # nothing is new
    lab.tell(TOPICS | {"uuu": 1})
    lab("b", lab.member("b").epoch)
    lab("a", lab.member("a").epoch)
    assert len(lab.cluster.work) == 1  # one at a time


@pytest.mark.row("GE-07")
@pytest.mark.row("RX-04")
def test_a_join_with_a_new_expression_is_answered_before_that_is_resolved() -> None:
    lab = Lab(TOPICS)
    lab("a", JOIN)
    lab.cluster.works = None
    assert lab("b", JOIN, regex="u.*") == (1, NOTHING)
    assert lab.epochs == (1, 1)
    assert not lab.member("b").waits
    lab.cluster.feed(answer_to(lab.cluster.work.popleft()))
    assert lab.epochs == (2, 1)
    assert lab("b", 1) == (2, {"u": [0, 1], "uu": [0]})


@pytest.mark.row("RX-05")
def test_what_is_found_for_an_expression_that_nobody_has_any_more_is_dropped() -> None:
    lab = Lab(TOPICS)
    lab.cluster.works = None
    lab("a", JOIN, regex="t")
    work = lab.cluster.work.popleft()
    lab("a", 1, regex="u")
    lab.written()
    lab.cluster.feed(answer_to(work))
    assert lab.group.expressions == {}
    assert lab.written() == []


@pytest.mark.row("GE-06")
@pytest.mark.row("RX-06")
def test_an_expression_that_others_have_counts_at_once() -> None:
    lab = both()
    lab("c", JOIN, regex="u.*")
    assert lab.epochs == (3, 3)
    assert {topic for topic, _ in lab.member("c").target} <= {"u", "uu"}
    assert lab.member("c").target


@pytest.mark.row("RX-07")
def test_topics_that_a_subscriber_may_not_see_are_left_out_for_all() -> None:
    lab = Lab(TOPICS)
    lab.hidden = {("blind", "uu")}
    lab.cluster.identity = "seeing"
    lab("a", JOIN, topics=["t"])
    lab("b", JOIN, regex="u.*")
    assert lab.group.expressions["u.*"] == {"u", "uu"}
    lab.cluster.identity = "blind"
    assert lab("c", JOIN, regex="u.*") == TOPIC_AUTHORIZATION_FAILED  # it would be given what it may not see
    assert "c" not in lab.group.members
    lab.cluster.advance(10_001)
    assert lab("c", JOIN, regex="uu?") == (2, NOTHING)
    assert lab.group.expressions["uu?"] == {"u"}
    lab("c", lab.member("c").epoch)
    assert {topic for topic, _ in lab.member("c").target} <= {"u"}
    assert lab("c", lab.member("c").epoch, regex="u.*") == TOPIC_AUTHORIZATION_FAILED


@pytest.mark.row("RX-08")
def test_what_an_expression_matches_is_forgotten_with_its_last_subscriber() -> None:
    lab = both()
    lab("c", JOIN, regex="u.*")
    lab("b", LEAVE)
    assert set(lab.group.expressions) == {"u.*"}
    lab("c", lab.member("c").epoch, regex="t")
    assert set(lab.group.expressions) == set()
    other = both()
    other("b", LEAVE)
    assert set(other.group.expressions) == set()


@pytest.mark.row("GE-08")
def test_an_expression_that_is_dropped_goes_with_the_next_epoch_as_in_kafka_4_1() -> None:
    lab = both()
    lab("c", JOIN, regex="u.*")
    epoch = lab.epochs[0]
    lab("c", lab.member("c").epoch, regex="")
    assert lab.epochs == (epoch, epoch)


@pytest.mark.row("GE-09")
def test_other_topics_of_all_expressions_are_one_epoch() -> None:
    lab = both()
    lab("c", JOIN, regex="uu.*")
    lab.cluster.advance(10_001)
    lab("b", lab.member("b").epoch)
    epoch = lab.epochs[0]
    lab.tell(TOPICS | {"uuu": 1})
    lab.cluster.advance(10_001)
    lab.written()
    lab("c", lab.member("c").epoch)
    assert lab.epochs[0] == epoch + 1
    kinds = lab.written()
    assert (kinds.count("expression_resolved"), kinds.count("epoch_raised")) == (2, 1)


@pytest.mark.row("RC-27")
def test_an_expression_that_is_not_resolved_matches_nothing_in_a_target_and_names_count() -> None:
    lab = both()
    lab("b", 2, regex="uu.*")  # 10 s since the last look are not over
    lab("c", JOIN, topics=["t"])
    assert lab.member("b").target == frozenset()
    lab("b", 2, topics=["u"])
    assert ("u", 0) in lab.member("b").target  # which the expression does not match
