"""What follows without a request of the member that it is about: removals, and targets that are due."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from muster_core.incremental import causes
from muster_core.incremental.decisions.decision import Decision
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import Member
from muster_core.incremental.targets.hold import holding
from muster_core.incremental.targets.target import (
    ServerAssignor,
    Topics,
    When,
    changes_of,
    preferred_assignor,
    question_of,
    subscribed_topics,
)

Judge: TypeAlias = Callable[[IncrementalGroup], When]
"""Says when the target of a group is computed that is out of date, as a decision would leave the group."""


def remove(
    decision: Decision,
    gone: Sequence[tuple[Member, causes.Cause]],
    topics: Topics,
    assignors: Mapping[str, ServerAssignor],
    when: Judge,
    *,
    moved: bool = False,
) -> None:
    """Members are gone together, and their partitions are free (GE-10).

    Args:
        decision: takes what follows.
        gone: who, one at least, and why; the epoch is raised for the first one's cause.
        topics: the topics that there are.
        assignors: by name, the default first.
        when: when the target is computed.
        moved: whether the clock that judged them was set, as the records say.
    """
    for member, cause in gone:
        decision.remove(member.member_id, cause, clock_moved=moved)
    cause = causes.with_others(gone[0][1], len(gone) - 1)
    decision.raise_epoch(cause, topics.hash_of(subscribed_topics(decision.group)))
    tend(decision, topics, assignors, when)


def tend(decision: Decision, topics: Topics, assignors: Mapping[str, ServerAssignor], when: Judge) -> None:
    """What needs no request where the group has a stream member; else it is done in a later one (GE-26)."""
    group = decision.group
    if group.has_stream_members:
        if group.epoch > group.target_epoch and when(group) is When.NOW:
            assign_due(decision, topics, assignors)
        decision.wake()


def assign_due(
    decision: Decision,
    topics: Topics,
    assignors: Mapping[str, ServerAssignor],
    alike: bool | None = None,
) -> None:
    """Computes the target if it is out of date (TA-01); `alike` as `are_alike` says."""
    group = decision.group
    if group.epoch > group.target_epoch:
        name = preferred_assignor(group, assignors)
        question = question_of(group, topics, alike=alike)
        assignor = holding(assignors[name]) if group.holds_moves else assignors[name]
        decision.assign(name, group.epoch, changes_of(question, assignor(question)))
