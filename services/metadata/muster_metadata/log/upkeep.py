"""Brings nodes up to date in the background: acknowledged positions, lagging nodes, nodes that are back."""

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog
from muster_protos.muster.internal.v1 import metadata_pb2

from muster_metadata.log import verdicts
from muster_metadata.log.damage import damage_is_repaired
from muster_metadata.log.repairs.repair import Repairer
from muster_metadata.log.states import Held, Inspected, Repaired, claim_on_majority
from muster_metadata.nodes.entries import LogEnd
from muster_metadata.nodes.node import Answer, Node
from muster_metadata.nodes.problem import Problem
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import NodeReply, Status

log = structlog.get_logger()

_TICK_S = 0.1
_QUIET_S = 0.3
_RECHECK_S = 5.0
_FENCED_S = 1.0
_COMPLAINT_S = 60.0
_CLAIMANT_S = 60.0
"""How long a promise above a valid claim is left to its claimant, which may be dead."""
_REPAIRS_PER_NODE = 4
_REFUSING = (Status.REFUSED, Status.BROKEN)
_BEHIND = (Status.MISMATCH, Status.UNPROMISED, Status.NOLOG, Status.RESTARTED)


@dataclass(slots=True)
class _Written:
    """What this instance knows of a log that is written through it: a cache of what the nodes have.

    `refused` has the nodes that refused to acknowledge `end` when they were last asked: they do not have it.
    """

    held: Held
    end: LogEnd | None = None
    acknowledged: bool = False
    changed_s: float = 0.0
    checked_s: float = 0.0
    fenced_s: float = 0.0
    waited_s: float = 0.0
    fenced_reported: bool = False
    behind: set[Node] = field(default_factory=set)
    refused: set[Node] = field(default_factory=set)
    fenced: set[Node] = field(default_factory=set)


