"""Requests of several members of a group that become one decision."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

from muster_core import error_code
from muster_core.incremental.causes import Cause
from muster_core.incremental.decisions.decision import Decision
from muster_core.incremental.decisions.heartbeat import Turn, leave
from muster_core.incremental.decisions.request import JOIN, Outcome, Refused, Surroundings
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.targets.target import Topics, subscribed_topics

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
    together = Together(group, request.group_id, new_record)
    together.enter([Asked(request, around)])
    (outcome,) = together.outcomes()
    if isinstance(outcome, Refused):
        raise outcome
    return outcome


def can_be_together(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether a request may be decided together with those of other members.

    One that is refused must have changed nothing by then, and a static id may be of another member.
    """
    is_simple = not (request.HasField("topic_regex") or request.HasField("group_instance_id"))
    return is_simple and bool(request.member_seq) and request.member_epoch >= JOIN


class Together:
    """Requests that become one decision, which may be entered in several parts; the group is not changed.

    The epoch is raised and the target computed once, after all of them.

    Args:
        group: the group, which stays as it is until the end.
        group_id: its id.
        new_record: makes an empty record, with the time.
    """

    def __init__(
        self, group: IncrementalGroup, group_id: str, new_record: Callable[[], records_pb2.Record]
    ) -> None:
        self._decision = Decision(group, group_id, new_record)
        self._outcomes: list[Turn | Outcome | Refused] = []
        self._cause: Cause | None = None
        self._topics: Topics | None = None

    def enter(self, asked: Iterable[Asked]) -> None:
        """Takes one request, or several of different members each of which `can_be_together`, in order."""
        for request, around in asked:
            self._topics = around.topics
            try:
                if request.member_epoch < JOIN:
                    self._outcomes.append(leave(self._decision, request, around))
                else:
                    turn = _entered(self._decision, request, around)
                    why = turn.renew()
                    self._cause = self._cause or why
                    self._outcomes.append(turn)
            except Refused as refused:
                self._outcomes.append(refused)

    def outcomes(self) -> list[Outcome | Refused]:
        """What becomes of the requests that were entered, in order; called once, at the end."""
        decision = self._decision
        if self._cause is not None and self._topics is not None:
            topics_hash = self._topics.hash_of(subscribed_topics(decision.group))
            decision.raise_epoch(self._cause, topics_hash)
        turns = [one for one in self._outcomes if isinstance(one, Turn)]
        if turns:
            when = turns[-1].assign()
            for turn in turns:
                turn.step(when)
            decision.wake()
        return [one.outcome() if isinstance(one, Turn) else one for one in self._outcomes]


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
