"""Plans of many topics: what they come to, and that others have their turn meanwhile."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import ModuleType

import pytest
from conformance import acts
from core.test_core_sync_edges import given, kept, owning
from core.test_core_topics import hear
from hypothesis import given as drawn
from hypothesis import strategies as st
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core import error_code
from muster_core.log import application
from muster_core.position import Position
from muster_core.protocol.membership import plan_room, syncs
from muster_core.state import moves
from muster_core.state import plan as plans
from muster_core.state.holdings import COPIES, OWNED_PARTITION_BYTES
from muster_core.state.members import claims
from muster_core.state.members.protocols import protocols_of
from muster_core.state.published import TopicPartition, partitions_in
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

MODULES: tuple[ModuleType, ...] = (plans, claims, syncs)
MEMBERS = ("a", "b", "c")
PARTITIONS = [(topic, number) for topic in "tuv" for number in range(3)]
OWNED = st.lists(st.sampled_from(PARTITIONS), max_size=6, unique=True)
SHARES = st.fixed_dictionaries(dict.fromkeys(MEMBERS, OWNED))


def entries(partitions: Iterable[TopicPartition]) -> list[common_pb2.TopicPartitions]:
    """Each by itself: a topic may be named several times."""
    return [common_pb2.TopicPartitions(topic=topic, partitions=[number]) for topic, number in partitions]


def assignment(partitions: Iterable[TopicPartition]) -> bytes:
    return common_pb2.Assignment(version=1, partitions=entries(partitions)).SerializeToString()


def keeping(partitions: Iterable[TopicPartition]) -> list[tuple[str, bytes]]:
    subscription = common_pb2.Subscription(
        version=1, topics=["t"], owned_partitions=entries(partitions), keeps_owned=True
    )
    return [("range", subscription.SerializeToString())]


def in_turns_of(patch: pytest.MonkeyPatch, topics: int) -> None:
    for module in MODULES:
        patch.setattr(module, "TURN_TOPICS", topics)


def many(count: int) -> bytes:
    return assignment((f"topic-{number}", 0) for number in range(count))


def shared_out(
    cluster: VirtualShard, members: Mapping[str, VirtualMember], shares: Mapping[str, list[TopicPartition]]
) -> tuple[int, str]:
    """All sync, and the leader hands the shares in; code and text of its answer."""
    leader = next(one for one in members.values() if one.members)
    for one in members.values():
        if one is not leader:
            one.sync()
    leader.sync({members[name].member_id: assignment(some) for name, some in shares.items()})
    cluster.advance(1_000)
    answer = leader.synced()
    return answer.error_code, answer.error_message


@pytest.mark.parametrize("topics", [plans.TURN_TOPICS, 0])
@drawn(before=SHARES, keeps=SHARES, after=SHARES)
def test_a_plan_is_refused_or_shared_out_as_its_partitions_say(
    topics: int,
    before: Mapping[str, list[TopicPartition]],
    keeps: Mapping[str, list[TopicPartition]],
    after: Mapping[str, list[TopicPartition]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        in_turns_of(patch, topics)
        cluster = acts.shard()
        members = dict(zip(MEMBERS, acts.joined(cluster, *MEMBERS), strict=True))
        first = {partition: name for name in MEMBERS for partition in before[name]}  # each to one
        code, _ = shared_out(
            cluster, members, {name: [p for p, who in first.items() if who == name] for name in MEMBERS}
        )
        assert not code
        token = cluster.log[-1][0].token
        for one in members.values():
            if not one.members:
                one.synced()
        for partition in first:
            cluster.shard.groups["g"].ends.put(partition, 1)
        for name, one in members.items():
            one.protocols = keeping(keeps[name])
        acts.rejoined(*members.values())
        code, text = shared_out(cluster, members, after)
        times = Counter(partition for name in MEMBERS for partition in after[name])
        twice = {f"assignments: {p[0]}/{p[1]} is given more than once" for p in times if times[p] > 1}
        assert code == (error_code.INVALID_REQUEST if twice else error_code.NONE)
        if twice:
            assert text in twice
            return
        record = cluster.log[-1][1].assignment_committed
        ids = {one.member_id: name for name, one in members.items()}
        recorded = {ids[entry.member_id]: entry for entry in record.members}
        for name in MEMBERS:
            others = {p for other in MEMBERS if other != name for p in keeps[other]}
            left = [p for p in after[name] if p not in others]
            assert [*partitions_in(recorded[name].assignment)] == left
            own = [p for p in left if p in keeps[name] and first.get(p) == name]
            assert [(one.topic, one.partition) for one in recorded[name].kept_tokens] == own
            if not members[name].members:
                told = [(one.topic, one.partition, one.token) for one in members[name].synced().kept_tokens]
                assert told == [(*p, token) for p in own]
        group = cluster.shard.groups["g"]
        assert group.to_release.keys() == {
            members[name].member_id
            for name in MEMBERS
            if not {*keeps[name]} <= {*partitions_in(recorded[name].assignment)}
        }
        for shown in cluster.describe().members:
            name = ids[shown.member_id]
            lacking = {*keeps[name]} - {*partitions_in(recorded[name].assignment)}
            assert [(one.topic, n) for one in shown.withheld for n in one.partitions] == sorted(lacking)
        owners = {p: (who, position.token) for p, (who, position) in group.owners.items()}
        assert {token for _, token in owners.values()} <= {token, cluster.log[-1][0].token}
        assert cluster.reloaded().shard.groups["g"].owners == group.owners
        moved = [(one.topic, one.partition) for one in next(iter(reversed(group.history))).moves]
        now = {p: ids[who] for p, (who, _) in owners.items()}
        assert moved == sorted(p for p in {*first, *now} if first.get(p) != now.get(p))
        assert {p for p, _ in group.ends} == first.keys() & now.keys()


def test_a_plan_of_many_topics_is_gone_through_in_turns_while_the_group_waits() -> None:
    cluster = acts.shard()
    leader, follower = acts.joined(cluster, "a", "b")
    follower.sync()
    newcomer = acts.member(cluster, "c")
    asking = cluster.ask(newcomer.join_request())
    assert isinstance(asking, coordinator_pb2.JoinGroupResponse)
    newcomer.member_id = asking.member_id
    stored = len(cluster.log)
    leader.sync({leader.member_id: many(3 * plans.TURN_TOPICS)})
    joining = cluster.send(newcomer.join_request())
    turns = 0
    while len(cluster.log) == stored:
        turns += 1
        assert leader.heartbeat() == error_code.NONE
        assert cluster.shard.groups["g"].line.steps
        cluster.advance(4)
    assert turns >= 3
    assert cluster.is_parked(leader.call_id), "to carry the record out took a turn"
    cluster.advance(4)
    assert leader.synced().assignment == many(3 * plans.TURN_TOPICS)
    assert follower.synced().error_code == error_code.NONE
    assert cluster.is_parked(joining)
    assert leader.heartbeat() == error_code.REBALANCE_IN_PROGRESS


def test_what_a_member_keeps_of_a_topic_that_is_deleted_between_the_turns_has_a_new_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once = plans.TURN_TOPICS
    for turns in range(1, 100):
        in_turns_of(monkeypatch, at_once)
        cluster = acts.shard()
        hear(cluster, 5, {"t": 2, "u": 1})
        (who,) = acts.joined(cluster, acts.member(cluster, "a", protocols=[("range", owning())]))
        who.sync({who.member_id: given(0, 1)}).synced()
        who.protocols = [("range", owning(0, 1))]
        acts.rejoined(who)
        in_turns_of(monkeypatch, 0)
        stored = len(cluster.log)
        who.sync({who.member_id: given(0, 1)})
        for _ in range(turns):
            cluster.advance(4)
        if len(cluster.log) > stored:
            assert turns > 3
            return
        hear(cluster, 7, {"t": 2, "u": 1}, {"t": 6})
        cluster.advance(1_000)
        assert kept(who.synced()) == {}
    raise AssertionError("it is never stored")


def test_of_a_plan_that_gives_too_much_nothing_is_read_and_of_others_few_partitions_at_a_time() -> None:
    """LIM-17: a megabyte names nine hundred thousand partitions, of few topics."""
    dense = [common_pb2.TopicPartitions(topic=f"t{number}", partitions=range(128)) for number in range(2_000)]
    given_all = common_pb2.Assignment(version=1, partitions=dense).SerializeToString()
    request = coordinator_pb2.SyncGroupRequest()
    request.assignments.add(member_id="a", assignment=given_all)
    plan = plans.Plan()
    assert [*plan.read(request, {"a"}, 200_000)] == []
    assert plan.partitions > 200_000
    assert plan.given("a") == ()
    plan = plans.Plan()
    seen = [0, *(len(plan.given("a")) for _ in plan.read(request, {"a"}, 300_000))]
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 48_000
    assert len(plan.given("a")) == plan.partitions == 256_000


def test_of_one_topic_with_all_partitions_some_are_looked_at_at_a_time() -> None:
    """LIM-17: a hundred thousand held the loop for 50 ms to be read, and for 80 to be stored."""
    count = 100_000
    one_topic = [common_pb2.TopicPartitions(topic="t", partitions=range(count))]
    request = coordinator_pb2.SyncGroupRequest()
    request.assignments.add(
        member_id="a", assignment=common_pb2.Assignment(version=1, partitions=one_topic).SerializeToString()
    )
    plan = plans.Plan()
    seen = [0, *(len(plan.given("a")) for _ in plan.read(request, {"a"}, count)), count]
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 20_000
    least = count // 20_000
    assert len([*plan.compare({}, (), 1_000)]) >= least
    assert plan.moves is not None
    assert plan.moves.first == plan.given("a")[:1_001]
    others = {("u", number): ("a", Position(1, 1)) for number in range(count)}
    assert len([*plan.compare(others, others.keys(), 1_000)]) >= 3 * least
    assert {*plan.moves.gone} == others.keys()
    taking = plan.take_back("a", {"t": {*range(10)}})
    assert len([*taking]) >= least
    assert plan.given("a")[0] == ("t", 10)


def test_partitions_are_taken_back_of_some_topics_at_a_time_and_the_rest_stays() -> None:
    """LIM-17: of a plan for 40,000 topics that held the loop for 80 ms, of 190,000 for 0.4 s."""
    count = 20_000
    listed = [common_pb2.TopicPartitions(topic=f"t{number}", partitions=[0, 1]) for number in range(count)]
    whole = common_pb2.Assignment(version=1, partitions=listed, user_data=b"u")
    unknown = b"\xa2\x06\x01x"  # field 100, as a later version may write one
    request = coordinator_pb2.SyncGroupRequest()
    request.assignments.add(member_id="a", assignment=whole.SerializeToString() + unknown)
    plan = plans.Plan()
    assert len([*plan.read(request, {"a"}, 2 * count)]) > 1
    taken = {f"t{number}": {0, 1} if number % 3 else {1} for number in range(0, count, 2)}
    assert len([*plan.take_back("a", taken)]) >= count // plans.TURN_TOPICS
    left = [
        (entry.topic, [number for number in entry.partitions if number not in taken.get(entry.topic, ())])
        for entry in listed
    ]
    left = [(topic, numbers) for topic, numbers in left if numbers]
    del whole.partitions[:]
    whole.partitions.extend(common_pb2.TopicPartitions(topic=name, partitions=some) for name, some in left)
    assert plan.assignments["a"] == whole.SerializeToString(deterministic=True) + unknown
    assert plan.topics_of("a") == left
    assert plan.given("a") == [(topic, number) for topic, numbers in left for number in numbers]


def test_what_thousands_of_members_are_given_is_put_in_order_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LIM-17: for each of them by itself that held the loop for 0.3 s."""
    request = coordinator_pb2.SyncGroupRequest()
    members = [f"m{number}" for number in range(5_000)]
    for number, member_id in enumerate(members):
        request.assignments.add(member_id=member_id, assignment=assignment([("t", number)]))
    plan = plans.Plan()
    assert len([*plan.read(request, members, 5_000)]) >= 4
    sizes: list[int] = []

    def noted(some: list[TopicPartition]) -> list[TopicPartition]:
        sizes.append(len(some))
        return sorted(some)

    monkeypatch.setattr(moves, "sorted", noted, raising=False)
    assert len([*plan.compare({}, (), 1_000)]) >= 4
    assert plan.moves is not None
    assert plan.moves.first == [("t", number) for number in range(1_001)]
    assert sum(sizes) < 2 * len(members)


