"""The topics that the records of the catalog's log make; `topic_changes` decides what is recorded."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2, snapshot_pb2
from muster_protos.muster.v1 import common_pb2, discovery_pb2

from muster_core.features import FEATURE_NAMES, lacking
from muster_core.log.replay import Entry
from muster_core.log.topics.topic_names import altered, names_of, number_of, stored_names
from muster_core.log.topics.topic_zones import stored_form, zones_of
from muster_core.numbered_messages import header
from muster_core.position import NOWHERE, Position

_TOPICS = metadata_pb2.TopicCatalog.TOPICS_FIELD_NUMBER
_ZONES = discovery_pb2.Topic.ZONES_FIELD_NUMBER
_NAMES = discovery_pb2.Topic.NAMES_FIELD_NUMBER

MAX_TOPICS = 10_000
MAX_DELETIONS = 2_000
"""Number of names whose last removal is remembered."""
MAX_CHANGES = 4_096
"""Changes whose ids are remembered: a repeat that comes after more others is taken for a new change."""

CHANGE_ID_BYTES = 16

_LOG_KINDS = frozenset({"claim", "genesis", "handoff"})
"""Records about the log itself, other than those of snapshots."""
_ENTRIES_PER_ITEM = 500

_Entry = TypeVar("_Entry")


class NotUnderstood(Exception):
    """The catalog says what this version does not know: it must not serve the cluster."""


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic.

    Attributes:
        partitions: their number, removed ones included.
        incarnation: offset of the record that created it.
        zones: of its partitions, as `topic_zones.stored_form` gives them; empty: none.
        names: of its partitions, as `topic_names.stored_names` gives them; empty: none.
    """

    partitions: int
    incarnation: int
    zones: bytes = b""
    names: bytes = b""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that was carried out.

    Attributes:
        name: of the topic.
        topic: as it was stored, zones and names left out; None: it was removed.
        position: of its record.
    """

    name: str
    topic: StoredTopic | None
    position: Position

    @property
    def answer(self) -> metadata_pb2.ChangeTopicResponse:
        """The answer to its caller, each time that it asks."""
        stored = None if self.topic is None else topic_message(self.name, self.topic)
        return metadata_pb2.ChangeTopicResponse(topic=stored, version=self.position.to_proto())

    def is_of(self, request: metadata_pb2.ChangeTopicRequest) -> bool:
        """Whether this can be what was asked for."""
        return self.name == name_of(request) and (self.topic is None) == request.HasField("delete")


@dataclass(frozen=True, slots=True)
class Kept:
    """A record that is neither of a topic nor of the log itself, as the log has it."""

    position: Position
    record: bytes


class Topics:
    """The catalog as the records up to a place make it.

    Args:
        strict: whether what this version does not know stops it, as it must stop a server; who only looks
            goes on.

    Attributes:
        by_name: the topics.
        deletions: the newest removals, oldest first: of each name the offset of its last tombstone.
        deletions_since: every removal after this offset is in `deletions`.
        kept: replacements of nodes, features, and what this version does not know, in order.
        features: names of what is enabled.
        version: place of the last record.
        end_hash: chain hash of it.
        snapshot_upto: place up to which the newest snapshot reaches whose marker is in the log.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self.by_name: dict[str, StoredTopic] = {}
        self.deletions: dict[str, int] = {}
        self.deletions_since = 0
        self.kept: list[Kept] = []
        self.features: set[str] = set()
        self.version = NOWHERE
        self.end_hash = b""
        self.snapshot_upto = NOWHERE
        self._strict = strict
        self._changes: dict[bytes, Change] = {}

    @property
    def records_since(self) -> int:
        """Number of records after the newest snapshot: what a load replays."""
        return int(self.version.offset - self.snapshot_upto.offset)

    def copy(self) -> "Topics":
        """A copy that can be changed without changing this."""
        copy = Topics(strict=self._strict)
        copy.by_name = dict(self.by_name)
        copy.deletions = dict(self.deletions)
        copy.deletions_since = self.deletions_since
        copy.kept = list(self.kept)
        copy.features = set(self.features)
        copy.version, copy.end_hash = self.version, self.end_hash
        copy.snapshot_upto = self.snapshot_upto
        copy._changes = dict(self._changes)
        return copy

    def apply(self, entry: Entry) -> None:
        """Takes in the next record.

        Raises:
            NotUnderstood: it is critical, and this version does not know its kind or the feature it enables.
        """
        record = records_pb2.Record.FromString(entry.record)
        kind = record.WhichOneof("kind")
        if kind == "topic_stored":
            self._stored(record.topic_stored, entry.position)
        elif kind == "partitions_altered":
            self._altered(record.partitions_altered, entry.position)
        elif kind == "topic_tombstone":
            self._removed(record.topic_tombstone, entry.position)
        elif kind == "snapshot":
            self.snapshot_upto = max(self.snapshot_upto, Position.from_proto(record.snapshot.upto))
        elif kind not in _LOG_KINDS:
            self._keep(Kept(entry.position, entry.record), record)
        self.version, self.end_hash = entry.position, entry.hash

    def _keep(self, kept: Kept, record: records_pb2.Record) -> None:
        """Keeps a record as it is, and notes the feature that it enables."""
        if self._strict and record.critical and record.WhichOneof("kind") is None:
            raise NotUnderstood("the catalog has a critical record of a kind that this version does not know")
        if record.HasField("feature_enabled"):
            name = record.feature_enabled.name
            if self._strict and lacking((name,), FEATURE_NAMES):
                raise NotUnderstood(f"the cluster has enabled {name}, which this version does not know")
            if name in self.features:
                return  # repeated with each snapshot's marker
            self.features.add(name)
        self.kept.append(kept)

    def _stored(self, record: records_pb2.TopicStored, position: Position) -> None:
        before = self.by_name.get(record.name)
        incarnation = position.offset if before is None else before.incarnation
        topic = StoredTopic(record.partitions, incarnation)
        names = stored_names(record.names) if before is None else before.names
        self.by_name[record.name] = replace(topic, zones=stored_form(record.zones), names=names)
        self._note(record.change_id, Change(record.name, topic, position))

    def _altered(self, record: records_pb2.PartitionsAltered, position: Position) -> None:
        before = self.by_name.get(record.topic)
        if before is None:
            return  # only in a damaged log
        names = altered(before.names, record)
        topic = replace(before, partitions=number_of(names) or before.partitions, names=names)
        self.by_name[record.topic] = topic
        self._note(record.change_id, Change(record.topic, replace(topic, zones=b"", names=b""), position))

    def _removed(self, record: records_pb2.TopicTombstone, position: Position) -> None:
        self.by_name.pop(record.name, None)
        self.deletions.pop(record.name, None)
        self.deletions[record.name] = position.offset
        if len(self.deletions) > MAX_DELETIONS:
            oldest = next(iter(self.deletions))
            self.deletions_since = self.deletions.pop(oldest)
        self._note(record.change_id, Change(record.name, None, position))

    def _note(self, change_id: bytes, change: Change) -> None:
        if change_id:
            self._changes[change_id] = change
            if len(self._changes) > MAX_CHANGES:
                del self._changes[next(iter(self._changes))]

    def change_positions(self) -> dict[bytes, Position]:
        """Where the changes were carried out that are remembered, by their ids, oldest first."""
        return {change_id: change.position for change_id, change in self._changes.items()}

    def done(self, request: metadata_pb2.ChangeTopicRequest) -> metadata_pb2.ChangeTopicResponse | None:
        """The answer to a change that was carried out before; None: it was not."""
        change = self._changes.get(request.change_id) if request.change_id else None
        if change is None:
            return None
        if not change.is_of(request):
            return refused(
                common_pb2.ERROR_CODE_INVALID_REQUEST,
                f"the id of this change is that of another one, of topic {change.name!r}",
                None,
            )
        answer, topic = change.answer, self.by_name.get(change.name)
        if topic is not None and answer.topic.incarnation == topic.incarnation:
            as_now = discovery_pb2.Topic(zones=zones_of(topic.zones), names=names_of(topic.names))
            answer.topic.MergeFrom(as_now)
            if topic.names:
                answer.topic.partitions = topic.partitions
        return answer

    def stored(self, request: metadata_pb2.ChangeTopicRequest) -> metadata_pb2.ChangeTopicResponse:
        """The answer to a change whose record is the last one."""
        name = name_of(request)
        return Change(name, self.by_name.get(name), self.version).answer

    def to_proto(self) -> metadata_pb2.TopicCatalog:
        """All topics, by name, and what was removed."""
        topics = [
            _with_parts(name, topic) if topic.zones or topic.names else _plain(name, topic)
            for name, topic in sorted(self.by_name.items())
        ]
        catalog = metadata_pb2.TopicCatalog.FromString(b"".join(topics))
        catalog.MergeFrom(
            metadata_pb2.TopicCatalog(
                version=self.version.to_proto(),
                deletions=[
                    metadata_pb2.TopicDeletion(name=name, offset=offset)
                    for name, offset in self.deletions.items()
                ],
                deletions_since=self.deletions_since,
                features=sorted(self.features),
            )
        )
        return catalog

    # --- snapshots

    def to_states(self) -> Iterator[snapshot_pb2.CatalogState]:
        """All of it, in pieces."""
        state = snapshot_pb2.CatalogState
        yield state(deletions_since=self.deletions_since)
        for some in _chunks(sorted(self.by_name.items())):
            yield state(
                topics=[
                    state.Topic(
                        name=name,
                        partitions=topic.partitions,
                        incarnation=topic.incarnation,
                        zones=zones_of(topic.zones),
                        names=names_of(topic.names),
                    )
                    for name, topic in some
                ]
            )
        for removed in _chunks(self.deletions.items()):
            yield state(deletions=[state.Deletion(name=name, offset=offset) for name, offset in removed])
        for changed in _chunks(self._changes.items()):
            yield state(changes=[_change(change_id, change) for change_id, change in changed])
        for kept in self.kept:
            yield state(kept=[state.Kept(position=kept.position.to_proto(), record=kept.record)])

    @classmethod
    def of_states(
        cls,
        states: Iterable[snapshot_pb2.CatalogState],
        upto: Position,
        end_hash: bytes,
        *,
        strict: bool = True,
    ) -> "Topics":
        """What `to_states` gave, up to a place and its chain hash.

        Raises:
            NotUnderstood: it has a critical record of a kind, or a feature, that this version does not know.
        """
        topics = cls(strict=strict)
        for state in states:
            topics.deletions_since = max(topics.deletions_since, state.deletions_since)
            for topic in state.topics:
                topics.by_name[topic.name] = StoredTopic(
                    topic.partitions, topic.incarnation, stored_form(topic.zones), stored_names(topic.names)
                )
            for deletion in state.deletions:
                topics.deletions[deletion.name] = deletion.offset
            for change in state.changes:
                stored = StoredTopic(change.partitions, change.incarnation) if change.partitions else None
                topics._changes[change.change_id] = Change(
                    change.name, stored, Position.from_proto(change.position)
                )
            for kept in state.kept:
                record = records_pb2.Record.FromString(kept.record)
                topics._keep(Kept(Position.from_proto(kept.position), kept.record), record)
        topics.version, topics.end_hash, topics.snapshot_upto = upto, end_hash, upto
        return topics


