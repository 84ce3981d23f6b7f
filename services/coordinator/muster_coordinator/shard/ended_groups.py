"""What large groups leave when they end."""

import asyncio
from collections import deque

from muster_core.state.group import Group
from muster_core.state.offsets.offset_store import OffsetStore

AT_ONCE = 2_500
"""Offsets that are given up in a turn of the loop, in about half a millisecond."""

_RESTS = 4
"""How much longer the loop has to itself after each of them: nobody waits for what is given up, and removals
of other groups, which somebody may wait for, take half of its time meanwhile."""


class EndedGroups:
    """Gives up the offsets of large groups that have ended, some at a time (LIM-55).

    Half a million would else go in one turn, with the last reference to their group, which takes 60 ms.
    """

    def __init__(self) -> None:
        self._left: deque[OffsetStore] = deque()

    def take(self, group: Group) -> None:
        """Takes over a group that nobody uses any more, in the running event loop."""
        if len(group.offsets) <= AT_ONCE:
            return
        self._left.append(group.offsets)
        if len(self._left) == 1:
            asyncio.get_running_loop().call_soon(self._give_up_some)

    def _give_up_some(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if self._left[0].clear_some(AT_ONCE):
            self._left.popleft()
        if self._left:
            loop.call_later(_RESTS * (loop.time() - began_s), self._give_up_some)
