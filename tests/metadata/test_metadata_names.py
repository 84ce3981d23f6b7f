"""Topics whose partitions have names, without a log."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from metadata.test_metadata_topics import catalog_of, enabled, through_snapshot, zoned
from muster_core.features import Feature
from muster_core.log.topics import topic_names
from muster_core.log.topics.topic_changes import decide
from muster_core.log.topics.topic_names import MAX_NAMES_BYTES, MAX_REMOVED
from muster_core.position import Position
from muster_metadata.nodes.entries import NodeEntry
from muster_protos.limits import TOPIC_PARTITIONS_MAX
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, discovery_pb2

INVALID = common_pb2.ERROR_CODE_INVALID_REQUEST
UNKNOWN = common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION
VIOLATION = common_pb2.ERROR_CODE_POLICY_VIOLATION
Answer = metadata_pb2.ChangeTopicResponse


class NamedCatalog:
    """A catalog that names can be stored in."""

    def __init__(self) -> None:
        self.topics = catalog_of(iter([enabled(Feature.PARTITION_NAMES), enabled(Feature.PARTITION_ZONES)]))
        self._changes = 0

    def create(self, name: str, *names: str, count: int | None = None) -> Answer:
        topic = discovery_pb2.Topic(name=name, partitions=len(names) if count is None else count)
        topic.names.partitions.extend(common_pb2.PartitionNames.Partition(name=one) for one in names)
        return self._carry_out(metadata_pb2.ChangeTopicRequest(create=topic))

    def alter(self, topic: str, put: dict[str, int] | None = None, *remove: str) -> Answer:
        request = discovery_pb2.AlterPartitionsRequest(topic=topic, remove=remove)
        for name, weight in (put or {}).items():
            request.put.add(name=name, weight=weight)
        return self._carry_out(metadata_pb2.ChangeTopicRequest(alter_partitions=request))

    def alter_topic(self, topic: discovery_pb2.Topic) -> Answer:
        return self._carry_out(metadata_pb2.ChangeTopicRequest(alter=topic))

    def delete(self, name: str) -> None:
        self._carry_out(metadata_pb2.ChangeTopicRequest(delete=name))

    def shown(self, name: str) -> list[tuple[str, int]]:
        """Names and weights by number, as servers hear of them."""
        topic = next(topic for topic in self.topics.to_proto().topics if topic.name == name)
        assert topic.partitions == len(topic.names.partitions)
        return [(entry.name, entry.weight) for entry in topic.names.partitions]

    def _carry_out(self, request: metadata_pb2.ChangeTopicRequest) -> Answer:
        self._changes += 1
        request.change_id = self._changes.to_bytes(16, "big")
        decision = decide(self.topics, request)
        if isinstance(decision, Answer):
            return decision
        position = Position(1, self.topics.version.offset + 1)
        self.topics.apply(NodeEntry(position, decision.SerializeToString(), b"n" * 16, b"h" * 32))
        stored = self.topics.stored(request)
        if not request.HasField("delete"):
            assert self.topics.done(request) == stored
        return stored


def test_partitions_are_added_weighed_and_removed_and_no_number_is_used_again() -> None:
    catalog = NamedCatalog()
    answer = catalog.create("tenants", "acme", "globex")
    assert [entry.name for entry in answer.topic.names.partitions] == ["acme", "globex"]
    catalog.alter("tenants", {"initech": 1, "acme": 5})
    assert catalog.shown("tenants") == [("acme", 5), ("globex", 0), ("initech", 0)]
    catalog.alter("tenants", {"hooli": 2}, "globex")
    catalog.alter("tenants", {"globex": 0})
    assert catalog.shown("tenants") == [("acme", 5), ("", 0), ("initech", 0), ("hooli", 2), ("globex", 0)]
    assert through_snapshot(catalog.topics).to_proto() == catalog.topics.to_proto()
    catalog.delete("tenants")
    catalog.create("tenants", "globex")
    assert catalog.shown("tenants") == [("globex", 0)]


def test_what_is_so_already_is_not_written() -> None:
    catalog = NamedCatalog()
    catalog.create("tenants", "acme")
    before = catalog.topics.version
    assert catalog.alter("tenants", {"acme": 1}).error_code == 0
    assert catalog.topics.version == before
    catalog.alter("tenants", {"acme": 7})
    catalog.alter("tenants", {"acme": 0})
    assert catalog.shown("tenants") == [("acme", 7)]


def test_zones_of_a_named_topic_leave_its_names() -> None:
    catalog = NamedCatalog()
    catalog.create("tenants", "acme", "globex")
    topic = discovery_pb2.Topic(name="tenants", partitions=2, zones=zoned(eu=(1,)))
    assert catalog.alter_topic(topic).error_code == 0
    assert catalog.shown("tenants") == [("acme", 0), ("globex", 0)]
    catalog.alter("tenants", {"initech": 0})
    (shown,) = catalog.topics.to_proto().topics
    assert (shown.partitions, shown.zones) == (3, zoned(eu=(1,)))
    grown = catalog.alter_topic(discovery_pb2.Topic(name="tenants", partitions=4))
    assert grown.error_code == INVALID
    assert "muster topics add-partition" in grown.error_message


@pytest.mark.parametrize(
    ("put", "remove", "code", "problem"),
    [
        ({"a b": 0}, (), INVALID, "put[0].name must be 1 to 249 letters"),
        ({"": 0}, (), INVALID, "put[0].name must be 1 to 249 letters"),
        ({"x": 1_000_001}, (), INVALID, "put[0].weight must be from 1 to 1,000,000"),
        ({"x": 0}, ("x",), INVALID, "remove[0]: partition 'x' is given more than once"),
        ({}, ("acme", "acme"), INVALID, "remove[1]: partition 'acme' is given more than once"),
        ({}, ("gone",), UNKNOWN, "topic 'tenants' has no partition 'gone'"),
        ({}, ("",), UNKNOWN, "topic 'tenants' has no partition ''"),
        ({"hooli": 0}, ("acme", "gone"), UNKNOWN, "topic 'tenants' has no partition 'gone'"),
    ],
)
def test_a_change_that_cannot_be_is_refused_as_a_whole(
    put: dict[str, int], remove: tuple[str, ...], code: int, problem: str
) -> None:
    catalog = NamedCatalog()
    catalog.create("tenants", "acme", "gone")
    catalog.alter("tenants", None, "gone")
    before = catalog.shown("tenants")
    answer = catalog.alter("tenants", put, *remove)
    assert answer.error_code == code
    assert problem in answer.error_message
    assert catalog.shown("tenants") == before


def test_names_that_cannot_be_are_refused() -> None:
    catalog = NamedCatalog()
    assert "2 names are given for 3 partitions" in catalog.create("t", "a", "b", count=3).error_message
    assert "'a' is given more than once" in catalog.create("t", "a", "a").error_message
    assert "topic.names.partitions[1].name must be" in catalog.create("t", "a", "é").error_message
    catalog.topics.features.discard(Feature.PARTITION_NAMES)
    assert "`muster features enable partition-names`" in catalog.create("t", "a").error_message
    numbered = catalog_of(
        iter([records_pb2.Record(topic_stored=records_pb2.TopicStored(name="n", partitions=1))])
    )
    catalog.topics = numbered
    assert "topic 'n' has numbered partitions" in catalog.alter("n", {"a": 1}).error_message
    assert catalog.alter("absent", {"a": 1}).error_code == UNKNOWN


def test_of_names_that_are_far_too_large_none_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIM-19: a hundred thousand take a quarter of a second."""

    def looked_at(_: str) -> bool:
        raise AssertionError

    catalog = NamedCatalog()
    assert catalog.create("t", "a").error_code == 0
    monkeypatch.setattr(topic_names, "is_name", looked_at)
    names = [str(number) for number in range(TOPIC_PARTITIONS_MAX)]
    assert "262,144 bytes" in catalog.create("u", *names).error_message
    assert "262,144 bytes" in catalog.alter("t", dict.fromkeys(names, 1)).error_message