class Upkeep:
    """Background work for the logs that are written through this instance.

    Args:
        quorum: the nodes.
        repairer: repairs single ones.
        monotonic_s: a clock; that of the process if absent.

    Attributes:
        repairs: number of repairs by result.
    """

    def __init__(
        self, quorum: Quorum, repairer: Repairer, monotonic_s: Callable[[], float] | None = None
    ) -> None:
        self.repairs: Counter[Repaired] = Counter()
        self._quorum = quorum
        self._repairer = repairer
        self._now_s = monotonic_s or time.monotonic
        self._logs: dict[int, _Written] = {}
        self._repairs: dict[tuple[int, Node], asyncio.Task[None]] = {}
        self._retry_s: dict[tuple[int, Node], float] = {}
        self._report_refusal_s: dict[tuple[Node, Problem | None], float] = {}
        self._wake = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the work."""
        self._runner = asyncio.create_task(self._run(), name="log-upkeep")

    async def stop(self) -> None:
        """Stops the work; what is unfinished is done again by the instance that writes next."""
        tasks = [*self._repairs.values(), *([self._runner] if self._runner else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wrote(self, held: Held, end: LogEnd | None, behind: Iterable[Node] = ()) -> None:
        """Notes that a majority has a claim, and the log up to `end`, if known.

        Args:
            held: the claim.
            end: of the log; None: unknown.
            behind: nodes that lack something.
        """
        known = self._logs.get(held.shard)
        if known is None or known.held != held:
            if known is not None and known.held.epoch > held.epoch:
                return
            known = self._logs[held.shard] = _Written(held)
        if end is not None and (known.end is None or end.position > known.end.position):
            known.end, known.acknowledged, known.changed_s = end, False, self._now_s()
            known.refused.clear()
        for node in behind:
            self._lags(known, node)

    def replied(self, held: Held, node: Node, reply: NodeReply) -> None:
        """Handles one node's answer to a step that a majority carried out, or that failed."""
        self.report_refusal(held.shard, node, reply)
        known = self._logs.get(held.shard)
        if known is None or known.held != held:
            return
        if reply.status in _BEHIND or reply.status is Status.LOST:
            self._lags(known, node)
        elif reply.status is Status.FENCED:
            self._fenced(known, node)

    def knows(self, shard: int, epoch: int) -> bool:
        """Whether this instance keeps up a log under this claim, and knows an end of it, or a later claim."""
        known = self._logs.get(shard)
        return known is not None and (known.held.epoch > epoch or known.end is not None)

    def behind(self) -> Counter[Node]:
        """For each node, of how many logs it is known to lack something."""
        return Counter(node for known in self._logs.values() for node in known.behind)

    async def adopt(self, shard: int, epoch: int) -> None:
        """Takes on a log that was claimed through another instance, whose owner uses this one now."""
        _, replies = await self._quorum.ask(
            lambda node: node.inspect(shard), lambda _, final: True if final else None
        )
        found = [Inspected.read(reply) for reply in replies if reply and reply.status is Status.OK]
        standing = claim_on_majority(shard, found, self._quorum.majority)
        if standing is not None and standing[0].epoch == epoch:
            self.wrote(*standing, self._quorum.nodes)

    def lacks(self, held: Held, nodes: Iterable[Node]) -> None:
        """Has some nodes repaired under a claim that a majority has."""
        self.wrote(held, None, nodes)

    def recheck(self, node: Node) -> None:
        """Has every log of a node checked: the node is back, and may lack anything."""
        for known in self._logs.values():
            self._lags(known, node)

    async def acknowledge(self, held: Held, end: LogEnd) -> bool:
        """Stores an acknowledged position at once, for waiting readers; returns whether a majority has it."""
        verdict, _ = await self._quorum.ask(
            lambda node: node.acknowledge(*held, end.position.stream_id, end.hash),
            verdicts.checked(self._quorum.majority),
            late=lambda node, reply: self.replied(held, node, reply),
        )
        return verdict is not None and verdict.outcome == metadata_pb2.LOG_OUTCOME_OK

    def report_refusal(self, shard: int, node: Node, reply: NodeReply) -> None:
        """Logs that a node refuses steps, at most once a minute: nothing else would show it."""
        if reply.status not in _REFUSING:
            return
        now_s = self._now_s()
        if now_s >= self._report_refusal_s.get((node, reply.problem), now_s):
            self._report_refusal_s[node, reply.problem] = now_s + _COMPLAINT_S
            log.error(
                "log_node_refuses",
                node=node.index,
                address=node.place,
                shard=shard,
                problem=str(reply.problem or ""),
            )

    def _lags(self, known: _Written, node: Node) -> None:
        if node not in known.behind:
            known.behind.add(node)
            self._wake.set()

    def _fenced(self, known: _Written, node: Node) -> None:
        if not known.fenced:
            known.fenced_s = known.waited_s = self._now_s()
        known.fenced.add(node)
        known.behind.discard(node)
        current = self._logs.get(known.held.shard) is known
        if current and len(known.fenced) >= self._quorum.majority:
            self._logs.pop(known.held.shard, None)

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_TICK_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                self._tick()
            except Exception:
                log.exception("upkeep_failed")

    def _tick(self) -> None:
        now_s = self._now_s()
        for known in list(self._logs.values()):
            quiet = known.end is not None and now_s - known.changed_s >= _QUIET_S
            if quiet and (not known.acknowledged or now_s - known.checked_s >= _RECHECK_S):
                known.acknowledged, known.checked_s = True, now_s
                self._send_acknowledged(known)
            if known.fenced and not known.fenced_reported and now_s - known.fenced_s > _FENCED_S:
                self._report_fenced(known)
            if known.fenced and now_s - known.waited_s > _CLAIMANT_S:
                known.waited_s = now_s
                for node in known.fenced:
                    self._begin_repair(known, node, now_s, waited=True)
            for node in sorted(known.behind, key=lambda node: node.index):
                self._begin_repair(known, node, now_s)

    def _report_fenced(self, known: _Written) -> None:
        """Logs which nodes promised to a later claim, most often of a claimant that died."""
        known.fenced_reported = True
        log.warning(
            "log_nodes_promised_to_another",
            nodes=",".join(str(node.index) for node in sorted(known.fenced, key=lambda node: node.index)),
            shard=known.held.shard,
            epoch=known.held.epoch,
            until="a minute has passed, or the shard is claimed again",
        )

    def _send_acknowledged(self, known: _Written) -> None:
        held, end = known.held, known.end
        assert end is not None
        for node in self._quorum.nodes:
            answer = node.acknowledge(*held, end.position.stream_id, end.hash)
            answer.add_done_callback(functools.partial(self._answered, known, node))

    def _answered(self, known: _Written, node: Node, answer: Answer) -> None:
        reply = answer.result()
        if reply.status is Status.MISMATCH:
            known.refused.add(node)
        else:
            known.refused.discard(node)
        self.replied(known.held, node, reply)

    def _begin_repair(self, known: _Written, node: Node, now_s: float, *, waited: bool = False) -> None:
        place = (known.held.shard, node)
        if place in self._repairs or not node.steps.connected or not node.bulk.connected:
            return
        if self._retry_s.get(place, 0.0) > now_s:
            return
        if sum(other is node for _, other in self._repairs) < _REPAIRS_PER_NODE:
            repair = self._repair(known, node, waited=waited)
            self._repairs[place] = asyncio.create_task(repair, name="log-repair")

    async def _repair(self, known: _Written, node: Node, *, waited: bool) -> None:
        place = (known.held.shard, node)
        # Whatever the node misses from now on counts again.
        known.behind.discard(node)
        result = Repaired.LATER
        try:
            result = await self._repairer.repair(node, known.held, waited=waited)
            if result.whole and not await self._repairer.complete(node, known.held):
                result = Repaired.LATER
        except Exception:
            log.exception("repair_failed", shard=known.held.shard, node=node.index)
        finally:
            self._repairs.pop(place, None)
            self.repairs[result] += 1
        if result.whole:
            self._retry_s.pop(place, None)
            known.fenced.discard(node)
            # A node that refused the end and lacks nothing would refuse it again: it has time (LOG-69).
            if result is Repaired.DONE or node not in known.refused:
                known.acknowledged = False
            if result is Repaired.DONE:
                damage_is_repaired(node, known.held.shard)
                log.info("log_repaired", shard=known.held.shard, node=node.index)
        elif result is Repaired.FENCED:
            self._fenced(known, node)
        else:
            self._retry_s[place] = self._now_s() + (0.25 if result is Repaired.LATER else 5.0)
            known.behind.add(node)
        if known.behind:
            self._wake.set()
