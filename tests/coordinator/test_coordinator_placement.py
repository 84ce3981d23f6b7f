from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muster_coordinator.ownership.placement import LOAD_FACTOR, place
from muster_coordinator.ownership.reconcile import Claim, Owner, Picture, Pull, may_give, plan, still_wanted
from muster_protos.muster.v1 import discovery_pb2

LIVE = discovery_pb2.COORDINATOR_STATE_LIVE
DRAINING = discovery_pb2.COORDINATOR_STATE_DRAINING
DEAD = discovery_pb2.COORDINATOR_STATE_DEAD

names = st.sets(st.text("abcdefgh-0123", min_size=1, max_size=8), min_size=1, max_size=12)


@settings(deadline=None)
@given(names, st.integers(1, 200))
def test_every_shard_has_one_owner_and_nobody_is_overloaded(nodes: set[str], shards: int) -> None:
    owners = place(nodes, shards)
    assert sorted(owners) == list(range(shards))
    assert set(owners.values()) <= nodes
    assert max(Counter(owners.values()).values()) <= LOAD_FACTOR * shards / len(nodes) + 1


@settings(deadline=None)
@given(names, st.integers(1, 100))
def test_the_order_of_the_nodes_does_not_matter(nodes: set[str], shards: int) -> None:
    assert place(sorted(nodes), shards) == place(sorted(nodes, reverse=True), shards)


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_few_shards_move_when_a_node_goes(count: int) -> None:
    nodes = [f"c{number}" for number in range(count)]
    before = place(nodes, 50)
    after = place(nodes[:-1], 50)
    needless = [s for s in before if before[s] != nodes[-1] and before[s] != after[s]]
    assert len(needless) <= 10


def test_without_nodes_nobody_owns() -> None:
    assert not place([], 50)


def picture(
    me: str = "a",
    nodes: dict[str, discovery_pb2.CoordinatorState.ValueType] | None = None,
    owners: dict[int, Owner] | None = None,
    held: frozenset[int] = frozenset(),
    lost: dict[int, int] | None = None,
    settled: bool = True,
    shard_count: int = 1,
) -> Picture:
    return Picture(me, shard_count, nodes or {"a": LIVE}, owners or {}, held, lost or {}, settled)


def wanted_by_a(other: str) -> int:
    """A shard that a should own beside another node."""
    return next(shard for shard, owner in place(["a", other], 50).items() if owner == "a")


def test_claims_what_nobody_ever_owned() -> None:
    assert plan(picture()) == [Claim(0, 0)]


def test_does_nothing_before_the_view_says_that_it_lives() -> None:
    assert plan(picture(nodes={"b": LIVE})) == []
    assert plan(picture(nodes={"a": DRAINING, "b": LIVE})) == []


def test_claims_what_a_dead_one_owned() -> None:
    assert plan(picture(nodes={"a": LIVE, "b": DEAD}, owners={0: Owner("b", 7)})) == [Claim(0, 7)]
    assert plan(picture(owners={0: Owner("", 7)})) == [Claim(0, 7)]


def test_leaves_alone_what_it_holds() -> None:
    assert plan(picture(held=frozenset({0}))) == []


def test_claims_again_what_the_log_says_is_its_own() -> None:
    assert plan(picture(owners={0: Owner("a", 7)})) == [Claim(0, 7)]


@pytest.mark.row("UL-05")
def test_does_not_believe_a_row_that_is_older_than_its_own_farewell() -> None:
    assert plan(picture(owners={0: Owner("a", 7)}, lost={0: 7})) == []
    assert plan(picture(owners={0: Owner("a", 8)}, lost={0: 7})) == [Claim(0, 8)]


def test_pulls_from_a_draining_owner_at_once() -> None:
    seen = picture(nodes={"a": LIVE, "b": DRAINING}, owners={0: Owner("b", 7)}, settled=False)
    assert plan(seen) == [Pull(0, "b", 7)]


def test_pulls_for_balance_only_when_the_live_set_is_settled() -> None:
    shard = wanted_by_a("b")
    rows = {number: Owner("b", 3) for number in range(50)}
    nodes = {"a": LIVE, "b": LIVE}
    assert plan(picture(nodes=nodes, owners=rows, settled=False, shard_count=50)) == []
    settled = plan(picture(nodes=nodes, owners=rows, shard_count=50))
    assert Pull(shard, "b", 3) in settled
    assert len(settled) <= 28


def test_an_owner_gives_only_to_whom_its_own_view_says() -> None:
    shard = wanted_by_a("b")
    seen = picture(me="b", nodes={"a": LIVE, "b": LIVE}, shard_count=50)
    assert may_give(seen, shard, "a", draining=False)
    assert not may_give(seen, shard, "c", draining=False)


def test_a_draining_owner_gives_to_anybody_who_lives() -> None:
    shard = wanted_by_a("b")
    seen = picture(me="b", nodes={"a": LIVE, "b": DRAINING, "c": LIVE}, shard_count=50)
    assert may_give(seen, shard, "a", draining=True)
    assert may_give(seen, shard, "c", draining=True)
    assert not may_give(seen, shard, "nobody", draining=True)


def test_a_pull_is_given_up_when_it_is_not_wanted_any_more() -> None:
    shard = wanted_by_a("b")
    assert still_wanted(picture(nodes={"a": LIVE, "b": LIVE}, shard_count=50), shard)
    assert not still_wanted(picture(nodes={"a": DRAINING, "b": LIVE}, shard_count=50), shard)
