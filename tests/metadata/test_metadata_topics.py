"""What the records of the catalog's log make, without a log."""

from collections.abc import Iterator

import pytest
from muster_core.config import GroupConfig
from muster_core.features import FEATURE_NAMES, Feature
from muster_core.log.snapshot import SNAPSHOT_PART_BYTES, Covered, SnapshotReader, SnapshotUnusable, parts
from muster_core.log.topics import topics as topics_module
from muster_core.log.topics.topic_changes import decide
from muster_core.log.topics.topic_names import stored_names
from muster_core.log.topics.topic_zones import MAX_ZONE_BYTES, MAX_ZONES, stored_form
from muster_core.log.topics.topics import (
    MAX_CHANGES,
    MAX_DELETIONS,
    MAX_TOPICS,
    NotUnderstood,
    StoredTopic,
    Topics,
    topic_message,
)
from muster_core.position import Position
from muster_core.shard import Shard
from muster_core.state.group import Group
from muster_metadata.nodes.entries import NodeEntry
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2, snapshot_pb2
from muster_protos.muster.v1 import common_pb2, discovery_pb2

SHARD = 2


def change_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def creation(number: int) -> metadata_pb2.ChangeTopicRequest:
    topic = discovery_pb2.Topic(name=f"t-{number}", partitions=3)
    return metadata_pb2.ChangeTopicRequest(create=topic, change_id=change_id(number))


def catalog_of(records: Iterator[records_pb2.Record], *, strict: bool = True) -> Topics:
    topics = Topics(strict=strict)
    for offset, record in enumerate(records, 2):
        topics.apply(NodeEntry(Position(1, offset), record.SerializeToString(), b"n" * 16, b"h" * 32))
    return topics


def stored(number: int) -> records_pb2.Record:
    return records_pb2.Record(
        topic_stored=records_pb2.TopicStored(name=f"t-{number}", partitions=3, change_id=change_id(number))
    )


def enabled(feature: str) -> records_pb2.Record:
    return records_pb2.Record(critical=True, feature_enabled=records_pb2.FeatureEnabled(name=feature))


def zoned(**zones: tuple[int, ...]) -> common_pb2.TopicZones:
    return common_pb2.TopicZones(
        zones=[common_pb2.TopicZones.Zone(name=name, partitions=numbers) for name, numbers in zones.items()]
    )


def removed(number: int) -> records_pb2.Record:
    return records_pb2.Record(topic_tombstone=records_pb2.TopicTombstone(name=f"t-{number}"))


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


def every_kind() -> Topics:
    """A catalog in which each kind of record has left something, and one whose kind is not known here."""
    replaced = records_pb2.Record(
        node_replaced=records_pb2.NodeReplaced(configuration=2, node=1, new_address="b:1")
    )
    claim = records_pb2.Record(critical=True, claim=records_pb2.Claim(node_id="m"))
    unknown = records_pb2.Record(written_at_ms=7)
    near = stored(3)
    near.topic_stored.zones.CopyFrom(zoned(eu=(0, 2), us=(1,)))
    feature = enabled(FEATURE_NAMES[0])
    records = [claim, stored(1), replaced, feature, stored(2), removed(1), unknown, stored(3), removed(3)]
    return catalog_of(iter([*records, near]))


def through_snapshot(topics: Topics, part_bytes: int = 1) -> Topics:
    """The same from the bytes of a snapshot."""
    covered = Covered(SHARD, topics.version, topics.end_hash)
    states: list[snapshot_pb2.CatalogState] = []
    reader = SnapshotReader(SHARD, {}, 0, catalog=states.append)
    for part in parts((), covered, part_bytes, catalog=topics.to_states()):
        reader.take(part)
    assert reader.complete
    assert reader.covered == covered
    return Topics.of_states(states, covered.upto, covered.hash)


