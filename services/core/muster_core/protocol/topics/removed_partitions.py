"""Removals of partitions, carried out in the groups of a shard."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from muster_protos.muster.log.v1 import records_pb2

from muster_core.incremental.targets.target import subscribed_topics
from muster_core.protocol.context import ShardContext
from muster_core.protocol.open_append import nothing_follows
from muster_core.protocol.topics.tombstones import STEP_BYTES, offset_tombstones
from muster_core.state.published import TopicPartition


class RemovedPartitions:
    """Removes what groups committed in partitions that the catalog has removed (docs/safety.md, `TOP-19`).

    The number of a removed partition is never used again while its topic is there. So this may be done any
    number of times, and what the catalog says decides alone what is refused.

    Args:
        context: the shard.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._carried_out: frozenset[TopicPartition] = frozenset()

    def carry_out(self) -> None:
        """Removes the offsets of partitions that were removed since, or that a log just read still has."""
        removed = self._context.catalog.removed_places
        if removed is self._carried_out:
            return
        new, self._carried_out = removed - self._carried_out, removed
        records = list(self._tombstones(new)) if new else []
        if new and (note := self._note(new)):
            records.append(note)
        if records:
            self._context.append(records, nothing_follows, step_bytes=STEP_BYTES)

    def _tombstones(self, removed: frozenset[TopicPartition]) -> Iterator[records_pb2.Record]:
        context = self._context
        coming: dict[str, set[TopicPartition]] = defaultdict(set)
        for record in context.on_their_way():
            commit = record.offset_committed
            coming[commit.group_id] |= removed & {(entry.topic, entry.partition) for entry in commit.offsets}
        for group in (*context.groups.values(), *context.held.values()):
            context.working_on = group
            gone = {*filter(group.offsets.table.__contains__, removed), *coming.pop(group.group_id, ())}
            yield from offset_tombstones(context, group.group_id, sorted(gone), "partition_removed")
        context.working_on = None
        for group_id, partitions in coming.items():
            yield from offset_tombstones(context, group_id, sorted(partitions), "partition_removed")

    def _note(self, removed: Iterable[TopicPartition]) -> records_pb2.Record | None:
        """What the log says of partitions whose topics a group of the shard knows; None: nothing new."""
        in_log = self._context.application.removed
        known = self._topics()
        numbers: dict[str, list[int]] = defaultdict(list)
        for topic, number in sorted(removed):
            if topic in known and number not in in_log.get(topic, ()):
                numbers[topic].append(number)
        if not numbers:
            return None
        record = self._context.record()
        record.critical = True
        for topic, some in numbers.items():
            record.partitions_removed.topics.add(topic=topic, partitions=some)
        return record

    def _topics(self) -> set[str]:
        """Names of topics that groups subscribe to, own something of, or have offsets in."""
        known: set[str] = set()
        for group in (*self._context.groups.values(), *self._context.held.values()):
            known |= group.subscribed_topics or frozenset()
            known |= {topic for topic, _ in group.owners}
            if group.incremental is not None:
                known |= subscribed_topics(group.incremental)
                known |= {topic for topic, _ in group.incremental.owners}
            known |= group.offsets.topics()
        return known
