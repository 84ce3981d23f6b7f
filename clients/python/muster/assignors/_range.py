"""The `range` assignor: consecutive partitions, topic by topic, racks considered (KIP-881)."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from muster._values import TopicPartition
from muster.assignors._snapshot import Assignment, GroupSnapshot, MemberSnapshot, TopicSnapshot, text_order


@dataclass(slots=True)
class _TopicState:
    """One topic while its partitions are being assigned."""

    name: str
    members: tuple[MemberSnapshot, ...]
    partition_racks: tuple[frozenset[str], ...]
    size: int
    needs_racks: bool
    share: int
    extras: int
    unassigned: list[int]
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def room(self, member: MemberSnapshot) -> int:
        """How many partitions the member may still get."""
        most = self.share + (1 if self.extras > 0 else 0)
        return max(0, most - self.counts[member.member_id])

    def rack_matches(self, member: MemberSnapshot, number: int) -> bool:
        """Whether the partition is on the member's rack; for a member without a rack every partition is."""
        if not member.rack_id:
            return True
        return bool(self.partition_racks) and member.rack_id in self.partition_racks[number]

    def take(
        self, member: MemberSnapshot, numbers: Iterable[int], result: dict[str, list[TopicPartition]]
    ) -> None:
        """Gives partitions to a member."""
        taken = list(numbers)
        chosen = set(taken)
        result[member.member_id].extend(TopicPartition(self.name, number) for number in taken)
        self.unassigned = [number for number in self.unassigned if number not in chosen]
        self.counts[member.member_id] += len(taken)
        if self.counts[member.member_id] > self.share:
            self.extras -= 1


def assign_range(group: GroupSnapshot) -> Assignment:
    """Gives each member a run of consecutive partitions of each topic; the first members get the extras.

    Where racks are known and differ, partitions go to members on their rack first; topics with the same
    members and the same number of partitions stay aligned, which counts more than racks.
    """
    members = group.members_in_order()
    result: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
    states = [
        _state(topic, group.topics[topic], tuple(m for m in members if topic in m.topics))
        for topic in group.topics_in_order()
    ]
    use_racks = any(state.needs_racks for state in states)
    if use_racks:
        _match_racks(states, result)
    for state in states:
        _assign_runs(state, lambda _member, _number: True, result)
    if use_racks:
        for partitions in result.values():
            partitions.sort(key=lambda p: (text_order(p.topic), p.number))
    return result


def _state(name: str, topic: TopicSnapshot, members: tuple[MemberSnapshot, ...]) -> _TopicState:
    member_racks = {member.rack_id for member in members if member.rack_id}
    all_racks = frozenset[str]().union(*topic.racks)
    differ = any(racks != all_racks for racks in topic.racks)
    share, extras = divmod(topic.partitions, len(members))
    return _TopicState(
        name=name,
        members=members,
        partition_racks=topic.racks,
        size=topic.partitions,
        needs_racks=differ and not member_racks.isdisjoint(all_racks),
        share=share,
        extras=extras,
        unassigned=list(range(topic.partitions)),
    )


def _assign_runs(
    state: _TopicState, may: Callable[[MemberSnapshot, int], bool], result: dict[str, list[TopicPartition]]
) -> None:
    for member in state.members:
        fitting = [number for number in state.unassigned if may(member, number)]
        state.take(member, fitting[: state.room(member)], result)


def _match_racks(states: list[_TopicState], result: dict[str, list[TopicPartition]]) -> None:
    siblings: dict[tuple[tuple[str, ...], int], list[_TopicState]] = defaultdict(list)
    for state in states:
        siblings[tuple(member.member_id for member in state.members), state.size].append(state)
    for alike in siblings.values():
        if len(alike) > 1:
            _match_racks_together(alike, result)
        elif alike[0].needs_racks:
            _assign_runs(alike[0], alike[0].rack_matches, result)


def _match_racks_together(states: list[_TopicState], result: dict[str, list[TopicPartition]]) -> None:
    members = states[0].members
    for number in range(states[0].size):
        for member in members:
            if all(state.rack_matches(member, number) and state.room(member) for state in states):
                for state in states:
                    state.take(member, (number,), result)
                break
