"""Clocks of members (rows TM), and what a load leaves of them and of everything else (rows LR)."""

import pytest
from conformance.incremental.lab import AWAY, JOIN, NOTHING, Lab, heard, t
from muster_core.config import GroupConfig
from muster_core.error_code import (
    FENCED_MEMBER_EPOCH,
    GROUP_MAX_SIZE_REACHED,
    NOT_COORDINATOR,
    UNKNOWN_MEMBER_ID,
)
from muster_core.events import Resolve, Unload
from muster_core.protocol.room import Room
from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatResponse

ALL = t(0, 1, 2, 3, 4, 5)


def one() -> Lab:
    """`a` has everything, at epoch 1."""
    lab = Lab()
    assert lab("a", JOIN) == (1, ALL)
    lab.written()
    return lab


def two(rebalance: int = 10_000) -> Lab:
    """`a` is to give half of what it has to `b`: since now, for as long as its time-out."""
    lab = Lab()
    assert lab("a", JOIN, rebalance=rebalance) == (1, ALL)
    lab.shares = {"a": t(0, 1, 2), "b": t(3, 4, 5)}
    assert lab("b", JOIN) == (2, NOTHING)
    assert lab("a", 1) == (1, t(0, 1, 2))
    lab.written()
    return lab


# --- the session


@pytest.mark.row("TM-01")
def test_each_heartbeat_begins_the_session_anew_also_one_that_writes_nothing() -> None:
    lab = one()
    for _ in range(4):
        lab.cluster.advance(44_999)
        assert lab("a", 1) == (1, None)
    assert lab.written() == []
    lab.cluster.advance(44_999)
    assert list(lab.group.members) == ["a"]
    lab.cluster.advance(1)
    assert not lab.group.members


@pytest.mark.row("TM-02")
@pytest.mark.row("TM-03")
@pytest.mark.row("OV-17")
@pytest.mark.parametrize("what", ["refused heartbeat", "commit", "fetch"])
def test_nothing_but_a_heartbeat_that_is_accepted_is_a_sign_of_life(what: str) -> None:
    lab = one()
    lab.cluster.advance(44_000)
    if what == "refused heartbeat":
        assert lab("a", 7) == FENCED_MEMBER_EPOCH
        assert isinstance(lab("a", 1, assignor="none"), int)
    elif what == "commit":
        assert lab.commit("a", 1) == [0]
    else:
        assert lab.fetch("a", 1) == (0, [-1])
    lab.cluster.advance(1_000)
    assert not lab.group.members


@pytest.mark.row("TM-04")
@pytest.mark.row("TM-05")
@pytest.mark.row("PR-03")
def test_a_session_that_ends_frees_what_the_member_had_and_others_learn_it_when_they_ask() -> None:
    lab = two(rebalance=60_000)
    lab("b", 2)
    lab.cluster.advance(40_000)
    lab("b", 2)
    lab.written()
    lab.cluster.advance(5_000)
    assert lab.written() == ["member_removed", "epoch_raised"]
    assert (lab.epochs, lab.group.owners) == ((3, 2), {})
    lab.shares = {"b": ALL}
    lab.cluster.advance(20_000)  # its deadline to give back ends with it
    assert lab.written() == []
    assert lab("b", 2) == (3, ALL)
    assert lab("a", 1) == UNKNOWN_MEMBER_ID


@pytest.mark.row("TM-06")
def test_the_coordinator_says_how_long_a_session_is() -> None:
    config = GroupConfig()
    times = config.incremental_session_timeout_ms, config.incremental_heartbeat_interval_ms
    assert times == (45_000, 5_000)
    lab = one()
    answer = lab.answer(lab.request("a", 1))
    assert (answer.session_timeout_ms, answer.heartbeat_interval_ms) == (45_000, 5_000)


@pytest.mark.row("TM-08")
def test_other_times_count_from_the_next_heartbeat_of_each_member() -> None:
    lab = one()
    later = lab.reloaded(incremental_session_timeout_ms=50_000, incremental_heartbeat_interval_ms=10_000)
    answer = later.answer(later.request("a", 1))
    assert (answer.session_timeout_ms, answer.heartbeat_interval_ms) == (50_000, 10_000)
    later.cluster.advance(49_999)
    assert later.group.members
    later.cluster.advance(1)
    assert not later.group.members


