"""Committed offsets of one group."""

from collections.abc import Iterable, Iterator, Sequence, Set
from functools import partial
from itertools import compress, repeat
from typing import NamedTuple

from muster_protos.limits import topic_of
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2

from muster_core.record_bounds import utf8_bytes
from muster_core.state.holdings import OFFSET_BYTES
from muster_core.state.offsets.groups_by_name import GroupsByName
from muster_core.state.offsets.offset_order import OffsetOrder
from muster_core.state.published import TopicPartition


class CommittedOffset(NamedTuple):
    """Progress in one partition.

    Attributes:
        offset: position to go on from.
        leader_epoch: epoch of the source; -1: unknown.
        metadata: the worker's own words.
        committed_at_ms: when it was stored, wall clock.
        expire_at_ms: when it goes whatever the group does, wall clock; 0: not.
    """

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expire_at_ms: int


committed_offset = partial(tuple.__new__, CommittedOffset)
"""Makes one of the tuple of its values, in half the time."""

CommittedValues = tuple[int, int, str, int, int]
"""The values of a `CommittedOffset` in its order, as they are kept.

The garbage collector leaves plain tuples of numbers and texts alone: half a million of another class take a
full collection 90 ms, and these 3 (LIM-18).
"""


class _Table(dict[TopicPartition, CommittedValues]):
    """Offsets by partition, in a class of its own, so that the garbage collector never stops tracking it.

    A full collection stops tracking a plain dict of such values, and the next commit makes it a young object
    again: the next two collections look at all of it, which takes 14 ms each for half a million.
    """

    __slots__ = ()


SMALL = 1_000
"""As many offsets are looked through, or sorted, in less than a millisecond; more are kept by topic."""


def weight_of(partition: TopicPartition, metadata: str) -> int:
    """About what a committed offset takes in memory."""
    return OFFSET_BYTES + utf8_bytes(partition[0]) + utf8_bytes(metadata)


