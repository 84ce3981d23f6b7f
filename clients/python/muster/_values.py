"""Values that the whole client uses."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from muster_assignors import TopicPartition

__all__ = ["Committed", "Owner", "Progress", "Topic", "TopicPartition"]


class Topic(NamedTuple):
    """A topic of the catalog.

    Attributes:
        name: its name.
        partitions: how many partitions it has, removed ones included.
        zones: zone → numbers of the partitions that are near it; without those of which nothing is known.
        names: names of its partitions by number, empty text for removed ones; none: they have numbers alone.
        weights: of each of these, 0 for removed ones.
    """

    name: str
    partitions: int
    zones: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    names: tuple[str, ...] = ()
    weights: tuple[int, ...] = ()

    def number_of(self, key: str | int) -> int | None:
        """Number of the partition of this name, or of this number; None: there is none."""
        if isinstance(key, str) and self.names:
            return self.names.index(key) if key and key in self.names else None
        number = int(key) if isinstance(key, int) or (key.isascii() and key.isdecimal()) else -1
        return number if 0 <= number < self.partitions and number not in self.removed else None

    @property
    def removed(self) -> frozenset[int]:
        """Numbers of the partitions that were removed."""
        return frozenset(number for number, name in enumerate(self.names) if not name)


class Owner(NamedTuple):
    """A member that owns a partition.

    Attributes:
        partition: the partition.
        member_id: id of the member.
        group_instance_id: its static id; empty for a dynamic member.
        client_id: what it calls itself.
        host: where it runs, as its coordinator sees it.
        generation: of its group.
    """

    partition: TopicPartition
    member_id: str
    group_instance_id: str
    client_id: str
    host: str
    generation: int


class Committed(NamedTuple):
    """How far the work on a partition got.

    Attributes:
        offset: the position to go on from, 0 or more.
        metadata: text stored with it.
    """

    offset: int
    metadata: str = ""


class Progress(NamedTuple):
    """How far the work on a partition got, and where it ends.

    Attributes:
        partition: the partition.
        offset: the committed position to go on from; None: nothing was committed.
        committed_at_ms: when that was, wall clock of the coordinator, ms since the Unix epoch; 0: never, or
            not known.
        end: where the work ends, as the owner reported it last (`Partition.report`); None: it did not.
    """

    partition: TopicPartition
    offset: int | None
    committed_at_ms: int = 0
    end: int | None = None

    @property
    def lag(self) -> int | None:
        """What is left to do, counted from 0 where nothing was committed; None: no end was reported."""
        return None if self.end is None else max(0, self.end - (self.offset or 0))