@pytest.mark.slow
def test_names_and_holes_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = NamedCatalog()
    long = [f"{number:0249d}" for number in range(MAX_NAMES_BYTES // 249)]
    assert "the names of a topic take at most 262,144 bytes" in catalog.create("t", *long).error_message
    few = long[: len(long) * 9 // 10]
    for name in ("t", "u", "v", "w"):
        assert catalog.create(name, *few).error_code == 0
    excess = catalog.create("x", *few)
    assert excess.error_code == VIOLATION
    assert "the names of all topics would take more than 1,048,576 bytes" in excess.error_message
    assert "at most 262,144 bytes" in catalog.alter("t", dict.fromkeys(long[len(few) :], 0)).error_message
    catalog.delete("t")
    assert catalog.create("x", *few).error_code == 0

    catalog = NamedCatalog()
    many = [f"{number:x}" for number in range(MAX_REMOVED + 1)]
    catalog.create("t", *many)
    assert catalog.alter("t", None, *many[1:]).error_code == 0
    removal = catalog.alter("t", {"last": 0}, many[0])
    assert removal.error_code == VIOLATION
    assert "its limit of 20,000 removed partitions" in removal.error_message

    monkeypatch.setattr(topic_names, "TOPIC_PARTITIONS_MAX", 3)
    catalog = NamedCatalog()
    catalog.create("t", "a", "b", "c")
    assert "at most 3 may be, removed ones included" in catalog.alter("t", {"d": 0}, "a").error_message
    assert TOPIC_PARTITIONS_MAX == 100_000


NAMES = st.sampled_from(["a", "b", "c", "d"])


class Names(RuleBasedStateMachine):
    """Partitions of one topic come and go, beside a model of who has which number."""

    def __init__(self) -> None:
        super().__init__()
        self.catalog = NamedCatalog()
        self.catalog.create("t", "a")
        self.numbers = {"a": (0, 0)}
        self.end = 1

    @rule(put=st.dictionaries(NAMES, st.integers(0, 3)), remove=st.sets(NAMES))
    def alter(self, put: dict[str, int], remove: set[str]) -> None:
        answer = self.catalog.alter("t", put, *sorted(remove))
        possible = remove <= self.numbers.keys() and remove.isdisjoint(put)
        assert (answer.error_code == 0) == possible
        if not possible:
            return
        for name in remove:
            del self.numbers[name]
        for name, weight in put.items():
            if name not in self.numbers:
                self.numbers[name] = (self.end, 0)
                self.end += 1
            if weight:
                self.numbers[name] = (self.numbers[name][0], 0 if weight == 1 else weight)

    @rule()
    def load(self) -> None:
        self.catalog.topics = through_snapshot(self.catalog.topics)

    @rule()
    def delete_and_create(self) -> None:
        self.catalog.delete("t")
        self.catalog.create("t", "b")
        self.numbers, self.end = {"b": (0, 0)}, 1

    @invariant()
    def is_as_the_model_says(self) -> None:
        wanted = [("", 0)] * self.end
        for name, (number, weight) in self.numbers.items():
            wanted[number] = (name, weight)
        assert self.catalog.shown("t") == wanted


TestNames = pytest.mark.slow(Names.TestCase)
TestNames.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
