"""Checks every log on every node periodically, also those that are not written."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import structlog
from muster_runtime.clock import boot_ms
from muster_runtime.logs import alarm

from muster_metadata.log.states import Inspected, claim_on_majority
from muster_metadata.log.upkeep import Upkeep
from muster_metadata.nodes.entries import LogEnd
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import Status

log = structlog.get_logger()

_PAUSE_S = 5.0
_AT_ONCE = 16


class Patrol:
    """Finds and mends what no writer notices.

    * A node lost a log, or lags, and the log is not being written: it is repaired under the current claim.
    * A node restarted and may have forgotten its last answers: it is readmitted when that is safe.
    * So many restarted that no majority is left which remembers everything: the best of them are readmitted
      with what they have, since nothing better exists, and an alarm is raised.
    * A node has not stored in which run of its server it votes on a log, because an older version wrote it or
      the server's settings changed: the run is stored.
    * A majority lost a log: there is an alarm, also where nobody uses it.
    * A majority has entries that no node knows to be acknowledged, and their writer is gone: it
      stores that they are.
    * No claim of the catalog's log is on a majority, which each repair needs: the log is claimed. Owners of
      shards do that by themselves (OWN-33).

    Args:
        quorum: the nodes.
        upkeep: repairs.
        on_unclaimed_catalog: called when two rounds in a row found the catalog's log without such a claim.
        now_ms: boot clock; that of the machine if absent.
        on_looked: called when the nodes' settings were read, before the logs are looked at.
    """

    def __init__(
        self,
        quorum: Quorum,
        upkeep: Upkeep,
        on_unclaimed_catalog: Callable[[], None],
        now_ms: Callable[[], int] = boot_ms,
        on_looked: Callable[[], None] = lambda: None,
    ) -> None:
        self._quorum = quorum
        self._upkeep = upkeep
        self._on_unclaimed_catalog = on_unclaimed_catalog
        self._now_ms = now_ms
        self._on_looked = on_looked
        self._unclaimed: set[int] = set()
        self._log_count = 0
        self._again = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._ends: dict[int, dict[Node, LogEnd]] = {}
        self._readmitted: dict[Node, int] = {}
        self._reported: dict[tuple[Node, str], str] = {}
        self._waiting_since_s: dict[int, float] = {}
        self._lost: set[int] = set()
        self._reported_waits: set[tuple[str, ...]] = set()

    def start(self, log_count: int) -> None:
        """Starts to check.

        Args:
            log_count: number of logs, the catalog's included.
        """
        self._log_count = log_count
        self._runner = asyncio.create_task(self._run(), name="log-patrol")

    async def stop(self) -> None:
        """Stops checking."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)

    def hurry(self) -> None:
        """Starts the next round at once: a node is back."""
        self._again.set()

    async def _run(self) -> None:
        while True:
            self._again.clear()
            try:
                await self._round()
            except Exception:
                log.exception("patrol_failed")
            try:
                async with asyncio.timeout(_PAUSE_S):
                    await self._again.wait()
            except TimeoutError:
                pass

    async def _round(self) -> None:
        catalog, before, self._unclaimed = self._log_count - 1, self._unclaimed, set()
        await asyncio.gather(*(node.look() for node in self._quorum.nodes))
        self._on_looked()
        for first in range(0, self._log_count, _AT_ONCE):
            shards = range(first, min(first + _AT_ONCE, self._log_count))
            await asyncio.gather(*(self._look(shard) for shard in shards))
        self._report_readmitted()
        if catalog in before and catalog in self._unclaimed:
            self._on_unclaimed_catalog()

    async def _look(self, shard: int) -> None:
        nodes = self._quorum.nodes
        asked_ms = self._now_ms()
        until_ms = asked_ms + 2 * self._quorum.step_timeout_ms
        runs = {node: node.steps.run for node in nodes}
        replies = await asyncio.gather(*(node.inspect(shard) for node in nodes))
        answers = dict(zip(nodes, replies, strict=True))
        restarted = [node for node, reply in answers.items() if reply.status is Status.RESTARTED]
        sure = {node: Inspected.read(reply) for node, reply in answers.items() if reply.status is Status.OK}
        for node in restarted:
            self._report(node, "log_node_restarted", "each log is repaired from the others")
        for node, reply in answers.items():
            if reply.status is Status.NOLOG:
                self._report(node, "log_gone_at_node", "it is filled from the others", shard=shard)
        # A node that is away, or has a stranger at its address, may still remember everything; one without
        # the log remembers nothing.
        gone = sum(reply.status is Status.NOLOG for reply in replies)
        self._report_loss(shard, [node for node in nodes if answers[node].status is Status.NOLOG])
        if restarted and len(nodes) - len(restarted) - gone < self._quorum.majority:
            doubted = {node: runs[node] for node in restarted}
            await self._readmit(shard, doubted, self._quorum.majority - len(sure), until_ms)
            return
        if restarted and len(sure) < self._quorum.majority:
            unheard = [node for node in nodes if node not in restarted and node not in sure]
            self._report_wait(shard, restarted, unheard)
        else:
            self._waiting_since_s.pop(shard, None)
        for node, state in sure.items():
            if state.run != node.steps.run:
                await node.note(shard)
        lagging = self._lagging(shard, sure)
        self._ends[shard] = {node: state.end for node, state in sure.items()}
        standing = claim_on_majority(shard, sure.values(), self._quorum.majority)
        if standing is None:
            if len(sure) >= self._quorum.majority:
                self._unclaimed.add(shard)
            return
        held, end = standing
        unknown = all(state.acknowledged < end.position for state in sure.values())
        if unknown and self._now_ms() <= asked_ms + self._quorum.step_timeout_ms:
            await self._upkeep.acknowledge(held, end)
        lacking = [
            node
            for node, reply in answers.items()
            if reply.status in (Status.NOLOG, Status.RESTARTED)
            or node in lagging
            or (node in sure and (sure[node].epoch, sure[node].nonce) != (held.epoch, held.nonce))
        ]
        if lacking:
            self._upkeep.lacks(held, lacking)

    def _lagging(self, shard: int, states: dict[Node, Inspected]) -> set[Node]:
        """Nodes that were behind in the last round and have made no progress since."""
        before = self._ends.get(shard, {})
        most = max((end.position for end in before.values()), default=None)
        return {
            node
            for node, state in states.items()
            if most is not None and before.get(node) == state.end and state.end.position < most
        }

    async def _readmit(self, shard: int, restarted: Mapping[Node, str], needed: int, until_ms: int) -> None:
        """Lets the best of the nodes that restarted vote as they are, as many as a majority lacks.

        Args:
            shard: of which log.
            restarted: the run in which each node was in doubt. In a later run it may have forgotten again
                what it answered after another instance readmitted it.
            needed: how many nodes.
            until_ms: boot time after which none is readmitted: by then other nodes may be back, from which
                they can be repaired.
        """
        replies = await asyncio.gather(*(node.inspect(shard, vote=False) for node in restarted))
        found = [
            (node, Inspected.read(reply))
            for node, reply in zip(restarted, replies, strict=True)
            if reply.status is Status.OK
        ]
        found.sort(key=lambda pair: pair[1].end.position, reverse=True)
        for node, state in found[:needed]:
            run = restarted[node]
            if node.steps.run != run or self._now_ms() > until_ms:
                continue
            reply = await node.readmit(shard, state.epoch, state.nonce, ("", ""), state.floor, run)
            if reply.status is Status.OK:
                self._readmitted[node] = self._readmitted.get(node, 0) + 1

    def _report_readmitted(self) -> None:
        readmitted, self._readmitted = self._readmitted, {}
        for node, logs in readmitted.items():
            alarm(
                "log_second_may_be_missing",
                node=node.index,
                address=node.place,
                logs=logs,
                restarted_at=datetime.fromtimestamp(node.steps.started_s, UTC).isoformat(),
                meaning="too many nodes restarted to know what they acknowledged in the second before",
            )

    def _report_loss(self, shard: int, gone: Sequence[Node]) -> None:
        """Raises an alarm, once, when a majority lost a log, which nobody may write or use."""
        if len(gone) < self._quorum.majority:
            self._lost.discard(shard)
            return
        if shard not in self._lost:
            self._lost.add(shard)
            alarm(
                "log_lost",
                shard="catalog" if shard == self._log_count - 1 else shard,
                nodes=",".join(str(node.index) for node in gone),
                remedy="bring back the data of these nodes, or restore a backup (docs/backup.md)",
            )

    def _report_wait(self, shard: int, restarted: Sequence[Node], away: Sequence[Node]) -> None:
        """Raises an alarm when nodes that restarted can only be repaired from a node that is away."""
        now_s = time.monotonic()
        since_s = self._waiting_since_s.setdefault(shard, now_s)
        runs = tuple(node.steps.run_id for node in restarted)
        if now_s - since_s > _PAUSE_S and runs not in self._reported_waits:
            self._reported_waits.add(runs)
            alarm(
                "log_waits_for_a_node",
                restarted=",".join(str(node.index) for node in restarted),
                away=",".join(str(node.index) for node in away),
                until="a node that is away is back",
            )

    def _report(self, node: Node, event: str, until: str, **fields: int) -> None:
        """Logs an event of a node, once for each run of its server."""
        run_id = node.steps.run_id
        if self._reported.get((node, event)) != run_id:
            self._reported[node, event] = run_id
            log.warning(event, node=node.index, address=node.place, until=until, **fields)