class OffsetStore:
    """What was committed. The order of the log decides: the later record wins.

    Attributes:
        table: plain tuples by partition. Whoever sets entries calls `weigh`; only `remove` takes them out.
        held_bytes: about what it takes in memory.
        newest_ms: when something was committed last, wall clock; 0: never. Whoever sets entries raises it.
    """

    __slots__ = ("_by_name", "_group_id", "_order", "held_bytes", "newest_ms", "table")

    def __init__(self) -> None:
        self.table: dict[TopicPartition, CommittedValues] = _Table()
        self.held_bytes = 0
        self.newest_ms = 0
        self._order: OffsetOrder | None = None
        self._by_name: GroupsByName | None = None
        self._group_id = ""

    def __len__(self) -> int:
        return len(self.table)

    @property
    def containers(self) -> list[object]:
        """What holds many names and numbers alone: a garbage collector would find nothing in it."""
        return [self.table, *(() if self._order is None else self._order.containers(len(self.table)))]

    def __iter__(self) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        return zip(self.table, map(committed_offset, self.table.values()), strict=True)

    def tell(self, by_name: GroupsByName, group_id: str) -> None:
        """Tells from now on which names the offsets of a group have."""
        self._by_name, self._group_id = by_name, group_id
        for name in self._names():
            by_name.came(name, group_id)

    def tell_no_more(self) -> None:
        """The group goes: it has no offsets as far as others are concerned."""
        by_name, self._by_name = self._by_name, None
        if by_name is not None:
            for name in self._names():
                by_name.went(name, self._group_id)

    def get(self, partition: TopicPartition) -> CommittedOffset | None:
        """What was committed for a partition; None: nothing."""
        found = self.table.get(partition)
        return None if found is None else committed_offset(found)

    def there(self, topic: str, numbers: Sequence[int]) -> list[int]:
        """Those of some partitions of a topic that have an offset."""
        # Without a step of Python for each: a deletion may ask for ten thousand.
        return [*compress(numbers, map(self.table.__contains__, zip(repeat(topic), numbers)))]

    def store(self, record: records_pb2.OffsetCommitted, written_at_ms: int) -> None:
        """Takes over an acknowledged commit."""
        # As `put`, without its calls for each partition: a commit may be about ten thousand of them.
        expire_at_ms, table = record.expire_at_ms, self.table
        for entry in record.offsets:
            partition, metadata = (entry.topic, entry.partition), entry.metadata
            before = table.get(partition)
            table[partition] = offset = (
                entry.offset,
                entry.leader_epoch,
                metadata,
                written_at_ms,
                expire_at_ms,
            )
            if before is None or before[2] != metadata:
                self.weigh(partition, before, offset)
        if record.offsets:
            self.newest_ms = max(self.newest_ms, written_at_ms)

    def put(self, partition: TopicPartition, offset: CommittedValues) -> None:
        """Takes over what was committed for a partition."""
        before = self.table.get(partition)
        position, leader_epoch, metadata, committed_at_ms, expire_at_ms = offset
        self.table[partition] = position, leader_epoch, metadata, committed_at_ms, expire_at_ms
        self.newest_ms = max(self.newest_ms, committed_at_ms)
        if before is None or before[2] != metadata:
            self.weigh(partition, before, offset)

    def weigh(
        self, partition: TopicPartition, before: CommittedValues | None, offset: CommittedValues
    ) -> None:
        """Counts what came in the place of something else, or of nothing."""
        metadata = offset[2]
        if before is None:
            # As `weight_of`, without its calls: half a million come one by one.
            self.held_bytes += OFFSET_BYTES + utf8_bytes(partition[0])
            if metadata:
                self.held_bytes += utf8_bytes(metadata)
            if self._by_name is not None:
                self._by_name.came(partition[0], self._group_id)
            if self._order is not None:
                self._order.came(partition)
            elif len(self.table) > SMALL:
                self._order = OffsetOrder(self.table)
        else:
            self.held_bytes += utf8_bytes(metadata) - utf8_bytes(before[2])

    def remove(self, topics: Iterable[common_pb2.TopicPartitions]) -> None:
        """Forgets partitions; those without an offset are passed over."""
        named = set[str]()
        for entry in topics:
            topic, numbers = entry.topic, entry.partitions[:]
            # Without a step of Python for each: a deletion may take hundreds of thousands.
            found = [*map(self.table.pop, zip(repeat(topic), numbers), repeat(None))]
            metadata = [gone[2] for gone in found if gone is not None]
            if metadata:
                named.add(topic)
            self.held_bytes -= len(metadata) * weight_of((topic, 0), "") + utf8_bytes("".join(metadata))
            if self._order is not None:
                self._order.forget(topic, [*compress(numbers, found)])
        if named and self._by_name is not None:
            left = self._names()  # a difference would look at each of them
            for name in [one for one in named if one not in left]:
                self._by_name.went(name, self._group_id)

    def clear_some(self, most: int) -> bool:
        """Gives up some of what nobody reads any more; returns whether nothing is left.

        Half a million offsets that go at once with the last reference to them take 60 ms (LIM-55).
        """
        for _ in range(min(most, len(self.table))):
            self.table.popitem()
        return not self.table and (self._order is None or self._order.clear_some(most))

    def numbers_of(self, names: Set[str]) -> dict[str, list[int]]:
        """The numbers of the partitions that are kept under some names; it may have a million."""
        if self._order is not None:
            return self._order.numbers_of(names)
        found: dict[str, list[int]] = {}
        for name, number in self.table:
            if name in names:
                found.setdefault(name, []).append(number)
        return found

    def topics(self) -> set[str]:
        """The topics in which something is committed, or whose partitions are parked."""
        return set(map(topic_of, self._names()))

    def _names(self) -> Set[str]:
        return {name for name, _ in self.table} if self._order is None else self._order.names()

    def put_in_order(self) -> bool:
        """Puts some more partitions in order; returns whether all are (LIM-31)."""
        return self._order is None or self._order.put_in_order()

    def after(self, partition: TopicPartition | None) -> Iterator[TopicPartition]:
        """The partitions in the order of topic and number, from the first one after that; None: all.

        All must have been put in order, and nothing be stored or removed until the caller has seen enough.
        """
        if self._order is not None:
            return self._order.after(partition)
        return iter(sorted(one for one in self.table if partition is None or one > partition))
