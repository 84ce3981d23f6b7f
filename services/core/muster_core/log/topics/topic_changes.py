"""What a change of the topics makes: the record to store, or why there is none.

Decided on what the log has made so far (`topics`); whoever stores the record has claimed the catalog's log.
"""

from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, discovery_pb2

from muster_core.features import Feature
from muster_core.log.topics.topic_names import (
    MAX_ALL_NAMES_BYTES,
    MAX_REMOVED,
    NamesChange,
    altered,
    names_problem,
    removed_in,
    stored_names,
)
from muster_core.log.topics.topic_zones import MAX_ZONE_BYTES, stored_form, zones_of, zones_problem
from muster_core.log.topics.topics import MAX_TOPICS, StoredTopic, Topics, name_of, refused, topic_message


def decide(
    topics: Topics, request: metadata_pb2.ChangeTopicRequest
) -> records_pb2.Record | metadata_pb2.ChangeTopicResponse:
    """The record that makes a change, or the answer if there is nothing to store."""
    name = name_of(request)
    kind = request.WhichOneof("change")
    known = topics.by_name.get(name)
    if kind == "create":
        return _create(topics, request, known)
    if known is None:
        return refused(
            common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION, "there is no topic of this name", None
        )
    if kind == "delete":
        return records_pb2.Record(
            topic_tombstone=records_pb2.TopicTombstone(name=name, change_id=request.change_id)
        )
    if kind == "alter_partitions":
        return _alter_partitions(topics, request, known)
    return _alter(topics, request, known)


def _alter_partitions(
    topics: Topics, request: metadata_pb2.ChangeTopicRequest, known: StoredTopic
) -> records_pb2.Record | metadata_pb2.ChangeTopicResponse:
    wanted = request.alter_partitions
    present = topic_message(wanted.topic, known)
    if not known.names:
        problem = f"topic {wanted.topic!r} has numbered partitions: it was created without names"
        return refused(common_pb2.ERROR_CODE_INVALID_REQUEST, problem, present)
    change = NamesChange(known.names, wanted)
    if change.problem:
        code = common_pb2.ERROR_CODE_INVALID_REQUEST
        if change.missing:
            code = common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION
        return refused(code, change.problem, present)
    if change.record is None:
        return metadata_pb2.ChangeTopicResponse(topic=present, version=topics.version.to_proto())
    if excess := _names_excess(topics, wanted.topic, altered(known.names, change.record)):
        return refused(common_pb2.ERROR_CODE_POLICY_VIOLATION, excess, present)
    change.record.change_id = request.change_id
    return records_pb2.Record(critical=True, partitions_altered=change.record)


def _names_excess(topics: Topics, name: str, names: bytes) -> str:
    """Which limit of the catalog names of a topic exceed, for people; empty: none."""
    all_names = [names, *(topic.names for other, topic in topics.by_name.items() if other != name)]
    if sum(map(len, all_names)) > MAX_ALL_NAMES_BYTES:
        return f"the names of all topics would take more than {MAX_ALL_NAMES_BYTES:,} bytes"
    if sum(len(removed_in(one)) for one in all_names if one) > MAX_REMOVED:
        return (
            f"the catalog has its limit of {MAX_REMOVED:,} removed partitions, whose numbers are kept "
            "until their topics are deleted"
        )
    return ""


def _alter(
    topics: Topics, request: metadata_pb2.ChangeTopicRequest, known: StoredTopic
) -> records_pb2.Record | metadata_pb2.ChangeTopicResponse:
    wanted = request.alter
    present = topic_message(wanted.name, known)
    if wanted.partitions < known.partitions:
        return refused(
            common_pb2.ERROR_CODE_INVALID_PARTITIONS,
            f"the topic has {known.partitions} partitions and cannot have fewer",
            present,
        )
    if wanted.HasField("names") or (known.names and wanted.partitions != known.partitions):
        problem = "partitions with names are added with AlterPartitions: `muster topics add-partition`"
        return refused(common_pb2.ERROR_CODE_INVALID_REQUEST, problem, present)
    zones = stored_form(wanted.zones) if wanted.HasField("zones") else known.zones
    if wanted.partitions == known.partitions and zones == known.zones:
        return metadata_pb2.ChangeTopicResponse(topic=present, version=topics.version.to_proto())
    refusal = _zones_refused(topics, wanted, len(known.zones))
    return refusal or _stored(wanted, zones, request.change_id)


def _zones_refused(
    topics: Topics, topic: discovery_pb2.Topic, bytes_before: int
) -> metadata_pb2.ChangeTopicResponse | None:
    """The refusal of zones that a topic gives; None: they can be stored, or it gives none."""
    if not topic.zones.zones:
        return None
    others = sum(len(other.zones) for other in topics.by_name.values()) - bytes_before
    full = others + len(stored_form(topic.zones)) > MAX_ZONE_BYTES
    excess = f"the zones of all topics would take more than {MAX_ZONE_BYTES:,} bytes" if full else ""
    return _part_refused(topics, "zones", Feature.PARTITION_ZONES, zones_problem(topic), excess)


def _names_refused(topics: Topics, topic: discovery_pb2.Topic) -> metadata_pb2.ChangeTopicResponse | None:
    """The refusal of names that a new topic gives; None: they can be stored, or it gives none."""
    if not topic.HasField("names"):
        return None
    excess = _names_excess(topics, topic.name, stored_names(topic.names))
    return _part_refused(topics, "names", Feature.PARTITION_NAMES, names_problem(topic), excess)


def _part_refused(
    topics: Topics, part: str, feature: Feature, problem: str, excess: str
) -> metadata_pb2.ChangeTopicResponse | None:
    """The refusal of a part of a topic, for lack of its feature first; None: it can be stored."""
    if feature not in topics.features:
        problem = f"topic.{part} needs the feature {feature}: `muster features enable {feature}`"
    if problem or not excess:
        return refused(common_pb2.ERROR_CODE_INVALID_REQUEST, problem, None) if problem else None
    return refused(common_pb2.ERROR_CODE_POLICY_VIOLATION, f"topic.{part}: {excess}", None)


def _create(
    topics: Topics, request: metadata_pb2.ChangeTopicRequest, known: StoredTopic | None
) -> records_pb2.Record | metadata_pb2.ChangeTopicResponse:
    if known is not None:
        return refused(
            common_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS,
            f"there is a topic of this name already, with {known.partitions} partitions",
            topic_message(request.create.name, known),
        )
    if len(topics.by_name) >= MAX_TOPICS:
        return refused(
            common_pb2.ERROR_CODE_POLICY_VIOLATION,
            f"the catalog is full: it has its limit of {MAX_TOPICS:,} topics; remove some first",
            None,
        )
    refusal = _zones_refused(topics, request.create, 0) or _names_refused(topics, request.create)
    if refusal is not None:
        return refusal
    record = _stored(request.create, stored_form(request.create.zones), request.change_id)
    if request.create.HasField("names"):
        record.topic_stored.names.ParseFromString(stored_names(request.create.names))
    return record


def _stored(topic: discovery_pb2.Topic, zones: bytes, change_id: bytes) -> records_pb2.Record:
    return records_pb2.Record(
        topic_stored=records_pb2.TopicStored(
            name=topic.name, partitions=topic.partitions, change_id=change_id, zones=zones_of(zones)
        )
    )
