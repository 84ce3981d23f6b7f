"""What an assignment moves, as a group's history lists it."""

from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import TypeAlias

from muster_protos.muster.v1.coordinator_pb2 import GroupHistoryResponse

from muster_core.position import Position
from muster_core.record_bounds import RECORD_PART_BYTES, utf8_bytes
from muster_core.state.history import GenerationEntry
from muster_core.state.published import TopicPartition

Owners: TypeAlias = Mapping[TopicPartition, tuple[str, Position]]
"""Who has what, and the position that gave it."""

_NOBODY = ("", None)


class Moves:
    """Partitions that change hands, found for some of them at a time: there may be two hundred thousand.

    Args:
        before: who had what, and the position that gave it.
        most: how many are listed.

    Attributes:
        gone: those that nobody has any more.
    """

    def __init__(self, before: Owners, most: int) -> None:
        self._before = before
        self.gone: list[TopicPartition] = []
        self._most = most + 1
        self._first: list[TopicPartition] = []
        self._others: list[TopicPartition] = []
        self._found = 0

    def give(self, member_id: str, partitions: Sequence[TopicPartition]) -> None:
        """A member is given partitions, which it may have had."""
        olds = list(map(self._before.get, partitions))
        self._found += len(olds) - olds.count(None)
        self._add([p for p, old in zip(partitions, olds, strict=True) if old is None or old[0] != member_id])

    @property
    def anything_is_lost(self) -> bool:
        """Whether somebody had what nobody was given so far."""
        return self._found < len(self._before)

    def lose(self, partitions: Sequence[TopicPartition]) -> None:
        """Nobody has these any more."""
        self.gone += partitions
        self._add(partitions)

    @property
    def first(self) -> Sequence[TopicPartition]:
        """Those that come first in order, one more than are listed where there are more."""
        self._first = sorted(self._first + self._others)[: self._most]
        self._others.clear()
        return self._first

    def _add(self, moved: Iterable[TopicPartition]) -> None:
        if len(self._first) == self._most:
            last = self._first[-1]
            moved = [partition for partition in moved if partition < last]
        self._others += moved
        if len(self._others) >= self._most:  # thousands of members may be given a few each
            _ = self.first


def moves_between(before: Owners, after: Owners, most: int) -> Sequence[TopicPartition]:
    """As `Moves.first`, of all partitions at once."""
    # There may be two hundred thousand, and to look one up takes longer than all else here.
    olds = list(map(before.get, after))
    moved = [p for (p, new), old in zip(after.items(), olds, strict=True) if old is None or old[0] != new[0]]
    if len(olds) - olds.count(None) < len(before):
        moved += [p for p in before if p not in after]
    return nsmallest(most + 1, moved)


def list_moves(
    entry: GenerationEntry, moved: Iterable[TopicPartition], before: Owners, after: Owners, most: int
) -> None:
    """Lists partitions that have moved, of which the last one may say only that there are more."""
    size_bytes = 0
    for partition in moved:
        giver, taker = before.get(partition, _NOBODY)[0], after.get(partition, _NOBODY)[0]
        names_bytes = utf8_bytes(partition[0] + giver + taker)
        size_bytes += names_bytes
        if len(entry.moves) == most or size_bytes > RECORD_PART_BYTES:
            entry.moves_truncated = True
            return
        entry.add_move(
            GroupHistoryResponse.Move(
                topic=partition[0], partition=partition[1], from_member_id=giver, to_member_id=taker
            ),
            names_bytes,
        )