def test_what_a_snapshot_says_is_what_the_records_made() -> None:
    topics = every_kind()
    again = through_snapshot(topics)
    assert again.to_proto() == topics.to_proto()
    assert again.features == {FEATURE_NAMES[0]}
    assert again.kept == topics.kept
    kinds = [records_pb2.Record.FromString(kept.record).WhichOneof("kind") for kept in again.kept]
    assert kinds == ["node_replaced", "feature_enabled", None]
    for number in (1, 2, 3, 4):
        assert again.done(creation(number)) == topics.done(creation(number))
    assert (again.version, again.end_hash) == (topics.version, topics.end_hash)
    assert again.records_since == 0
    # What comes later makes the same of both.
    later = [stored(4), removed(2), stored(2), stored(1)]
    for offset, record in enumerate(later, again.version.offset + 1):
        for one in (again, topics):
            one.apply(NodeEntry(Position(1, offset), record.SerializeToString(), b"n" * 16, b"h" * 32))
    assert again.to_proto() == topics.to_proto()
    assert list(again.to_states()) == list(topics.to_states())


def test_how_far_the_newest_snapshot_reaches_is_known_from_its_marker() -> None:
    marker = records_pb2.Record(snapshot=records_pb2.Snapshot(upto=Position(1, 3).to_proto()))
    topics = catalog_of(iter([stored(1), stored(2), marker, stored(3)]))
    assert topics.snapshot_upto == Position(1, 3)
    assert topics.records_since == 2
    assert topics.copy().records_since == 2
    assert topics.kept == []


@pytest.mark.parametrize(
    ("record", "what"),
    [
        (
            records_pb2.Record(critical=True, feature_enabled=records_pb2.FeatureEnabled(name="of-tomorrow")),
            "of-tomorrow",
        ),
        (records_pb2.Record(critical=True), "critical record"),
    ],
)
def test_what_stops_a_server_in_the_log_stops_it_in_a_snapshot(record: records_pb2.Record, what: str) -> None:
    records = [stored(1), record, stored(2)]
    with pytest.raises(NotUnderstood, match=what):
        catalog_of(iter(records))
    of_tomorrow = catalog_of(iter(records), strict=False)
    with pytest.raises(NotUnderstood, match=what):
        through_snapshot(of_tomorrow)
    states = list(of_tomorrow.to_states())
    looked_at = Topics.of_states(states, of_tomorrow.version, b"", strict=False)
    assert list(looked_at.to_states()) == states


def test_a_shard_takes_no_snapshot_of_the_catalog_nor_the_catalog_one_of_a_shard() -> None:
    topics = every_kind()
    covered = Covered(SHARD, topics.version, topics.end_hash)
    (of_the_catalog,) = parts((), covered, catalog=topics.to_states())
    shard = Shard(SHARD, GroupConfig()).restore()
    with pytest.raises(SnapshotUnusable, match="catalog"):
        shard.take(of_the_catalog)
    (of_a_shard,) = parts([Group("g", 0, 1)], covered)
    catalog = SnapshotReader(SHARD, {}, 0, catalog=lambda _: None)
    with pytest.raises(SnapshotUnusable, match="group"):
        catalog.take(of_a_shard)


@pytest.mark.slow
def test_the_largest_catalog_fits_into_parts() -> None:
    topics = Topics()
    records = [
        records_pb2.Record(
            topic_stored=records_pb2.TopicStored(
                name=f"{number:0249d}", partitions=100_000, change_id=change_id(number)
            )
        )
        for number in range(MAX_TOPICS)
    ]
    for offset, record in enumerate(records, 2):
        topics.apply(NodeEntry(Position(1, offset), record.SerializeToString(), b"n" * 16, b"h" * 32))
    found = list(parts((), Covered(SHARD, topics.version, b"h" * 32), catalog=topics.to_states()))
    assert max(map(len, found)) < 2 * SNAPSHOT_PART_BYTES
    assert through_snapshot(topics, SNAPSHOT_PART_BYTES).to_proto() == topics.to_proto()


