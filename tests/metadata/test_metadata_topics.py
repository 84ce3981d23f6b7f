"""What the records of the catalog's log make, without a log."""

from collections.abc import Iterator

from muster_core.position import Position
from muster_metadata.entries import Entry
from muster_metadata.topics import MAX_CHANGES, MAX_DELETIONS, MAX_TOPICS, StoredTopic, Topics
from muster_protos.muster.internal.v1 import metadata_pb2 as pb
from muster_protos.muster.log.v1 import records_pb2 as log
from muster_protos.muster.v1 import discovery_pb2


def change_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def creation(number: int) -> pb.ChangeTopicRequest:
    topic = discovery_pb2.Topic(name=f"t-{number}", partitions=3)
    return pb.ChangeTopicRequest(create=topic, change_id=change_id(number))


def catalog_of(records: Iterator[log.Record]) -> Topics:
    topics = Topics()
    for offset, record in enumerate(records, 2):
        topics.apply(Entry(Position(1, offset), record.SerializeToString(), b"n" * 16, b"h" * 32))
    return topics


def stored(number: int) -> log.Record:
    return log.Record(
        topic_stored=log.TopicStored(name=f"t-{number}", partitions=3, change_id=change_id(number))
    )


def removed(number: int) -> log.Record:
    return log.Record(topic_tombstone=log.TopicTombstone(name=f"t-{number}"))


def test_the_newest_ids_of_changes_are_remembered_and_no_more() -> None:
    topics = catalog_of(stored(number) for number in range(MAX_CHANGES + 1))
    assert topics.done(creation(0)) is None
    assert topics.done(creation(1)) is not None
    assert topics.done(creation(MAX_CHANGES)) is not None


def test_the_newest_removals_are_remembered_and_from_when_on_they_are_complete_is_known() -> None:
    topics = catalog_of(removed(number) for number in range(MAX_DELETIONS + 2))
    assert len(topics.deletions) == MAX_DELETIONS
    assert topics.deletions_since == 3
    assert min(topics.deletions.values()) == 4
    assert len(topics.to_proto().deletions) == MAX_DELETIONS


def test_the_offset_of_its_creation_is_the_incarnation_of_a_topic() -> None:
    topics = catalog_of(iter([stored(1), removed(1), stored(1), stored(1)]))
    assert topics.by_name == {"t-1": StoredTopic(3, 4)}
    assert topics.deletions == {"t-1": 3}
    assert [topic.incarnation for topic in topics.to_proto().topics] == [4]


def test_what_a_snapshot_says_is_what_the_records_made() -> None:
    replaced = log.Record(node_replaced=log.NodeReplaced(configuration=2, node=1, new_address="b:1"))
    claim = log.Record(critical=True, claim=log.Claim(node_id="m"))
    topics = catalog_of(iter([claim, stored(1), replaced, stored(2), removed(1), stored(3)]))
    again = Topics.of_states(topics.to_states(), topics.version, topics.end_hash)
    assert again.to_proto() == topics.to_proto()
    assert again.kept == topics.kept
    assert [log.Record.FromString(kept.record) for kept in again.kept] == [replaced]
    for number in (1, 2, 3, 4):
        assert again.done(creation(number)) == topics.done(creation(number))
    assert again.version == topics.version


def test_a_full_catalog_takes_no_further_topic_until_one_is_removed() -> None:
    topics = catalog_of(stored(number) for number in range(MAX_TOPICS))
    refused = topics.decide(creation(MAX_TOPICS))
    assert isinstance(refused, pb.ChangeTopicResponse)
    assert f"at most {MAX_TOPICS} topics" in refused.error_message
    known = topics.decide(creation(1))
    assert isinstance(known, pb.ChangeTopicResponse)
    topics.apply(Entry(Position(2, MAX_TOPICS + 2), removed(1).SerializeToString(), b"n" * 16, b"h" * 32))
    assert isinstance(topics.decide(creation(MAX_TOPICS)), log.Record)
