"""Which groups a process has of whom: what a caller, or a prefix of groups, has in all."""

from collections.abc import Iterator


class Totals:
    """Groups by whom they count for; each counts for one at most."""

    def __init__(self) -> None:
        self._whose: dict[str, str] = {}
        self._of: dict[str, int] = {}
        self._round: Iterator[str] = iter(())

    def __len__(self) -> int:
        return len(self._whose)

    def count(self, name: str) -> int:
        """How many count for somebody."""
        return self._of.get(name, 0)

    def add(self, name: str, group_id: str) -> None:
        """A group counts for somebody, unless it counts already."""
        if group_id not in self._whose:
            self._whose[group_id] = name
            self._of[name] = self._of.get(name, 0) + 1

    def remove(self, group_id: str) -> None:
        """A group counts no more."""
        name = self._whose.pop(group_id, None)
        if name is None:
            return
        self._of[name] -= 1
        if not self._of[name]:
            del self._of[name]

    def clear(self) -> None:
        """Nothing counts any more."""
        self._whose.clear()
        self._of.clear()
        self._round = iter(())

    def some(self, number: int) -> list[str]:
        """Groups that count, others each time, until all were given and it begins anew."""
        found: list[str] = []
        for group_id in self._round:
            found.append(group_id)
            if len(found) == number:
                return found
        self._round = iter(tuple(self._whose))
        return found
