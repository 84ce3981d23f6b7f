"""The topics, as a coordinator knows them at one time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from muster_protos.limits import topic_of

from muster_core.position import Position

_NONE = frozenset[int]()


@dataclass(frozen=True)
class Catalog:
    """What the catalog's log had made of the topics at one place.

    Attributes:
        offset: the place.
        partitions: numbers of partitions by topic.
        deletions: of names that were removed the offset of the last removal in the catalog's log.
        incarnations: offsets in the catalog's log of the records that created the topics, by topic.
        deletions_since: every removal after this offset is among the deletions; older ones may be forgotten.
        epoch: of the record at the place.
        removed: numbers of partitions that were removed, by topic; topics without any are missing.
        weights: of partitions that are more work than others, by topic and number; the rest have 1.
        zones: of partitions, by topic and number, as far as they are known.
    """

    offset: int
    partitions: Mapping[str, int]
    deletions: Mapping[str, int]
    incarnations: Mapping[str, int] = field(default_factory=dict)
    deletions_since: int = 0
    epoch: int = 0
    removed: Mapping[str, frozenset[int]] = field(default_factory=dict)
    weights: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    zones: Mapping[str, Mapping[int, frozenset[str]]] = field(default_factory=dict)

    @property
    def place(self) -> Position:
        """The place, with its epoch: what follows a loss of the log's end has a higher one."""
        return Position(self.epoch, self.offset)

    @cached_property
    def last_deletion(self) -> int:
        """Offset of the newest removal; 0: there was none."""
        return max(self.deletions.values(), default=0)

    def number_of(self, topic: str) -> int | None:
        """How many partitions of a topic there are; None: there is no such topic."""
        count = self.partitions.get(topic)
        return None if count is None else count - len(self.removed.get(topic, ()))

    def removed_of(self, name: str) -> frozenset[int]:
        """Numbers of partitions that were removed, of the topic that offsets have this name for."""
        return self.removed.get(topic_of(name), _NONE) if self.removed else _NONE

    def weighed_otherwise(self, before: "Catalog") -> frozenset[str]:
        """Names of topics whose partitions have other weights or zones than in an earlier catalog."""
        return _different(self.weights, before.weights) | _different(self.zones, before.zones)

    def deleted_since(self, offset: int) -> frozenset[str]:
        """Names that were removed after a place; there may be later topics of them."""
        return frozenset(name for name, removed in self.deletions.items() if removed > offset)


def _different(
    now: Mapping[str, Mapping[int, object]], before: Mapping[str, Mapping[int, object]]
) -> frozenset[str]:
    return frozenset(
        name
        for name in now.keys() | before.keys()
        if (one := now.get(name)) is not (other := before.get(name)) and one != other
    )


NOTHING_KNOWN = Catalog(0, {}, {})
