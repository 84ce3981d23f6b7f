"""Weights of members and partitions, and zones: who is given how much, and that only what must move moves."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from core.test_core_conversions import CONFIG, WAIT_MS, Changing, assign, rejoin, stable
from kit.lives.incremental_shard import (
    GROUP,
    NumberedMember,
    incremental_of,
    incremental_shard,
    joined,
    settle,
)
from kit.lives.stream_member import StreamMember, let_move, on_streams
from kit.lives.virtual_shard import VirtualShard
from kit.logs.core_audit import broken_promises
from kit.logs.snapshots import check_every_cut
from muster_core.catalog import Catalog
from muster_core.clock import Now
from muster_core.events import TopicsChanged
from muster_core.fault import event_of, message_of
from muster_core.incremental.partitions import TopicPartition, by_topic
from muster_core.position import Position
from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
)

PLACE = 20


def sizes(*members: NumberedMember) -> list[int]:
    return [len(member.owned) for member in members]


def tell(cluster: VirtualShard, *changed: str, place: int = PLACE, **topics: Any) -> None:
    """The catalog says something else of topics; `changed` have other partitions than before."""
    partitions: Mapping[str, int] = topics.pop("partitions", {"t": 4})
    incarnations = dict.fromkeys(partitions, 2)
    catalog = Catalog(place, partitions, {}, incarnations, **topics)
    cluster.feed(TopicsChanged(frozenset(changed), catalog=catalog))


def told(member: NumberedMember, weight: int) -> None:
    """A member says in a heartbeat that it can do more, or less, from now on."""
    request = member.request(member.epoch)
    request.weight = weight
    answer = member.hear(member.ask(request))
    assert not answer.error_code, answer.error_message


def cause_of(cluster: VirtualShard) -> int:
    cause = cluster.shard.groups[GROUP].cause
    assert cause is not None
    return cause.kind


def kept(before: Mapping[TopicPartition, Position], member: NumberedMember) -> Collection[TopicPartition]:
    """What a member has had all along: under the same token."""
    return [one for one, token in member.owned.items() if before.get(one) == token]


# --- members


def test_members_are_given_partitions_by_their_weights() -> None:
    """INC-160, INC-161: with whoever owns the shard next, from records and from snapshots alike."""
    cluster = incremental_shard(12)
    a, b = StreamMember(cluster, "a"), StreamMember(cluster, "b")
    a.weight = 3
    for member in (a, b):
        assert not member.join().error_code
    let_move(a, b)
    assert sizes(a, b) == [9, 3]
    described = cluster.ask(ConsumerGroupDescribeRequest(group_ids=[GROUP]))
    assert isinstance(described, ConsumerGroupDescribeResponse)
    assert [member.weight for member in described.groups[0].members] == [3, 1]
    cluster = incremental_shard(12, cluster.log, cluster.config)
    assert incremental_of(cluster).members["a"].told.weight == 3
    check_every_cut([*cluster.log], cluster.config)
    assert not broken_promises(cluster)


@pytest.mark.parametrize("kind", [NumberedMember, StreamMember])
def test_another_weight_moves_what_it_must_and_nothing_else(kind: type[NumberedMember]) -> None:
    """INC-160, INC-162: 4, 4, 4 becomes 6, 3, 3: two move, and ten keep their tokens."""
    cluster = incremental_shard(12)
    members = [kind(cluster, name) for name in "abc"]
    for member in members:
        assert not member.join().error_code
        settle_all(members)
    before = [dict(member.owned) for member in members]
    epoch = incremental_of(cluster).epoch
    told(members[0], 2)
    settle_all(members)
    assert sizes(*members) == [6, 3, 3]
    assert [len(kept(*pair)) for pair in zip(before, members, strict=True)] == [4, 3, 3]
    assert incremental_of(cluster).epoch == epoch + 1
    told(members[0], 2)  # it is so already
    settle_all(members)
    assert incremental_of(cluster).epoch == epoch + 1
    assert cause_of(cluster) == common_pb2.REBALANCE_CAUSE_KIND_METADATA_CHANGED
    assert not broken_promises(cluster)


def settle_all(members: list[Any]) -> None:
    here = [member for member in members if member.seq]
    if isinstance(members[0], StreamMember):
        let_move(*here)
    else:
        settle(*here)


def test_a_heartbeat_without_a_weight_leaves_it_as_it_is_and_a_join_without_one_says_one() -> None:
    """INC-160."""
    cluster = incremental_shard(12)
    a, _ = joined(cluster, "a", "b")
    told(a, 5)
    told(a, 0)
    assert incremental_of(cluster).members["a"].told.weight == 5
    a.join()
    assert incremental_of(cluster).members["a"].told.weight == 1


def test_a_join_that_comes_again_late_changes_no_weight() -> None:
    """INC-160: it is the same join, and its member has said something else since."""
    cluster = incremental_shard(12)
    a = NumberedMember(cluster, "a")
    a.weight = 2
    a.join()
    told(a, 5)
    records = len(cluster.log)
    a.join(again=True)
    assert incremental_of(cluster).members["a"].told.weight == 5
    assert len(cluster.log) == records


def full(member: NumberedMember, weight: int, *topics: str) -> ConsumerGroupHeartbeatRequest:
    """A heartbeat in which a member says everything of itself."""
    request = member.request(member.epoch)
    request.topics.names.extend(topics)
    request.weight = weight
    request.owned.topics.extend(by_topic(member.owned))
    return request


def test_a_late_heartbeat_changes_nothing_of_what_was_said_since() -> None:
    """INC-164: it names an older version than its member has named since."""
    cluster = incremental_shard(12)
    a, b = joined(cluster, "a", "b")
    late = full(a, 7, "t", "u")
    a.hear(a.ask(full(a, 3, "t")))
    settle(a, b)
    assert a.version > Position.from_proto(late.version)
    a.beat(a.owned)
    log = len(cluster.log)
    assert not a.ask(late).error_code
    a.join(again=True)
    member = incremental_of(cluster).members["a"]
    assert (sorted(member.told.topics), member.told.weight) == (["t"], 3)
    assert len(cluster.log) == log, "nothing is stored for them"
    a.hear(a.ask(full(a, 5, "t")))
    assert incremental_of(cluster).members["a"].told.weight == 5, "a present one counts"


def test_who_has_stopped_everything_and_names_no_version_is_not_late() -> None:
    """INC-164, INC-43."""
    cluster = incremental_shard(12)
    a, b = joined(cluster, "a", "b")
    settle(a, b)
    a.beat(a.owned)
    stopped = full(a, 4, "t")
    stopped.ClearField("version")
    stopped.ClearField("owned")
    assert not a.ask(stopped).error_code
    assert incremental_of(cluster).members["a"].told.weight == 4


def test_the_next_process_of_a_static_member_has_its_own_weight() -> None:
    """INC-160."""
    cluster = incremental_shard(12)
    a = NumberedMember(cluster, "a", instance="i")
    a.weight = 3
    a.join()
    joined(cluster, "b")
    holder = incremental_of(cluster).members["a"].joined
    a.leave(-2)
    new = NumberedMember(cluster, "a", instance="i", process="new")
    new.weight = 4
    assert not new.join(replaces=holder).error_code
    assert incremental_of(cluster).members["a"].told.weight == 4


def test_what_is_converted_has_the_weight_that_it_joined_with() -> None:
    """INC-160."""
    cluster = incremental_shard(config=CONFIG)
    heavy, other = stable(cluster, "heavy", "other")
    heavy.weight = 4
    heavy.enter()
    stable_again(cluster, heavy, other)
    cluster.advance(WAIT_MS)
    members = incremental_of(cluster).members
    weights = {name: member.told.weight for name, member in members.items()}
    assert weights == {heavy.member_id: 4, other.member_id: 1}
    check_every_cut([*cluster.log], CONFIG)
    assert not broken_promises(cluster)


def stable_again(cluster: VirtualShard, *members: Changing) -> None:
    """The others join too, and what is assigned is as before."""
    for member in members[1:]:
        member.enter()
    cluster.advance(1)
    rejoin(cluster, [*members])
    assign(cluster, [*members], 4)
    for member in members:
        member.attach()


# --- partitions


@pytest.mark.parametrize("kind", [NumberedMember, StreamMember])
def test_another_load_of_a_partition_moves_what_it_must(kind: type[NumberedMember]) -> None:
    """INC-162, INC-163: 3 and 3; one of a's is as much as four now: a keeps it and one more."""
    cluster = incremental_shard(6)
    members = [kind(cluster, name) for name in "ab"]
    for member in members:
        member.join()
        settle_all(members)
    a, b = members
    before = [dict(member.owned) for member in members]
    heavy = min(a.owned)
    tell(cluster, partitions={"t": 6}, weights={"t": {heavy[1]: 4}})
    settle_all(members)
    assert sizes(a, b) == [2, 4]
    assert [len(kept(*pair)) for pair in zip(before, members, strict=True)] == [2, 3]
    assert heavy in a.owned
    assert cause_of(cluster) == common_pb2.REBALANCE_CAUSE_KIND_TOPIC_CHANGED
    assert not broken_promises(cluster)


