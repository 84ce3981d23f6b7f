"""How one member is brought towards its target (rows RC): first it gives back, then it gets."""

import random

import pytest
from conformance.incremental.lab import AWAY, JOIN, LEAVE, NOTHING, Lab, Owned, t
from muster_core.error_code import NONE, STALE_MEMBER_EPOCH
from muster_core.incremental.group import IncrementalGroupState

ALL = t(0, 1, 2, 3, 4, 5)


def one() -> Lab:
    """`a` has everything at epoch 1."""
    lab = Lab()
    assert lab("a", JOIN) == (1, ALL)
    lab.written()
    return lab


def two() -> Lab:
    """`a` has everything, and is to give half of it to `b`, which has joined: epoch 2."""
    lab = one()
    lab.shares = {"a": t(0, 1, 2), "b": t(3, 4, 5)}
    assert lab("b", JOIN) == (2, NOTHING)
    lab.written()
    return lab


def halves() -> Lab:
    """`a` and `b` have half each, at epoch 2."""
    lab = two()
    lab("a", 1)
    lab("a", 1, t(0, 1, 2))
    lab("b", 2)
    lab("b", 2)
    lab.written()
    return lab


def retarget(lab: Lab, **shares: Owned) -> int:
    """A member of another topic makes the group assign these shares; returns the target's epoch."""
    lab.shares = shares
    lab(f"x{lab.epochs[0]}", JOIN, topics=["nothing"])
    lab.written()
    return lab.epochs[1]


# --- settled


@pytest.mark.row("RC-01")
@pytest.mark.row("PR-07")
def test_a_member_with_nothing_to_do_is_not_touched() -> None:
    lab = halves()
    assert lab("a", 2) == (2, None)
    assert lab("a", 2, t(0, 1, 2)) == (2, None)
    assert lab.written() == []


@pytest.mark.row("RC-02")
@pytest.mark.row("PR-06")
def test_a_target_that_is_what_it_has_raises_its_epoch_alone() -> None:
    lab = halves()
    assert retarget(lab, a=t(0, 1, 2), b=t(3, 4, 5)) == 3
    assert lab("a", 2) == (3, None)
    assert lab.written() == ["member_stepped"]
    assert lab.member("b").epoch == 2  # a heartbeat steps its own member
    assert lab("a", 3) == (3, None)


@pytest.mark.row("RC-03")
def test_what_is_free_is_given_in_one_step() -> None:
    lab = halves()
    lab("b", LEAVE)
    lab.shares = {"a": ALL}
    assert lab("a", 2) == (3, ALL)
    assert not lab.member("a").waits


@pytest.mark.row("RC-04")
@pytest.mark.row("RC-05")
@pytest.mark.row("RC-22")
def test_what_goes_is_given_back_before_anything_is_given() -> None:
    lab = one()
    lab.tell({"t": 7})
    lab.shares = {"a": t(0, 1, 2, 6), "b": t(3, 4, 5)}
    assert lab("b", JOIN) == (2, NOTHING)
    assert lab("a", 1) == (1, t(0, 1, 2))  # 6 is free
    assert (lab.member("a").epoch, lab.owes("a")) == (1, t(3, 4, 5))
    assert lab("a", 1) == (1, None)
    assert lab("a", 1, t(0, 1, 2)) == (2, t(0, 1, 2, 6))
    assert not lab.member("a").pending


@pytest.mark.row("RC-06")
@pytest.mark.row("RC-22")
def test_what_is_free_is_given_and_the_rest_is_waited_for_at_the_targets_epoch() -> None:
    lab = halves()
    lab.tell({"t": 7})
    lab.shares = {"a": t(0, 1, 2, 3, 6), "b": t(4, 5)}
    assert lab("a", 2) == (3, t(0, 1, 2, 6))
    assert lab.member("a").waits


@pytest.mark.row("RC-07")
def test_a_list_that_lacks_what_goes_gives_it_back_in_the_step_that_takes_it() -> None:
    lab = two()
    assert lab("a", 1, t(0, 1, 2)) == (2, t(0, 1, 2))
    assert lab.written() == ["member_stepped"]
    assert lab.owes("a") == NOTHING
    assert lab("b", 2) == (2, t(3, 4, 5))


# --- gives back


@pytest.mark.row("RC-08")
@pytest.mark.row("RC-09")
@pytest.mark.parametrize("owned", [None, t(0, 1, 2, 3), ALL], ids=["no list", "one is there", "all"])
def test_whoever_has_something_of_it_still_has_given_back_nothing(owned: Owned | None) -> None:
    lab = two()
    lab("a", 1)
    lab.written()
    assert lab("a", 1, owned) == (1, None)
    assert lab.written() == []
    assert lab.owes("a") == t(3, 4, 5)
    assert lab("b", 2) == (2, None)


