"""Replaces the server of a node of the log by another one, for good.

The protocol, and why nothing acknowledged is lost: docs/decisions/replacing-a-node.md. Every step may be
repeated: the command, run again after an interruption, resumes where it stopped.
"""

import asyncio
import secrets
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from muster_core.log.topics.topics import Topics
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2

from muster_metadata.catalog.reading import CatalogReader
from muster_metadata.cluster.membership import reconfigure, retire
from muster_metadata.cluster.refill import refill_of
from muster_metadata.log.claim import Claimer
from muster_metadata.log.reading import LogReader
from muster_metadata.log.repairs.repair import Repairer
from muster_metadata.log.states import Held, Inspected, Repaired
from muster_metadata.nodes.addresses import at, normalised, place_of, split_urls
from muster_metadata.nodes.configuration import Configuration, Introduction, newest_of
from muster_metadata.nodes.connection import fields
from muster_metadata.nodes.introductions import introductions
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.problem import SILENT
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import NodeReply, Status
from muster_metadata.operator.decision import decide

STEP_TIMEOUT_MS = 2_000
REBUILD_DELAY_MS = 4_000
CONNECT_TIMEOUT_MS = 15_000

_PAUSE_S = 0.05
_CLAIM_AFTER_S = 5.0
_CLAIMANT = "muster nodes replace"


