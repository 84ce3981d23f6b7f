"""Which topics expressions match, and when that is looked up (conformance RX-01 to RX-09)."""

from collections.abc import Callable, Collection
from functools import partial
from itertools import count
from weakref import WeakKeyDictionary

from muster_protos.muster.log.v1 import records_pb2

from muster_core.events import Resolve, Resolved
from muster_core.incremental import causes
from muster_core.incremental.decisions.decision import Decision
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.targets.target import subscribed_topics
from muster_core.protocol.context import ShardContext
from muster_core.protocol.incremental.topics import topics_of
from muster_core.record_bounds import is_one_append
from muster_core.state.group import Group

_PAUSE_MS = 10_000
"""Between two looks at the expressions of a group, as in Kafka."""


class ExpressionSearch:
    """Looks up what expressions match, aside, all those of a group together.

    Args:
        context: the shard.
        stored: called with a group whose expressions match other topics from now on, when that is stored.
    """

    def __init__(self, context: ShardContext, stored: Callable[[Group], None]) -> None:
        self._context = context
        self._stored = stored
        self._numbers = count(1)
        self._searches: WeakKeyDictionary[Group, _Search] = WeakKeyDictionary()

    def _of(self, group: Group) -> "_Search":
        return self._searches.setdefault(group, _Search())

    def look_again(self, group: Group, topics: Collection[str] | None) -> None:
        """Topics changed: some may match that no expression matched so far; None: nobody says which."""
        if group.incremental is None:
            return
        known = frozenset[str]().union(*group.incremental.expressions.values())
        if topics is None or not known.issuperset(topics):
            search = self._of(group)
            search.suspect = search.stale = True

    def suspect(self, group: Group) -> None:
        """A member said something of expressions."""
        self._of(group).suspect = True

    def look(self, group: Group, draft: IncrementalGroup) -> None:
        """A heartbeat came: looks the expressions up if that is due (conformance RX-03).

        Args:
            group: the group.
            draft: the group as the heartbeat leaves it.
        """
        search, context = self._searches.get(group), self._context
        if search is None or not search.suspect or search.runs or context.room.expressions is None:
            return
        before = frozenset[str]() if group.incremental is None else frozenset(group.incremental.expressions)
        if before and context.now.boot_ms <= search.resolved_ms + _PAUSE_MS:
            return
        used = draft.tally.expressions.keys()
        # As in Kafka: that one came for another is not seen by the heartbeat that brings it.
        if used and (len(used) != len(before) or search.stale):
            search.number = next(self._numbers)
            search.runs, search.stale = True, False
            names = tuple(context.catalog.partitions)
            context.effects.work.append(Resolve(group.group_id, search.number, tuple(sorted(used)), names))
        elif used == before:
            search.suspect = False

    def hides(self, group: IncrementalGroup, expression: str, identity: str) -> bool:
        """Whether an expression matches something that an identity may not see (docs/safety.md, INC-52)."""
        sees = self._context.room.sees
        return any(not sees(identity, topic) for topic in group.expressions.get(expression, ()))

    def _seen(self, group: IncrementalGroup, expression: str, topics: frozenset[str]) -> frozenset[str]:
        """Those that all who subscribe by an expression may see (conformance RX-07)."""
        sees = self._context.room.sees
        who = {one.told.identity for one in group.members.values() if one.told.topic_regex == expression}
        return frozenset(topic for topic in topics if all(sees(identity, topic) for identity in who))

    def resolved(self, event: Resolved) -> None:
        """Takes what was found, in line."""
        group = self._context.groups.get(event.group_id)
        search = None if group is None else self._searches.get(group)
        if group is not None and search is not None and search.runs and search.number == event.number:
            self._context.working_on = group
            self._context.lines.in_line(group, partial(self._take, group, search, event))

    def _take(self, group: Group, search: "_Search", event: Resolved) -> None:
        context, incremental = self._context, group.incremental
        search.runs = False
        if event.topics is None:
            search.stale = True
            return
        search.resolved_ms = context.now.boot_ms
        if incremental is None or context.groups.get(group.group_id) is not group:
            return
        decision = Decision(incremental, group.group_id, context.record, context.catalog.removed)
        changed = False
        for expression, found in event.topics.items():
            topics = self._seen(incremental, expression, found)
            known = incremental.expressions.get(expression)
            if known != topics and incremental.uses(expression):  # who asked may have gone (RX-05)
                decision.resolve(expression, topics)
                changed = changed or topics != (known or frozenset())
                changed = changed or (known is None and _has_more(decision.group, expression))
        topics_hash = topics_of(context.catalog).hash_of(subscribed_topics(decision.group))
        if changed or topics_hash != incremental.topics_hash:
            decision.raise_epoch(causes.expressions_resolved(context.now.wall_ms), topics_hash)
        if decision.records and not _is_too_large(decision.records):
            context.append(decision.records, partial(self._stored, group), holds=group)


class _Search:
    """What is known of the expressions of a group.

    Attributes:
        suspect: whether some may not be resolved, or match other topics by now.
        stale: whether topics were created since they were looked up last.
        runs: whether they are being looked up.
        number: of the last look.
        resolved_ms: when it brought something, boot time.
    """

    __slots__ = ("number", "resolved_ms", "runs", "stale", "suspect")

    def __init__(self) -> None:
        self.suspect = False
        self.stale = False
        self.runs = False
        self.number = 0
        self.resolved_ms = -_PAUSE_MS


def _has_more(group: IncrementalGroup, expression: str) -> bool:
    """Whether somebody who came to an expression has of the target what an earlier one matched.

    Kafka leaves that to a member, until something else changes, where the expression matches nothing new.
    """
    members = [one for one in group.members.values() if one.told.topic_regex == expression]
    return any(
        member.told.is_numbered
        and not group.topics_of(member.told).issuperset(topic for topic, _ in member.target)
        for member in members
    )


def _is_too_large(records: list[records_pb2.Record]) -> bool:
    """Whether the log does not take them at a time: the expressions stay as they were (INC-13)."""
    return not is_one_append(records)
