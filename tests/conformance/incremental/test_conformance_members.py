"""Members of incremental groups: how they come, come back and go (rows MI), and static ones (rows SX)."""

import pytest
from conformance.incremental.lab import AWAY, JOIN, LEAVE, NOTHING, Heard, Lab, Owned, listed, t
from muster_core.error_code import (
    FENCED_INSTANCE_ID,
    FENCED_MEMBER_EPOCH,
    GROUP_ID_NOT_FOUND,
    NONE,
    UNKNOWN_MEMBER_ID,
    UNRELEASED_INSTANCE_ID,
)
from muster_protos.muster.v1.coordinator_pb2 import LeaveGroupRequest

ALL = t(0, 1, 2, 3, 4, 5)


def two() -> Lab:
    """`a` has everything, and is to give half of it to `b`, which has joined."""
    lab = Lab()
    assert lab("a", JOIN) == (1, ALL)
    lab.shares = {"a": t(0, 1, 2), "b": t(3, 4, 5)}
    assert lab("b", JOIN) == (2, NOTHING)
    return lab


def at_three(instance: str | None = None) -> Lab:
    """`a` is at epoch 3 with 0 and 1, and was at 2 before."""
    lab = Lab()
    lab("a", JOIN, instance=instance)
    lab.shares = {"a": t(0, 1, 2), "b": t(3, 4, 5)}
    lab("b", JOIN)
    lab("a", 1)
    assert lab("a", 1, t(0, 1, 2)) == (2, None)
    lab.shares = {"a": t(0, 1), "b": t(3, 4, 5), "c": t(2)}
    assert lab("c", JOIN) == (3, NOTHING)
    assert lab("a", 2) == (2, t(0, 1))
    assert lab("a", 2, t(0, 1)) == (3, None)
    lab.written()
    return lab


# --- joins


@pytest.mark.row("MI-02")
def test_a_join_whose_answer_was_lost_is_made_again_by_the_same_member() -> None:
    lab = Lab()
    assert lab("a", JOIN) == (1, ALL)
    lab.written()
    assert lab("a", JOIN) == (1, ALL)
    assert list(lab.group.members) == ["a"]
    assert lab.epochs == (1, 1)


@pytest.mark.row("MI-03")
@pytest.mark.row("MI-04")
@pytest.mark.row("GE-01")
def test_the_first_join_makes_the_group_and_is_given_everything() -> None:
    lab = Lab()
    assert lab.describe().error_code == GROUP_ID_NOT_FOUND
    assert lab("a", JOIN) == (1, ALL)
    assert lab.epochs == (1, 1)
    assert lab.describe().state == "Stable"


@pytest.mark.row("MI-05")
def test_whoever_joins_gets_nothing_that_others_have() -> None:
    lab = two()
    assert lab.member("b").waits
    assert (lab.member("b").epoch, lab.has("b"), lab.epochs) == (2, NOTHING, (2, 2))


@pytest.mark.row("MI-06")
@pytest.mark.row("MI-17")
def test_a_stranger_that_does_not_join_is_unknown() -> None:
    lab = Lab()
    lab("a", JOIN)
    lab.written()
    for epoch in (1, 7, LEAVE):
        assert lab("x", epoch) == UNKNOWN_MEMBER_ID
    assert lab.written() == []


# --- epochs


@pytest.mark.parametrize(
    ("epoch", "owned", "expected"),
    [
        pytest.param(4, t(0, 1), FENCED_MEMBER_EPOCH, marks=pytest.mark.row("MI-07"), id="ahead"),
        pytest.param(1, t(0, 1), FENCED_MEMBER_EPOCH, marks=pytest.mark.row("MI-08"), id="long ago"),
        pytest.param(2, None, FENCED_MEMBER_EPOCH, marks=pytest.mark.row("MI-09"), id="no list"),
        pytest.param(2, t(0, 5), FENCED_MEMBER_EPOCH, marks=pytest.mark.row("MI-10"), id="other list"),
        pytest.param(2, t(0, 1), (3, None), marks=pytest.mark.row("MI-11"), id="its list"),
        pytest.param(2, t(1), (3, None), marks=pytest.mark.row("MI-11"), id="part of its list"),
        pytest.param(3, None, (3, None), marks=pytest.mark.row("MI-11"), id="present"),
    ],
)
@pytest.mark.parametrize("instance", [None, "i"])
@pytest.mark.row("SX-07")
def test_the_present_epoch_counts_and_the_one_before_with_a_list(
    instance: str | None, epoch: int, owned: Owned | None, expected: Heard
) -> None:
    lab = at_three(instance)
    assert lab("a", epoch, owned, instance=instance) == expected
    if not isinstance(expected, tuple):
        assert lab.written() == []