class ReplaceError(Exception):
    """The node is not replaced, or not yet. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class ReplacementPlan:
    """What a replacement will do.

    Attributes:
        index: number of the node, from 1.
        old: address of the server that leaves.
        new: address of the server that comes.
        configuration: the configuration that it makes.
        resumed: it was decided before, and is resumed.
        urls: addresses of the nodes afterwards, as `host:port,host:port,…`.
    """

    index: int
    old: str
    new: str
    configuration: Configuration
    resumed: bool

    @property
    def urls(self) -> str:
        """The new list of nodes."""
        return ",".join(self.configuration.addresses)


class Replacement:
    """One replacement; an async context manager.

    Args:
        urls: the nodes, `redis://a,b,c`, with the old server or already with the new one.
        old: `host:port` of the server that leaves.
        new: `host:port` of the server that comes; it must be empty.
        tell: called with a sentence for each thing that happens.
        timeout_s: how long a step may wait for the nodes before the command gives up.
        step_timeout_ms: as the metadata service's.
        rebuild_delay_ms: as the metadata service's.

    Raises:
        BadUrlsError: an address makes no sense.
        ReplaceError: neither address is one of the nodes, or both are.
    """

    def __init__(
        self,
        urls: str,
        old: str,
        new: str,
        *,
        tell: Callable[[str], None] = lambda _: None,
        timeout_s: float = 60.0,
        step_timeout_ms: int = STEP_TIMEOUT_MS,
        rebuild_delay_ms: int = REBUILD_DELAY_MS,
    ) -> None:
        nodes = split_urls(urls)
        places = [place_of(url) for url in nodes]
        self.old, self.new = normalised(old), normalised(new)
        self._index = _index(places, self.old, self.new)
        if len(nodes) == 1:
            raise ReplaceError(
                "a log of one node has no others to fill a new one from: stop everything, move the server's "
                "data folder to the new server, and name that one"
            )
        self._tell = tell
        self._timeout_s = timeout_s
        self._step_timeout_ms = step_timeout_ms
        self._staying = [
            Node(index, url, step_timeout_ms) for index, url in enumerate(nodes, 1) if index != self._index
        ]
        self._leaving = Node(self._index, at(nodes[0], self.old), step_timeout_ms)
        self._coming = Node(self._index, at(nodes[0], self.new), step_timeout_ms)
        self._before = Quorum(self._in_order(self._leaving), step_timeout_ms)
        self._after = Quorum(self._in_order(self._coming), step_timeout_ms)
        self._repairer = Repairer(self._after, rebuild_delay_ms, refill_tables=refill_of(self._after))
        self._majority = self._after.majority

    def _in_order(self, node: Node) -> list[Node]:
        return sorted([*self._staying, node], key=lambda one: one.index)

    async def __aenter__(self) -> "Replacement":
        for node in (*self._staying, self._leaving, self._coming):
            node.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(node.stop() for node in (*self._staying, self._leaving, self._coming)))

    async def plan(self) -> ReplacementPlan:
        """Plans the replacement, if it is possible now; changes nothing.

        Raises:
            ReplaceError: it cannot.
        """
        said = await self._introductions()
        present = newest_of([said[node] for node in self._staying])
        if present is None:
            raise ReplaceError("no node of the log answers that has data: start the nodes that stay")
        self._check_members(present, said)
        begun = present.addresses[self._index - 1] == self.new
        number = present.number if begun else present.number + 1
        addresses = list(present.addresses)
        addresses[self._index - 1] = self.new
        target = Configuration(
            present.cluster_id, present.shard_count, number, tuple(addresses), present.created_at_ms
        )
        if not begun:
            await self._check_newcomer(target, said)
        return ReplacementPlan(self._index, self.old, self.new, target, resumed=begun)

    async def run(self, plan: ReplacementPlan) -> None:
        """Carries a plan out.

        Raises:
            ReplaceError: it stopped; run it again to go on.
        """
        target = plan.configuration
        if not plan.resumed:
            await self._decide(target)
            self._tell(f"decided: configuration {target.number} of the log is {plan.urls}")
        await self._switch(target)
        await self._rebuild(target)

    # -- planning -----------------------------------------------------------------------------------------

    async def _introductions(self) -> dict[Node, Introduction | None]:
        """What the servers say about themselves; the one that leaves is often gone, and is not waited for."""
        nodes = (*self._staying, self._coming, self._leaving)
        deadline_s = time.monotonic() + min(CONNECT_TIMEOUT_MS / 1000, self._timeout_s)
        while True:
            said = await introductions(nodes, self._step_timeout_ms)
            if all(one is not None for one in said[:-1]) or time.monotonic() > deadline_s:
                return dict(zip(nodes, said, strict=True))
            await asyncio.sleep(_PAUSE_S)

    def _check_members(self, present: Configuration, said: dict[Node, Introduction | None]) -> None:
        recorded = present.addresses[self._index - 1]
        if recorded not in (self.old, self.new):
            raise ReplaceError(
                f"node {self._index} of the log is {recorded} in configuration {present.number}, not "
                f"{self.old}; name it like that, or finish the replacement that put it there first"
            )
        good = []
        for node in self._staying:
            one = said[node]
            if one is None:
                self._tell(f"node {node.index} ({node.place}) does not answer: {node.tables.problem}")
            elif one.identity and not present.keeps(node.index, one):
                raise ReplaceError(
                    f"node {node.index} of the log is {present.addresses[node.index - 1]} in configuration "
                    f"{present.number}, not {node.place}, which says that it is {one.identity!r}"
                )
            elif one.identity:
                good.append(node)
            else:
                self._tell(f"node {node.index} ({node.place}) has no data")
        if len(good) < self._majority:
            raise ReplaceError(
                f"{len(good)} of the {len(self._staying)} nodes that stay are there with their data, and "
                f"{self._majority} are needed: bring them back first"
            )
        run_ids = {
            one.run_id: node for node, one in said.items() if one and one.run_id and node is not self._coming
        }
        newcomer = said[self._coming]
        twin = run_ids.get(newcomer.run_id) if newcomer is not None else None
        if twin is not None:
            raise ReplaceError(f"{self.new} is the same server as node {twin.index} ({twin.place})")

    async def _check_newcomer(self, target: Configuration, said: dict[Node, Introduction | None]) -> None:
        self._belong(target, before=True)
        newcomer = said[self._coming]
        if newcomer is None:
            problem = self._coming.tables.problem or SILENT
            if not await self._was_decided(target):
                raise ReplaceError(f"the new server {self.new}: {problem}")
            self._tell(f"{self.new}: {problem}; it was decided before that it is the node from now on")
            return
        size = await self._coming.ask("DBSIZE")
        if newcomer.identity or size.status is not Status.OK or size.values[0]:
            has = (
                f"node of a log already ({newcomer.identity})"
                if newcomer.identity
                else f"{size.values[0]} keys"
            )
            raise ReplaceError(f"the new server {self.new} must be empty, and it has {has}: empty it first")
        replication = await self._coming.ask("INFO", "replication")
        role = fields(replication.values[0]).get("role", "") if replication.status is Status.OK else ""
        if role not in ("", "master"):
            raise ReplaceError(f"the new server {self.new} is a replica; a node must be a primary of its own")
        lacking = await self._lacking(target)
        if lacking:
            raise ReplaceError(lacking)

    async def _was_decided(self, target: Configuration) -> bool:
        """Whether the catalog's log has this replacement: then nobody waits for the server that comes."""
        image = await CatalogReader(LogReader(self._before), strict=False).read(target.shard_count)
        return image is not None and self._decided(target, [kept.record for kept in image.topics.kept])

    async def _lacking(self, target: Configuration) -> str:
        """Why too few of the nodes that stay are complete; empty: enough are."""
        complete = 0
        reasons = []
        for node in self._staying:
            replies = await asyncio.gather(*(self._inspected(node, shard) for shard in _logs(target)))
            missing = sum(reply.status is not Status.OK for reply in replies)
            complete += not missing
            if missing:
                reasons.append(f"node {node.index} ({node.place}) lacks {missing} of {len(replies)} logs")
        if complete >= self._majority:
            return ""
        return (
            f"{'; '.join(reasons)}: wait until they are rebuilt, or finish the replacement that is under way"
        )

    async def _inspected(self, node: Node, shard: int) -> NodeReply:
        """What a node says of a log; one that introduced itself may still open its other connections."""
        deadline_s = time.monotonic() + self._step_timeout_ms / 1000
        while True:
            reply = await node.inspect(shard)
            if not reply.silent or time.monotonic() > deadline_s:
                return reply
            await asyncio.sleep(_PAUSE_S)

    # -- deciding -----------------------------------------------------------------------------------------

    def _belong(self, target: Configuration, *, before: bool) -> None:
        """Sets the configuration that the scripts name from now on."""
        number = target.number - 1 if before else target.number
        addresses = list(target.addresses)
        if before:
            addresses[self._index - 1] = self.old
        for node in (self._before if before else self._after).nodes:
            node.belongs_to(target.cluster_id, target.shard_count, len(addresses), number, addresses)
        self._repairer.identify(target.created_at_ms, addresses)

    async def _decide(self, target: Configuration) -> None:
        """Stores the decision in the catalog's log under the current configuration: the first one counts."""
        self._belong(target, before=True)
        record = records_pb2.Record(
            written_at_ms=_wall_ms(),
            node_replaced=records_pb2.NodeReplaced(
                configuration=target.number,
                node=self._index,
                old_address=self.old,
                new_address=self.new,
            ),
        )

        def decided(topics: Topics) -> bool:
            return self._decided(target, [kept.record for kept in topics.kept])

        catalog = target.shard_count
        if not await decide(self._before, catalog, _CLAIMANT, record, decided, self._timeout_s, _wall_ms):
            raise ReplaceError(
                "the decision could not be stored on a majority of the nodes; nothing else was changed. "
                "Run it again when they are up"
            )

    @property
    def _claim_timeout_ms(self) -> int:
        return 3 * self._step_timeout_ms

    def _decided(self, target: Configuration, records: Sequence[bytes]) -> bool:
        """Whether this replacement is in the catalog's log already.

        Raises:
            ReplaceError: another one of the same number is.
        """
        for data in records:
            record = records_pb2.Record.FromString(data)
            found = record.node_replaced
            if not record.HasField("node_replaced") or found.configuration != target.number:
                continue
            if (found.node, found.new_address) != (self._index, self.new):
                raise ReplaceError(
                    f"another replacement is under way: node {found.node}, {found.old_address} by "
                    f"{found.new_address}. Finish it first: `muster nodes replace {found.old_address} "
                    f"{found.new_address}`"
                )
            return True
        return False

    # -- carrying out -------------------------------------------------------------------------------------

    async def _switch(self, target: Configuration) -> None:
        """Brings a majority of the staying nodes into the configuration: the one before is dead then."""
        self._belong(target, before=False)
        waiting = list(self._staying)
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            for node in list(waiting):
                if await reconfigure(node, target):
                    waiting.remove(node)
                    self._tell(f"node {node.index} ({node.place}) is in configuration {target.number}")
            switched = len(self._staying) - len(waiting)
            if not waiting or (
                switched >= self._majority and time.monotonic() > deadline_s - self._timeout_s + 1
            ):
                break
            if time.monotonic() > deadline_s:
                raise ReplaceError(
                    f"{switched} of {self._majority} nodes have configuration {target.number}; it is decided "
                    "and cannot be taken back. Bring the others up and run it again"
                )
            await asyncio.sleep(_PAUSE_S)
        for node in waiting:
            self._tell(f"node {node.index} ({node.place}) is away; it changes when it is back")
        if await retire(self._leaving, target):
            self._tell(f"{self.old} is marked as replaced")
        else:
            self._tell(
                f"{self.old} could not be marked as replaced; it has no vote any more. Wipe it before it is "
                "used again"
            )

    async def _rebuild(self, target: Configuration) -> None:
        """Fills the new server, log by log."""
        logs = _logs(target)
        waiting = dict.fromkeys(logs, time.monotonic())
        progress_s = reported_s = time.monotonic()
        problem = ""
        while waiting:
            for shard in list(waiting):
                outcome = await self._fill(shard, waiting[shard])
                if outcome.whole:
                    del waiting[shard]
                    progress_s = time.monotonic()
                elif outcome is Repaired.BLOCKED:
                    raise ReplaceError(
                        f"{self.new} is of another log now; empty it and run the command again"
                    )
                else:
                    problem = outcome.value
            now_s = time.monotonic()
            if waiting and now_s - progress_s > self._timeout_s:
                raise ReplaceError(
                    f"{len(waiting)} of {len(logs)} logs could not be copied to {self.new} ({problem}); "
                    "run it again when a majority of the nodes that stay is up. If that server is gone for "
                    "good, replace it: it is the node now"
                )
            if waiting and now_s - reported_s > 1:
                reported_s = now_s
                self._tell(f"{len(logs) - len(waiting)} of {len(logs)} logs are copied to {self.new}")
            if waiting:
                await asyncio.sleep(_PAUSE_S)
        self._tell(f"{len(logs)} of {len(logs)} logs are copied to {self.new}")

    async def _fill(self, shard: int, since_s: float) -> Repaired:
        """Copies one log under its claim; a log without an owner is claimed first."""
        replies = await asyncio.gather(*(node.inspect(shard) for node in self._after.nodes))
        found = [Inspected.read(reply) for reply in replies if reply.status is Status.OK]
        claims = [(state.epoch, state.nonce) for state in found]
        for epoch, nonce in set(claims):
            written = any(state.end.position.epoch == epoch for state in found)
            if claims.count((epoch, nonce)) >= self._majority and written:
                return await self._repairer.repair(self._coming, Held(shard, epoch, nonce))
        if time.monotonic() - since_s > _CLAIM_AFTER_S and len(found) >= self._majority:
            # A live owner would claim again by itself, above a promise that keeps it from a majority.
            step = metadata_pb2.ClaimStep(
                node_id=_CLAIMANT, session=str(uuid.uuid4()), nonce=secrets.token_bytes(16)
            )
            claimer = Claimer(self._after, self._repairer, _wall_ms, self._claim_timeout_ms)
            await claimer.claim(shard, step)
        return Repaired.LATER


def _index(places: Sequence[str], old: str, new: str) -> int:
    if old == new:
        raise ReplaceError(f"{old} cannot be replaced by itself")
    if old in places and new in places:
        raise ReplaceError(f"{new} is node {places.index(new) + 1} of the log already")
    for place in (old, new):
        if place in places:
            return places.index(place) + 1
    raise ReplaceError(f"{old} is no node of the log, which has {', '.join(places)}")


def _logs(configuration: Configuration) -> range:
    return range(configuration.shard_count + 1)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
