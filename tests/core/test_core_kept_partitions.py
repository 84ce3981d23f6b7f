"""Members that keep partitions while the group rebalances: nobody else gets them before their release."""

import pytest
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from kit.logs.core_audit import broken_promises
from muster_core import error_code
from muster_core.config import GroupConfig
from muster_core.features import Feature
from muster_core.state.published import partitions_in
from muster_protos.muster.v1 import common_pb2


def published(*partitions: int, user_data: bytes = b"") -> bytes:
    entries = [common_pb2.TopicPartitions(topic="t", partitions=partitions)] if partitions else []
    return common_pb2.Assignment(version=1, partitions=entries, user_data=user_data).SerializeToString()


def keeping(*owned: int, keeps: bool = True) -> bytes:
    entries = [common_pb2.TopicPartitions(topic="t", partitions=owned)] if owned else []
    return common_pb2.Subscription(
        version=1, topics=["t"], owned_partitions=entries, keeps_owned=keeps
    ).SerializeToString()


def member(cluster: VirtualShard, name: str, instance: str = "") -> VirtualMember:
    one = VirtualMember(cluster, name, instance=instance)
    one.protocols = [("range", keeping())]
    return one


def join(one: VirtualMember, *owned: int) -> VirtualMember:
    """The member joins, and goes on working on what it owns."""
    one.protocols = [(name, keeping(*owned)) for name, _ in one.protocols]
    return one.join()


def generation(*members: VirtualMember) -> VirtualMember:
    """Takes the answers of all members, which have joined; returns the leader."""
    for one in members:
        assert one.joined().error_code == error_code.NONE
    return next(one for one in members if one.members)


def share(leader: VirtualMember, plan: dict[VirtualMember, bytes]) -> dict[VirtualMember, list[int]]:
    """All sync, the leader with a plan; returns what each is given."""
    for one in plan:
        one.sync({who.member_id: given for who, given in plan.items()} if one is leader else None)
    return {one: [number for _, number in partitions_in(one.synced().assignment)] for one in plan}


def first_alone(cluster: VirtualShard, *partitions: int, instance: str = "") -> VirtualMember:
    """A member that owns partitions, alone in its group."""
    one = join(member(cluster, "a", instance))
    cluster.advance(cluster.config.initial_rebalance_delay_ms)
    assert share(generation(one), {one: published(*partitions)}) == {one: list(partitions)}
    return one


def both(cluster: VirtualShard) -> tuple[VirtualMember, VirtualMember]:
    """A member that keeps t-0 and t-1, and a newcomer that a leader gave t-1 to."""
    a = first_alone(cluster, 0, 1)
    b = join(member(cluster, "b"))
    join(a, 0, 1)
    given = share(generation(a, b), {a: published(0), b: published(1, user_data=b"u")})
    assert given == {a: [0], b: []}
    return a, b


def test_what_a_member_keeps_goes_to_another_only_when_it_was_released() -> None:
    cluster = VirtualShard()
    a, b = both(cluster)
    recorded = cluster.log[-1][1].assignment_committed.members
    assert common_pb2.Assignment.FromString(recorded[1].assignment).user_data == b"u"
    join(a, 0)
    assert b.heartbeat() == error_code.REBALANCE_IN_PROGRESS
    join(b)
    assert share(generation(a, b), {a: published(0), b: published(1)}) == {a: [0], b: [1]}
    assert not broken_promises(cluster)


def test_what_stays_with_its_keeper_keeps_its_token() -> None:
    cluster = VirtualShard()
    a = first_alone(cluster, 0, 1)
    token = cluster.log[-1][0].token
    b = join(member(cluster, "b"))
    join(a, 0, 1)
    leader = generation(a, b)
    assert leader is a
    b.sync()
    a.sync({a.member_id: published(0), b.member_id: published(1)})
    assert [(kept.partition, kept.token) for kept in a.synced().kept_tokens] == [(0, token)]


def test_a_member_that_never_heard_that_it_was_to_release_still_keeps() -> None:
    cluster = VirtualShard()
    a, b = both(cluster)
    c = join(member(cluster, "c"))
    join(a, 0, 1)  # the answer to its sync came too late
    join(b)
    leader = generation(a, b, c)
    assert share(leader, {a: published(0), b: published(1), c: published()}) == {a: [0], b: [], c: []}


