"""Makes a cluster: writes the identity of each node and the first entry of each log."""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from muster_core.features import FEATURE_NAMES
from muster_core.position import GENESIS
from muster_protos.muster.log.v1 import records_pb2
from muster_runtime.about import software_version

from muster_metadata.catalog.catalog import CatalogLog
from muster_metadata.catalog.reading import CatalogReader
from muster_metadata.log.claim import Claimer
from muster_metadata.log.logs import Logs
from muster_metadata.log.reading import LogReader
from muster_metadata.log.repairs.repair import Repairer
from muster_metadata.log.states import Inspected
from muster_metadata.log.upkeep import Upkeep
from muster_metadata.nodes import keys
from muster_metadata.nodes.addresses import split_urls
from muster_metadata.nodes.configuration import (
    Configuration,
    Introduction,
    Unusable,
    agreed_configuration,
    newest_of,
)
from muster_metadata.nodes.entries import genesis
from muster_metadata.nodes.introductions import introduction
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.problem import SILENT
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import NodeReply, Status

DEFAULT_SHARD_COUNT = 50
MAX_SHARD_COUNT = 10_000

_REPLY_TIMEOUT_MS = 5_000
_REPORT_S = 1.0
_FIRST_ENTRIES = 100


class InitialiseError(Exception):
    """The cluster cannot be made. The message says why and what to do; no existing data was changed."""


@dataclass(frozen=True, slots=True)
class Initialised:
    """The result of an initialisation.

    Attributes:
        cluster_id: identity of the cluster.
        shard_count: its number of shards.
        made: nodes that were made by this command, by index from 1.
        left: nodes without data, which are rebuilt from the others, and nodes that do not answer.
        fresh: the cluster has not been used yet.
    """

    cluster_id: str
    shard_count: int
    made: tuple[int, ...]
    left: tuple[int, ...]
    fresh: bool = False


async def initialise(
    urls: str,
    shard_count: int = DEFAULT_SHARD_COUNT,
    cluster_id: str | None = None,
    connect_timeout_ms: int = 10_000,
    waiting: Callable[[str], None] = lambda _: None,
    features: Iterable[str] = FEATURE_NAMES,
) -> Initialised:
    """Makes a cluster. Run again it resumes after an interruption, or else changes nothing.

    Args:
        urls: `redis://a,b,c`.
        shard_count: number of shards, 1 to 10,000; cannot be changed later.
        cluster_id: identity wanted; absent: the existing one, or a new UUID.
        connect_timeout_ms: how long to wait for nodes that do not answer.
        waiting: called each second with a sentence about the nodes that are waited for.
        features: names of the features that the cluster begins with; fewer than all for a cluster that is to
            work with an older version.

    Raises:
        InitialiseError: another cluster, another number of shards, or too few nodes.
    """
    if not 1 <= shard_count <= MAX_SHARD_COUNT:
        raise InitialiseError(f"the number of shards must be 1 to {MAX_SHARD_COUNT}, not {shard_count}")
    nodes = [Node(index, url, _REPLY_TIMEOUT_MS) for index, url in enumerate(split_urls(urls), 1)]
    quorum = Quorum(nodes, _REPLY_TIMEOUT_MS)
    quorum.start()
    try:
        made = await _initialise(quorum, shard_count, cluster_id, connect_timeout_ms, waiting)
        if made.fresh:
            await _enable(quorum, made.shard_count, sorted(features))
        return made
    finally:
        await quorum.stop()


async def _initialise(
    quorum: Quorum,
    shard_count: int,
    cluster_id: str | None,
    connect_timeout_ms: int,
    waiting: Callable[[str], None],
) -> Initialised:
    said = await _answers(quorum, connect_timeout_ms, waiting)
    _agree(quorum, said)
    existing = newest_of([said.get(node) for node in quorum.nodes])
    if existing is None:
        configuration = Configuration(
            _new_id(cluster_id),
            shard_count,
            1,
            tuple(node.place for node in quorum.nodes),
            _wall_ms(),
        )
    else:
        _check_wish(existing, shard_count, cluster_id)
        configuration = existing
    for node in quorum.nodes:
        node.belongs_to(configuration.cluster_id, shard_count, len(quorum.nodes), configuration.number)
    known = [node for node in quorum.nodes if node in said and said[node].identity]
    missing = [node for node in quorum.nodes if node not in known]
    if known and (configuration.number > 1 or await _used(known, shard_count)):
        if len(known) < quorum.majority:
            raise InitialiseError(
                f"{len(missing)} of {len(quorum.nodes)} nodes have no data, and the others were used "
                "already: start the nodes that have the data"
            )
        left = tuple(node.index for node in missing)
        only_begun = configuration.number == 1 and await _only_begun(known, shard_count)
        return Initialised(configuration.cluster_id, shard_count, (), left, fresh=only_begun)
    away = [_away(node) for node in missing if node not in said]
    if away:
        raise InitialiseError(f"{', '.join(away)}; a new cluster needs all of its nodes")
    for node in missing:
        await _make(node, configuration)
    return Initialised(
        configuration.cluster_id, shard_count, tuple(node.index for node in missing), (), fresh=True
    )


def _agree(quorum: Quorum, said: Mapping[Node, Introduction]) -> None:
    found = agreed_configuration(
        [node.place for node in quorum.nodes], [said.get(node) for node in quorum.nodes]
    )
    if isinstance(found, Unusable) and found.contradiction:
        raise InitialiseError(found.reason)


