"""Topics of the catalog: how many partitions each had, and in which zones, from when to when."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from muster_core.log.topics.topic_names import altered
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2

from muster_audit.lake.row import Interval, Place
from muster_audit.lake.tracker import Take, Tracker


@dataclass(slots=True, kw_only=True)
class Topic(Interval):
    """A topic with its number of partitions, and their zones and names.

    It lasts until the number changes (`resized`, also by a removal), only the zones or weights do (`zones
    changed`, `weights changed`), or the topic goes (`deleted`).
    """

    table: ClassVar[str] = "topics"

    topic: Annotated[str, "Its name."]
    partitions: Annotated[int, "Its number of partitions, removed ones included."]
    incarnation: Annotated[int, "Offset of the record that created it: tells topics of one name apart."]
    zones: Annotated[
        str | None,
        'Zones of its partitions as JSON, `{"eu": [0, 1]}`; null: none, or a version before zones wrote it.',
    ] = None
    names: Annotated[
        str | None,
        'Names of its partitions as JSON, by number, `["acme", null]`: null was removed; null alone: none.',
    ] = None
    weights: Annotated[
        str | None, "Weights of its partitions as JSON, by number, `[5, null]`; null: it has no names."
    ] = None


class Topics(Tracker[Topic]):
    """Follows topics."""

    row = Topic

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}

    @property
    def takes(self) -> Mapping[str, Take[Topic]]:
        """What it does with which kind of record."""
        return {
            "topic_stored": self._topic_stored,
            "partitions_altered": self._partitions_altered,
            "topic_tombstone": self._topic_tombstone,
        }

    def resume(self, row: Topic) -> None:
        """Takes back a row that was not final."""
        self._topics[row.topic] = row

    def running(self) -> Iterator[Topic]:
        """The topics that are there."""
        return iter(self._topics.values())

    def _topic_stored(self, at: Place, message: records_pb2.TopicStored) -> Iterator[Topic]:
        before = self._topics.get(message.name)
        zones = zones_as_json(message.zones)
        if before is not None:
            if (before.partitions, before.zones) == (message.partitions, zones):
                return
            resized = before.partitions != message.partitions
            yield before.end(at, "resized" if resized else "zones changed")
        self._topics[message.name] = Topic(
            shard=at.shard,
            epoch=at.position.epoch,
            offset=at.position.offset,
            from_ms=at.at_ms,
            topic=message.name,
            partitions=message.partitions,
            incarnation=at.position.offset if before is None else before.incarnation,
            zones=zones,
            names=names_as_json(message.names) if before is None else before.names,
            weights=weights_as_json(message.names) if before is None else before.weights,
        )

    def _partitions_altered(self, at: Place, message: records_pb2.PartitionsAltered) -> Iterator[Topic]:
        before = self._topics.get(message.topic)
        if before is None or before.names is None:
            return
        names = common_pb2.PartitionNames.FromString(altered(_stored(before), message))
        resized = names_as_json(names) != before.names
        yield before.end(at, "resized" if resized else "weights changed")
        self._topics[message.topic] = Topic(
            shard=at.shard,
            epoch=at.position.epoch,
            offset=at.position.offset,
            from_ms=at.at_ms,
            topic=message.topic,
            partitions=len(names.partitions),
            incarnation=before.incarnation,
            zones=before.zones,
            names=names_as_json(names),
            weights=weights_as_json(names),
        )

    def _topic_tombstone(self, at: Place, message: records_pb2.TopicTombstone) -> Iterator[Topic]:
        row = self._topics.pop(message.name, None)
        if row is not None:
            yield row.end(at, "deleted")


def zones_as_json(zones: common_pb2.TopicZones | None) -> str | None:
    """Zones as the column has them: name → numbers of partitions."""
    if zones is None or not zones.zones:
        return None
    return json.dumps({zone.name: list(zone.partitions) for zone in zones.zones}, ensure_ascii=False)


def names_as_json(names: common_pb2.PartitionNames | None) -> str | None:
    """Names as the column has them: by number, null for a removed partition."""
    if names is None or not names.partitions:
        return None
    return json.dumps([entry.name or None for entry in names.partitions])


def weights_as_json(names: common_pb2.PartitionNames | None) -> str | None:
    """Weights as the column has them: by number, null for a removed partition."""
    if names is None or not names.partitions:
        return None
    return json.dumps([(entry.weight or 1) if entry.name else None for entry in names.partitions])


def _stored(topic: Topic) -> bytes:
    """The names of a row, as the catalog stores them."""
    names = common_pb2.PartitionNames()
    for name, weight in zip(json.loads(topic.names or "[]"), json.loads(topic.weights or "[]"), strict=True):
        names.partitions.add(name=name, weight=weight)
    return names.SerializeToString()
