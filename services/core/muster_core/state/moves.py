"""What an assignment moves, as a group's history lists it."""

from collections.abc import Iterable, Mapping, Sequence

from muster_core.position import Position
from muster_core.state.published import TopicPartition


class Moves:
    """Partitions that change hands, found for some of them at a time: there may be two hundred thousand.

    Args:
        before: who had what, and the position that gave it.
        most: how many are listed.

    Attributes:
        first: those that come first in order, one more than are listed where there are more.
        gone: those that nobody has any more.
    """

    def __init__(self, before: Mapping[TopicPartition, tuple[str, Position]], most: int) -> None:
        self._before = before
        self.first: list[TopicPartition] = []
        self.gone: list[TopicPartition] = []
        self._most = most + 1
        self._found = 0

    def give(self, member_id: str, partitions: Sequence[TopicPartition]) -> None:
        """A member is given partitions, which it may have had."""
        olds = list(map(self._before.get, partitions))
        self._found += len(olds) - olds.count(None)
        self._add(p for p, old in zip(partitions, olds, strict=True) if old is None or old[0] != member_id)

    @property
    def anything_is_lost(self) -> bool:
        """Whether somebody had what nobody was given so far."""
        return self._found < len(self._before)

    def lose(self, partitions: Sequence[TopicPartition]) -> None:
        """Nobody has these any more."""
        self.gone += partitions
        self._add(partitions)

    def _add(self, moved: Iterable[TopicPartition]) -> None:
        if len(self.first) == self._most:
            last = self.first[-1]
            moved = [partition for partition in moved if partition < last]
        self.first = sorted([*self.first, *moved])[: self._most]
