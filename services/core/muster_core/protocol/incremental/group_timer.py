"""Timers of groups."""

from collections.abc import Callable
from typing import Any
from weakref import ref

from muster_core.state.group import Group
from muster_core.waiting.timing_wheel import Timer


class GroupTimer(Timer):
    """A wait for the sake of a group; it keeps no group that was deleted meanwhile (LIM-60).

    Args:
        over: called with this timer when the time is over.
        group: the group.
    """

    __slots__ = ("_group", "_group_id", "_over")

    def __init__(self, over: Callable[[Any], None], group: Group) -> None:
        super().__init__()
        self._over = over
        self._group = ref(group)
        self._group_id = group.group_id

    @property
    def group(self) -> Group | None:
        """The group; None: it was deleted."""
        return self._group()

    @property
    def group_id(self) -> str:
        """The group that is blamed where the timer raises."""
        return self._group_id

    def fire(self) -> None:
        """The time is over."""
        self._over(self)
