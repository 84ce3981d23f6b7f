"""Stores a record that an operator decided in the catalog's log, under a claim of its own."""

import asyncio
import secrets
import time
import uuid
from collections.abc import Callable

from muster_core.log.topics.topics import Topics
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2

from muster_metadata.catalog.reading import CatalogReader
from muster_metadata.log.claim import Claimer
from muster_metadata.log.reading import LogReader
from muster_metadata.log.repairs.repair import Repairer
from muster_metadata.log.states import Held
from muster_metadata.log.verdicts import appended, checked, floor_in
from muster_metadata.nodes.entries import LogEnd, arguments, chain
from muster_metadata.nodes.node import Answer, Node
from muster_metadata.nodes.quorum import Quorum

_PAUSE_S = 0.02


async def decide(
    quorum: Quorum,
    catalog: int,
    claimant: str,
    record: records_pb2.Record,
    decided: Callable[[Topics], bool],
    timeout_s: float,
    wall_ms: Callable[[], int],
) -> bool:
    """Stores a record; returns whether it is stored, or was.

    Args:
        quorum: the nodes.
        catalog: number of the catalog's log.
        claimant: what the claim names.
        record: what was decided.
        decided: whether the catalog has it already; it may raise where the catalog forbids it.
        timeout_s: how long it is tried.
        wall_ms: wall clock, ms since the Unix epoch.
    """
    reader = CatalogReader(LogReader(quorum), strict=False)
    claimer = Claimer(quorum, Repairer(quorum, 1 << 30), wall_ms, 3 * quorum.step_timeout_ms)
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        nonce = secrets.token_bytes(16)
        step = metadata_pb2.ClaimStep(node_id=claimant, session=str(uuid.uuid4()), nonce=nonce)
        claimed = await claimer.claim(catalog, step)
        if claimed.held is not None and claimed.end is not None:
            image = await reader.read(catalog, claimed.held.epoch, nonce)
            if image is not None and (image.topics.version, image.topics.end_hash) == claimed.end:
                end: LogEnd | None = claimed.end
                if not decided(image.topics):
                    end = await _store(quorum, record, claimed.held, claimed.end, timeout_s)
                if end is not None and await _acknowledge(quorum, claimed.held, end):
                    return True
        await asyncio.sleep(_PAUSE_S)
    return False


async def _acknowledge(quorum: Quorum, held: Held, end: LogEnd) -> bool:
    """Stores that the log is acknowledged up to the decision: perhaps nobody writes to it afterwards."""
    verdict, _ = await quorum.ask(
        lambda node: node.acknowledge(*held, end.position.stream_id, end.hash), checked(quorum.majority)
    )
    return verdict is not None and verdict.outcome == metadata_pb2.LOG_OUTCOME_OK


async def _store(
    quorum: Quorum, record: records_pb2.Record, held: Held, end: LogEnd, timeout_s: float
) -> LogEnd | None:
    """Stores the record, repeated while the outcome is unknown; returns the new end if it is stored."""
    entries = chain(end, held.epoch, [(record.SerializeToString(), secrets.token_bytes(16))])
    batch: list[bytes | str] = [end.position.stream_id, end.hash, "", *arguments(entries)]
    floor = 0

    def question(node: Node) -> Answer:
        return node.append(*held, batch, floor)

    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        verdict, replies = await quorum.ask(
            question, appended(end.position, quorum.majority, first_attempt=False)
        )
        if verdict is not None and verdict.outcome == metadata_pb2.LOG_OUTCOME_OK:
            return entries[-1].end
        if verdict is not None and verdict.outcome != metadata_pb2.LOG_OUTCOME_UNKNOWN:
            return None
        floor = max(floor, floor_in(replies))
        await asyncio.sleep(_PAUSE_S)
    return None
