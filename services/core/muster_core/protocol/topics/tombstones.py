"""The records that remove offsets."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from muster_protos.muster.log.v1 import records_pb2

from muster_core.protocol.context import ShardContext
from muster_core.record_bounds import utf8_bytes
from muster_core.state.published import TopicPartition

_NUMBER_BYTES = 16
"""What a partition takes in a tombstone, the framing of its topic included."""

_TOPIC_BYTES = 160
"""What is counted for a topic: to carry it out takes as long as ten partitions."""

_TOMBSTONE_BYTES = 1 << 14
"""Size, as counted, after which another tombstone begins: to apply one takes about a millisecond."""

STEP_BYTES = 1 << 12
"""Removals that are carried out at a time where there are many: a tombstone, or some small ones."""


def offset_tombstones(
    context: ShardContext, group_id: str, partitions: Iterable[TopicPartition], reason: str
) -> list[records_pb2.Record]:
    """Records that remove offsets of a group, none of them too large; none without any."""
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in partitions:
        by_topic[topic].append(number)
    return tombstones_by_topic(context, group_id, by_topic, reason)


def tombstones_by_topic(
    context: ShardContext, group_id: str, by_topic: Mapping[str, Sequence[int]], reason: str
) -> list[records_pb2.Record]:
    """Records that remove the offsets with these numbers, by topic; see `offset_tombstones`."""
    return list(each_tombstone(context, group_id, by_topic, reason))


def each_tombstone(
    context: ShardContext, group_id: str, by_topic: Mapping[str, Sequence[int]], reason: str
) -> Iterator[records_pb2.Record]:
    """As `tombstones_by_topic`, one after the other, each made when it is asked for."""
    records: list[records_pb2.Record] = []
    size_bytes = _TOMBSTONE_BYTES
    for topic, numbers in sorted(by_topic.items()):
        begin = 0
        while begin < len(numbers):
            if size_bytes >= _TOMBSTONE_BYTES:
                yield from records
                record = context.record()
                tombstone = record.offset_tombstone  # a deletion may make tens of thousands
                tombstone.group_id, tombstone.reason = group_id, reason
                records = [record]
                size_bytes = 0
            size_bytes += utf8_bytes(topic) + _TOPIC_BYTES
            some = numbers[begin : begin + max(1, -(-(_TOMBSTONE_BYTES - size_bytes) // _NUMBER_BYTES))]
            records[-1].offset_tombstone.topics.add(topic=topic, partitions=some)
            size_bytes += len(some) * _NUMBER_BYTES
            begin += len(some)
    yield from records