def test_a_full_catalog_takes_no_further_topic_until_one_is_removed() -> None:
    topics = catalog_of(stored(number) for number in range(MAX_TOPICS))
    refused = decide(topics, creation(MAX_TOPICS))
    assert isinstance(refused, metadata_pb2.ChangeTopicResponse)
    assert refused.error_code == common_pb2.ERROR_CODE_POLICY_VIOLATION
    assert f"the catalog is full: it has its limit of {MAX_TOPICS:,} topics" in refused.error_message
    known = decide(topics, creation(1))
    assert isinstance(known, metadata_pb2.ChangeTopicResponse)
    topics.apply(NodeEntry(Position(2, MAX_TOPICS + 2), removed(1).SerializeToString(), b"n" * 16, b"h" * 32))
    assert isinstance(decide(topics, creation(MAX_TOPICS)), records_pb2.Record)


class ZonedCatalog:
    """A catalog that zones can be stored in, and changes of one topic."""

    def __init__(self) -> None:
        self.topics = catalog_of(iter([enabled(Feature.PARTITION_ZONES)]))

    def change(
        self, kind: str, name: str, partitions: int, zones: common_pb2.TopicZones | None = None
    ) -> metadata_pb2.ChangeTopicResponse:
        """The answer to a change, which is carried out."""
        topic = discovery_pb2.Topic(name=name, partitions=partitions, zones=zones)
        request = metadata_pb2.ChangeTopicRequest(change_id=name.encode().rjust(16))
        getattr(request, kind).CopyFrom(topic)
        decision = decide(self.topics, request)
        if isinstance(decision, metadata_pb2.ChangeTopicResponse):
            return decision
        position = Position(1, self.topics.version.offset + 1)
        self.topics.apply(NodeEntry(position, decision.SerializeToString(), b"n" * 16, b"h" * 32))
        assert self.topics.done(request) == self.topics.stored(request)
        return self.topics.stored(request)

    def shown(self, name: str) -> discovery_pb2.Topic:
        """The topic as servers hear of it."""
        return next(topic for topic in self.topics.to_proto().topics if topic.name == name)