def name_of(request: metadata_pb2.ChangeTopicRequest) -> str:
    """The topic that a change is about."""
    kind = request.WhichOneof("change")
    if kind == "delete":
        return request.delete
    if kind == "alter_partitions":
        return request.alter_partitions.topic
    return request.alter.name if kind == "alter" else request.create.name


def topic_message(name: str, topic: StoredTopic) -> discovery_pb2.Topic:
    """A topic as callers see it."""
    return discovery_pb2.Topic(
        name=name,
        partitions=topic.partitions,
        incarnation=topic.incarnation,
        zones=zones_of(topic.zones),
        names=names_of(topic.names),
    )


def _serialized(name: str, topic: StoredTopic) -> bytes:
    """A part of a serialized catalog."""
    return metadata_pb2.TopicCatalog(topics=[topic_message(name, topic)]).SerializeToString()


_plain = lru_cache(maxsize=MAX_TOPICS)(_serialized)
"""Cached, since each change sends watchers the whole catalog; zones and names may be large, and are not."""


def _with_parts(name: str, topic: StoredTopic) -> bytes:
    """As `_serialized`; zones and names are put in as they are stored, without a look at them.

    There may be 200,000 names, and each change of any topic sends all.
    """
    parts = [_plain_topic(name, topic.partitions, topic.incarnation)]
    for field, stored in ((_ZONES, topic.zones), (_NAMES, topic.names)):
        if stored:
            parts += header(field, len(stored)), stored
    return header(_TOPICS, sum(map(len, parts))) + b"".join(parts)


@lru_cache(maxsize=MAX_TOPICS)
def _plain_topic(name: str, partitions: int, incarnation: int) -> bytes:
    topic = discovery_pb2.Topic(name=name, partitions=partitions, incarnation=incarnation)
    return topic.SerializeToString()


def refused(
    code: "common_pb2.ErrorCode.ValueType", message: str, topic: discovery_pb2.Topic | None
) -> metadata_pb2.ChangeTopicResponse:
    """The answer to a change that is not made, with the topic as it is."""
    return metadata_pb2.ChangeTopicResponse(error_code=code, error_message=message, topic=topic)


def _change(change_id: bytes, change: Change) -> snapshot_pb2.CatalogState.Change:
    return snapshot_pb2.CatalogState.Change(
        change_id=change_id,
        position=change.position.to_proto(),
        name=change.name,
        partitions=change.topic.partitions if change.topic is not None else 0,
        incarnation=change.topic.incarnation if change.topic is not None else 0,
    )


def _chunks(entries: Iterable[_Entry]) -> Iterator[list[_Entry]]:
    some = list(entries)
    for start in range(0, len(some), _ENTRIES_PER_ITEM):
        yield some[start : start + _ENTRIES_PER_ITEM]
