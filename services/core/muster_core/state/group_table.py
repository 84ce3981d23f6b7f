"""The groups of a shard by id, and their order."""

from collections.abc import Iterator
from typing import Any

from muster_core.state.group import Group
from muster_core.state.offsets.groups_by_name import GroupsByName
from muster_core.state.offsets.runs import Runs


class GroupTable(dict[str, Group]):
    """Groups by id. Their ids are put in order once somebody lists them, and stay so (LIM-31).

    Attributes:
        by_name: the same groups by the names that their committed offsets have.
    """

    __slots__ = ("_ids", "_peopled", "by_name")

    def __init__(self) -> None:
        super().__init__()
        self.by_name = GroupsByName()
        self._ids: Runs[str] | None = None
        self._peopled: dict[str, Group] = {}

    def __setitem__(self, group_id: str, group: Group) -> None:
        if self._ids is not None and group_id not in self:
            self._ids.add(group_id)
        super().__setitem__(group_id, group)
        group.offsets.tell(self.by_name, group_id)
        group.list_in(self._peopled)

    def __delitem__(self, group_id: str) -> None:
        self.pop(group_id)

    def pop(self, group_id: str, *default: Any) -> Any:
        """Takes a group out, as that of a dict does."""
        if (group := self.get(group_id)) is not None:
            group.offsets.tell_no_more()
            group.list_in(None)
            self._peopled.pop(group_id, None)
            if self._ids is not None:
                self._ids.leave_out((group_id,))
        return super().pop(group_id, *default)

    def clear(self) -> None:
        """Takes all groups out."""
        super().clear()
        self.by_name = GroupsByName()
        self._ids, self._peopled = None, {}

    def peopled(self) -> list[Group]:
        """Those that own something, or may claim or report it: others do not care what becomes of topics."""
        for group in [one for one in self._peopled.values() if not one.is_peopled]:
            del self._peopled[group.group_id]
        return [*self._peopled.values()]

    def put_in_order(self) -> bool:
        """Puts some thousand ids more in order; returns whether all are."""
        if self._ids is None:
            self._ids = Runs()
            self._ids.waiting += self
        return self._ids.is_sorted or self._ids.sort_some()

    def after(self, group_id: str) -> Iterator[str]:
        """The ids after that one in order; no group may come or go until the caller has seen enough."""
        while not self.put_in_order():
            pass
        assert self._ids is not None
        return self._ids.after(group_id)