def test_names_and_zones_are_pushed_as_they_are_stored_without_a_look_at_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LIM-32: each change pushes all of them, which took 0.1 s for 200,000 names."""
    names = stored_names(
        common_pb2.PartitionNames(
            partitions=[
                common_pb2.PartitionNames.Partition(name="n" * 200, weight=7),
                common_pb2.PartitionNames.Partition(),
                *(common_pb2.PartitionNames.Partition(name=f"n{number}") for number in range(3_000)),
            ]
        )
    )
    zones = stored_form(zoned(z=(0, 1), y=(1,)))
    topics = Topics()
    for name, (some_zones, some_names) in {
        "a": (b"", b""),
        "b": (zones, b""),
        "c": (b"", names),
        "d": (zones, names),
    }.items():
        topics.by_name[name] = StoredTopic(3_002, 1 << 40, some_zones, some_names)
    wanted = [topic_message(name, topic) for name, topic in topics.by_name.items()]
    monkeypatch.setattr(topics_module, "names_of", None)
    monkeypatch.setattr(topics_module, "zones_of", None)
    plain = metadata_pb2.TopicCatalog(topics=wanted[:1]).SerializeToString()
    monkeypatch.setattr(topics_module, "_plain", lambda *_: plain)
    assert list(topics.to_proto().topics) == wanted


def test_zones_are_stored_in_one_order_kept_while_a_topic_grows_and_removed() -> None:
    catalog = ZonedCatalog()
    answer = catalog.change("create", "t", 3, zoned(us=(2, 1), eu=(0,)))
    assert answer.topic == catalog.shown("t")
    assert answer.topic.zones == zoned(eu=(0,), us=(1, 2))
    before = catalog.topics.version
    assert catalog.change("alter", "t", 3, zoned(eu=(0,), us=(1, 2))).error_code == 0
    assert catalog.topics.version == before  # it has these zones already
    assert catalog.change("alter", "t", 5).topic.zones == zoned(eu=(0,), us=(1, 2))
    assert catalog.change("alter", "t", 5, zoned(eu=(4,))).topic.zones == zoned(eu=(4,))
    assert through_snapshot(catalog.topics).to_proto() == catalog.topics.to_proto()
    assert not catalog.change("alter", "t", 5, zoned()).topic.HasField("zones")
    assert not catalog.shown("t").HasField("zones")


@pytest.mark.parametrize(
    ("zones", "problem"),
    [
        (zoned(**{f"z{number}": (0,) for number in range(MAX_ZONES + 1)}), "at most 64 zones, not 65"),
        (zoned(**{"": (0,)}), "topic.zones[0].name must be 1 to 255 bytes"),
        (zoned(**{"é" * 128: (0,)}), "topic.zones[0].name must be 1 to 255 bytes"),
        (zoned(**{"a\x1b[2J": (0,)}), "of printable characters"),
        (common_pb2.TopicZones(zones=[*zoned(a=(0,)).zones, *zoned(a=(1,)).zones]), "'a' is given more than"),
        (zoned(a=()), "zone 'a' has no partitions"),
        (zoned(a=(1, 1)), "a partition of zone 'a' is given more than once"),
        (zoned(a=(0,), b=(3,)), "topic.zones[1]: zone 'b' has partition 3, and the topic's end at 2"),
    ],
)
@pytest.mark.parametrize("kind", ["create", "alter"])
def test_zones_that_cannot_be_are_refused_by_their_field(
    kind: str, zones: common_pb2.TopicZones, problem: str
) -> None:
    catalog = ZonedCatalog()
    if kind == "alter":
        catalog.change("create", "t", 3, zoned(a=(0,)))
    before = catalog.topics.version
    refused = catalog.change(kind, "t", 3, zones)
    assert refused.error_code == common_pb2.ERROR_CODE_INVALID_REQUEST
    assert problem in refused.error_message
    assert catalog.topics.version == before


def test_no_zones_are_stored_before_their_feature_is_enabled() -> None:
    catalog = ZonedCatalog()
    catalog.topics = catalog_of(iter([stored(1)]))
    for kind, name in (("create", "t"), ("alter", "t-1")):
        refused = catalog.change(kind, name, 3, zoned(eu=(0,)))
        assert refused.error_code == common_pb2.ERROR_CODE_INVALID_REQUEST
        assert "`muster features enable partition-zones`" in refused.error_message
    assert catalog.change("alter", "t-1", 4).error_code == 0


@pytest.mark.slow
def test_the_zones_of_all_topics_have_a_limit_of_bytes_and_fit_into_a_snapshot() -> None:
    catalog = ZonedCatalog()
    everywhere = {name: tuple(range(100_000)) for name in ("a", "b", "c")}
    answer = catalog.change("create", "large", 100_000, zoned(**everywhere))
    assert answer.error_code == 0
    left = MAX_ZONE_BYTES - answer.topic.zones.ByteSize()
    one = zoned(z=(0,)).ByteSize() - 1  # bytes of a zone but for its name
    fitting = [zoned(**{"z" * 100: (0,)})] * (left // (one + 100))
    for number, zones in enumerate(fitting):
        assert catalog.change("create", f"t-{number}", 1, zones).error_code == 0
    refused = catalog.change("create", "more", 1, fitting[0])
    assert refused.error_code == common_pb2.ERROR_CODE_POLICY_VIOLATION
    assert "the zones of all topics would take more than 1,048,576 bytes" in refused.error_message
    assert catalog.change("alter", "t-1", 1, fitting[0]).error_code == 0  # its own bytes do not count twice
    covered = Covered(SHARD, catalog.topics.version, b"h" * 32)
    found = parts((), covered, catalog=catalog.topics.to_states())
    assert max(map(len, found)) < MAX_ZONE_BYTES + SNAPSHOT_PART_BYTES
