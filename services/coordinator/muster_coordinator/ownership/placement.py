"""Which coordinator should own which shard. Pure: the same nodes give the same answer everywhere."""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType

LOAD_FACTOR = 1.1
"""How far above the average a node may be loaded. Nearer to 1: better balance, more moves per change."""


def place(node_ids: Iterable[str], shard_count: int) -> Mapping[int, str]:
    """The wanted owner of every shard: rendezvous hashing with a bounded load.

    Each shard goes to the node that scores highest for it and still has room; a node has room for
    `LOAD_FACTOR` times the average, rounded up. When a node comes or goes, few shards change hands beyond
    those it gets or had.

    Args:
        node_ids: names of the coordinators that live; without any the result is empty.
        shard_count: number of shards of the cluster.
    """
    return _place(tuple(sorted(set(node_ids))), shard_count)


@lru_cache(maxsize=64)
def _place(node_ids: tuple[str, ...], shard_count: int) -> Mapping[int, str]:
    owners: dict[int, str] = {}
    if not node_ids:
        return MappingProxyType(owners)
    room = dict.fromkeys(node_ids, math.ceil(LOAD_FACTOR * shard_count / len(node_ids)))
    for shard in range(shard_count):
        owner = max(
            (node for node in node_ids if room[node] > 0), key=lambda node: (_score(node, shard), node)
        )
        owners[shard] = owner
        room[owner] -= 1
    return MappingProxyType(owners)


def _score(node_id: str, shard: int) -> bytes:
    return blake2b(node_id.encode(), digest_size=8, salt=shard.to_bytes(8, "big")).digest()
