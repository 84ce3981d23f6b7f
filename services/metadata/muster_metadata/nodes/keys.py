"""Names of the keys on the nodes."""

import re
from typing import NamedTuple

NODE = "muster:node"
"""Hash: `identity` of the node, `created_at_ms` of the cluster, `nodes`: addresses of this configuration."""

LEASES_BEFORE_FEATURES = "muster:leases"
"""Hash: name of a coordinator → its row as JSON, while no feature is enabled. After that a string, the name
of the next key: a metadata that knows no features finds no hash there, and gives no lease."""

LEASES = "muster:leases:2"
"""Hash: name of a coordinator → its row as JSON, in a cluster with features."""

SERVERS = "muster:servers"
"""Hash: key of a server without a lease → its row as JSON."""

OWNERS = "muster:owners"
"""Hash: shard → its last claim, as JSON."""

DOUBTS = "muster:doubts"
"""Hash: run of a server that was seen without an append-only file → number of its node and when (`3/17000`).
Every node has those of the others: what such a run promised is in no file of its own."""

TRAIL = "muster:trail"
"""Stream: what was or may be done, as the audit trail tells it: field `e` of each entry is a `TrailEvent`."""

TRAIL_REFUSED = "muster:trail:refused"
"""Stream: what was refused or failed, with a bound of its own: no flood of it removes what was done."""

CATALOG = "catalog"


class LogKeys(NamedTuple):
    """The keys of one log."""

    log: str
    promise: str
    acknowledged: str
    node: str
    copy: str
    exported: str
    snapshots: str
    vacant: str

    def snapshot(self, upto: str) -> str:
        """The key of the snapshot that covers the log up to an id; empty: the prefix of all."""
        return f"{self.snapshots.removesuffix('s')}:{upto}"


def log_keys(shard: int, shard_count: int) -> LogKeys:
    """The keys of a shard's log; the shard count itself names the catalog's."""
    base = f"muster:{{{CATALOG if shard == shard_count else shard}}}"
    return LogKeys(
        f"{base}:log",
        f"{base}:promise",
        f"{base}:acknowledged",
        NODE,
        f"{base}:copy",
        f"{base}:exported",
        f"{base}:snapshots",
        f"{base}:vacant",
    )


class Identity(NamedTuple):
    """The identity that a node stores.

    It includes the number of nodes: writers that count majorities of different lists of nodes would lose
    acknowledged records. It includes the number of the configuration for the same reason: see
    docs/decisions/replacing-a-node.md.

    Attributes:
        cluster_id: identity of the cluster.
        shard_count: its number of shards.
        node: number of the node in the configured list, from 1.
        node_count: length of that list.
        configuration: from 1; each replacement of a node raises it by one.
    """

    cluster_id: str
    shard_count: int
    node: int
    node_count: int
    configuration: int = 1

    @property
    def place(self) -> str:
        """Which node of how many: `2 of 3`."""
        return f"{self.node} of {self.node_count}"

    def __str__(self) -> str:
        """As a node stores it, and as every script compares it there."""
        return f"{self.cluster_id}/{self.shard_count}/{self.place}/{self.configuration}"

    @classmethod
    def parse(cls, text: str) -> "Identity | None":
        """Reads an identity as a node stores it; None if this version cannot read it."""
        found = _IDENTITY.fullmatch(text)
        return None if found is None else cls(found[1], *map(int, found.groups()[1:]))

    def same_log(self, other: "Identity") -> bool:
        """Whether both are nodes of one log with the same number of nodes, in any configuration."""
        return self._replace(node=0, configuration=0) == other._replace(node=0, configuration=0)

    def is_in_another(self, said: str) -> bool:
        """Whether `said` is the identity of this node in another configuration, or of one replaced in it."""
        found = Identity.parse(said)
        if found is not None:
            return found.same_log(self) and found.node == self.node
        return said == self._replace(configuration=replaced_in(said)).replaced

    @property
    def replaced(self) -> str:
        """The identity of a server that was replaced in this configuration."""
        return f"{self.cluster_id}/{self.shard_count}/replaced/{self.configuration}"


def replaced_in(text: str) -> int:
    """Number of the configuration in which the server with this identity was replaced; 0: it was not."""
    found = _REPLACED.fullmatch(text)
    return int(found[1]) if found else 0


_REPLACED = re.compile(r"[^/]{1,100}/\d{1,5}/replaced/(\d{1,9})")
_IDENTITY = re.compile(r"([^/]{1,100})/(\d{1,5})/(\d) of (\d)/(\d{1,9})")
