"""The catalog as discovery serves it: what metadata pushed, and what it acknowledged since."""

from collections.abc import Sequence
from dataclasses import dataclass

from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import discovery_pb2
from muster_runtime.view import ClusterView

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Change:
    """An acknowledged change that the pushed catalog may not have yet.

    Attributes:
        place: epoch and offset in the catalog's log.
        told: whether metadata told the place; if not, it is that of the catalog when the change came, and any
            newer catalog replaces it.
        topic: as stored; None when it was removed.
    """

    place: Place
    told: bool
    topic: discovery_pb2.Topic | None


class Topics:
    """Answers reads of the catalog. A change that this instance acknowledged is seen by the next read."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._changes: dict[str, _Change] = {}

    def get(self, name: str) -> discovery_pb2.Topic | None:
        """A topic by name."""
        return self._all().get(name)

    def list(self, names: Sequence[str]) -> discovery_pb2.ListTopicsResponse | None:
        """The topics of these names, or all, by name; None before the first catalog."""
        if self._view.catalog is None:
            return None
        topics = self._all()
        wanted = sorted(topics) if not names else sorted(set(names) & topics.keys())
        newest = max([self._pushed()[1], *(change.place[1] for change in self._changes.values())])
        return discovery_pb2.ListTopicsResponse(
            topics=[topics[name] for name in wanted], catalog_version=newest
        )

    def changed(
        self, name: str, topic: discovery_pb2.Topic | None, answer: metadata_pb2.ChangeTopicResponse
    ) -> None:
        """Notes a change that metadata acknowledged; `topic` is None when it was removed."""
        self._forget_pushed()
        told = answer.version.offset > 0
        place = (answer.version.epoch, answer.version.offset) if told else self._pushed()
        if told and place <= self._pushed():
            return
        before = self._changes.get(name)
        if before is None or before.place <= place:
            self._changes[name] = _Change(place, told, topic)

    def _all(self) -> dict[str, discovery_pb2.Topic]:
        self._forget_pushed()
        catalog = self._view.catalog
        topics = {} if catalog is None else {topic.name: topic for topic in catalog.topics}
        for name, change in self._changes.items():
            if change.topic is None:
                topics.pop(name, None)
            else:
                topics[name] = change.topic
        return topics

    def _forget_pushed(self) -> None:
        if not self._changes:
            return
        pushed = self._pushed()
        self._changes = {
            name: change
            for name, change in self._changes.items()
            if change.place > pushed or (change.place == pushed and not change.told)
        }

    def _pushed(self) -> Place:
        catalog = self._view.catalog
        return (0, 0) if catalog is None else (catalog.version.epoch, catalog.version.offset)
