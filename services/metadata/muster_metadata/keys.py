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


def identity(cluster_id: str, shard_count: int, index: int) -> str:
    """What a node must say that it is.

    Args:
        cluster_id: identity of the cluster.
        shard_count: its number of shards.
        index: place of the node in the configured list, from 1.
    """
    return f"{cluster_id}/{shard_count}/{index}"
