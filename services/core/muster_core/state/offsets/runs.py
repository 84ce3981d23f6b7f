"""Names or numbers that come in any order and are read in theirs."""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Generic, TypeVar

RUN = 8_192
"""Items that are sorted at a time, in about a millisecond."""

_GONE_SHARE = 4
"""Once one item of so many is gone, those that are gone are left out before others are sorted."""

_Item = TypeVar("_Item", bound=int | str)


class Runs(Generic[_Item]):
    """Different items, kept as they come, and sorted run by run once somebody is about to read them.

    A reader merges the runs: whatever comes, no more is moved at a time than a run has. Of an item that goes
    it is noted that it is gone; its place is left out when many are.

    Attributes:
        waiting: items that are in no run. Whoever adds one where none is gone may append it here.
        gone: items that are gone and have a place still; None: none.
    """

    __slots__ = ("_old", "_runs", "gone", "waiting")

    def __init__(self) -> None:
        self.waiting: list[_Item] = []
        self.gone: set[_Item] | None = None
        self._runs: list[list[_Item]] = []
        self._old: list[list[_Item]] | None = None

    @property
    def containers(self) -> list[Collection[Any]]:
        """All that grows with the items."""
        return [self.waiting, self.gone or (), *self._runs, *(self._old or ())]

    @property
    def is_empty(self) -> bool:
        """Whether all that came is gone."""
        return len(self.gone or ()) == self._places

    def add(self, item: _Item) -> None:
        """Adds one that is not there."""
        if self.gone and item in self.gone:
            self.gone.remove(item)
        else:
            self.waiting.append(item)

    def leave_out(self, items: Iterable[_Item]) -> None:
        """Items that are there go."""
        if self.gone is None:
            self.gone = set()
        self.gone.update(items)
        if self._old or self._is_thin:
            self.sort_some()

    def sort_some(self) -> bool:
        """Puts some items in order; returns whether all are. Of a list with many gaps that is begun anew."""
        if not self._old and self._is_thin:
            self._old = [*self._runs, self.waiting]
            self._runs, self.waiting = [], []
        if self._old:
            run = _taken(self._old[-1])
            if not self._old[-1]:
                self._old.pop()
        else:
            run = _taken(self.waiting)
        if self.gone:
            left = [item for item in run if item not in self.gone]
            if len(left) != len(run):
                self.gone.difference_update(run)
                run = left
        if run:
            before = [*self._runs]
            if before and len(before[-1]) + len(run) <= RUN:
                run += before.pop()
            run.sort()
            self._runs = [*before, run]
        return self.is_sorted

    @property
    def is_sorted(self) -> bool:
        """Whether all items are in order."""
        return not (self.waiting or self._old)

    def after(self, item: _Item, *, or_at: bool = False) -> Iterator[_Item]:
        """The items after one, or also that one, in order; all must be in order, and stay as they are."""
        cut = bisect_left if or_at else bisect_right
        parts = [map(run.__getitem__, range(cut(run, item), len(run))) for run in self._runs]
        merged = parts[0] if len(parts) == 1 else heapq.merge(*parts)
        gone = self.gone
        return (one for one in merged if one not in gone) if gone else iter(merged)

    def all(self) -> list[_Item]:
        """All items, in no order."""
        found = [*self.waiting]
        for part in (*self._runs, *(self._old or ())):
            found += part
        return [one for one in found if one not in self.gone] if self.gone else found

    def clear_some(self, most: int) -> bool:
        """Forgets some, where nobody reads them any more; returns whether none is left."""
        self.gone = None
        parts = [part for part in (self.waiting, *self._runs, *(self._old or ())) if part]
        if parts:
            del parts[0][-most:]
        return len(parts) <= 1 and not (parts and parts[0])

    @property
    def _places(self) -> int:
        return len(self.waiting) + sum(map(len, self._runs)) + sum(map(len, self._old or ()))

    @property
    def _is_thin(self) -> bool:
        return bool(self.gone) and len(self.gone or ()) * _GONE_SHARE >= self._places


def _taken(items: list[_Item]) -> list[_Item]:
    """Takes the last items of a list: nothing else is moved."""
    some = items[-RUN:]
    del items[-RUN:]
    return some
