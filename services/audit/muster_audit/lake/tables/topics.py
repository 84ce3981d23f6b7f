"""Topics of the catalog: how many partitions each had, from when to when."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from muster_protos.muster.log.v1 import records_pb2

from muster_audit.lake.row import Interval, Place
from muster_audit.lake.tracker import Take, Tracker


@dataclass(slots=True, kw_only=True)
class Topic(Interval):
    """A topic with its number of partitions, until that changes (`resized`) or the topic goes (`deleted`)."""

    table: ClassVar[str] = "topics"

    topic: Annotated[str, "Its name."]
    partitions: Annotated[int, "Its number of partitions."]
    incarnation: Annotated[int, "Offset of the record that created it: tells topics of one name apart."]


class Topics(Tracker[Topic]):
    """Follows topics."""

    row = Topic

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}

    @property
    def takes(self) -> Mapping[str, Take[Topic]]:
        """What it does with which kind of record."""
        return {"topic_stored": self._topic_stored, "topic_tombstone": self._topic_tombstone}

    def resume(self, row: Topic) -> None:
        """Takes back a row that was not final."""
        self._topics[row.topic] = row

    def running(self) -> Iterator[Topic]:
        """The topics that are there."""
        return iter(self._topics.values())

    def _topic_stored(self, at: Place, message: records_pb2.TopicStored) -> Iterator[Topic]:
        before = self._topics.get(message.name)
        if before is not None and before.partitions == message.partitions:
            return
        if before is not None:
            yield before.end(at, "resized")
        self._topics[message.name] = Topic(
            shard=at.shard,
            epoch=at.position.epoch,
            offset=at.position.offset,
            from_ms=at.at_ms,
            topic=message.name,
            partitions=message.partitions,
            incarnation=at.position.offset if before is None else before.incarnation,
        )

    def _topic_tombstone(self, at: Place, message: records_pb2.TopicTombstone) -> Iterator[Topic]:
        row = self._topics.pop(message.name, None)
        if row is not None:
            yield row.end(at, "deleted")