@pytest.mark.row("MI-12")
def test_each_step_shifts_the_epoch_before_also_where_the_epoch_stays() -> None:
    lab = two()
    assert lab.member("b").previous_epoch == 0
    assert lab("b", 2) == (2, None)  # nothing happened, and the epoch before is 2 from now on
    assert lab.member("b").previous_epoch == 2
    assert lab("b", JOIN) == FENCED_MEMBER_EPOCH
    assert lab("b", 2) == (2, None)


@pytest.mark.row("MI-13")
def test_a_join_of_a_member_that_lives_is_refused_unless_it_has_just_joined() -> None:
    lab = Lab()
    assert lab("a", JOIN) == (1, ALL)
    assert lab("a", JOIN) == (1, ALL)  # its epoch before is 0
    lab.shares = {"a": t(0, 1, 2), "b": t(3, 4, 5)}
    lab("b", JOIN)
    lab("a", 1)
    lab.written()
    assert lab("a", JOIN) == FENCED_MEMBER_EPOCH
    assert lab.written() == []


@pytest.mark.row("MI-14")
def test_a_join_of_a_member_that_gives_back_is_refused_and_frees_nothing() -> None:
    lab = two()
    lab("a", 1)
    assert lab("a", JOIN) == FENCED_MEMBER_EPOCH  # as Kafka 4.1
    assert lab.owes("a") == t(3, 4, 5)
    assert lab("b", 2) == (2, None)


@pytest.mark.row("MI-14")
def test_whoever_names_its_join_gives_everything_back_by_joining_again() -> None:
    lab = Lab()
    request = lab.request("a", JOIN)
    request.member_seq, request.process_id = 1, b"1" * 16
    lab.answer(request)
    lab.shares = {"a": t(0, 1, 2), "b": t(3, 4, 5)}
    lab("b", JOIN)
    beat = lab.request("a", 1)
    beat.member_seq, beat.process_id = 1, b"1" * 16
    lab.answer(beat)
    assert lab.owes("a") == t(3, 4, 5)
    request.member_seq = 2
    assert not lab.answer(request).error_code
    assert (lab.owes("a"), lab.has("a")) == (NOTHING, t(0, 1, 2))
    assert lab("b", 2) == (2, t(3, 4, 5))


@pytest.mark.row("MI-15")
def test_a_join_that_is_made_again_by_whoever_waits_gives_it_what_is_free() -> None:
    lab = two()
    lab("a", 1)
    lab("a", 1, t(0, 1, 2))
    assert lab("b", JOIN) == (2, t(3, 4, 5))
    assert not lab.member("b").waits


# --- ends


@pytest.mark.row("MI-16")
@pytest.mark.row("RC-31")
def test_a_leaver_is_gone_with_all_that_it_has_and_owes() -> None:
    lab = two()
    lab("a", 1)
    assert lab.owes("a") == t(3, 4, 5)
    lab.shares = {"b": ALL}
    assert lab("a", LEAVE) == (LEAVE, None)
    assert "a" not in lab.group.members
    assert lab.group.owners == {}
    assert lab("b", 2) == (3, ALL)


@pytest.mark.row("MI-18")
@pytest.mark.row("GE-11")
def test_an_operator_takes_several_members_out_with_one_epoch() -> None:
    lab = Lab()
    lab("a", JOIN)
    lab("b", JOIN)
    lab("c", JOIN, instance="i")
    lab.written()
    member = LeaveGroupRequest.Member
    gone = [member(member_id="a"), member(group_instance_id="i"), member(member_id="x")]
    assert lab.put_out(*gone) == [NONE, NONE, UNKNOWN_MEMBER_ID]
    assert lab.written() == ["member_removed", "member_removed", "epoch_raised"]
    assert lab.epochs == (4, 3)
    assert list(lab.group.members) == ["b"]
    assert lab.put_out(member(member_id="x")) == [UNKNOWN_MEMBER_ID]
    assert lab.written() == []


@pytest.mark.row("MI-19")
def test_whoever_was_removed_hears_so_when_it_asks() -> None:
    lab = two()
    lab.put_out(LeaveGroupRequest.Member(member_id="a"))
    assert lab("a", 1, ALL) == UNKNOWN_MEMBER_ID
    lab.shares = {}
    assert lab("a", JOIN) == (4, t(0, 1, 2))  # the rest is for b


@pytest.mark.row("MI-20")
def test_epochs_only_grow() -> None:
    lab = Lab()
    lab("a", JOIN)
    of_joins, of_a = [1], [1]
    for turn in range(5):
        newcomer = f"b{turn}"
        lab(newcomer, JOIN)
        of_joins.append(lab.member(newcomer).epoch)
        for _ in range(4):
            for who in ("a", newcomer):
                lab(who, lab.member(who).epoch, lab.has(who))
                of_a.append(lab.member("a").epoch)
        lab(newcomer, LEAVE)
    assert of_joins == sorted(set(of_joins))
    assert of_a == sorted(of_a)
    lab("a", LEAVE)
    before = lab.epochs[0]
    lab("a", JOIN)
    assert lab.member("a").epoch > before