@pytest.mark.row("RC-10")
def test_whoever_has_given_back_is_at_the_target() -> None:
    lab = two()
    lab("a", 1)
    assert lab("a", 1, t(0, 1, 2)) == (2, None)
    assert (lab.owes("a"), lab.member("a").waits) == (NOTHING, False)
    assert lab.group.owners.keys() == {("t", 0), ("t", 1), ("t", 2)}


@pytest.mark.row("RC-11")
@pytest.mark.row("RC-23")
def test_members_that_swap_give_back_first_and_then_get() -> None:
    lab = halves()
    assert retarget(lab, a=t(0, 3), b=t(1, 2, 4, 5)) == 3
    assert lab("a", 2) == (2, t(0))
    assert lab("a", 2, t(0)) == (3, None)
    assert lab.member("a").waits  # for 3, which b has
    assert lab("b", 2) == (2, t(4, 5))
    assert lab("b", 2, t(4, 5)) == (3, t(1, 2, 4, 5))
    assert lab("a", 3) == (3, t(0, 3))
    assert not lab.member("a").waits


@pytest.mark.row("RC-12")
def test_a_later_target_that_takes_more_is_next_when_the_first_was_given_back() -> None:
    lab = two()
    lab("a", 1)
    assert retarget(lab, a=t(0, 1), b=t(2, 3, 4, 5)) == 3
    assert lab("a", 1, t(0, 1, 2)) == (2, t(0, 1))  # Kafka 4.1 counts one on
    assert lab.owes("a") == t(2)
    assert lab("b", 2) == (3, t(3, 4, 5))
    assert lab("a", 2, t(0, 1)) == (3, None)


@pytest.mark.row("RC-13")
def test_a_target_that_moves_is_looked_at_after_what_was_taken_is_back() -> None:
    lab = two()
    lab("a", 1)
    retarget(lab, a=t(0), b=t(1, 2, 3, 4, 5))
    last = retarget(lab, a=t(0, 1, 2), b=t(3, 4, 5))
    assert lab("a", 1) == (1, None)
    assert lab.written() == []
    assert lab("a", 1, t(0, 1, 2)) == (last, None)


@pytest.mark.row("RC-14")
def test_what_comes_back_before_it_was_given_back_is_given_anew() -> None:
    lab = two()
    lab("a", 1)
    before = lab.member("a").held[("t", 3)].token
    kept = lab.member("a").held[("t", 0)].token
    lab("b", LEAVE)
    lab.shares = {"a": ALL}
    assert lab("a", 1, t(0, 1, 2)) == (3, None)
    assert lab("a", 3) == (3, ALL)  # with the next request, as in Kafka 4.1
    assert lab.member("a").held[("t", 3)].token > before
    assert lab.member("a").held[("t", 0)].token == kept


# --- waits


@pytest.mark.row("RC-15")
def test_whoever_waits_in_vain_is_noted_once() -> None:
    lab = two()
    assert lab("b", 2) == (2, None)
    assert lab.written() == ["member_stepped"]  # the epoch before is 2 from now on
    assert lab("b", 2) == (2, None)
    assert lab.written() == []


@pytest.mark.row("RC-16")
@pytest.mark.row("RC-17")
def test_what_others_give_back_is_given_bit_by_bit() -> None:
    lab = halves()
    assert retarget(lab, a=t(0), b=t(3), c=t(1, 2, 4, 5)) == 3
    lab.shares = {"a": t(0), "b": t(3), "c": t(1, 2, 4, 5)}
    epoch = lab.epochs[0] + 1
    assert lab("c", JOIN) == (epoch, NOTHING)
    lab("a", 2)
    lab("a", 2, t(0))
    assert lab("c", epoch) == (epoch, t(1, 2))
    assert lab.member("c").waits
    lab("b", 2)
    lab("b", 2, t(3))
    assert lab("c", epoch) == (epoch, t(1, 2, 4, 5))
    assert not lab.member("c").waits


@pytest.mark.row("RC-17")
def test_whoever_waits_for_what_its_target_drops_waits_no_more() -> None:
    lab = two()
    epoch = retarget(lab, a=ALL)
    assert lab("b", 2) == (epoch, None)
    assert not lab.member("b").waits


@pytest.mark.row("RC-18")
def test_a_later_target_takes_from_whoever_waits() -> None:
    lab = halves()
    lab.tell({"t": 7})
    lab.shares = {"a": t(0, 1, 2, 3, 6), "b": t(4, 5)}
    assert lab("a", 2) == (3, t(0, 1, 2, 6))
    retarget(lab, a=t(0), b=t(1, 2, 3, 4, 5, 6))
    assert lab("a", 3) == (3, t(0))
    assert lab.owes("a") == t(1, 2, 6)