def test_another_zone_of_a_partition_moves_nothing_and_decides_what_moves_later() -> None:
    """INC-162, INC-163."""
    cluster = incremental_shard(6)
    a = StreamMember(cluster, "a")
    a.rack_id = "x"
    a.join()
    let_move(a)
    before, pushes = dict(a.owned), len(cluster.pushes)
    zones = {number: frozenset({"y" if number in (1, 4, 5) else "x"}) for number in range(6)}
    tell(cluster, partitions={"t": 6}, zones={"t": zones})
    assert not a.listen()
    assert (a.owned, len(cluster.pushes)) == (before, pushes)
    b = StreamMember(cluster, "b")
    b.rack_id = "y"
    b.join()
    let_move(a, b)
    assert sorted(b.owned) == [("t", 1), ("t", 4), ("t", 5)]
    assert not broken_promises(cluster)


def test_the_same_weights_again_assign_nothing_anew() -> None:
    """INC-163."""
    cluster = incremental_shard(4)
    on_streams(cluster, "a", "b")
    tell(cluster, weights={"t": {0: 5}})
    epoch, records = incremental_of(cluster).epoch, len(cluster.log)
    tell(cluster, place=PLACE + 1, weights={"t": {0: 5}})
    assert (incremental_of(cluster).epoch, len(cluster.log)) == (epoch, records)


