"""Which nodes a log has: what the nodes say of it, and whether the configured addresses agree. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from muster_metadata.nodes import keys
from muster_metadata.nodes.keys import Identity

UNREACHED = "no majority of the log's nodes answered yet"
UNINITIALISED = "the log was never initialised: run `init` once"


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a node that answers says of itself.

    Attributes:
        identity: which node of which log it is; empty: it has no data of a cluster.
        created_at_ms: when its cluster was made.
        addresses: of all nodes of its configuration, in order.
        run_id: of the server's process; empty: it does not tell.
    """

    identity: str = ""
    created_at_ms: int = 0
    addresses: tuple[str, ...] = ()
    run_id: str = ""

    @property
    def parsed(self) -> Identity | None:
        """The identity, where it is one of this version."""
        return Identity.parse(self.identity)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A log and its nodes.

    Attributes:
        cluster_id: identity of the cluster.
        shard_count: its number of shards.
        number: from 1; each replacement of a node raises it by one.
        addresses: of the nodes in order, as they were named when they were made or put in place.
        created_at_ms: when the cluster was made.
    """

    cluster_id: str
    shard_count: int
    number: int
    addresses: tuple[str, ...]
    created_at_ms: int

    def identity(self, index: int) -> Identity:
        """What the node at a place, from 1, must say."""
        return Identity(self.cluster_id, self.shard_count, index, len(self.addresses), self.number)

    def keeps(self, index: int, said: Introduction) -> bool:
        """Whether a node at that place, of this or an earlier configuration, still is a node of the log.

        It is not when another server took its place since: then the address recorded for that place differs
        between the two configurations.
        """
        found = said.parsed
        return (
            found is not None
            and found.same_log(self.identity(index))
            and found.node == index
            and len(said.addresses) == len(self.addresses)
            and said.addresses[index - 1] == self.addresses[index - 1]
        )


@dataclass(frozen=True, slots=True)
class Unusable:
    """The configured addresses are no log, or not yet.

    Attributes:
        reason: why.
        contradiction: the settings are wrong, or a server stands in a wrong place: waiting will not help.
    """

    reason: str
    contradiction: bool = False


def agreed_configuration(
    places: Sequence[str], said: Sequence[Introduction | None]
) -> Configuration | Unusable:
    """The configuration of the log, or why there is none.

    A node that is away or empty is no contradiction; one that says to be something else than the address
    names it is, even if the others would do: majorities of different lists of nodes need not meet.

    Args:
        places: the configured addresses, in order.
        said: what each of them says; None: it does not answer.
    """
    problem = _contradiction(places, said)
    if problem:
        return Unusable(problem, contradiction=True)
    majority = len(places) // 2 + 1
    if sum(one is not None for one in said) < majority:
        return Unusable(UNREACHED)
    newest = newest_of(said)
    if newest is None:
        return Unusable(UNINITIALISED)
    for index, one in enumerate(said, 1):
        if one is not None and one.identity and not newest.keeps(index, one):
            return Unusable(
                f"node {index} ({places[index - 1]}) was replaced by {newest.addresses[index - 1]} in "
                f"configuration {newest.number} of the log; name that one instead",
                contradiction=True,
            )
    if sum(one is not None and bool(one.identity) for one in said) < majority:
        empty = sum(one is not None and not one.identity for one in said)
        return Unusable(
            f"{empty} of {len(places)} nodes have no data of a cluster, and those that have it are no "
            "majority: start the nodes that have the data; if `init` was interrupted, run it again"
        )
    return newest


def newest_of(said: Sequence[Introduction | None]) -> Configuration | None:
    """The newest configuration that any node has; nodes take one over only after it was decided."""
    known = [(found, one) for one in said if one is not None and (found := one.parsed) is not None]
    if not known:
        return None
    identity, one = max(known, key=lambda pair: pair[0].configuration)
    created_at_ms = max(other.created_at_ms for _, other in known)
    return Configuration(
        identity.cluster_id, identity.shard_count, identity.configuration, one.addresses, created_at_ms
    )


def _contradiction(places: Sequence[str], said: Sequence[Introduction | None]) -> str:
    servers: dict[str, int] = {}
    logs: dict[tuple[str, int], int] = {}
    for index, one in enumerate(said, 1):
        if one is None:
            continue
        where = f"node {index} ({places[index - 1]})"
        if one.run_id and one.run_id in servers:
            twin = servers[one.run_id]
            return f"nodes {twin} ({places[twin - 1]}) and {index} ({places[index - 1]}) are one server"
        servers[one.run_id] = index
        if not one.identity:
            continue
        replaced = keys.replaced_in(one.identity)
        if replaced:
            return (
                f"{where} was replaced by {_of(one.addresses, index)} in configuration {replaced} of the "
                "log; name that one instead"
            )
        found = one.parsed
        if found is None:
            return f"{where} says to be {one.identity!r}, which this version does not know"
        logs.setdefault((found.cluster_id, found.shard_count), index)
        if len(logs) > 1:
            (first, _), (second, _) = logs
            other = next(iter(logs.values()))
            return (
                f"the nodes belong to different clusters: node {other} ({places[other - 1]}) to {first}, "
                f"{where} to {second}"
            )
        if found.node_count != len(places):
            return (
                f"{where} is one of {found.node_count} nodes of a log, and the address of the log does not "
                f"name all of them but {len(places)}: name {', '.join(one.addresses)}"
            )
        if found.node != index:
            return (
                f"the address of the log names {places[index - 1]} as node {index} of {len(places)}, "
                f"but it is node {found.place}; name all nodes, in the order in which they were made"
            )
    return ""


def _of(addresses: Sequence[str], index: int) -> str:
    return addresses[index - 1] if index <= len(addresses) else "another server"
