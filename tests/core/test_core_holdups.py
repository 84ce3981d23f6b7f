"""Whom a classic group waits for, as DescribeGroups shows it."""

from collections.abc import Iterable, Iterator

import pytest
from core.test_core_kept_partitions import (
    both,
    first_alone,
    generation,
    join,
    keeping,
    member,
    published,
    share,
)
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core.protocol import holdups
from muster_core.state.members.claims import Claims
from muster_core.state.members.member import Member
from muster_protos.muster.v1.coordinator_pb2 import DescribeGroupsResponse

NOT = DescribeGroupsResponse.AWAITED_UNSPECIFIED
JOIN = DescribeGroupsResponse.AWAITED_JOIN
SYNC = DescribeGroupsResponse.AWAITED_SYNC
RELEASE = DescribeGroupsResponse.AWAITED_RELEASE


def awaited(cluster: VirtualShard) -> dict[str, tuple[int, int]]:
    """By client: what the group waits for from its member, and for how long."""
    return {one.client_id: (one.awaited, one.awaited_remaining_ms) for one in cluster.describe().members}


def test_who_keeps_what_it_is_not_given_is_named_with_that() -> None:
    cluster = VirtualShard()
    a, _ = both(cluster)
    left_ms = a.rebalance_timeout_ms
    assert awaited(cluster) == {"a": (RELEASE, left_ms), "b": (NOT, -1)}
    shown = {one.client_id: one for one in cluster.describe().members}
    assert [(some.topic, list(some.partitions)) for some in shown["a"].withheld] == [("t", [1])]
    assert not shown["b"].withheld
    cluster.advance(1_000)
    assert awaited(cluster)["a"] == (RELEASE, left_ms - 1_000)
    join(a, 0)
    assert not any(one.withheld for one in cluster.describe().members)


def test_what_members_keep_is_read_once_and_not_for_each_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIM-12: of 200,000 partitions that are withheld each DescribeGroups held the loop for 40 to 80 ms."""
    read: list[str] = []

    class Noted(Claims):
        def look_through(self, members: Iterable[Member], most: int) -> Iterator[None]:
            some = list(members)
            read.extend(one.member_id for one in some)
            return super().look_through(some, most)

    cluster = VirtualShard()
    a, _ = both(cluster)
    monkeypatch.setattr(holdups, "Claims", Noted)
    shown = cluster.describe().members
    assert read == [], "that was done with the plan"
    again = cluster.reloaded()
    for _ in range(2):
        assert [one.withheld for one in again.describe().members] == [one.withheld for one in shown]
        assert read == [a.member_id]


def test_who_has_not_joined_or_synced_is_named() -> None:
    cluster = VirtualShard()
    a = first_alone(cluster, 0)
    assert awaited(cluster) == {"a": (NOT, -1)}
    b = join(member(cluster, "b"))
    assert awaited(cluster) == {"a": (JOIN, a.rebalance_timeout_ms), "b": (NOT, -1)}
    cluster.advance(2_000)
    assert awaited(cluster)["a"] == (JOIN, a.rebalance_timeout_ms - 2_000)
    join(a, 0)
    leader = generation(a, b)
    assert {what for what, _ in awaited(cluster).values()} == {SYNC}
    assert share(leader, {a: published(0), b: published()}) == {a: [0], b: []}
    assert {what for what, _ in awaited(cluster).values()} == {NOT}


def test_ids_that_nobody_uses_are_counted_and_assignors_are_named() -> None:
    cluster = VirtualShard()
    a = first_alone(cluster, 0)
    newcomer = VirtualMember(cluster, "c")
    newcomer.protocols = [("cooperative-sticky", keeping()), ("range", keeping())]
    cluster.ask(newcomer.join_request())
    group = cluster.describe()
    assert group.unused_ids == 1
    assert [list(one.protocols) for one in group.members] == [["range"]]
    assert a.member_id == group.members[0].member_id
