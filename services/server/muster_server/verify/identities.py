"""Which cluster the nodes are of: what a majority of them says, and which nodes say something else."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from muster_metadata.nodes.configuration import Introduction
from muster_metadata.nodes.keys import replaced_in
from muster_metadata.operator.initialise import MAX_SHARD_COUNT


class Disagreement(Exception):
    """The addresses are not the nodes of one log; the message says why."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the nodes agree on.

    Attributes:
        cluster_id: identity of the cluster.
        shard_count: its number of shards.
        configurations: number of a node → number of the configuration that it is in.
        faults: number of a node → why it is not the node of the cluster that its address should be.
        nameless: numbers of the nodes that say nothing of themselves, so that they take no part.
    """

    cluster_id: str
    shard_count: int
    configurations: dict[int, int]
    faults: dict[int, str]
    nameless: tuple[int, ...]


def agreed(said: Mapping[int, Introduction], count: int) -> Cluster:
    """What a majority says; a node without data says nothing and is no fault.

    Args:
        said: number of a node that answers, by its place in the address → what it says of itself.
        count: how many nodes the address names.

    Raises:
        Disagreement: there is no cluster, or the address names other nodes than it has.
    """
    _refuse_twins(said)
    known = {
        index: found
        for index, one in said.items()
        if (found := one.parsed) is not None and 1 <= found.shard_count <= MAX_SHARD_COUNT
    }
    if not any(one.identity for one in said.values()):
        raise Disagreement("no node has a log: it was never initialised")
    votes = Counter((one.cluster_id, one.shard_count, one.node_count) for one in known.values())
    ranked = votes.most_common(2)
    if not ranked or (len(ranked) > 1 and ranked[0][1] == ranked[1][1]):
        texts = "; ".join(f"node {index}: {one.identity!r}" for index, one in said.items())
        raise Disagreement(f"the nodes do not say of which cluster they are: {texts}")
    (cluster_id, shard_count, node_count), _ = ranked[0]
    if node_count != count:
        raise Disagreement(f"the cluster has {node_count} nodes and the address names {count}: name them all")
    faults = {}
    for index, one in said.items():
        right = index in known and known[index] == (
            cluster_id,
            shard_count,
            index,
            count,
            known[index].configuration,
        )
        if one.identity and not right:
            text = f"it says that it is {one.identity[:200]!r}, not node {index} of {count} of {cluster_id}"
            replaced = replaced_in(one.identity)
            faults[index] = f"it was replaced in configuration {replaced}" if replaced else text
    if len(said) - len(faults) <= count // 2:
        index, fault = next(iter(faults.items()))
        raise Disagreement(
            f"too few nodes of the cluster, in the order of their numbers: node {index}: {fault}"
        )
    configurations = {index: one.configuration for index, one in known.items() if index not in faults}
    nameless = tuple(index for index, one in said.items() if not one.identity)
    return Cluster(cluster_id, shard_count, configurations, faults, nameless)


def _refuse_twins(said: Mapping[int, Introduction]) -> None:
    servers: dict[str, int] = {}
    for index, one in said.items():
        if one.run_id and one.run_id in servers:
            raise Disagreement(f"nodes {servers[one.run_id]} and {index} of the address are one server")
        servers[one.run_id] = index
