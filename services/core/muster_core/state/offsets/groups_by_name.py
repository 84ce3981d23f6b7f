"""Which groups of a shard have committed offsets under which name of a topic."""

from collections.abc import Iterable


class GroupsByName:
    """Ids of groups by the names that their committed offsets have: who parks one gives it another.

    So who looks for what a topic leaves looks at no other group. There may be a hundred thousand, with a
    million offsets (LIM-32).
    """

    __slots__ = ("_many", "_one")

    def __init__(self) -> None:
        self._one: dict[str, str] = {}  # of names and ids alone: the garbage collector does not look at it
        self._many: dict[str, dict[str, None]] = {}  # in the order in which they came

    def __contains__(self, name: str) -> bool:
        return name in self._one or name in self._many

    def __len__(self) -> int:
        return len(self._one) + sum(map(len, self._many.values()))

    def of_name(self, name: str) -> tuple[str, ...]:
        """The groups that have an offset under a name."""
        one = self._one.get(name)
        return tuple(self._many.get(name, ())) if one is None else (one,)

    def of(self, names: Iterable[str]) -> set[str]:
        """The groups that have an offset under one of these names."""
        return set().union(*map(self.of_name, names))

    def came(self, name: str, group_id: str) -> None:
        """A group has an offset under a name, perhaps not its first."""
        many = self._many.get(name)
        if many is not None:
            many[group_id] = None
        elif (one := self._one.setdefault(name, group_id)) != group_id:
            del self._one[name]
            self._many[name] = {one: None, group_id: None}

    def went(self, name: str, group_id: str) -> None:
        """A group that had some under a name has none any more."""
        many = self._many.get(name)
        if many is None:
            del self._one[name]
            return
        del many[group_id]
        if not many:
            del self._many[name]
