"""Which groups of this process count for whom: those that were loaded, and those that are gone."""

import asyncio
import itertools
from collections.abc import Callable, Iterable

from muster_core.shard import Shard
from muster_core.state.group import Group
from muster_runtime.loop_share import LoopShare
from muster_runtime.rpc.quotas import Quotas
from muster_runtime.rpc.quotas.quotas import network_of

LOOK_EVERY_S = 1.0

_AT_ONCE = 500
"""Groups that are looked at in a turn of the loop, in less than a millisecond."""

_LOOKED_AT_MAX = 5_000
"""Groups that are looked at each time whether they are there still."""

_GONE_S = 10.0
"""A group that was not there for so long is gone: one may not be there yet while the log stores its begin,
and one that was deleted may be made again by a call that came before."""


class CountedGroups:
    """Keeps the totals of groups right (LIM-61).

    Who begins a group is known when it calls; what a load brought is added, and what is gone is taken away:
    with its shard, with the log's record, or because nothing of it ever reached the log. How many members and
    partitions a group has is heard from its shard whenever that changes (LIM-62).

    Args:
        quotas: counts them.
        cores: the shards that are loaded.
        core_of: the loaded shard of a group; None: it is not here.
    """

    def __init__(
        self,
        quotas: Quotas,
        cores: Callable[[], Iterable[Shard]],
        core_of: Callable[[str], Shard | None],
    ) -> None:
        self._quotas = quotas
        self._cores = cores
        self._core_of = core_of
        self._counted: set[Shard] = set()
        self._rules_number = quotas.rules_number
        self._missing: dict[str, float] = {}
        self._following: asyncio.Task[None] | None = None

    def begun(self, who: str, group_id: str) -> None:
        """Counts a group that a call is about to begin: one that was deleted before counts for nobody else.

        Args:
            who: the name of the caller; empty: nobody knows.
            group_id: the group, which is not there.
        """
        self._missing.pop(group_id, None)
        self._quotas.has_no_group(group_id)
        self._quotas.has_group(who, group_id)

    def whose(self, group_id: str) -> str:
        """Whom a group counts for, also one of a shard that was loaded just now; empty: nobody knows."""
        if name := self._quotas.of_callers.whose(group_id):
            return name
        core = self._core_of(group_id)
        group = None if core is None else core.groups.get(group_id)
        return "" if group is None else _whose(group)

    def ended(self, group: Group) -> None:
        """The log has removed a group."""
        self._missing.setdefault(group.group_id, asyncio.get_running_loop().time())

    def start(self) -> None:
        """Begins to look, in the running event loop."""
        self._following = asyncio.get_running_loop().create_task(self._follow())

    def stop(self) -> None:
        """Looks no more."""
        if self._following is not None:
            self._following.cancel()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Counts the groups of shards that were loaded since, and looks whether some others are there."""
        share = LoopShare()
        if self._rules_number != self._quotas.rules_number:
            self._rules_number = self._quotas.rules_number
            self._counted.clear()
        cores = set(self._cores())
        self._counted &= cores
        for core in cores - self._counted:
            self._counted.add(core)
            await self._count(core, share)
        for totals in (self._quotas.of_callers, self._quotas.of_prefixes):
            groups = totals.some(_LOOKED_AT_MAX)
            for begin in range(0, len(groups), _AT_ONCE):
                for group_id in groups[begin : begin + _AT_ONCE]:
                    if not self._is_there(group_id):
                        self._missing.setdefault(group_id, asyncio.get_running_loop().time())
                await share.rest()
        while gone := self._gone():
            for group_id in gone:
                del self._missing[group_id]
                if not self._is_there(group_id):
                    self._quotas.has_no_group(group_id)
            await share.rest()

    async def _count(self, core: Shard, share: LoopShare) -> None:
        groups = tuple(core.groups.values())
        for begin in range(0, len(groups), _AT_ONCE):
            for group in groups[begin : begin + _AT_ONCE]:
                if core.groups.get(group.group_id) is group:
                    self._quotas.has_group(_whose(group), group.group_id)
                    self._quotas.found(group.group_id, *group.size)
            await share.rest()

    def _gone(self) -> list[str]:
        """Groups that were missed long ago, the oldest first."""
        since_s = asyncio.get_running_loop().time() - _GONE_S
        oldest = itertools.islice(self._missing.items(), _AT_ONCE)
        return [group_id for group_id, missed_s in oldest if missed_s <= since_s]

    def _is_there(self, group_id: str) -> bool:
        core = self._core_of(group_id)
        return core is not None and group_id in core.groups


def _whose(group: Group) -> str:
    """Whom a group counts for that was loaded: its first member's identity, or host; empty: nobody knows."""
    for member in group.members.values():
        return member.identity or network_of(member.host)
    for told in () if group.incremental is None else group.incremental.members.values():
        return told.told.identity or network_of(told.told.host)
    return ""