def alone(cluster: VirtualShard, group_id: str) -> VirtualMember:
    """A member that is to hand in the plan of its group."""
    who = VirtualMember(cluster, "a", group_id).join()
    cluster.advance(acts.DELAY_MS)
    assert who.joined().error_code == error_code.NONE
    return who


def test_plans_that_are_gone_through_beside_each_other_have_room_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LIM-22: forty of 64 KB, each of which there was room for, held two and a half times what they may."""
    plan_bytes = 1_000 * OWNED_PARTITION_BYTES + COPIES * len(many(1_000))
    cluster = acts.shard(max_bytes_per_shard=2 * plan_bytes, history_length=0)
    leaders = [alone(cluster, group_id) for group_id in "abc"]
    most = 2.5 * plan_bytes  # with the reserve of members at work
    in_turns_of(monkeypatch, 100)
    for who in leaders:
        who.sync({who.member_id: many(1_000)})
    while any(cluster.is_parked(who.call_id) for who in leaders):
        cluster.advance(1)
        assert cluster.shard.held_bytes <= most
    answers = [who.synced() for who in leaders]
    full = error_code.COORDINATOR_NOT_AVAILABLE
    assert sorted(one.error_code for one in answers) == [error_code.NONE, error_code.NONE, full]
    assert all("MUSTER_GROUP_MAX_BYTES_PER_SHARD" in one.error_message for one in answers if one.error_code)
    assert cluster.shard.held_bytes <= most


@pytest.mark.parametrize("end", ["refused", "given up", "begun anew", "stored"])
def test_what_a_plan_takes_counts_until_it_is_stored_refused_or_given_up(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    cluster = acts.shard()
    hear(cluster, 5, {"t": 2})
    (who,) = acts.joined(cluster, acts.member(cluster, "a", protocols=[("range", owning())]))
    assert not who.sync({who.member_id: given(0)}).synced().error_code
    acts.rejoined(who)
    before = cluster.shard.held_bytes
    in_turns_of(monkeypatch, 0)
    plan = [(f"u{number}", 0) for number in range(100)]
    twice = plan[-1:] if end == "refused" else []
    who.sync({who.member_id: assignment(plan + twice)})
    cluster.advance(12)
    assert cluster.shard.held_bytes > before + 99 * OWNED_PARTITION_BYTES
    if end == "given up":
        cluster.cancel(who.call_id)
    elif end == "begun anew":
        hear(cluster, 7, {}, {"t": 6})
    cluster.advance(2_000)
    if end != "given up":
        assert bool(who.synced().error_code) == (end == "refused")
    group = cluster.shard.groups["g"]
    assert cluster.shard.held_bytes == group.weight_bytes == group.held_bytes
    assert (cluster.shard.held_bytes == before) == (end in ("refused", "given up"))


def keeper(cluster: VirtualShard, group_id: str, kept: int) -> VirtualMember:
    """A member that keeps so many partitions, and is to hand in the plan of its group."""
    who = VirtualMember(cluster, "a", group_id)
    who.protocols = keeping((f"k{number}", 0) for number in range(kept))
    who.join()
    cluster.advance(acts.DELAY_MS)
    assert who.joined().error_code == error_code.NONE
    return who


def test_plans_of_many_groups_look_through_no_more_at_a_time_than_memory_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LIM-22: of twenty groups with a member each that keeps 150,000 they took 196 MB, and counted 9."""
    monkeypatch.setattr(plan_room, "KEPT_AT_ONCE", 500)
    cluster = acts.shard()
    kept = cluster.shard._context.room.kept
    large = keeper(cluster, "large", 1_000)  # more than there is room for: alone it may
    leaders = [large, *(keeper(cluster, group_id, 200) for group_id in "abc")]
    in_turns_of(monkeypatch, 50)
    large.sync({large.member_id: many(1)})
    while large.is_parked:
        cluster.advance(1)
    assert large.synced().error_code == error_code.NONE
    refused = 0
    for _ in range(2):
        waiting = [who for who in leaders[1:] if not cluster.shard.groups[who.group].owners]
        for who in waiting:
            who.sync({who.member_id: many(1)})
        while any(who.is_parked for who in waiting):
            cluster.advance(1)
            assert kept.partitions <= 500
        for answer in [who.synced() for who in waiting]:
            refused += answer.error_code == error_code.COORDINATOR_NOT_AVAILABLE
            assert ("more than 500 partitions" in answer.error_message) == bool(answer.error_code)
        assert kept.partitions == 0
    assert refused == 1
    assert all(cluster.shard.groups[who.group].owners for who in leaders)


