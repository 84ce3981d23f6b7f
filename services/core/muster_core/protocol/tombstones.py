"""The records that remove offsets."""

from collections.abc import Iterable

from muster_protos.muster.log.v1 import records_pb2 as log

from muster_core.protocol.context import ShardContext
from muster_core.record_bounds import PART_BYTES, utf8_bytes
from muster_core.state.published import TopicPartition

_NUMBER_BYTES = 16
"""What a partition takes in a tombstone, the framing of its topic included."""


def offset_tombstones(
    context: ShardContext, group_id: str, partitions: Iterable[TopicPartition], reason: str
) -> list[log.Record]:
    """Records that remove offsets of a group, none of them too large; none without any."""
    records: list[log.Record] = []
    size_bytes, last = PART_BYTES, ""
    for topic, number in sorted(partitions):
        if size_bytes >= PART_BYTES:
            record = context.record()
            record.offset_tombstone.CopyFrom(log.OffsetTombstone(group_id=group_id, reason=reason))
            records.append(record)
            size_bytes, last = 0, ""
        topics = records[-1].offset_tombstone.topics
        if topic != last:
            topics.add(topic=topic)
            size_bytes += utf8_bytes(topic)
            last = topic
        topics[-1].partitions.append(number)
        size_bytes += _NUMBER_BYTES
    return records
