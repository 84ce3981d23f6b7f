"""What the groups of shards are made of, which a sweep of garbage passes over."""

import gc
from collections import deque
from collections.abc import Collection, Iterator

from muster_core.shard import Shard
from muster_core.state.group import Group

_AT_ONCE = 1_000
"""So many references are looked at for a portion."""

_CONTAINERS = frozenset({deque, dict, list, set, tuple})


def in_use(cores: Collection[Shard]) -> Iterator[list[object]]:
    """Goes through the groups of some shards, and all that these hold, in portions.

    What was in a portion is expected to be hidden from the garbage collector before the next one is asked
    for. The shards may change meanwhile.
    """
    for core in tuple(cores):
        for group in tuple(core.groups.values()):
            yield [group, *group.offsets.containers]
            yield from _reached_from(group)
        yield [core.groups]


def _reached_from(group: Group) -> Iterator[list[object]]:
    """What a group refers to that is not hidden, and what that refers to."""
    waiting = gc.get_referents(group)
    while waiting:
        some = waiting[-_AT_ONCE:]
        del waiting[-_AT_ONCE:]
        found = [one for one in some if gc.is_tracked(one) and _may_be_hidden(type(one))]
        yield found
        waiting += gc.get_referents(*found)


def _may_be_hidden(kind: type) -> bool:
    """Whether objects of a type bear that the collector stops tracking them: those of C may not.

    A group whose timer another one's refers to comes by itself, its offsets before it.
    """
    return kind in _CONTAINERS or (kind is not Group and str(kind.__module__).startswith("muster_core."))
