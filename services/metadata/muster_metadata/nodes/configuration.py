"""Which nodes a log has: what the nodes say, and whether the configured addresses agree with it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from muster_metadata.nodes import keys
from muster_metadata.nodes.keys import Identity


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a node says about itself.

    Attributes:
        identity: which node of which log it is; empty: it has no data of a cluster.
        created_at_ms: when its cluster was made.
        addresses: of all nodes in its configuration, in order.
        run_id: of the server's process; empty: unknown.
    """

    identity: str = ""
    created_at_ms: int = 0
    addresses: tuple[str, ...] = ()
    run_id: str = ""

    @property
    def parsed(self) -> Identity | None:
        """The identity; None if this version cannot read it."""
        return Identity.parse(self.identity)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A log and its nodes.

    Attributes:
        cluster_id: identity of the cluster.
        shard_count: its number of shards.
        number: from 1; each replacement of a node raises it by one.
        addresses: of the nodes in order, as they were named when the cluster was made or a node replaced.
        created_at_ms: when the cluster was made.
    """

    cluster_id: str
    shard_count: int
    number: int
    addresses: tuple[str, ...]
    created_at_ms: int

    def identity(self, index: int) -> Identity:
        """The identity of the node with this number, from 1."""
        return Identity(self.cluster_id, self.shard_count, index, len(self.addresses), self.number)

    def keeps(self, index: int, said: Introduction) -> bool:
        """Whether a node of this or an earlier configuration is still a node of the log.

        It is not if another server has replaced it since: then the two configurations have different
        addresses for that number.
        """
        found = said.parsed
        return (
            found is not None
            and found.same_log(self.identity(index))
            and found.node == index
            and len(said.addresses) == len(self.addresses)
            and said.addresses[index - 1 : index] == self.addresses[index - 1 : index]
        )


class UnusableKind(Enum):
    """Why the configured addresses are no log."""

    UNREACHED = auto()
    """No majority of the nodes answers."""
    UNINITIALISED = auto()
    """No node has data of a cluster."""
    LACKS_DATA = auto()
    """The nodes that have data of a cluster are no majority."""
    ONE_SERVER = auto()
    """Two addresses name one server."""
    REPLACED = auto()
    """A server is named that another one has replaced."""
    UNKNOWN_IDENTITY = auto()
    """A node has an identity that this version cannot read."""
    OTHER_CLUSTER = auto()
    """Two nodes belong to different clusters."""
    OTHER_COUNT = auto()
    """Not all nodes of the log are named."""
    OTHER_ORDER = auto()
    """A node is named in another place than its own."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """The configured addresses are no log, or not yet.

    Two are equal if they are about the same nodes, whatever the sentence.

    Attributes:
        kind: for programs.
        reason: for people.
        nodes: which nodes it is about, from 1; empty: all.
    """

    kind: UnusableKind
    reason: str = field(compare=False)
    nodes: tuple[int, ...] = ()

    @property
    def contradiction(self) -> bool:
        """Whether the settings are wrong, or a server is in a wrong place: waiting will not help."""
        return self.kind not in _WAITED_FOR


_WAITED_FOR = (UnusableKind.UNREACHED, UnusableKind.UNINITIALISED, UnusableKind.LACKS_DATA)

UNREACHED = Unusable(UnusableKind.UNREACHED, "no majority of the log's nodes answered yet")
UNINITIALISED = Unusable(UnusableKind.UNINITIALISED, "the log was never initialised: run `init` once")


def agreed_configuration(
    places: Sequence[str], said: Sequence[Introduction | None]
) -> Configuration | Unusable:
    """The configuration of the log, or why there is none.

    A node that is away or empty is no contradiction. A node with another identity than the addresses imply
    is one, even if the others are a majority: majorities of different lists of nodes need not overlap.

    Args:
        places: the configured addresses, in order.
        said: the introduction of each node; None: it does not answer.
    """
    contradiction = _contradiction(places, said)
    if contradiction is not None:
        return contradiction
    majority = len(places) // 2 + 1
    if sum(one is not None for one in said) < majority:
        return UNREACHED
    newest = newest_of(said)
    if newest is None:
        return UNINITIALISED
    for index, one in enumerate(said, 1):
        if one is not None and one.identity and not newest.keeps(index, one):
            return _replaced(places, index, _of(newest.addresses, index), newest.number)
    if sum(one is not None and bool(one.identity) for one in said) < majority:
        empty = sum(one is not None and not one.identity for one in said)
        return Unusable(
            UnusableKind.LACKS_DATA,
            f"{empty} of {len(places)} nodes have no data of a cluster, and those that have it are no "
            "majority: start the nodes that have the data; if `init` was interrupted, run it again",
        )
    return newest


def newest_of(said: Sequence[Introduction | None]) -> Configuration | None:
    """The newest configuration that any node has; a node gets one only after it was decided. None: none."""
    known = [(found, one) for one in said if one is not None and (found := one.parsed) is not None]
    if not known:
        return None
    identity, one = max(known, key=lambda pair: pair[0].configuration)
    created_at_ms = max(other.created_at_ms for _, other in known)
    return Configuration(
        identity.cluster_id, identity.shard_count, identity.configuration, one.addresses, created_at_ms
    )


def _contradiction(places: Sequence[str], said: Sequence[Introduction | None]) -> Unusable | None:
    servers: dict[str, int] = {}
    logs: dict[tuple[str, int], int] = {}
    for index, one in enumerate(said, 1):
        if one is None:
            continue
        where = f"node {index} ({places[index - 1]})"
        if one.run_id and one.run_id in servers:
            twin = servers[one.run_id]
            reason = f"nodes {twin} ({places[twin - 1]}) and {index} ({places[index - 1]}) are one server"
            return Unusable(UnusableKind.ONE_SERVER, reason, (twin, index))
        servers[one.run_id] = index
        if not one.identity:
            continue
        replaced = keys.replaced_in(one.identity)
        if replaced:
            return _replaced(places, index, _of(one.addresses, index), replaced)
        found = one.parsed
        if found is None:
            reason = f"{where} says that it is {one.identity!r}, which this version does not know"
            return Unusable(UnusableKind.UNKNOWN_IDENTITY, reason, (index,))
        logs.setdefault((found.cluster_id, found.shard_count), index)
        if len(logs) > 1:
            (first, _), (second, _) = logs
            other = next(iter(logs.values()))
            reason = (
                f"the nodes belong to different clusters: node {other} ({places[other - 1]}) to {first}, "
                f"{where} to {second}"
            )
            return Unusable(UnusableKind.OTHER_CLUSTER, reason, (other, index))
        if found.node_count != len(places):
            reason = (
                f"{where} is one of {found.node_count} nodes of a log, but the address of the log names "
                f"{len(places)}: name {', '.join(one.addresses)}"
            )
            return Unusable(UnusableKind.OTHER_COUNT, reason, (index,))
        if found.node != index:
            reason = (
                f"the address of the log names {places[index - 1]} as node {index} of {len(places)}, "
                f"but it is node {found.place}; name all nodes, in the order in which they were made"
            )
            return Unusable(UnusableKind.OTHER_ORDER, reason, (index,))
    return None


def _replaced(places: Sequence[str], index: int, successor: str, number: int) -> Unusable:
    reason = (
        f"node {index} ({places[index - 1]}) was replaced by {successor} in configuration {number} of the "
        "log; name that one instead"
    )
    return Unusable(UnusableKind.REPLACED, reason, (index,))


def _of(addresses: Sequence[str], index: int) -> str:
    return addresses[index - 1] if index <= len(addresses) else "another server"
