"""Removals of partitions, carried out in the groups of a shard."""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from muster_protos.limits import PARKED_PREFIX
from muster_protos.muster.log.v1 import records_pb2

from muster_core.incremental.targets.target import subscribed_topics
from muster_core.protocol.context import ShardContext
from muster_core.protocol.open_append import nothing_follows
from muster_core.protocol.topics.tombstones import STEP_BYTES, offset_tombstones
from muster_core.protocol.topics.topic_deletions import TopicDeletions
from muster_core.state.group import Group
from muster_core.state.published import TopicPartition
from muster_core.waiting.timing_wheel import CallbackTimer

_REASON = "partition_removed"

_STEP_GROUPS = 100
"""What so many groups have of removed partitions is looked for and removed in some milliseconds."""
_AS_A_GROUP = 20
"""So many partitions take as long as a group."""
_PAUSE_MS = 4
"""Between two such turns: others need several turns of the loop for a call of theirs."""


class _Found(NamedTuple):
    """What a group has of removed partitions.

    Attributes:
        group_id: the group.
        gone: what is to be removed of it.
        cost: how long that takes, in groups that have one.
    """

    group_id: str
    gone: Sequence[TopicPartition]
    cost: int


class RemovedPartitions:
    """Removes what groups committed in partitions that the catalog has removed (docs/safety.md, `TOP-19`).

    The number of a removed partition is never used again while its topic is there. So this may be done any
    number of times, and what the catalog says decides alone what is refused.

    Args:
        context: the shard.
        deletions: of topics.
    """

    def __init__(self, context: ShardContext, deletions: TopicDeletions) -> None:
        self._context = context
        self._deletions = deletions
        self._carried_out: Mapping[str, frozenset[int]] = {}
        self._work: deque[Iterator[_Found]] = deque()
        self._pause = CallbackTimer("", self._go_on)

    def carry_out(self) -> None:
        """Removes the offsets of partitions that were removed since, or that a log just read still has.

        Those of some groups at a time: nothing is committed there any more, and nobody is shown them.
        """
        removed, before = self._context.catalog.removed, self._carried_out
        if removed is before:
            return
        self._carried_out = removed
        new = {
            topic: some
            for topic, numbers in removed.items()
            if numbers is not before.get(topic) and (some := numbers - before.get(topic, frozenset()))
        }
        if not new:
            return
        records = list(self._of_those_to_come(new))
        if note := self._note(new):
            # So that who loads the log later knows which topics of these names the removals are of.
            self._deletions.note_before([entry.topic for entry in note.partitions_removed.topics])
            records.append(note)
        if records:
            self._context.append(records, nothing_follows, step_bytes=STEP_BYTES)
        self._work.append(self._look_for(new))
        self._go_on()

    def _go_on(self) -> None:
        """Removes what some groups have, and pauses for others before it goes on (LIM-32)."""
        records: list[records_pb2.Record] = []
        left = _STEP_GROUPS
        while self._work and left > 0:
            found = next(self._work[0], None)
            if found is None:
                self._work.popleft()
                continue
            left -= found.cost
            records += offset_tombstones(self._context, found.group_id, sorted(found.gone), _REASON)
        self._context.working_on = None
        if records:
            self._context.append(records, nothing_follows, step_bytes=STEP_BYTES)
        if self._work:
            self._context.purgatory.wheel.arm(self._pause, self._context.now.boot_ms + _PAUSE_MS)

    def _of_those_to_come(self, removed: Mapping[str, frozenset[int]]) -> Iterator[records_pb2.Record]:
        """The records that remove what commits on their way to the log are about to bring."""
        places = frozenset(_places(removed))
        coming: dict[str, set[TopicPartition]] = defaultdict(set)
        for record in self._context.on_their_way():
            commit = record.offset_committed
            coming[commit.group_id] |= places & {(entry.topic, entry.partition) for entry in commit.offsets}
        for group_id, partitions in coming.items():
            yield from offset_tombstones(self._context, group_id, sorted(partitions), _REASON)

    def _look_for(self, removed: Mapping[str, frozenset[int]]) -> Iterator["_Found"]:
        """What groups have of removed partitions."""
        context = self._context
        places = frozenset(_places(removed))
        looked_at: set[str] = set()
        for name in (*sorted({name for name, _ in places}), None):  # held ones are found by none
            for group_id in context.held if name is None else context.groups.by_name.of_name(name):
                group = context.groups.get(group_id) or context.held.get(group_id)
                if group is not None and group_id not in looked_at:
                    looked_at.add(group_id)
                    yield self._in_group(group, places)

    def _in_group(self, group: Group, places: frozenset[TopicPartition]) -> "_Found":
        self._context.working_on = group
        few, many = sorted((group.offsets.table, places), key=len)
        removed_of = self._context.catalog.removed_of  # of a later topic of that name other ones are
        gone = [(name, n) for name, n in filter(many.__contains__, few) if n in removed_of(name)]
        return _Found(group.group_id, gone, 1 + (len(few) + len(gone)) // _AS_A_GROUP)

    def _note(self, removed: Mapping[str, frozenset[int]]) -> records_pb2.Record | None:
        """What the log says of partitions whose topics a group of the shard knows; None: nothing new."""
        in_log = self._context.application.removed
        record = self._context.record()
        record.critical = True
        for topic in sorted(self._known(frozenset(removed))):
            if numbers := removed[topic] - in_log.get(topic, frozenset()):
                record.partitions_removed.topics.add(topic=topic, partitions=sorted(numbers))
        return record if record.partitions_removed.topics else None

    def _known(self, topics: frozenset[str]) -> set[str]:
        """Those of some topics that groups subscribe to, own something of, or have offsets in."""
        groups, held = self._context.groups, self._context.held.values()
        by_name = groups.by_name
        known = {topic for topic in topics if topic in by_name or PARKED_PREFIX + topic in by_name}
        for group in (*groups.peopled(), *held):
            if len(known) == len(topics):
                break
            known |= topics & (group.subscribed_topics or frozenset())
            known |= group.owned_of(topics)
            if group.incremental is not None:
                known |= topics & subscribed_topics(group.incremental)
        for group in held:
            known |= topics & group.offsets.topics()
        return known


def _places(removed: Mapping[str, frozenset[int]]) -> Iterator[TopicPartition]:
    """Removed partitions as offsets name them: also those that say that one is parked."""
    for topic, numbers in removed.items():
        for number in numbers:
            yield topic, number
            yield PARKED_PREFIX + topic, number
