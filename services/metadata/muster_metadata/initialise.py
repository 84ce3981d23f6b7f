"""Makes a cluster: the identity of each node and the first entry of each log. Once, by an administrator."""

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from muster_core.position import GENESIS

from muster_metadata import keys
from muster_metadata.entries import genesis
from muster_metadata.node import Node
from muster_metadata.quorum import Quorum, split_urls
from muster_metadata.repair import Inspected
from muster_metadata.reply import Reply, Status

DEFAULT_SHARD_COUNT = 50
MAX_SHARD_COUNT = 10_000

_REPLY_TIMEOUT_MS = 5_000


class InitialiseError(Exception):
    """The cluster cannot be made. The message says why, and what to do; nothing existing was changed."""


@dataclass(frozen=True, slots=True)
class Initialised:
    """What stands on the nodes.

    Attributes:
        cluster_id: identity of the cluster.
        shard_count: its number of shards.
        made: nodes that were made now, by index from 1.
        left: nodes without data that were left to be rebuilt from the others, and nodes that do not answer.
    """

    cluster_id: str
    shard_count: int
    made: tuple[int, ...]
    left: tuple[int, ...]


async def initialise(
    urls: str,
    shard_count: int = DEFAULT_SHARD_COUNT,
    cluster_id: str | None = None,
    connect_timeout_ms: int = 10_000,
) -> Initialised:
    """Writes what is missing; run again it changes nothing, and after an interruption it goes on.

    Args:
        urls: `redis://a,b,c`.
        shard_count: number of shards, 1 to 10,000; fixed from then on.
        cluster_id: identity wanted; absent: the one that stands there, or a new UUID.
        connect_timeout_ms: how long to wait for nodes that do not answer.

    Raises:
        InitialiseError: another cluster, another number of shards, or too few nodes.
    """
    if not 1 <= shard_count <= MAX_SHARD_COUNT:
        raise InitialiseError(f"the number of shards must be 1 to {MAX_SHARD_COUNT}, not {shard_count}")
    nodes = [Node(index, url, _REPLY_TIMEOUT_MS) for index, url in enumerate(split_urls(urls), 1)]
    quorum = Quorum(nodes, _REPLY_TIMEOUT_MS)
    quorum.start()
    try:
        return await _initialise(quorum, shard_count, cluster_id, connect_timeout_ms)
    finally:
        await quorum.stop()


async def _initialise(
    quorum: Quorum, shard_count: int, cluster_id: str | None, connect_timeout_ms: int
) -> Initialised:
    found = await _identities(quorum, connect_timeout_ms)
    known = {node: text for node, (text, _) in found.items() if text}
    cluster_id = _cluster_id(set(known.values()), shard_count, cluster_id)
    created_at_ms = max(
        (created for text, created in found.values() if text), default=time.time_ns() // 1_000_000
    )
    for node in quorum.nodes:
        node.belongs_to(cluster_id, shard_count, len(quorum.nodes))
    for node, text in known.items():
        if text != node.identity:
            raise InitialiseError(
                f"the address of the log names {node.place} as node {keys.place_of(node.identity)}, but it "
                f"is node {keys.place_of(text)}; name all nodes, in the order in which they were made"
            )
    missing = [node for node in quorum.nodes if node not in known]
    if known and await _used(list(known), shard_count):
        if len(known) < quorum.majority:
            raise InitialiseError(
                f"{len(missing)} of {len(quorum.nodes)} nodes have no data, and the others were used "
                "already: start the nodes that have the data"
            )
        return Initialised(cluster_id, shard_count, (), tuple(node.index for node in missing))
    away = [
        f"node {node.index} ({node.place}): {node.tables.problem}" for node in missing if node not in found
    ]
    if away:
        raise InitialiseError(f"{', '.join(away)}; a new cluster needs all of its nodes")
    for node in missing:
        await _make(node, cluster_id, shard_count, created_at_ms)
    return Initialised(cluster_id, shard_count, tuple(node.index for node in missing), ())


def _cluster_id(identities: set[str], shard_count: int, wanted: str | None) -> str:
    """The identity of the cluster: what stands on the nodes, what is wanted, or a new one."""
    clusters = {keys.cluster_of(identity) for identity in identities}
    if len(clusters) > 1:
        raise InitialiseError("the nodes belong to different clusters; check the address of the log")
    if clusters:
        there_id, _, there_count = clusters.pop().rpartition("/")
        if wanted not in (None, there_id):
            raise InitialiseError(f"the nodes belong to the cluster {there_id}, not to {wanted}")
        if int(there_count) != shard_count:
            raise InitialiseError(
                f"the cluster has {there_count} shards, not {shard_count}; the number cannot be changed"
            )
        return there_id
    cluster_id = wanted or str(uuid.uuid4())
    if "/" in cluster_id or not 1 <= len(cluster_id) <= 100:
        raise InitialiseError("a cluster id has 1 to 100 characters and no '/'")
    return cluster_id


async def _identities(quorum: Quorum, connect_timeout_ms: int) -> dict[Node, tuple[str, int]]:
    """Identity and time of making of each node that answers; empty: it has none."""
    found: dict[Node, tuple[str, int]] = {}
    deadline_s = time.monotonic() + connect_timeout_ms / 1000
    while True:
        for node in quorum.nodes:
            if node in found:
                continue
            reply = await node.ask("HMGET", keys.NODE, "identity", "created_at_ms")
            if reply.status is Status.OK:
                text, created = reply.values[0]
                found[node] = ((text or b"").decode("utf-8", "replace"), int(created or 0))
            elif reply.status is Status.BROKEN:
                raise InitialiseError(f"node {node.index} ({node.place}): {reply.problem}")
        if len(found) == len(quorum.nodes) or time.monotonic() > deadline_s:
            return found
        await asyncio.sleep(0.02)


async def _used(nodes: Sequence[Node], shard_count: int) -> bool:
    """Whether anybody ever claimed a log: then a node without data lost it, and must not begin anew."""
    for node in nodes:
        replies: list[Reply] = await asyncio.gather(
            *(node.inspect(shard) for shard in range(shard_count + 1))
        )
        for reply in replies:
            if reply.status is not Status.OK:
                return True
            state = Inspected.read(reply)
            if state.epoch or state.end.position != GENESIS:
                return True
    return False


async def _make(node: Node, cluster_id: str, shard_count: int, created_at_ms: int) -> None:
    names = [keys.NODE]
    values: list[bytes | str | int] = [node.identity, created_at_ms]
    for shard in range(shard_count + 1):
        log = keys.log_keys(shard, shard_count)
        names += (log.log, log.promise, log.acknowledged)
        entry = genesis(cluster_id, shard_count, shard, created_at_ms)
        values += (entry.record, entry.nonce, entry.hash)
    reply = await node.table("initialise", names, *values)
    if reply.done:
        return
    if reply.status is Status.NOLOG and reply.values[0] == b"remains":
        raise InitialiseError(f"node {node.index} holds logs of a cluster but no identity; it must be empty")
    raise InitialiseError(f"node {node.index} could not be made: {reply.problem or reply.status.name}")