# --- the deadline to give back


@pytest.mark.row("TM-10")
def test_the_deadline_is_the_members_own_as_it_says_with_the_request() -> None:
    lab = Lab()
    lab("a", JOIN, rebalance=10_000)
    lab.shares = {"a": t(0, 1, 2), "b": t(3, 4, 5)}
    lab("b", JOIN)
    assert lab("a", 1, rebalance=12_000) == (1, t(0, 1, 2))
    assert lab.describe().members[0].revocation_remaining_ms == 12_000
    assert lab.describe().members[1].revocation_remaining_ms == -1


@pytest.mark.row("TM-11")
@pytest.mark.row("TM-14")
def test_heartbeats_do_not_move_the_deadline_at_which_the_member_is_removed() -> None:
    lab = two()
    for _ in range(3):
        lab.cluster.advance(3_000)
        assert lab("a", 1, ALL) == (1, None)
        assert lab("b", 2) == (2, None)
    lab.written()
    lab.cluster.advance(999)
    assert "a" in lab.group.members
    lab.cluster.advance(1)
    assert "a" not in lab.group.members
    assert lab.written() == ["member_removed", "epoch_raised"]
    assert lab("a", 1) == UNKNOWN_MEMBER_ID
    lab.shares = {"b": ALL}
    assert lab("b", 2) == (3, ALL)


@pytest.mark.row("TM-12")
def test_what_is_taken_next_has_all_of_its_time() -> None:
    lab = two()
    lab.shares = {"a": t(0), "b": t(1, 2, 3, 4, 5)}
    lab("b", 2, topics=["t", "u"])
    lab.cluster.advance(9_000)
    assert lab("a", 1, t(0, 1, 2)) == (2, t(0))
    lab.cluster.advance(9_999)
    assert "a" in lab.group.members
    lab.cluster.advance(1)
    assert "a" not in lab.group.members


@pytest.mark.row("TM-13")
@pytest.mark.row("TM-15")
def test_whoever_has_given_back_has_no_deadline_any_more() -> None:
    lab = two()
    lab.cluster.advance(9_999)
    assert lab("a", 1, t(0, 1, 2)) == (2, None)
    lab.written()
    lab.cluster.advance(30_000)
    assert lab.written() == []
    assert "a" in lab.group.members


@pytest.mark.row("TM-15")
def test_a_deadline_of_a_member_that_is_gone_does_nothing() -> None:
    lab = two()
    lab("a", -1)
    lab.written()
    lab.cluster.advance(10_000)
    assert lab.written() == []


@pytest.mark.row("TM-16")
@pytest.mark.row("TM-17")
@pytest.mark.row("GS-08")
def test_each_slow_member_has_its_own_deadline_and_whoever_waits_has_none() -> None:
    lab = Lab()
    lab("a", JOIN, rebalance=10_000)
    lab.shares = {"a": t(0, 1, 2), "b": t(3, 4, 5)}
    lab("b", JOIN, rebalance=10_000)
    lab("a", 1, t(0, 1, 2))
    lab("b", 2)
    lab.shares = {"a": t(0, 1), "b": t(3, 4), "c": t(2, 5)}
    lab("c", JOIN, rebalance=1_000)
    assert lab("a", 2) == (2, t(0, 1))
    lab.cluster.advance(6_000)
    assert lab("b", 2) == (2, t(3, 4))
    assert lab("c", 3) == (3, None)
    assert lab.describe().state == "Reconciling"
    lab.cluster.advance(4_000)
    assert sorted(lab.group.members) == ["b", "c"]  # and c waits on, beyond its own time-out
    assert lab.has("b") == t(3, 4)
    lab.cluster.advance(6_000)
    assert sorted(lab.group.members) == ["c"]


@pytest.mark.row("TM-20")
@pytest.mark.row("LR-12")
def test_a_lower_limit_removes_nobody() -> None:
    lab = Lab()
    for who in "abc":
        lab(who, JOIN)
    later = lab.reloaded(max_size=2)
    assert len(later.group.members) == 3
    for who in "abc":
        assert not isinstance(later(who, later.member(who).epoch), int)
    assert later("d", JOIN) == GROUP_MAX_SIZE_REACHED


