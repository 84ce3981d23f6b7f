"""What it costs that another process takes the place of a static member (docs/safety.md, LIM-28)."""

from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest
from core.test_core_kept_partitions import generation, join, member, published, share
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core.protocol.membership import joins
from muster_core.state.group import Group
from muster_core.state.members.member import elected_protocol

MEMBERS = 3


class Looks(dict[Any, Any]):
    """Owners that count how often all of them are looked at."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()

    def __iter__(self) -> Iterator[Any]:
        self.looks += 1
        return super().__iter__()


@pytest.fixture
def cluster() -> VirtualShard:
    """A shard with static members that own two partitions each."""
    cluster = VirtualShard()
    members = [join(member(cluster, f"m{number}", f"i{number}")) for number in range(MEMBERS)]
    cluster.advance(2 * cluster.config.initial_rebalance_delay_ms)
    plan = {one: published(2 * number, 2 * number + 1) for number, one in enumerate(members)}
    share(generation(*members), plan)
    return cluster


def take(cluster: VirtualShard, number: int, protocol: str = "range") -> VirtualMember:
    one = member(cluster, "new", f"i{number}")
    one.protocols = [(protocol, metadata) for _, metadata in one.protocols]
    one.join()
    assert one.joined().error_code == 0
    return one


def owned(group: Group) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {one: [] for one in group.members}
    for (_, number), (owner, _) in sorted(group.owners.items()):
        found[owner].append(number)
    return found


def test_places_are_taken_with_one_look_at_all_that_a_plan_gives(cluster: VirtualShard) -> None:
    """With a plan for 150,000 partitions each place took 20 ms, and no rebalance follows."""
    group = cluster.shard.groups["g"]
    group.owners = looks = Looks(group.owners)
    for number in (0, 1, 0, 0, 2):
        one = take(cluster, number)
        assert owned(group)[one.member_id] == [2 * number, 2 * number + 1]
        looks.looks -= 1  # by the line before
        tokens = {since for owner, since in group.owners.values() if owner == one.member_id}
        assert tokens == {cluster.log[-1][0]}
    assert looks.looks == 1
    assert cluster.state() == "Stable"
    assert cluster.reloaded().shard.groups["g"].owners == group.owners


def test_what_was_looked_for_is_of_the_present_plan(cluster: VirtualShard) -> None:
    first = take(cluster, 0)
    group = cluster.shard.groups["g"]
    swapped = {partition: (first.member_id, since) for partition, (_, since) in group.owners.items()}
    group.owners = swapped
    assert owned(group)[first.member_id] == [0, 1, 2, 3, 4, 5]
    again = take(cluster, 0)
    assert owned(group)[again.member_id] == [0, 1, 2, 3, 4, 5]


def test_a_plan_that_is_over_is_not_kept() -> None:
    """It counted nowhere: of 150,000 partitions 30 MB, as long as the group had no other place taken."""
    cluster = VirtualShard()
    members = [join(member(cluster, f"m{number}", f"i{number}")) for number in range(MEMBERS)]
    cluster.advance(2 * cluster.config.initial_rebalance_delay_ms)
    share(generation(*members), {members[0]: published(0, 1)})
    group = cluster.shard.groups["g"]
    group.owners = Looks(group.owners)
    before = ref(group.owners)
    members[0] = take(cluster, 0)
    assert before() is group.owners
    members = [join(one) for one in (member(cluster, "later"), *members)]
    leader = generation(*members)
    share(leader, {leader: published(0, 1)})
    assert owned(group)[leader.member_id] == [0, 1]
    assert before() is None


def test_nobody_votes_again_where_a_place_is_taken_with_the_same_protocols(
    cluster: VirtualShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    votes = 0

    def counted(members: Any) -> str:
        nonlocal votes
        votes += 1
        return elected_protocol(members)

    monkeypatch.setattr(joins, "elected_protocol", counted)
    take(cluster, 0)
    assert votes == 0
    one = member(cluster, "new", "i1")
    one.protocols = [("range", b""), ("other", b"")]
    one.join()
    assert one.joined().error_code == 0
    assert (votes, cluster.state()) == (1, "Stable")