# --- static members


def away() -> Lab:
    """Static `a` (instance `i`) has 0, 1 and 2 and is away; `b` has the rest."""
    lab = Lab()
    lab("a", JOIN, instance="i")
    lab.shares = {"a": t(0, 1, 2), "b": t(3, 4, 5)}
    lab("b", JOIN)
    lab("a", 1)
    lab("a", 1, t(0, 1, 2))
    assert lab("b", 2) == (2, t(3, 4, 5))
    assert lab("a", AWAY, instance="i") == (AWAY, None)
    lab.written()
    return lab


@pytest.mark.row("SX-01")
def test_a_static_id_that_nobody_has_is_a_new_member() -> None:
    lab = two()
    lab.written()
    assert lab("c", JOIN, instance="i") == (3, NOTHING)
    assert lab.written() == ["member_subscribed", "epoch_raised", "target_assigned", "member_stepped"]


@pytest.mark.row("SX-02")
@pytest.mark.row("SX-03")
@pytest.mark.parametrize("who", ["b", "a"])
def test_a_static_id_that_somebody_has_is_refused_to_whoever_joins(who: str) -> None:
    lab = Lab()
    lab("a", JOIN, instance="i")
    lab.written()
    assert lab(who, JOIN, instance="i") == UNRELEASED_INSTANCE_ID
    assert lab.written() == []
    assert lab("a", 1, instance="i") == (1, None)


@pytest.mark.row("SX-04")
@pytest.mark.parametrize("how", ["leaves", "is away", "expires", "is removed"])
def test_a_static_id_is_free_when_its_holder_is_not_there(how: str) -> None:
    lab = Lab()
    lab("a", JOIN, instance="i")
    assert lab("b", JOIN, instance="i") == UNRELEASED_INSTANCE_ID
    if how == "expires":
        lab.cluster.advance(45_000)
    elif how == "is removed":
        lab.put_out(LeaveGroupRequest.Member(group_instance_id="i"))
    else:
        lab("a", LEAVE if how == "leaves" else AWAY, instance="i")
    joined = lab.answer(lab.request("b", JOIN, instance="i"))
    assert (joined.error_code, lab.has("b")) == (NONE, ALL)
    assert list(lab.group.members) == ["b"]


@pytest.mark.parametrize(
    ("who", "epoch", "instance", "code"),
    [
        pytest.param("a", 1, "x", UNKNOWN_MEMBER_ID, marks=pytest.mark.row("SX-05"), id="beat, unknown"),
        pytest.param("b", 2, "i", FENCED_INSTANCE_ID, marks=pytest.mark.row("SX-06"), id="beat, other"),
        pytest.param("a", LEAVE, "x", UNKNOWN_MEMBER_ID, marks=pytest.mark.row("SX-08"), id="leave, unknown"),
        pytest.param("a", AWAY, "x", UNKNOWN_MEMBER_ID, marks=pytest.mark.row("SX-08"), id="away, unknown"),
        pytest.param("b", LEAVE, "i", FENCED_INSTANCE_ID, marks=pytest.mark.row("SX-09"), id="leave, other"),
        pytest.param("b", AWAY, "i", FENCED_INSTANCE_ID, marks=pytest.mark.row("SX-09"), id="away, other"),
    ],
)
def test_a_static_id_that_is_named_must_be_the_members_own(
    who: str, epoch: int, instance: str, code: int
) -> None:
    lab = Lab()
    lab("a", JOIN, instance="i")
    lab("b", JOIN, instance="j")
    lab.written()
    assert lab(who, epoch, instance=instance) == code
    assert lab.written() == []


@pytest.mark.row("SX-10")
def test_whoever_is_away_keeps_its_share_and_owes_nothing_any_more() -> None:
    lab = Lab()
    lab("a", JOIN, instance="i")
    lab.shares = {"a": t(0, 1, 2), "b": t(3, 4, 5)}
    lab("b", JOIN)
    lab("a", 1)
    lab.written()
    assert lab("a", AWAY, instance="i") == (AWAY, None)
    assert lab.written() == ["member_went_away"]
    assert lab.epochs == (2, 2)
    assert (lab.has("a"), lab.owes("a")) == (t(0, 1, 2), NOTHING)
    assert lab("b", 2) == (2, t(3, 4, 5))