@pytest.mark.parametrize("end", ["given up", "suspended"])
def test_what_a_plan_looked_through_has_room_for_others_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    cluster = acts.shard()
    kept = cluster.shard._context.room.kept
    who = keeper(cluster, "a", 1_000)
    in_turns_of(monkeypatch, 50)
    who.sync({who.member_id: many(1)})
    cluster.advance(20)
    assert kept.partitions > 0
    if end == "given up":
        cluster.cancel(who.call_id)
    else:
        cluster.suspend()
        cluster.resume()
    cluster.advance(2_000)
    assert kept.partitions == 0


def test_a_plan_counts_while_it_is_on_its_way_to_the_log() -> None:
    cluster = acts.shard()
    (who,) = acts.joined(cluster, "a")
    before = cluster.shard.held_bytes
    cluster.auto_ack = False
    who.sync({who.member_id: many(100)})
    (append,) = cluster.waiting
    assert cluster.shard.held_bytes > before + 100 * OWNED_PARTITION_BYTES + sum(map(len, append.encoded))
    cluster.acknowledge()
    assert cluster.shard.held_bytes == cluster.shard.groups["g"].weight_bytes


def test_what_a_member_keeps_of_a_topic_is_copied_once_however_often_a_plan_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LIM-17: 30,000 partitions that are named one by one held the loop for half a second at a time."""
    copied: list[int] = []

    class Counted(set[int]):
        def __init__(self, numbers: Iterable[int] = ()) -> None:
            super().__init__(numbers)
            copied.append(len(self))

        def difference(self, *others: Iterable[object]) -> set[int]:
            return Counted(super().difference(*others))

        def __sub__(self, other: AbstractSet[object]) -> set[int]:
            return Counted(super().__sub__(other))

    monkeypatch.setattr(claims, "set", Counted, raising=False)
    keeps = [("t", number) for number in range(1_000)]
    cluster = acts.shard()
    (who,) = acts.joined(cluster, acts.member(cluster, "a", protocols=keeping(keeps)))
    request = coordinator_pb2.SyncGroupRequest()
    request.assignments.add(member_id=who.member_id, assignment=assignment(keeps[1:]))
    plan = plans.Plan()
    assert not [*plan.read(request, {who.member_id}, 1_000)]
    members = cluster.shard.groups["g"].members.values()
    said = claims.Claims(members)
    copied.clear()
    unmet: dict[str, bytes] = {}
    assert not [*said.unmet_by_plan(plan, unmet)]
    shown = coordinator_pb2.DescribeGroupsResponse.Member.FromString(unmet[who.member_id]).withheld
    assert [(one.topic, [*one.partitions]) for one in shown] == [("t", [0])]
    assert copied == [1_000]
    assert said.of(who.member_id) == {"t": {*range(1_000)}}


def test_who_is_to_release_something_after_the_time_to_sync_has_all_of_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GRP-42: the time to sync ended while the plan was gone through."""
    cluster = acts.shard()
    leader, follower = acts.joined(cluster, "a", "b")
    shared_out(cluster, {"a": leader, "b": follower}, {"a": [("t", 0), ("t", 1)], "b": []})
    follower.synced()
    leader.protocols, follower.protocols = keeping([("t", 0), ("t", 1)]), keeping([])
    acts.rejoined(leader, follower)
    began_ms = cluster.now_ms
    follower.sync()
    while cluster.now_ms < began_ms + acts.REBALANCE_MS - 1_000:
        cluster.advance(1_000)
        assert leader.heartbeat() == error_code.NONE
    cluster.advance(995)
    in_turns_of(monkeypatch, 0)
    stored = len(cluster.log)
    leader.sync({leader.member_id: assignment([("t", 0)]), follower.member_id: assignment([("t", 1)])})
    cluster.advance(8)
    assert cluster.now_ms > began_ms + acts.REBALANCE_MS
    assert len(cluster.log) == stored
    cluster.advance(1_000)
    assert leader.synced().assignment == assignment([("t", 0)])
    told_ms = cluster.now_ms
    assert leader.member_id in cluster.shard.groups["g"].to_release
    while cluster.now_ms < told_ms + acts.REBALANCE_MS - 2_000:
        assert leader.heartbeat() == follower.heartbeat() == error_code.NONE
        cluster.advance(1_000)
    cluster.advance(2_000)
    assert leader.heartbeat() == error_code.UNKNOWN_MEMBER_ID


