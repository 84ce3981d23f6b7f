"""The largest tables of committed offsets, which a sweep of garbage passes over."""

import asyncio
from collections.abc import Collection, Sequence

from muster_core.shard import Shard

LARGE = 10_000
"""Offsets that a collector looks at in about a millisecond."""

_GROUPS_AT_ONCE = 5_000


async def large_tables(cores: Collection[Shard]) -> Sequence[object]:
    """What holds many offsets in some shards: names and numbers, in containers of their store alone."""
    found: list[object] = []
    for core in cores:
        groups = tuple(core.groups.values())
        for begin in range(0, len(groups), _GROUPS_AT_ONCE):
            for group in groups[begin : begin + _GROUPS_AT_ONCE]:
                if len(group.offsets) >= LARGE:
                    found += group.offsets.containers
            await asyncio.sleep(0)
    return found