def _new_id(wanted: str | None) -> str:
    cluster_id = wanted or str(uuid.uuid4())
    if "/" in cluster_id or not 1 <= len(cluster_id) <= 100:
        raise InitialiseError("a cluster id has 1 to 100 characters and no '/'")
    return cluster_id


def _check_wish(existing: Configuration, shard_count: int, cluster_id: str | None) -> None:
    if cluster_id not in (None, existing.cluster_id):
        raise InitialiseError(f"the nodes belong to the cluster {existing.cluster_id}, not to {cluster_id}")
    if existing.shard_count != shard_count:
        raise InitialiseError(
            f"the cluster has {existing.shard_count} shards, not {shard_count}; the number cannot be changed"
        )


async def _answers(
    quorum: Quorum, connect_timeout_ms: int, waiting: Callable[[str], None]
) -> dict[Node, Introduction]:
    """What each node says about itself; waits for those that do not answer, up to the time-out."""
    found: dict[Node, Introduction] = {}
    began_s = reported_s = time.monotonic()
    while True:
        for node in quorum.nodes:
            if node in found:
                continue
            one = await introduction(node)
            if one is not None:
                found[node] = one
            elif (reply := await node.ask("PING")).status is Status.BROKEN:
                raise InitialiseError(f"node {node.index} ({node.place}): {reply.problem}")
        now_s = time.monotonic()
        if len(found) == len(quorum.nodes) or now_s - began_s > connect_timeout_ms / 1000:
            return found
        if now_s - reported_s > _REPORT_S:
            reported_s = now_s
            away = "; ".join(_away(node) for node in quorum.nodes if node not in found)
            left_s = connect_timeout_ms / 1000 - (now_s - began_s)
            waiting(f"waiting for {away} (giving up in {left_s:.0f} s)")
        await asyncio.sleep(0.02)


def _away(node: Node) -> str:
    return f"node {node.index} ({node.place}): {node.tables.problem or SILENT}"


async def _used(nodes: Sequence[Node], shard_count: int, *, catalog: bool = True) -> bool:
    """Whether a log was ever claimed: then a node without data has lost it and must not be made again."""
    for node in nodes:
        replies: list[NodeReply] = await asyncio.gather(
            *(node.inspect(shard, vote=False) for shard in range(shard_count + catalog))
        )
        for reply in replies:
            if reply.status is not Status.OK:
                return True
            state = Inspected.read(reply)
            if state.epoch or state.end.position != GENESIS:
                return True
    return False


async def _only_begun(nodes: Sequence[Node], shard_count: int) -> bool:
    """Whether only this command has used the cluster, and was interrupted while it enabled features."""
    for node in nodes:
        if await _used([node], shard_count, catalog=False):
            return False
        reply = await node.page(shard_count, "-", "+", _FIRST_ENTRIES)
        if reply.status is not Status.OK or len(reply.values[0]) == _FIRST_ENTRIES:
            return False
        for raw in reply.values[0]:
            record = records_pb2.Record.FromString(raw[1][1])
            own = record.WhichOneof("kind") in ("genesis", "feature_enabled")
            if not own and record.claim.node_id != "init":
                return False
    return True


async def _enable(quorum: Quorum, shard_count: int, features: Sequence[str]) -> None:
    """Writes the first records of the catalog."""
    repairer = Repairer(quorum, 0)
    upkeep = Upkeep(quorum, repairer)
    claimer = Claimer(quorum, repairer, _wall_ms, _REPLY_TIMEOUT_MS)
    logs = Logs(quorum, claimer, upkeep, lambda *_: None)
    catalog = CatalogLog(
        logs,
        CatalogReader(LogReader(quorum)),
        upkeep,
        "init",
        _wall_ms,
        lambda _: None,
        lambda _: None,
        _REPLY_TIMEOUT_MS,
    )
    catalog.known(shard_count)
    for node in quorum.nodes:
        await _let_vote(node, shard_count)
    for feature in features:
        if not await catalog.enable(feature, software_version()):
            raise InitialiseError(
                f"no majority of the nodes takes the feature {feature}: see their logs, then run this again"
            )


async def _let_vote(node: Node, catalog: int) -> None:
    """Lets a node vote that has restarted: what it may have forgotten, this command writes again."""
    if (await node.inspect(catalog)).status is not Status.RESTARTED:
        return
    reply = await node.inspect(catalog, vote=False)
    if reply.status is Status.OK:
        state, having = Inspected.read(reply), ("", "")
        await node.readmit(catalog, state.epoch, state.nonce, having, state.floor, node.steps.run)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


async def _make(node: Node, configuration: Configuration) -> None:
    names = [keys.NODE]
    created_at_ms, shard_count = configuration.created_at_ms, configuration.shard_count
    values: list[bytes | str | int] = [node.identity, created_at_ms, ",".join(configuration.addresses)]
    for shard in range(shard_count + 1):
        log = keys.log_keys(shard, shard_count)
        names += (log.log, log.promise, log.acknowledged)
        entry = genesis(configuration.cluster_id, shard_count, shard, created_at_ms)
        values += (entry.record, entry.nonce, entry.hash)
    values.append(node.tables.run)
    reply = await node.table("initialise", names, *values)
    if reply.done:
        return
    if reply.status is Status.NOLOG and reply.values[0] == b"remains":
        raise InitialiseError(f"node {node.index} holds logs of a cluster but no identity; it must be empty")
    raise InitialiseError(f"node {node.index} could not be made: {reply.problem or reply.status.name}")