@pytest.mark.row("SX-11")
def test_nobody_is_given_what_a_member_has_that_is_away() -> None:
    lab = away()
    lab.shares = {"a": NOTHING, "b": ALL}
    assert lab("b", 2, topics=["t", "u"]) == (3, None)
    assert lab("b", 3) == (3, None)
    assert lab.has("a") == t(0, 1, 2)
    lab.cluster.advance(44_000)
    lab("b", 3)
    lab.cluster.advance(2_000)
    assert "a" not in lab.group.members
    assert lab("b", 3) == (4, ALL)


@pytest.mark.row("SX-12")
def test_a_leave_for_a_while_neither_stops_nor_renews_the_session() -> None:
    lab = away()
    last = lab.cluster.now_ms
    lab.cluster.advance(20_000)
    lab("b", 2)
    assert lab("a", AWAY, instance="i") == (AWAY, None)
    lab.cluster.advance(24_999)
    assert lab.cluster.now_ms == last + 44_999
    assert "a" in lab.group.members
    lab.cluster.advance(1)
    assert "a" not in lab.group.members
    assert lab.epochs == (3, 2)


@pytest.mark.row("SX-13")
def test_a_process_that_has_left_for_a_while_is_fenced_if_it_goes_on() -> None:
    lab = away()
    for epoch in (1, 2, 3):
        assert lab("a", epoch, t(0, 1, 2), instance="i") == FENCED_MEMBER_EPOCH
    assert lab.written() == []


@pytest.mark.row("SX-14")
@pytest.mark.row("SX-15")
@pytest.mark.row("SX-20")
@pytest.mark.row("TA-10")
@pytest.mark.row("PR-04")
def test_the_next_process_of_a_static_member_has_its_share_and_nobody_notices() -> None:
    lab = away()
    before = len(lab.asked)
    assert lab("a2", JOIN, instance="i") == (2, t(0, 1, 2))
    assert lab.written() == ["instance_moved", "member_stepped"]
    assert len(lab.cluster.appends[-1].records) == 2
    assert (lab.epochs, len(lab.asked)) == ((2, 2), before)
    assert sorted(lab.group.members) == ["a2", "b"]
    assert listed_target(lab, "a2") == t(0, 1, 2)
    assert lab("a", 2, instance="i") == FENCED_INSTANCE_ID
    assert lab("b", 2) == (2, None)


@pytest.mark.row("SX-16")
@pytest.mark.row("TA-10")
def test_a_next_process_with_other_topics_is_a_change_that_begins_with_the_old_share() -> None:
    lab = away()
    lab.tell({"t": 6, "u": 2})
    lab.shares = {"a2": {"t": [0], "u": [0, 1]}, "b": t(1, 2, 3, 4, 5)}
    lab("a2", JOIN, instance="i", topics=["t", "u"])
    assert lab.epochs == (3, 3)
    assert listed(lab.asked[-1].candidates["a2"].before) == t(0, 1, 2)
    assert listed_target(lab, "a2") == {"t": [0], "u": [0, 1]}


@pytest.mark.row("SX-17")
@pytest.mark.row("GE-15")
@pytest.mark.row("GE-16")
def test_a_next_process_with_another_vote_changes_the_assignor_of_the_next_target() -> None:
    lab = Lab()
    for who in ("a", "b", "c"):
        lab(who, JOIN, instance=who, assignor="uniform")
    for who in ("a", "b", "c"):
        lab(who, AWAY, instance=who)
    epochs = lab.epochs
    for who, winner in (("a", "uniform"), ("b", "range")):
        assert lab(f"{who}2", JOIN, instance=who, assignor="range") != FENCED_INSTANCE_ID
        assert lab.epochs == epochs  # as Kafka 4.1: it counts with the next epoch
        assert lab.describe().server_assignor == winner
    assert lab.group.server_assignor == "uniform"
    lab("d", JOIN)
    assert lab.group.server_assignor == "range"


@pytest.mark.row("SX-18")
def test_a_static_id_is_forgotten_when_its_member_comes_under_another() -> None:
    lab = away()
    assert lab.answer(lab.request("a", JOIN, instance="j")).member_epoch == 2
    assert lab.group.statics == {"j": "a"}
    assert lab("c", JOIN, instance="i") == (3, NOTHING)


@pytest.mark.row("SX-19")
def test_a_static_member_that_leaves_is_gone_with_its_static_id() -> None:
    lab = away()
    assert lab("b", LEAVE) == (LEAVE, None)
    epoch = lab.epochs[0]
    assert lab("a", LEAVE, instance="i") == (LEAVE, None)
    assert lab.epochs[0] == epoch + 1
    assert lab.group.statics == {}
    assert not lab.group.members


def listed_target(lab: Lab, who: str) -> Owned:
    return listed(lab.member(who).target)