def test_what_a_plan_moves_is_found_before_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def found_late(*_: object) -> None:
        raise AssertionError("two hundred thousand partitions are compared in the turn that stores them")

    cluster = acts.shard()
    leader, follower = acts.joined(cluster, "a", "b")
    monkeypatch.setattr(application, "moves_between", found_late)
    shared_out(cluster, {"a": leader, "b": follower}, {"a": [("t", 0)], "b": [("t", 1)]})
    (entry,) = cluster.shard.groups["g"].history
    assert [(one.topic, one.partition) for one in entry.moves] == [("t", 0), ("t", 1)]


def test_what_a_member_is_given_before_it_is_given_something_else_is_nobody_s() -> None:
    cluster = acts.shard()
    (leader,) = acts.joined(cluster, "a")
    shared_out(cluster, {"a": leader}, {"a": [("t", 0), ("t", 1)]})
    group = cluster.shard.groups["g"]
    for number in range(2):
        group.ends.put(("t", number), 5)
    acts.rejoined(leader)
    request = coordinator_pb2.SyncGroupRequest(
        group_id="g", member_id=leader.member_id, generation=leader.generation
    )
    for number in range(2):
        request.assignments.add(member_id=leader.member_id, assignment=assignment([("t", number)]))
    cluster.send(request)
    assert group.owners.keys() == {("t", 1)}
    assert {partition for partition, _ in group.ends} == {("t", 1)}
    assert [(one.topic, one.partition) for one in group.history[-1].moves] == [("t", 0)]


