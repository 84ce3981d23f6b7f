"""Any records in the catalog's log: applied or not understood, and a snapshot of them is the same catalog.

Nothing but `NotUnderstood` is raised; what only looks at the catalog understands all. A change of a topic is
decided, its record applied, and a repeat answered as the first; a refused change stores nothing.
"""

from google.protobuf.message import DecodeError
from kit.lives.drawn_messages import DrawnMessages
from muster_core.log.replay import Entry
from muster_core.log.topics.topic_changes import decide
from muster_core.log.topics.topics import NotUnderstood, Topics
from muster_core.position import Position
from muster_protos.limits import TOPIC_PARTITIONS_MAX
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2, snapshot_pb2

from fuzz.draw import Draw
from fuzz.target import Broken

LONGEST_BYTES = 2_048

KINDS = (
    *("topic_stored", "topic_tombstone", "partitions_altered", "feature_enabled", "snapshot"),
    *("topic_stored", "partitions_altered", "claim"),
)


def play(data: bytes) -> None:
    source = Draw(data)
    messages = DrawnMessages(source)
    topics, looked = Topics(), Topics(strict=False)
    offset = 0
    while not source.over:
        if source.random() < 0.3:
            record = _changed(topics, messages)
            if record is None:
                continue
        else:
            record = _record(source, messages)
            if record is None:
                return
        offset += 1
        entry = Entry(Position(1, offset), record, b"", b"")
        looked.apply(entry)
        before = _states(topics)
        try:
            topics.apply(entry)
        except NotUnderstood:
            if _states(topics) != before:
                raise Broken("a record that is not understood changed the catalog") from None
            offset -= 1
            looked = topics.copy()
            looked._strict = False
    for one in (topics, looked):
        _check(one)


def _record(source: Draw, messages: DrawnMessages) -> bytes | None:
    if source.random() < 0.2:
        body = source.take(source.randrange(60))
        try:
            records_pb2.Record.FromString(body)
        except DecodeError:
            return None  # found before, with the chain
        return body
    record = records_pb2.Record(critical=source.random() < 0.5)
    part = getattr(record, source.choice(KINDS))
    part.SetInParent()
    part.MergeFrom(messages.message(type(part)))
    if record.HasField("topic_stored"):
        part.partitions = max(1, part.partitions)
    return record.SerializeToString()


def _changed(topics: Topics, messages: DrawnMessages) -> bytes | None:
    request = messages.message(metadata_pb2.ChangeTopicRequest)
    if kind := request.WhichOneof("change"):
        wanted = getattr(request, kind)
        if kind in ("create", "alter"):
            wanted.partitions = max(1, min(wanted.partitions, TOPIC_PARTITIONS_MAX))  # as it is served
    else:
        return None
    before = _states(topics)
    decision = topics.done(request) or decide(topics, request)
    if _states(topics) != before:
        raise Broken("a decision changed the catalog")
    if isinstance(decision, records_pb2.Record):
        stored = topics.copy()
        stored.apply(Entry(Position(1, topics.version.offset + 1), decision.SerializeToString(), b"", b""))
        answer = stored.stored(request)
        if request.change_id and stored.done(request) is None:
            raise Broken(f"a change is not known once it is stored: {answer}")
        return decision.SerializeToString()
    return None


def _states(topics: Topics) -> list[bytes]:
    return [state.SerializeToString(deterministic=True) for state in topics.to_states()]


def _check(topics: Topics) -> None:
    topics.to_proto().SerializeToString()
    states = _states(topics)
    again = Topics.of_states(
        map(snapshot_pb2.CatalogState.FromString, states), topics.version, topics.end_hash, strict=False
    )
    if _states(again) != states or again.to_proto() != topics.to_proto():
        raise Broken("the catalog of a snapshot is another one")
