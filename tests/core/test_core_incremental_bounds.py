"""What members of incremental groups may have a coordinator look at (docs/safety.md, LIM-57)."""

import random
from collections.abc import Iterable

import pytest
from kit.lives.incremental_shard import (
    AWAY,
    FEATURES,
    JOIN,
    NumberedMember,
    incremental_of,
    incremental_shard,
    tell_partitions,
)
from kit.lives.server_assignors import SERVER_ASSIGNORS
from kit.lives.virtual_shard import VirtualShard
from muster_core import error_code
from muster_core.config import GroupConfig
from muster_core.events import Assign
from muster_core.incremental.decisions import heartbeat
from muster_core.incremental.decisions.together import LISTS_MAX
from muster_core.incremental.partitions import by_topic, named_among, named_in
from muster_core.position import NOWHERE, Position
from muster_core.protocol.room import Room
from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatResponse

MOST = 5
SMALL = GroupConfig(incremental_assignment_interval_ms=0, max_topics=MOST)


def says(
    member: NumberedMember, *topics: str, joins: bool = False, replaces: Position = NOWHERE
) -> ConsumerGroupHeartbeatResponse:
    """A member names topics."""
    member.seq += joins
    request = member.request(JOIN if joins else member.epoch)
    request.topics.names.extend(topics)
    if joins:
        request.rebalance_timeout_ms = 30_000
        request.owned.SetInParent()
        request.replaces.CopyFrom(replaces.to_proto())
    return member.hear(member.ask(request))


def members(cluster: VirtualShard, *names: str) -> list[NumberedMember]:
    return [NumberedMember(cluster, name) for name in names]


def test_members_that_name_too_many_topics_together_are_refused_and_change_nothing() -> None:
    cluster = incremental_shard(config=SMALL)
    first, second = members(cluster, "a", "b")
    assert not says(first, "t", "u", "v", joins=True).error_code
    stored, group = len(cluster.log), incremental_of(cluster)
    epoch = group.epoch
    answer = says(second, "t", "w", "x", "y", joins=True)
    assert answer.error_code == error_code.INVALID_REQUEST
    assert answer.error_message == (
        "the members would name 6 different topics, of 5 (MUSTER_GROUP_MAX_TOPICS)"
    )
    assert (len(cluster.log), [*group.members], group.epoch) == (stored, ["a"], epoch)
    assert not says(second, "t", "w", "x", joins=True).error_code


def test_who_names_others_in_the_place_of_its_topics_is_counted_with_what_is_left() -> None:
    cluster = incremental_shard(config=SMALL)
    first, second = members(cluster, "a", "b")
    assert not says(first, "t", "u", "v", joins=True).error_code
    assert not says(second, "t", "w", "x", joins=True).error_code
    assert not says(second, "y", "z").error_code
    assert says(second, "w", "x", "y").error_code == error_code.INVALID_REQUEST
    assert not says(first, "w").error_code
    assert not says(second, "t", "u", "v", "x").error_code
    assert incremental_of(cluster).tally.topics == dict.fromkeys(("t", "u", "v", "w", "x"), 1)


def test_a_static_member_takes_the_topics_of_its_place_over() -> None:
    cluster = incremental_shard(config=SMALL)
    before = NumberedMember(cluster, "a", instance="i")
    assert not says(before, *"tuvwx", joins=True).error_code
    before.leave(AWAY)
    after = NumberedMember(cluster, "b", instance="i")
    joined = incremental_of(cluster).members["a"].joined
    assert not says(after, *"abcde", joins=True, replaces=joined).error_code
    assert incremental_of(cluster).tally.listed == MOST


def test_the_lists_of_all_members_together_are_bounded_too() -> None:
    cluster = incremental_shard(config=SMALL)
    for number in range(LISTS_MAX):
        assert not says(NumberedMember(cluster, f"m{number}"), *"tuvwx", joins=True).error_code
    answer = says(NumberedMember(cluster, "late"), "t", joins=True)
    assert answer.error_code == error_code.INVALID_REQUEST
    assert "101 topics in all lists together, of 100" in answer.error_message
    again = NumberedMember(cluster, "m0")
    again.seq, again.epoch = 1, incremental_of(cluster).members["m0"].epoch
    assert not says(again, "t", "u").error_code
    assert incremental_of(cluster).tally.listed == LISTS_MAX * MOST - 3


def test_what_was_stored_is_loaded_whatever_the_limit() -> None:
    cluster = incremental_shard(config=SMALL)
    assert not says(NumberedMember(cluster, "a"), *"tuvwx", joins=True).error_code
    after = incremental_shard(
        records=cluster.log, config=GroupConfig(incremental_assignment_interval_ms=0, max_topics=1)
    )
    assert incremental_of(after).tally.listed == MOST
    (member,) = members(after, "a")
    member.seq, member.epoch = 1, incremental_of(after).members["a"].epoch
    assert not member.beat().error_code
    assert not says(member, "t", "u").error_code, "what names nothing new is not refused"


def test_a_heartbeat_that_names_no_topics_copies_nothing_of_those_that_are_named() -> None:
    cluster = incremental_shard(config=SMALL)
    (member,) = members(cluster, "a")
    says(member, "t", "u", joins=True)
    group = incremental_of(cluster)
    assert group.draft().tally.topics is group.tally.topics
    draft = group.draft()
    draft.remove("a")
    assert (dict(draft.tally.topics), draft.tally.listed) == ({}, 0)
    assert (dict(group.tally.topics), group.tally.listed) == ({"t": 1, "u": 1}, 2)


@pytest.mark.parametrize(("names", "is_aside"), [(100, False), (2_000, True)])
def test_assignments_for_long_lists_are_computed_aside_though_there_are_no_such_topics(
    names: int, is_aside: bool
) -> None:
    cluster = VirtualShard(GroupConfig(incremental_assignment_interval_ms=0), features=FEATURES)
    cluster.shard.live_in(Room(assignors=SERVER_ASSIGNORS, at_once_max=100))
    tell_partitions(cluster, 4, frozenset())
    member = NumberedMember(cluster, "a")
    member.seq = 1
    request = member.request(JOIN)
    request.topics.names.extend(["t", *(f"missing-{number}" for number in range(names))])
    request.rebalance_timeout_ms = 30_000
    request.owned.SetInParent()
    cluster.send(request)
    assert [type(work) for work in cluster.work] == [Assign] * is_aside


@pytest.mark.parametrize("seed", range(20))
def test_of_some_partitions_those_that_a_message_names_are_found(seed: int) -> None:
    draw = random.Random(seed)
    some, others = (
        frozenset((draw.choice("tuv"), draw.randrange(8)) for _ in range(draw.randrange(12)))
        for _ in range(2)
    )
    assert named_among(some, by_topic(others)) == some & others


def test_of_what_a_member_says_it_works_on_no_more_is_kept_than_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LIM-19: to make something of each of a hundred thousand partitions takes 40 ms."""
    cluster = incremental_shard()
    tell_partitions(cluster, 4)
    (member,) = members(cluster, "a")
    assert not says(member, "t", joins=True).error_code
    kept = list[int]()

    def noted(topics: Iterable[common_pb2.TopicPartitions]) -> list[tuple[str, int]]:
        found = named_in(topics)
        kept.append(len(found))
        return found

    monkeypatch.setattr(heartbeat, "named_in", noted)
    request = member.request(member.epoch)
    request.owned.topics.append(common_pb2.TopicPartitions(topic="t", partitions=range(100_000)))
    assert not member.ask(request).error_code
    assert not heartbeat._says_within(request, incremental_of(cluster).members["a"].assigned)
    assert not kept
