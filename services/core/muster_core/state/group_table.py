"""The groups of a shard by id, and their order."""

from collections.abc import Iterable, Iterator
from typing import Any

from muster_core.state.group import Group
from muster_core.state.offsets.runs import Runs


class GroupTable(dict[str, Group]):
    """Groups by id. Their ids are put in order once somebody lists them, and stay so (LIM-31)."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        super().__init__()
        self._ids: Runs[str] | None = None

    def __setitem__(self, group_id: str, group: Group) -> None:
        if self._ids is not None and group_id not in self:
            self._ids.add(group_id)
        super().__setitem__(group_id, group)

    def __delitem__(self, group_id: str) -> None:
        super().__delitem__(group_id)
        if self._ids is not None:
            self._ids.leave_out((group_id,))

    def pop(self, group_id: str, *default: Any) -> Any:
        """Takes a group out, as that of a dict does."""
        if self._ids is not None and group_id in self:
            self._ids.leave_out((group_id,))
        return super().pop(group_id, *default)

    def clear(self) -> None:
        """Takes all groups out."""
        super().clear()
        self._ids = None

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


def peopled(groups: Iterable[Group]) -> list[Group]:
    """Those that own something, or may claim or report it. Many others may only commit."""
    return [
        one
        for one in groups
        if one.members or one.owners or one.incremental is not None or one.ends.held_bytes
    ]