def test_weights_that_changed_while_nobody_served_the_group_count_for_the_next_owner() -> None:
    """INC-163."""
    cluster = incremental_shard(4)
    a, b = on_streams(cluster, "a", "b")
    cluster = incremental_shard(4, cluster.log, cluster.config)
    heavy = min(a.owned)
    tell(cluster, weights={"t": {heavy[1]: 3}})
    for member in (a, b):
        member.move(cluster)
    settle(a, b)
    let_move(a, b)
    assert sizes(a, b) == [1, 3]


# --- growth


def test_growth_moves_only_what_must() -> None:
    """INC-162: partitions are added, a topic goes."""
    cluster = incremental_shard(6)
    members = [StreamMember(cluster, name) for name in "abc"]
    for member in members:
        member.topics = ["t", "u"]
    tell(cluster, "t", "u", partitions={"t": 6, "u": 3})
    for member in members:
        member.join()
        let_move(*[one for one in members if one.seq])
    for step, partitions in enumerate(({"t": 8, "u": 3}, {"t": 8, "u": 6}), 1):
        before = [dict(member.owned) for member in members]
        tell(cluster, "t", "u", place=PLACE + step, partitions=partitions)
        let_move(*members)
        assert sum(sizes(*members)) == sum(partitions.values())
        assert [len(kept(*pair)) for pair in zip(before, members, strict=True)] == [*map(len, before)]
    before = [dict(member.owned) for member in members]
    tell(cluster, "u", place=PLACE + 3, partitions={"t": 8})
    let_move(*members)
    stays = [{one for one in own if one[0] == "t"} for own in before]
    moved = sum(
        len(own) - len(kept(dict(had), member))
        for own, had, member in zip(stays, before, members, strict=True)
    )
    assert moved == sum(max(0, len(own) - 3) for own in stays)  # the fewest: 3, 3 and 2 of eight
    assert sorted(sizes(*members)) == [2, 3, 3]
    assert not broken_promises(cluster)


def test_another_subscription_moves_only_what_must() -> None:
    """INC-162: who drops a topic gives back what it has of it, and the others give it what evens that out."""
    cluster = incremental_shard(6)
    members = [StreamMember(cluster, name) for name in "abc"]
    for member in members:
        member.topics = ["t", "u"]
    tell(cluster, "t", "u", partitions={"t": 6, "u": 3})
    for member in members:
        member.join()
        let_move(*[one for one in members if one.seq])
    before = [dict(member.owned) for member in members]
    a = members[0]
    dropped = [one for one in a.owned if one[0] == "u"]
    request = a.request(a.epoch)
    request.topics.names.append("t")
    a.hear(a.ask(request))
    a.beat(a.owned)
    let_move(*members)
    assert sizes(*members) == [3, 3, 3]
    assert all(topic == "t" for topic, _ in a.owned)
    moved = sum(len(own) - len(kept(own, member)) for own, member in zip(before, members, strict=True))
    assert moved == 2 * len(dropped)
    assert not broken_promises(cluster)


def test_weights_and_zones_are_kept_with_a_failure() -> None:
    catalog = Catalog(
        PLACE,
        {"t": 4, "u": 2},
        {},
        {"t": 2, "u": 3},
        removed={"t": frozenset({1})},
        weights={"t": {0: 7}},
        zones={"u": {0: frozenset({"x", "y"}), 1: frozenset({"y"})}},
    )
    event = TopicsChanged(frozenset({"t"}), catalog=catalog)
    assert event_of(message_of(event, Now(1, 1))) == event
