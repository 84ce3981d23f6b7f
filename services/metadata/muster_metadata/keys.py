"""Names of the keys on the nodes."""

from typing import NamedTuple

NODE = "muster:node"
"""Hash: identity of the node and when the cluster was made."""

LEASES = "muster:leases"
"""Hash: name of a coordinator → its row as JSON."""

OWNERS = "muster:owners"
"""Hash: shard → who claimed it last, as JSON."""

CATALOG = "catalog"


class LogKeys(NamedTuple):
    """The keys of one log."""

    log: str
    promise: str
    acknowledged: str
    node: str
    copy: str
    exported: str


def log_keys(shard: int, shard_count: int) -> LogKeys:
    """The keys of a shard's log; the shard count itself names the catalog's."""
    base = f"muster:{{{CATALOG if shard == shard_count else shard}}}"
    return LogKeys(
        f"{base}:log", f"{base}:promise", f"{base}:acknowledged", NODE, f"{base}:copy", f"{base}:exported"
    )


def identity(cluster_id: str, shard_count: int, index: int, node_count: int) -> str:
    """What a node must say that it is.

    It holds the number of nodes: two writers that count majorities of different lists of nodes, or one that
    counts on a part of them, would lose what was acknowledged.

    Args:
        cluster_id: identity of the cluster.
        shard_count: its number of shards.
        index: place of the node in the configured list, from 1.
        node_count: length of that list.
    """
    return f"{cluster_id}/{shard_count}/{index} of {node_count}"


def cluster_of(identity: str) -> str:
    """The part of an identity that all nodes of a cluster share: its id and number of shards."""
    return identity.rpartition("/")[0]


def place_of(identity: str) -> str:
    """The part of an identity that says which node it is: `2 of 3`."""
    return identity.rpartition("/")[2]