# --- loads


@pytest.mark.row("LR-01")
@pytest.mark.row("LR-04")
@pytest.mark.row("LR-10")
def test_after_a_load_everybody_has_a_whole_session() -> None:
    lab = one()
    lab.cluster.advance(44_000)
    later = lab.reloaded()
    later.cluster.advance(44_999)
    assert later.group.members
    later.cluster.advance(1)
    assert not later.group.members


@pytest.mark.row("LR-02")
@pytest.mark.row("LR-10")
def test_after_a_load_whoever_gives_back_has_all_of_its_time() -> None:
    lab = two()
    lab.cluster.advance(9_000)
    later = lab.reloaded()
    later.cluster.advance(9_999)
    assert later.owes("a") == t(3, 4, 5)
    later.cluster.advance(1)
    assert "a" not in later.group.members


@pytest.mark.row("LR-03")
def test_a_load_computes_nothing_and_writes_nothing() -> None:
    lab = two()
    lab("c", JOIN, instance="i")
    lab("c", AWAY, instance="i")
    lab("b", -1)
    before = lab.epochs
    later = lab.reloaded()
    assert (later.epochs, later.asked, later.written()) == (before, [], [])
    later.cluster.advance(9_000)
    assert (later.epochs, later.asked, later.written()) == (before, [], [])


@pytest.mark.row("LR-06")
@pytest.mark.row("LR-07")
def test_members_go_on_after_a_load_where_they_were() -> None:
    lab = two()
    later = lab.reloaded()
    later.shares = lab.shares
    everything = {"topics": ["t"], "rebalance": 10_000}
    assert later("a", 1, ALL, **everything) == (1, t(0, 1, 2))
    assert later("b", 2, NOTHING, topics=["t"], rebalance=60_000) == (2, NOTHING)
    assert later("a", 1, t(0, 1, 2), **everything) == (2, t(0, 1, 2))
    last = later.reloaded()  # and that answer was lost
    last.written()
    assert last("a", 1, t(0, 1, 2), **everything) == (2, t(0, 1, 2))
    assert last.written() == []
    assert last("b", 2) == (2, t(3, 4, 5))
    assert last.epochs == (2, 2)


@pytest.mark.row("LR-08")
def test_what_a_member_heard_and_the_log_does_not_have_is_too_new() -> None:
    lab = two()
    upto = len(lab.cluster.log)
    assert lab("a", 1, t(0, 1, 2)) == (2, None)
    short = Lab(None, lab.cluster.log[:upto])
    assert short("a", 2, t(0, 1, 2)) == FENCED_MEMBER_EPOCH


@pytest.mark.row("LR-09")
def test_what_expressions_match_is_known_after_a_load_and_a_search_that_ran_is_begun_again() -> None:
    topics = {"t": 1, "u": 1}
    lab = Lab(topics)
    lab("a", JOIN, regex="t")
    lab.cluster.advance(10_001)
    lab.cluster.works = None
    lab("b", JOIN, regex="u")
    assert len(lab.cluster.work) == 1
    later = lab.reloaded(topics)
    assert later.group.expressions == {"t": {"t"}}
    later.cluster.works = None
    later("b", later.member("b").epoch, regex="u")
    assert [type(work) for work in later.cluster.work] == [Resolve]


@pytest.mark.row("LR-11")
def test_whoever_waits_for_a_shard_that_is_given_away_is_told_who_has_it() -> None:
    lab = one()
    lab.cluster.shard.live_in(Room(assignors={"uniform": lambda _: {}}, at_once_max=0))
    lab.cluster.works = None
    call_id = lab.cluster.send(lab.request("b", JOIN))
    assert lab.cluster.is_parked(call_id)
    count = len(lab.cluster.log)
    lab.cluster.feed(Unload(common_pb2.Coordinator(node_id="n", host="h", port=9)))
    answer = lab.cluster.answer(call_id)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    assert (heard(answer), answer.coordinator.node_id) == (NOT_COORDINATOR, "n")
    lab.cluster.advance(100_000)
    assert len(lab.cluster.log) == count
