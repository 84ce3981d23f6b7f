"""Reads the tables of every node periodically, and makes the view of them."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

import structlog
from muster_core.position import Position

from muster_metadata.cluster.leases import merged
from muster_metadata.cluster.owners import OwnerRow, highest
from muster_metadata.cluster.publisher import ViewPublisher
from muster_metadata.cluster.tables import NodeTables, Tables
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.problem import NOT_REACHED_YET, SILENT
from muster_metadata.nodes.quorum import Quorum

log = structlog.get_logger()

CLOCKS_APART_MS = 60_000
"""Wall clocks that are further apart than this are not taken for the same time."""

_FORGET_MS = 600_000


class Monitor:
    """Reads each node by a task of its own, so that a slow node delays only its own rows.

    Args:
        quorum: the nodes.
        tables: reads their tables.
        view: gets what was read.
        poll_ms: time between two reads of a node.
        now_ms: boot clock.
        on_catalog: called after each read with the highest acknowledged position of the catalog's log.
        on_empty: called with a node that lost its data.
        on_foreign: called while a node is not the one that it should be.
    """

    def __init__(
        self,
        quorum: Quorum,
        tables: Tables,
        view: ViewPublisher,
        poll_ms: int,
        now_ms: Callable[[], int],
        *,
        on_catalog: Callable[[Position], None],
        on_empty: Callable[[Node], None],
        on_foreign: Callable[[], None],
    ) -> None:
        self._quorum = quorum
        self._tables = tables
        self._view = view
        self._poll_ms = poll_ms
        self._timeout_ms = 3 * poll_ms
        self._now_ms = now_ms
        self._on_catalog = on_catalog
        self._on_empty = on_empty
        self._on_foreign = on_foreign
        self._latest: dict[Node, tuple[int, NodeTables]] = {}
        self._wall_ahead_ms: dict[Node, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def start(self) -> None:
        """Starts to read."""
        for node in self._quorum.nodes:
            self._begin(partial(self._poll, node), f"table-poll-{node.index}")
        self._begin(self._judge, "table-judge")

    async def stop(self) -> None:
        """Stops reading."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Callable[[], Coroutine[None, None, None]], name: str) -> None:
        task = asyncio.create_task(work(), name=name)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, work))

    def _ended(self, work: Callable[[], Coroutine[None, None, None]], task: asyncio.Task[None]) -> None:
        """Starts a task that ended again: without it this instance would go on to publish an old view."""
        self._tasks.discard(task)
        if not self._stopping:
            error = None if task.cancelled() else task.exception()
            log.error("table_reads_ended", task=task.get_name(), error=repr(error), exc_info=error)
            self._begin(work, task.get_name())

    async def _poll(self, node: Node) -> None:
        while True:
            sent_ms = self._now_ms()
            try:
                self._heard(node, sent_ms, await self._tables.read(node, self._timeout_ms))
            except Exception:  # the last tables grow old, after which the node no longer counts
                log.exception("tables_not_read", node=node.index)
            await asyncio.sleep(max(0, sent_ms + self._poll_ms - self._now_ms()) / 1000)

    def _heard(self, node: Node, sent_ms: int, tables: NodeTables) -> None:
        before = self._latest.get(node)
        if tables.empty and not (before and before[1].empty):
            log.warning("log_node_empty", node=node.index)
            self._on_empty(node)
        if tables.foreign:
            self._on_foreign()
        if tables.problem != (before[1].problem if before else ""):
            # The loss of one node concerns the administrator only: the others go on.
            if tables.problem:
                log.warning("log_node_lost", node=node.index, address=node.place, problem=tables.problem)
            else:
                log.info("log_node_back", node=node.index, address=node.place)
        self._latest[node] = (sent_ms, tables)
        if tables.wall_ms is not None:
            # The clock was read between the command and its answer: right to within one read.
            self._wall_ahead_ms[node] = tables.wall_ms - (sent_ms + self._now_ms()) // 2

    async def _judge(self) -> None:
        while True:
            await asyncio.sleep(self._poll_ms / 2000)
            try:
                self.judge()
            except Exception:
                log.exception("tables_not_judged")

    def judge(self) -> None:
        """Updates the view with what was read last."""
        now_ms = self._now_ms()
        oldest_ms = now_ms - self._timeout_ms - self._poll_ms
        fresh = {
            node: (sent_ms, tables)
            for node, (sent_ms, tables) in self._latest.items()
            if not tables.problem and sent_ms >= oldest_ms
        }
        self._view.nodes([self._problem(node, fresh) for node in self._quorum.nodes])
        if len(fresh) < self._quorum.majority:
            if self._latest:
                self._view.observer.read_failed()
            self._view.refresh()
            return
        rows = merged([tables.leases or {} for _, tables in fresh.values()], self._quorum.majority)
        # A majority was read by commands sent from then on, so it has whatever a majority stored before.
        as_of_ms = sorted((sent_ms for sent_ms, _ in fresh.values()), reverse=True)[self._quorum.majority - 1]
        self._view.confirmed(as_of_ms)
        self._view.log_ahead_ms = agreed(
            [self._wall_ahead_ms[node] for node in fresh if node in self._wall_ahead_ms],
            self._quorum.majority,
        )
        self._view.observer.observe(rows, as_of_ms, now_ms)
        claims: dict[int, OwnerRow] = highest(tables.owners or {} for _, tables in fresh.values())
        self._view.read(claims)
        self._view.refresh()
        if len(fresh) == len(self._quorum.nodes):
            # A node that kept the row would report a later process of that name as the dead one.
            for row in self._view.observer.stale(now_ms, _FORGET_MS):
                self._tables.forget(row)
        catalogs = [tables.catalog for _, tables in fresh.values() if tables.catalog is not None]
        if catalogs:
            self._on_catalog(max(catalogs))

    def _problem(self, node: Node, fresh: dict[Node, tuple[int, NodeTables]]) -> str:
        if node in fresh:
            # It can be read, and what is read counts; but the administrator must know that it refuses writes.
            return str(node.refusal or "")
        latest = self._latest.get(node)
        if latest is None:
            return str(NOT_REACHED_YET)
        return latest[1].problem or str(SILENT)


def agreed(ahead_ms: Sequence[int], majority: int) -> int | None:
    """The median of the largest set of the nodes' wall clocks that agree.

    Args:
        ahead_ms: of each node, how far its clock is ahead of a boot clock.
        majority: how many clocks must agree.

    Returns:
        How far the log's time is ahead of the boot clock, ms; None: too few clocks agree.
    """
    clocks = sorted(ahead_ms)
    sets = [[clock for clock in clocks if 0 <= clock - first <= CLOCKS_APART_MS] for first in clocks]
    largest = max(sets, key=len, default=[])
    return largest[len(largest) // 2] if len(largest) >= majority else None