@pytest.mark.row("RC-20")
def test_a_release_gives_nothing_before_the_next_heartbeat_of_whoever_waits() -> None:
    lab = two()
    lab("a", 1)
    lab.written()
    assert lab("a", 1, t(0, 1, 2)) == (2, None)
    assert lab.written() == ["member_stepped"]
    assert lab.has("b") == NOTHING
    assert lab("b", 2) == (2, t(3, 4, 5))


@pytest.mark.row("RC-21")
def test_whoever_waits_is_at_the_targets_epoch() -> None:
    lab = two()
    assert lab("b", 2) == (2, None)
    assert lab.commit("b", 2) == [NONE]
    assert lab.commit("b", 1) == [STALE_MEMBER_EPOCH]


@pytest.mark.row("RC-24")
def test_what_stays_keeps_its_token_over_any_number_of_targets() -> None:
    lab = halves()
    before = {partition: held.token for partition, held in lab.member("a").held.items()}
    for shares in (
        {"a": t(0, 1, 2, 3), "b": t(4, 5)},
        {"a": t(0, 1, 2), "b": t(3, 4, 5)},
        {"a": t(0, 1), "b": t(2, 3, 4, 5)},
    ):
        retarget(lab, **shares)
        for _ in range(4):
            for who in ("a", "b"):
                lab(who, lab.member(who).epoch, lab.has(who))
        assert lab.has("a") == shares["a"]
        new = lab.member("a").held
        assert all(held.token == before.get(partition, held.token) for partition, held in new.items())


@pytest.mark.row("RC-25")
def test_a_topic_that_a_member_drops_goes_with_the_same_request() -> None:
    lab = Lab({"t": 2, "u": 2})
    assert lab("a", JOIN, topics=["t", "u"]) == (1, {"t": [0, 1], "u": [0, 1]})
    assert lab("a", 1, topics=["t"]) == (1, t(0, 1))
    assert lab.owes("a") == {"u": [0, 1]}
    assert lab("a", 1, t(0, 1)) == (2, None)


@pytest.mark.row("RC-26")
@pytest.mark.row("TA-15")
def test_what_the_assignor_gives_is_given_whatever_a_member_subscribes_to() -> None:
    lab = Lab({"t": 2, "u": 1})
    lab.shares = {"a": {"t": [0], "u": [0]}}  # as Kafka 4.1: nobody looks
    assert lab("a", JOIN) == (1, {"t": [0], "u": [0]})


@pytest.mark.row("RC-28")
def test_what_is_held_owed_or_kept_while_away_is_nobody_elses() -> None:
    lab = Lab()
    lab("a", JOIN, instance="i")
    lab.shares = {"a": t(0, 1, 2), "b": t(3, 4, 5)}
    lab("b", JOIN)
    lab("a", 1)
    assert set(lab.group.owners.values()) == {"a"}
    assert len(lab.group.owners) == 6
    lab("a", AWAY, instance="i")
    assert sorted(lab.group.owners) == [("t", 0), ("t", 1), ("t", 2)]


@pytest.mark.row("RC-32")
@pytest.mark.parametrize("seed", range(12))
def test_what_must_hold_after_every_step(seed: int) -> None:
    draw = random.Random(seed)
    lab = Lab({"t": 5, "u": 3})
    names = "abcd"
    owners: dict[tuple[object, object], str] = {}
    for _ in range(120):
        who = draw.choice(names)
        group = lab.cluster.shard.groups.get("g")
        known = group is not None and group.incremental is not None and who in group.incremental.members
        if not known:
            lab(who, JOIN, topics=draw.choice([["t"], ["t", "u"], ["u"]]), instance=who)
        elif lab.member(who).is_away:
            lab(f"{who}2" if draw.random() < 0.1 else who, LEAVE, instance=who)
        else:
            epoch = draw.choice([lab.member(who).epoch] * 8 + [LEAVE, AWAY])
            owned = draw.choice([None, lab.has(who), lab.has(who)])
            topics = draw.choice([None] * 6 + [["t"], ["t", "u"]])
            lab(who, epoch, owned if epoch > 0 else None, instance=who, topics=topics if epoch > 0 else None)
        _check(lab, owners)


def _check(lab: Lab, owners: dict[tuple[object, object], str]) -> None:
    group = lab.group
    held = [partition for member in group.members.values() for partition in member.held]
    assert len(held) == len(set(held))  # 1
    for who, member in group.members.items():
        assert member.epoch <= group.target_epoch <= group.epoch  # 2
        if member.pending:
            assert not member.is_away  # 3
            assert group.state is not IncrementalGroupState.STABLE
        if group.is_settled(member):
            assert member.assigned == member.target  # 4
        for partition, one_held in member.held.items():
            assert owners.setdefault((partition, one_held.token), who) == who  # 5
