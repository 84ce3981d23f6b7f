"""What a coordinator makes of the topics that metadata pushes."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from muster_coordinator.ownership.cluster_follower import ClusterFollower
from muster_core.events import TopicsChanged
from muster_core.features import NO_FEATURES
from muster_protos.muster.v1 import common_pb2, discovery_pb2


class Topics(Sequence[discovery_pb2.Topic]):
    """Topics that count how often all of them are looked at."""

    def __init__(self, *topics: discovery_pb2.Topic) -> None:
        self._topics = topics
        self.looks = 0

    def __len__(self) -> int:
        return len(self._topics)

    def __getitem__(self, place: Any) -> Any:
        return self._topics[place]

    def __iter__(self) -> Iterator[discovery_pb2.Topic]:
        self.looks += 1
        return iter(self._topics)


def topic(name: str, partitions: int = 1, incarnation: int = 1, zone: str = "") -> discovery_pb2.Topic:
    zones = common_pb2.TopicZones(zones=[common_pb2.TopicZones.Zone(name=zone, partitions=[0])])
    made = discovery_pb2.Topic(name=name, partitions=partitions, incarnation=incarnation)
    if zone:
        made.zones.CopyFrom(zones)
    return made


def test_all_topics_are_looked_at_once_for_each_change() -> None:
    """Ten thousand took 23 ms: each change of one brings all of them, and who commits waits."""
    view, events = SimpleNamespace(features=()), list[Any]()
    lease: Any = SimpleNamespace(features=NO_FEATURES, carried_out=lambda _: None)
    follower = ClusterFollower(view, lease, None)  # type: ignore[arg-type]  # it only follows

    def pushed(offset: int, *topics: discovery_pb2.Topic) -> TopicsChanged:
        all_topics = Topics(*topics)
        version = SimpleNamespace(offset=offset, epoch=1)
        view.catalog = SimpleNamespace(topics=all_topics, version=version, deletions=(), deletions_since=0)
        follower.note(events.append)
        assert all_topics.looks == 1
        (event,) = events
        events.clear()
        assert isinstance(event, TopicsChanged)
        return event

    first = pushed(1, topic("a"), topic("b"), topic("c"), topic("d", incarnation=0), topic("e"))
    assert (first.topics, first.deleted) == (frozenset(), frozenset())
    then = pushed(2, topic("a"), topic("b", 2), topic("c", 1, 7), topic("d"), topic("f", zone="z"))
    assert then.topics == {"b", "c", "e", "f"}, "`d` has an incarnation that was not told before"
    assert then.deleted == {"e"}
    assert then.catalog is not None
    assert then.catalog.zones == {"f": {0: frozenset({"z"})}}


def test_what_topics_say_of_their_partitions_is_read_again_only_where_it_changed() -> None:
    """LIM-32: each change brings the names and weights of all, which took 0.1 s for 200,000 partitions."""
    view, events = SimpleNamespace(features=()), list[Any]()
    lease: Any = SimpleNamespace(features=NO_FEATURES, carried_out=lambda _: None)
    follower = ClusterFollower(view, lease, None)  # type: ignore[arg-type]  # it only follows

    def pushed(offset: int, weight: int, removed: bool = False) -> TopicsChanged:
        topics = []
        for number in range(300):
            made = topic(f"t{number}", 2, zone="z")
            made.names.partitions.add(name="p", weight=weight if number == 7 else 2)
            made.names.partitions.add(name="" if removed and number == 8 else "q")
            topics.append(made)
        version = SimpleNamespace(offset=offset, epoch=1)
        view.catalog = SimpleNamespace(topics=topics, version=version, deletions=(), deletions_since=0)
        follower.note(events.append)
        event = events.pop()
        assert isinstance(event, TopicsChanged)
        return event

    first, then, last = pushed(1, 2).catalog, pushed(2, 5), pushed(3, 5, removed=True)
    assert first is not None
    assert then.catalog is not None
    assert last.catalog is not None
    assert not then.topics
    assert then.weighed_since(first) == {"t7"}
    assert then.catalog.weights["t7"] == {0: 5}
    assert last.topics == {"t8"}
    assert last.catalog.removed == {"t8": frozenset({1})}
    for number in (0, 1, 8, 299):
        assert then.catalog.weights[f"t{number}"] is first.weights[f"t{number}"]
        assert then.catalog.zones[f"t{number}"] is first.zones[f"t{number}"]