@pytest.mark.parametrize("says_so_with", ["range", "cooperative-sticky"])
def test_it_counts_with_whichever_protocol_a_member_says_so(says_so_with: str) -> None:
    cluster = VirtualShard()
    a = first_alone(cluster, 0)
    b = join(member(cluster, "b"))
    a.protocols = [(name, keeping(0, keeps=name == says_so_with)) for name in ("range", "cooperative-sticky")]
    a.join()
    assert share(generation(a, b), {a: published(), b: published(0)}) == {a: [], b: []}


def test_what_two_members_say_that_they_keep_goes_to_neither() -> None:
    cluster = VirtualShard()
    a = first_alone(cluster, 0)
    b = join(member(cluster, "b"), 0)
    join(a, 0)
    assert share(generation(a, b), {a: published(0), b: published()}) == {a: [], b: []}


def test_a_member_that_gave_everything_up_keeps_nothing() -> None:
    cluster = VirtualShard()
    a = first_alone(cluster, 0)
    b = join(member(cluster, "b"))
    a.protocols = [("range", keeping(0, keeps=False))]
    a.join()
    assert share(generation(a, b), {a: published(), b: published(0)}) == {a: [], b: [0]}


def test_foreign_bytes_are_left_alone() -> None:
    cluster = VirtualShard()
    a = first_alone(cluster, 0)
    b = join(member(cluster, "b"))
    join(a, 0)
    leader = generation(a, b)
    a.sync({a.member_id: b"\xff", b.member_id: b"\xfe"} if leader is a else None)
    b.sync()
    assert (a.synced().assignment, b.synced().assignment) == (b"\xff", b"\xfe")
    cluster.advance(9_000)
    assert [a.heartbeat(), b.heartbeat()] == [error_code.NONE, error_code.NONE]


def beating(cluster: VirtualShard, *members: VirtualMember, until_ms: int) -> None:
    for _ in range(0, until_ms, 5_000):
        cluster.advance(5_000)
        for one in members:
            one.heartbeat()


def test_who_does_not_release_in_time_is_removed_though_it_beats() -> None:
    cluster = VirtualShard()
    a, b = both(cluster)
    beating(cluster, a, b, until_ms=25_000)
    assert a.heartbeat() == error_code.NONE
    beating(cluster, b, until_ms=5_000)
    assert a.heartbeat() == error_code.UNKNOWN_MEMBER_ID
    left = [record.member_left for _, record in cluster.log if record.WhichOneof("kind") == "member_left"]
    assert [one.member_id for one in left] == [a.member_id]
    assert left[0].cause.kind == common_pb2.REBALANCE_CAUSE_KIND_REBALANCE_TIMEOUT
    join(b)
    assert share(generation(b), {b: published(0, 1)}) == {b: [0, 1]}


def test_the_next_owner_of_the_log_waits_for_the_release_too() -> None:
    cluster = VirtualShard()
    a, b = both(cluster)
    cluster = a.cluster = b.cluster = cluster.reloaded()
    beating(cluster, a, b, until_ms=35_000)
    assert a.heartbeat() == error_code.UNKNOWN_MEMBER_ID


def test_a_process_in_the_place_of_one_that_keeps_has_released_it() -> None:
    cluster = VirtualShard()
    a = first_alone(cluster, 0, 1, instance="i")
    b = join(member(cluster, "b"))
    join(a, 0, 1)
    leader = generation(a, b)
    assert share(leader, {a: published(0), b: published(1)}) == {a: [0], b: []}
    new = join(member(cluster, "a", "i"))
    assert b.heartbeat() == error_code.REBALANCE_IN_PROGRESS, "or nobody would be given t-1"
    join(b)
    assert share(generation(new, b), {new: published(0), b: published(1)}) == {new: [0], b: [1]}


def test_where_more_is_kept_than_can_be_looked_at_nothing_changes_hands() -> None:
    cluster = VirtualShard(GroupConfig(max_partitions=2))
    a = first_alone(cluster, 0, 1)
    b = join(member(cluster, "b"), 5, 6, 7)
    join(a)
    assert share(generation(a, b), {a: published(0), b: published(1)}) == {a: [0], b: []}


@pytest.mark.parametrize("enabled", [True, False])
def test_a_join_says_whether_every_coordinator_withholds(enabled: bool) -> None:
    cluster = VirtualShard(features=frozenset({Feature.KEPT_PARTITIONS} if enabled else ()))
    a = join(member(cluster, "a"))
    cluster.advance(cluster.config.initial_rebalance_delay_ms)
    assert a.joined().withholds_kept is enabled