def test_topics_of_which_nothing_is_given_count_too() -> None:
    """LIM-17: four megabytes name two million of them, which took 318 MB and nine seconds."""
    nothing = common_pb2.Assignment(version=1, partitions=[common_pb2.TopicPartitions()] * 6)
    request = coordinator_pb2.SyncGroupRequest()
    for member_id in ("a", "b"):
        request.assignments.add(member_id=member_id, assignment=nothing.SerializeToString())
    plan = plans.Plan()
    assert [*plan.read(request, {"a", "b"}, 12)] == []
    assert plan.partitions == 0
    assert len(plan.topics_of("b")) == 6
    plan = plans.Plan()
    assert [*plan.read(request, {"a", "b"}, 11)] == []
    assert plan.partitions > 11
    assert plan.topics_of("b") == ()


def test_what_is_kept_of_topics_without_partitions_is_not_looked_at_without_end() -> None:
    subscription = common_pb2.Subscription(
        version=1, owned_partitions=[common_pb2.TopicPartitions()] * 6, keeps_owned=True
    ).SerializeToString()
    cluster = acts.shard()
    acts.joined(cluster, "a")
    (member,) = cluster.shard.groups["g"].members.values()
    member.terms = member.terms._replace(protocols=protocols_of((("range", subscription),)))
    assert claims.Claims([member], 6).complete
    assert not claims.Claims([member], 5).complete


