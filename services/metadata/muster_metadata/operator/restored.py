"""Raises epochs after nodes were restored from a backup: no epoch, and so no token, may be used twice."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from muster_core.features import Feature
from muster_core.log.topics.topics import Topics
from muster_protos.muster.log.v1 import records_pb2

from muster_metadata.log.states import Inspected
from muster_metadata.nodes.addresses import split_urls
from muster_metadata.nodes.configuration import Configuration, Introduction, Unusable, agreed_configuration
from muster_metadata.nodes.introductions import introductions
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import Status
from muster_metadata.operator.decision import decide

RAISE = 1_000_000
"""How far epochs are raised: more than the claims of one shard that there can have been since the backup."""

_STEP_TIMEOUT_MS = 5_000
_CONNECT_S = 10.0
_PAUSE_S = 0.02
_TAG = b"restored"
_CLAIMANT = "muster nodes restored"
_RECORD_S = 60.0


class RestoredError(Exception):
    """Not all epochs were raised. The message says why; it may be tried again."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The result of `raise_epochs`.

    Attributes:
        cluster_id: identity of the cluster.
        logs: number of logs with a higher epoch now, including the catalog's.
        empty: nodes without data, by index from 1: they are rebuilt from the others.
    """

    cluster_id: str
    logs: int
    empty: tuple[int, ...]


async def raise_epochs(urls: str, reason: str = "") -> Raised:
    """Raises the promise of every log, on every node that has it, above every epoch that can have been used.

    The next claim of each log has an epoch above that, and so above all epochs that were used between the
    backup and the restore, of which nothing is known. An owner of a log claims it again. Repeating the
    command raises the epochs again, which does no harm.

    Args:
        urls: `redis://a,b,c`.
        reason: recorded in the catalog's log, so that audits can accept what is gone; empty: nothing is.

    Raises:
        BadUrlsError: the address makes no sense.
        RestoredError: no majority of the nodes has the log; or the reason could not be recorded.
    """
    nodes = [Node(index, url, _STEP_TIMEOUT_MS) for index, url in enumerate(split_urls(urls), 1)]
    for node in nodes:
        node.start()
    try:
        configuration, said = await _configuration(nodes)
        for node in nodes:
            node.belongs_to(
                configuration.cluster_id,
                configuration.shard_count,
                len(nodes),
                configuration.number,
                configuration.addresses,
            )
        logs = range(configuration.shard_count + 1)
        for shard in logs:
            await _raise(nodes, shard)
        if reason:
            await _record(nodes, configuration, reason)
        empty = [node.index for node, one in zip(nodes, said, strict=True) if one is None or not one.identity]
        return Raised(configuration.cluster_id, len(logs), tuple(empty))
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))


async def _record(nodes: Sequence[Node], configuration: Configuration, reason: str) -> None:
    quorum = Quorum(nodes, _STEP_TIMEOUT_MS)
    record = records_pb2.Record(
        written_at_ms=_wall_ms(), critical=True, restored=records_pb2.Restored(reason=reason)
    )

    def decided(topics: Topics) -> bool:
        feature = Feature.RESTORE_RECORDS
        if feature not in topics.features:
            raise RestoredError(
                f"all epochs are raised; the reason is not recorded before the feature {feature} is enabled: "
                f"start the cluster, `muster features enable {feature}`, and run this again"
            )
        return any(record.SerializeToString() == kept.record for kept in topics.kept)

    catalog = configuration.shard_count
    if not await decide(quorum, catalog, _CLAIMANT, record, decided, _RECORD_S, _wall_ms):
        raise RestoredError("all epochs are raised; the reason could not be recorded: run it again")


def _wall_ms() -> int:
    return round(time.time() * 1000)


async def _configuration(nodes: Sequence[Node]) -> tuple[Configuration, list[Introduction | None]]:
    """The configuration that the nodes agree on; waits a while for those that do not answer."""
    deadline_s = time.monotonic() + _CONNECT_S
    while True:
        said = await introductions(nodes, _STEP_TIMEOUT_MS)
        found = agreed_configuration([node.place for node in nodes], said)
        if all(one is not None for one in said) or time.monotonic() > deadline_s:
            if isinstance(found, Unusable):
                raise RestoredError(found.reason)
            return found, said
        await asyncio.sleep(_PAUSE_S)


async def _raise(nodes: Sequence[Node], shard: int) -> None:
    replies = await asyncio.gather(*(node.inspect(shard, vote=False) for node in nodes))
    found = [
        (node, Inspected.read(reply))
        for node, reply in zip(nodes, replies, strict=True)
        if reply.status is Status.OK
    ]
    if len(found) > len(nodes) // 2:
        epoch = max(max(state.epoch, state.floor, state.end.position.epoch) for _, state in found) + RAISE
        nonce = secrets.token_bytes(16)
        answers = await asyncio.gather(
            *(node.prepare(shard, epoch, nonce, _TAG, vote=False) for node, _ in found)
        )
        # What a restored node has forgotten is lost everywhere; its answers count from now on.
        await asyncio.gather(
            *(node.readmit(shard, epoch, nonce, ("", ""), 0, node.steps.run) for node, _ in found)
        )
        if sum(answer.status is Status.OK for answer in answers) > len(nodes) // 2:
            return
    raise RestoredError(
        f"a majority of the nodes does not have the log {shard}, or did not take the new epoch; start the "
        "nodes that have the data, and try again"
    )
