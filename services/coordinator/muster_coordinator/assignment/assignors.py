"""What assigns in incremental groups: the functions of `muster_assignors`, as the core asks them."""

from collections.abc import Callable, Collection, Mapping

from muster_assignors import (
    Assignment,
    GroupSnapshot,
    MemberSnapshot,
    TopicPartition,
    TopicSnapshot,
    assign_range_by_weight,
    assign_uniform_by_weight,
    even_shares,
)
from muster_core.incremental import partitions
from muster_core.incremental.targets.target import Question, ServerAssignor

_NOWHERE = frozenset[str]()


def _asked(assign: Callable[[GroupSnapshot, bool | None], Assignment]) -> ServerAssignor:
    def answer(question: Question) -> Mapping[str, list[partitions.TopicPartition]]:
        first = next(iter(question.candidates.values()), None)
        members = {
            member_id: MemberSnapshot(
                member_id,
                tuple(sorted(first.topics if question.alike and first is not None else one.topics)),
                one.group_instance_id,
                one.rack_id,
                tuple(TopicPartition(*partition) for partition in sorted(one.before)),
                weight=one.weight,
            )
            for member_id, one in question.candidates.items()
        }
        topics = {name: _topic(question, name) for name in question.topics}
        if not members:
            return {}
        given = assign(GroupSnapshot(members, topics), question.alike)
        return {member_id: [(p.topic, p.number) for p in some] for member_id, some in given.items()}

    return answer


def _topic(question: Question, name: str) -> TopicSnapshot:
    numbers = question.topics[name]
    every = range(numbers[-1] + 1)
    weights, zones = question.weights.get(name), question.zones.get(name)
    return TopicSnapshot(
        len(every),
        tuple(zones.get(number, _NOWHERE) for number in every) if zones else (),
        frozenset(every).difference(numbers),
        tuple(weights.get(number, 1) for number in every) if weights else (),
    )


_uniform_by_snapshots = _asked(assign_uniform_by_weight)


def _uniform(question: Question) -> Mapping[str, Collection[partitions.TopicPartition]]:
    """Members that want the same topics are shared out without snapshots of them, which would take longer."""
    candidates = question.candidates
    if not (question.alike and candidates and question.is_plain):
        return _uniform_by_snapshots(question)
    wanted = next(iter(candidates.values())).topics
    numbers = {topic: some for topic, some in question.topics.items() if topic in wanted}
    return even_shares({member_id: one.before for member_id, one in candidates.items()}, numbers)


SERVER_ASSIGNORS: Mapping[str, ServerAssignor] = {
    "uniform": _uniform,
    "range": _asked(lambda group, _: assign_range_by_weight(group)),
}
"""By name, the default first."""
