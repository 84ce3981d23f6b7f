"""Removals of partitions, carried out in the groups of a shard."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Set

from muster_protos.limits import PARKED_PREFIX, topic_of
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
        self._carried_out: Mapping[str, frozenset[int]] = {}

    def carry_out(self) -> None:
        """Removes the offsets of partitions that were removed since, or that a log just read still has."""
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
        records = list(self._tombstones(new))
        if note := self._note(new):
            records.append(note)
        if records:
            self._context.append(records, nothing_follows, step_bytes=STEP_BYTES)

    def _tombstones(self, removed: Mapping[str, frozenset[int]]) -> Iterator[records_pb2.Record]:
        context = self._context
        names = removed.keys() | {PARKED_PREFIX + topic for topic in removed}
        places = frozenset((name, number) for name in names for number in removed[topic_of(name)])
        coming: dict[str, set[TopicPartition]] = defaultdict(set)
        for record in context.on_their_way():
            commit = record.offset_committed
            coming[commit.group_id] |= places & {(entry.topic, entry.partition) for entry in commit.offsets}
        ids = sorted(context.groups.by_name.of(names))
        for group in (*map(context.groups.__getitem__, ids), *context.held.values()):
            context.working_on = group
            few, many = sorted((group.offsets.table, places), key=len)
            gone = {*filter(many.__contains__, few), *coming.pop(group.group_id, ())}
            yield from offset_tombstones(context, group.group_id, sorted(gone), "partition_removed")
        context.working_on = None
        for group_id, partitions in coming.items():
            yield from offset_tombstones(context, group_id, sorted(partitions), "partition_removed")

    def _note(self, removed: Mapping[str, frozenset[int]]) -> records_pb2.Record | None:
        """What the log says of partitions whose topics a group of the shard knows; None: nothing new."""
        in_log = self._context.application.removed
        record = self._context.record()
        record.critical = True
        for topic in sorted(self._known(removed.keys())):
            if numbers := removed[topic] - in_log.get(topic, frozenset()):
                record.partitions_removed.topics.add(topic=topic, partitions=sorted(numbers))
        return record if record.partitions_removed.topics else None

    def _known(self, topics: Set[str]) -> Set[str]:
        """Those of some topics that groups subscribe to, own something of, or have offsets in."""
        groups, held = self._context.groups, self._context.held.values()
        by_name = groups.by_name
        known = {topic for topic in topics if topic in by_name or PARKED_PREFIX + topic in by_name}
        for group in (*groups.peopled(), *held):
            if len(known) == len(topics):
                break
            known |= topics & (group.subscribed_topics or frozenset())
            known.update(topic for topic, _ in group.owners if topic in topics)
            if group.incremental is not None:
                known |= topics & subscribed_topics(group.incremental)
                known.update(topic for topic, _ in group.incremental.owners if topic in topics)
        for group in held:
            known |= topics & group.offsets.topics()
        return known
