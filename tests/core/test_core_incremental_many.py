"""What is done at once for many partitions comes to the same as one by one."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from kit.lives.incremental_shard import GROUP, incremental_of, incremental_shard, joined, settle
from muster_core.config import GroupConfig
from muster_core.incremental.group import IncrementalGroup, among
from muster_core.incremental.member import Held, Member, Told
from muster_core.incremental.partitions import TopicPartition, by_topic
from muster_core.incremental.targets.late import what_counts
from muster_core.incremental.targets.target import Change, Topics
from muster_core.log.application import Application
from muster_core.participant import Participant
from muster_core.position import NOWHERE, Position
from muster_core.state.group_table import GroupTable
from muster_core.state.history import GenerationEntry
from muster_protos.muster.log.v1 import incremental_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

NAMES = ("t", "u", "v")
PARTITIONS = [(topic, number) for topic in NAMES for number in range(4)]
SOME = st.frozensets(st.sampled_from(PARTITIONS), max_size=8)
PLACES = st.sampled_from([Position(1, offset) for offset in range(3, 6)])
TAKEN = st.sampled_from([NOWHERE, Position(1, 9)])
HELD = st.dictionaries(st.sampled_from(PARTITIONS), st.builds(Held, PLACES, TAKEN), max_size=8)
INCARNATIONS = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 1))
TOPICS = st.builds(
    Topics,
    st.dictionaries(st.sampled_from(NAMES), st.integers(1, 4)),
    INCARNATIONS,
    st.dictionaries(st.sampled_from(NAMES), st.frozensets(st.integers(0, 3))),
)


@given(HELD, SOME)
def test_what_a_member_may_work_on_and_owes(
    held: Mapping[TopicPartition, Held], target: frozenset[TopicPartition]
) -> None:
    member = Member(Told("m"), held=held, target=target)
    assert member.assigned == {p for p, one in held.items() if one.taken == NOWHERE}
    assert member.pending == {p for p, one in held.items() if one.taken != NOWHERE}
    assert member.last_taken == max((one.taken for one in held.values()), default=NOWHERE)
    assert member.is_within_target == (not member.pending and {*held} <= target)
    assert member.has_all == (member.assigned == target and not member.pending)
    stepped = member.stepped(1, {p: Held(Position(1, 3)) for p in held}, NOWHERE, waits=False)
    assert stepped.assigned == {*held}
    assert not stepped.pending


def one_by_one(
    group: IncrementalGroup, changes: Mapping[str, Change], topics: Topics, incarnations: Mapping[str, int]
) -> tuple[dict[str, Change], bool]:
    """What counts of a result, by the rule for each partition."""
    takers: dict[TopicPartition, str] = {}
    meant: set[TopicPartition] = set()
    for who, change in changes.items():
        meant |= change.gets
        if who in group.members:
            wanted = group.topics_of(group.members[who].told)
            for name, number in change.gets:
                there = number < topics.partitions.get(name, 0) and number not in topics.removed.get(name, ())
                same = topics.incarnations.get(name, 0) == incarnations.get(name, 0)
                if name in wanted and there and same:
                    takers[name, number] = who
    counted: dict[str, Change] = {}
    for who, member in group.members.items():
        gets = {p for p, taker in takers.items() if taker == who and p not in member.target}
        loses = {p for p in member.target if takers.get(p, who) != who}
        if who in changes:
            loses |= (changes[who].loses - meant) & member.target
        if gets or loses:
            counted[who] = Change(frozenset(gets), frozenset(loses))
    return counted, len(takers) < len(meant)


CHANGE = st.builds(Change, SOME, SOME)


@given(
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.frozensets(st.sampled_from(NAMES)), SOME)),
    st.dictionaries(st.sampled_from("abcd"), CHANGE),
    TOPICS,
    INCARNATIONS,
)
def test_what_counts_of_an_assignment_that_comes_late(
    members: Mapping[str, tuple[frozenset[str], frozenset[TopicPartition]]],
    changes: Mapping[str, Change],
    topics: Topics,
    incarnations: Mapping[str, int],
) -> None:
    group = IncrementalGroup(1)
    for who, (wanted, target) in members.items():  # no partition is in two targets
        group.put(Member(Told(who, topics=wanted), target=target - group.wanting.keys()))
    expected = one_by_one(group, changes, topics, incarnations)
    assert what_counts(group, changes, topics, incarnations) == expected


@given(
    st.dictionaries(st.sampled_from(PARTITIONS), st.tuples(st.sampled_from("-ab"), st.sampled_from("-ab"))),
    st.integers(0, 5),
)
def test_the_history_lists_the_first_moves_of_a_target(
    moves: Mapping[TopicPartition, tuple[str, str]], listed: int
) -> None:
    """From whom a partition goes to whom; `-`: nobody."""
    record = incremental_pb2.TargetAssigned(server_assignor="uniform")
    for who in "ab":
        loses = by_topic([p for p, (giver, taker) in moves.items() if giver == who != taker])
        gets = by_topic([p for p, (giver, taker) in moves.items() if taker == who != giver])
        record.changes.add(member_id=who, loses=loses, gets=gets)
    entry = GenerationEntry(1, common_pb2.RebalanceCause(), 0, "", "", (), NOWHERE)
    application = Application(GroupTable(), GroupConfig(history_moves=listed), lambda _, __: None)
    application._note_target(entry, 7, record)
    expected = [
        (*p, giver.strip("-"), taker.strip("-"))
        for p, (giver, taker) in sorted(moves.items())
        if giver != taker
    ]
    told = [(m.topic, m.partition, m.from_member_id, m.to_member_id) for m in entry.moves]
    assert told == expected[:listed]
    assert entry.moves_truncated == (len(expected) > listed)


def test_a_generation_is_sent_with_its_own_participants_whatever_was_sent_before() -> None:
    def entry(*names: str) -> GenerationEntry:
        members = tuple(Participant(name, f"i-{name}", "c", "10.0.0.1") for name in names)
        return GenerationEntry(7, common_pb2.RebalanceCause(), 5, "", "uniform", members, Position(1, 2))

    for names in (("a", "b"), ("a",), (), ("b", "a"), ("a", "b")):
        message = entry(*names).to_proto()
        assert [Participant.of(member) for member in message.members] == list(entry(*names).members)
        assert (message.generation, message.protocol_name) == (7, "uniform")


STEPS = st.lists(st.tuples(st.sampled_from("abc"), SOME, SOME), max_size=8)


@given(STEPS, STEPS, SOME)
def test_a_draft_knows_who_has_and_who_wants_a_partition(
    before: list[tuple[str, frozenset[TopicPartition], frozenset[TopicPartition]]],
    after: list[tuple[str, frozenset[TopicPartition], frozenset[TopicPartition]]],
    asked: frozenset[TopicPartition],
) -> None:
    group, plain = IncrementalGroup(1), IncrementalGroup(1)
    for who, held, target in before:
        put(group, who, held, target)
        put(plain, who, held, target)
    owners, wanting = dict(group.owners), dict(group.wanting)
    draft = group.draft()
    for who, held, target in after:
        put(draft, who, held, target)
        put(plain, who, held, target)
    assert (group.owners, group.wanting) == (owners, wanting), "the group itself is as it was"
    assert (dict(draft.owners), dict(draft.wanting)) == (plain.owners, plain.wanting)
    assert among(draft.owners, asked) == asked & plain.owners.keys()
    assert [draft.owners.get(p) for p in asked] == [plain.owners.get(p) for p in asked]
    for who in [*draft.members]:
        draft.remove(who)
    assert not dict(draft.owners)


def put(
    group: IncrementalGroup, who: str, held: frozenset[TopicPartition], target: frozenset[TopicPartition]
) -> None:
    """Of what others have it gets nothing."""
    free = {p for p in held if group.owners.get(p, who) == who}
    group.put(Member(Told(who), held=dict.fromkeys(free, Held(Position(1, 3))), target=target))


def test_tokens_that_are_older_than_the_newest_are_described() -> None:
    cluster = incremental_shard(6)
    first, second = joined(cluster, "a", "b")
    settle(first, second)
    second.leave()
    settle(first)
    held = incremental_of(cluster).members["a"].held
    tokens = {p: one.token for p, one in held.items()}
    newest = max(tokens.values())
    answer = cluster.ask(coordinator_pb2.DescribeGroupsRequest(group_ids=[GROUP]))
    assert isinstance(answer, coordinator_pb2.DescribeGroupsResponse)
    (shown,) = answer.groups[0].members
    assert shown.token == newest.token
    older = [(topic, number, tokens[topic, number].token) for topic, number in sorted(tokens)]
    assert [(one.topic, one.partition, one.token) for one in shown.kept_tokens] == [
        one for one in older if one[2] != newest.token
    ]
    assert shown.kept_tokens
