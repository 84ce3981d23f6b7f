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
