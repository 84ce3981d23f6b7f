"""Requests of several members of a group that become one decision."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

from muster_core import error_code
from muster_core.incremental.causes import Cause
from muster_core.incremental.decisions.decision import Decision
from muster_core.incremental.decisions.heartbeat import Turn, leave
from muster_core.incremental.decisions.request import JOIN, Outcome, Refused, Surroundings
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.targets.target import subscribed_topics

LISTS_MAX = 20
"""How many times as many names as a group may have different ones the lists of all its members may have."""


class Asked(NamedTuple):
    """A request, and what it is judged with."""

    request: ConsumerGroupHeartbeatRequest
    around: Surroundings


def decide(
    group: IncrementalGroup,
    request: ConsumerGroupHeartbeatRequest,
    around: Surroundings,
    new_record: Callable[[], records_pb2.Record],
) -> Outcome:
    """What becomes of a request; the group is not changed.

    Raises:
        Refused: it is refused.
    """
    (outcome,) = decide_together(group, [Asked(request, around)], new_record)
    if isinstance(outcome, Refused):
        raise outcome
    return outcome


def can_be_together(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether a request may be decided together with those of other members.

    One that is refused must have changed nothing by then, and a static id may be of another member.
    """
    is_simple = not (request.HasField("topic_regex") or request.HasField("group_instance_id"))
    return is_simple and bool(request.member_seq) and request.member_epoch >= JOIN


def decide_together(
    group: IncrementalGroup, asked: Sequence[Asked], new_record: Callable[[], records_pb2.Record]
) -> list[Outcome | Refused]:
    """What becomes of requests, in order, by one decision; the group is not changed.

    The epoch is raised and the target computed once, after all of them.

    Args:
        group: the group.
        asked: one request, or several of different members each of which `can_be_together`.
        new_record: makes an empty record, with the time.
    """
    removed = asked[0].around.topics.removed
    decision = Decision(group, asked[0].request.group_id, new_record, removed)
    outcomes: list[Turn | Outcome | Refused] = []
    cause: Cause | None = None
    for request, around in asked:
        try:
            if request.member_epoch < JOIN:
                outcomes.append(leave(decision, request, around))
            else:
                turn = _entered(decision, request, around)
                why = turn.renew()
                cause = cause or why
                outcomes.append(turn)
        except Refused as refused:
            outcomes.append(refused)
    if cause is not None:
        topics_hash = asked[-1].around.topics.hash_of(subscribed_topics(decision.group))
        decision.raise_epoch(cause, topics_hash)
    turns = [one for one in outcomes if isinstance(one, Turn)]
    if turns:
        when = turns[-1].assign()
        for turn in turns:
            turn.step(when)
        decision.wake()
    return [one.outcome() if isinstance(one, Turn) else one for one in outcomes]


def _entered(decision: Decision, request: ConsumerGroupHeartbeatRequest, around: Surroundings) -> Turn:
    """A request whose member is there.

    Raises:
        Refused: it is refused.
    """
    group = decision.group
    takes_place = bool(request.member_seq) and request.group_instance_id in group.statics  # and adds nobody
    if request.member_id not in group.members and len(group.members) >= around.max_size and not takes_place:
        raise Refused(error_code.GROUP_MAX_SIZE_REACHED, f"the group has its limit of {around.max_size}")
    if request.HasField("topics"):
        _check_names(group, request, around.max_topics)
    turn = Turn(decision, request, around)
    turn.enter()
    return turn


def _check_names(group: IncrementalGroup, request: ConsumerGroupHeartbeatRequest, most: int) -> None:
    """Whether the group may name the topics of a request beside those that it names (docs/safety.md, LIM-57).

    Raises:
        Refused: it would name too many.
    """
    replaced = group.static_member(request.group_instance_id) if request.group_instance_id else None
    member = replaced or group.members.get(request.member_id)
    before = member.told.topics if member is not None else frozenset[str]()
    names, known = frozenset(request.topics.names), group.tally.topics
    new = len(names - known.keys())
    named = len(known) + new - sum(known[name] == 1 for name in before - names)
    listed = group.tally.listed + len(names) - len(before)
    for count, limit, what in (
        (named if new else 0, most, "different topics"),
        (listed if len(names) > len(before) else 0, LISTS_MAX * most, "topics in all lists together"),
    ):
        if count > limit:
            text = f"the members would name {count:,} {what}, of {limit:,} (MUSTER_GROUP_MAX_TOPICS)"
            raise Refused(error_code.INVALID_REQUEST, text)
