"""Which groups a process has of whom, and what is in them: all that a caller, or a prefix of groups, has."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple


class Total(NamedTuple):
    """What somebody has in all.

    Attributes:
        groups: groups that count for it.
        members: members in these.
        partitions: partitions with a committed offset in these.
    """

    groups: int = 0
    members: int = 0
    partitions: int = 0


_NOTHING = Total()


class _Counted:
    """A group as it counts now."""

    __slots__ = ("members", "name", "partitions")

    def __init__(self, name: str) -> None:
        self.name = name
        self.members = 0
        self.partitions = 0


class _Coming:
    """What open calls may yet bring to somebody's groups: no more than those that are open ask for."""

    __slots__ = ("asked_members", "asked_partitions", "calls", "members", "partitions")

    def __init__(self) -> None:
        self.calls = 0
        self.asked_members = self.members = 0
        self.asked_partitions = self.partitions = 0

    def more(self, members: int, partitions: int) -> None:
        """A call begins."""
        self.calls += 1
        self.asked_members += members
        self.members += members
        self.asked_partitions += partitions
        self.partitions += partitions

    def fewer(self, members: int, partitions: int) -> bool:
        """A call ends; returns whether none is open."""
        self.calls -= 1
        self.asked_members -= members
        self.members = min(self.members, self.asked_members)
        self.asked_partitions -= partitions
        self.partitions = min(self.partitions, self.asked_partitions)
        return not self.calls

    def came(self, members: int, partitions: int) -> None:
        """So many more are there."""
        self.members = max(0, self.members - max(members, 0))
        self.partitions = max(0, self.partitions - max(partitions, 0))


class Totals:
    """Groups by whom they count for; each counts for one at most, with all that is in it."""

    def __init__(self) -> None:
        self._groups: dict[str, _Counted] = {}
        self._of: dict[str, Total] = {}
        self._coming: dict[str, _Coming] = {}
        self._round: Iterator[str] = iter(())

    def __len__(self) -> int:
        return len(self._groups)

    def of(self, name: str) -> Total:
        """What counts for somebody."""
        return self._of.get(name, _NOTHING)

    def with_coming(self, name: str) -> Total:
        """What counts for somebody, and what open calls may bring."""
        has, coming = self.of(name), self._coming.get(name)
        if coming is None:
            return has
        return Total(has.groups, has.members + coming.members, has.partitions + coming.partitions)

    def expect(self, name: str, members: int, partitions: int) -> Callable[[], None]:
        """A call begins that may bring so much to groups of somebody.

        Returns:
            What is called when it has ended, and what it has brought is there.
        """
        coming = self._coming.get(name)
        if coming is None:
            coming = self._coming[name] = _Coming()
        coming.more(members, partitions)
        return partial(self._expect_no_more, name, members, partitions)

    def _expect_no_more(self, name: str, members: int, partitions: int) -> None:
        if self._coming[name].fewer(members, partitions):
            del self._coming[name]

    def whose(self, group_id: str) -> str:
        """Whom a group counts for; empty: nobody."""
        counted = self._groups.get(group_id)
        return "" if counted is None else counted.name

    def add(self, name: str, group_id: str) -> None:
        """A group counts for somebody, unless it counts already."""
        if group_id not in self._groups:
            self._groups[group_id] = _Counted(name)
            self._change(name, 1, 0, 0)

    def resize(self, group_id: str, members: int, partitions: int, *, brought: bool = True) -> None:
        """A group has so many members and partitions now; nothing happens where it does not count.

        Args:
            group_id: the group.
            members: members of it.
            partitions: partitions in which it has committed.
            brought: whether what is more may be what open calls were to bring.
        """
        counted = self._groups.get(group_id)
        if counted is not None:
            more = members - counted.members, partitions - counted.partitions
            if brought and (coming := self._coming.get(counted.name)) is not None:
                coming.came(*more)
            self._change(counted.name, 0, *more)
            counted.members, counted.partitions = members, partitions

    def remove(self, group_id: str) -> None:
        """A group counts no more."""
        counted = self._groups.pop(group_id, None)
        if counted is not None:
            self._change(counted.name, -1, -counted.members, -counted.partitions)

    def clear(self) -> None:
        """Nothing counts any more."""
        self._groups.clear()
        self._of.clear()
        self._round = iter(())

    def some(self, number: int) -> list[str]:
        """Groups that count, others each time, until all were given and it begins anew."""
        found: list[str] = []
        for group_id in self._round:
            found.append(group_id)
            if len(found) == number:
                return found
        self._round = iter(tuple(self._groups))
        return found

    def _change(self, name: str, groups: int, members: int, partitions: int) -> None:
        before = self.of(name)
        after = Total(before.groups + groups, before.members + members, before.partitions + partitions)
        if after.groups:
            self._of[name] = after
        else:
            del self._of[name]