def test_bytes_that_give_nothing_are_read_in_turns() -> None:
    """They take as long to decode as others: four megabytes of foreign ones held the loop for 0.2 s."""
    size_bytes = plans.BYTES_AS_TOPIC * (plans.TURN_TOPICS + 1)
    request = coordinator_pb2.SyncGroupRequest()
    for member_id in ("a", "b", "c"):
        request.assignments.add(member_id=member_id, assignment=bytes(size_bytes))
    assert len([*plans.Plan().read(request, {"a", "b", "c"}, 1_000)]) == 3


def test_what_was_handed_in_is_not_read_again_when_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def noted(some: bytes) -> Sequence[TopicPartition]:
        read.append(some)
        return partitions_in(some)

    monkeypatch.setattr(application, "partitions_in", noted)
    cluster = acts.shard()
    (leader,) = acts.joined(cluster, "a")
    assert leader.sync({leader.member_id: given(0, 1)}).synced().assignment == given(0, 1)
    assert not read
    assert cluster.reloaded().shard.groups["g"].owners == cluster.shard.groups["g"].owners
    assert read == [given(0, 1)]


def test_a_leader_that_goes_away_between_the_turns_hands_nothing_in() -> None:
    cluster = acts.shard()
    leader, follower = acts.joined(cluster, "a", "b")
    follower.sync()
    stored = len(cluster.log)
    leader.sync({leader.member_id: many(2 * plans.TURN_TOPICS)})
    cluster.cancel(leader.call_id)
    cluster.advance(1_000)
    assert len(cluster.log) == stored
    leader.sync({leader.member_id: given(0)})
    assert leader.synced().assignment == given(0)
