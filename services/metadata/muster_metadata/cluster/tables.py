"""The tables of leases and owners: written to all nodes, read from a majority."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog
from muster_core.position import Position

from muster_metadata.cluster.leases import LeaseRow, newest
from muster_metadata.cluster.owners import OwnerRow
from muster_metadata.log.verdicts import count_status
from muster_metadata.nodes import keys
from muster_metadata.nodes.entries import parse_id
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.problem import SILENT
from muster_metadata.nodes.quorum import Quorum, Replies
from muster_metadata.nodes.reply import NodeReply, Status

log = structlog.get_logger()

V = TypeVar("V")
K = TypeVar("K")

_EMPTY = "it has no data of this cluster; it is rebuilt while a majority of the others is up"
_EMPTY_STRANGER = (
    "it has no data, and the log's configuration names another address for this node: run `muster nodes "
    "replace` if it is to take its place"
)
_FOREIGN = "it belongs to another cluster, or is another node of this one or of another configuration"


@dataclass(frozen=True, slots=True)
class NodeTables:
    """The tables of one node.

    Attributes:
        problem: why the node does not count, for people; empty: it counts.
        empty: it answers, and has no data of a cluster.
        foreign: its identity is not the expected one: it is another node, or of another configuration.
        leases: rows by name.
        owners: rows by shard.
        catalog: acknowledged position of the catalog's log; None: the log is missing.
        wall_ms: its wall clock, Unix time; None: unknown.
    """

    problem: str = ""
    empty: bool = False
    foreign: bool = False
    leases: dict[str, LeaseRow] | None = None
    owners: dict[int, OwnerRow] | None = None
    catalog: Position | None = None
    wall_ms: int | None = None


class Tables:
    """Reads and writes the tables.

    Args:
        quorum: the nodes.
        with_features: whether the cluster has enabled any feature: its leases are then in another table.
    """

    def __init__(self, quorum: Quorum, with_features: Callable[[], bool]) -> None:
        self._quorum = quorum
        self._with_features = with_features
        self._sealed: set[Node] = set()
        self._catalog_key = keys.log_keys(0, 0).acknowledged

    def _leases(self, node: Node) -> str:
        """The key of a node's lease table; in a cluster with features the older table is sealed first."""
        if not self._with_features():
            return keys.LEASES_BEFORE_FEATURES
        if node not in self._sealed:
            node.table("seal", (keys.LEASES_BEFORE_FEATURES, keys.LEASES, keys.NODE), node.identity)
        return keys.LEASES

    async def lease(self, name: str, timeout_ms: int) -> LeaseRow | None:
        """The highest row of a name. A node that lost its data does not count before it has leases again.

        Raises:
            TimeoutError: no majority of the nodes answered.
        """
        majority = self._quorum.majority

        def decide(replies: Replies, _final: bool) -> bool | None:
            return count_status(replies, Status.OK) >= majority or None

        verdict, replies = await self._quorum.ask(
            lambda node: node.table("lease", (self._leases(node), keys.NODE), node.identity, name),
            decide,
            timeout_ms=timeout_ms,
        )
        if not verdict:
            raise TimeoutError
        rows = [
            row
            for reply in replies
            if reply is not None and reply.status is Status.OK and reply.values[0]
            for row in lease_rows((name.encode(), reply.values[0])).values()
        ]
        return max(rows, key=lambda row: (row.run, row.counter), default=None)

    async def read(self, node: Node, timeout_ms: int) -> NodeTables:
        """Reads the tables of one node."""
        answers = (
            node.ask("HGET", keys.NODE, "identity"),
            node.ask("HGETALL", keys.LEASES),
            node.ask("HGETALL", keys.OWNERS),
            node.ask("GET", self._catalog_key),
        )
        before = node.ask("HGETALL", keys.LEASES_BEFORE_FEATURES)
        time = node.ask("TIME")
        _, pending = await asyncio.wait((*answers, before, time), timeout=timeout_ms / 1000)
        if pending:
            return NodeTables(str(SILENT))
        replies: list[NodeReply] = [answer.result() for answer in answers]
        for reply in replies:
            if reply.status is not Status.OK:
                return NodeTables(str(node.tables.problem or reply.problem or SILENT))
        identity, leases, owners, catalog = (reply.values[0] for reply in replies)
        if identity is None:
            return NodeTables(_EMPTY if node.member else _EMPTY_STRANGER, empty=True)
        if identity.decode("utf-8", "replace") != node.identity:
            return NodeTables(_FOREIGN, foreign=True)
        # The node has answered everything else, so the key is no longer a table of leases.
        sealed = before.result().status is not Status.OK
        old = {} if sealed else lease_rows(before.result().values[0])
        if sealed:
            self._sealed.add(node)
        else:
            self._sealed.discard(node)
            self._leases(node)
        return NodeTables(
            leases=newest((old, lease_rows(leases))),
            owners=owner_rows(owners),
            catalog=_place(catalog),
            wall_ms=_wall_ms(time.result()),
        )

    async def renew(self, row: LeaseRow, timeout_ms: int) -> tuple[Status, int]:
        """Stores a renewal on all nodes.

        A node that already has this counter, or a higher one, from a renewal that no majority got, does not
        count: observers of it would see no change.

        Returns:
            OK or SUPERSEDED if a majority says so, else LOST: unknown; and the highest counter that kept a
            node from storing it, 0: none did.
        """
        majority = self._quorum.majority
        stored = (row.node_id, row.session, row.run, row.counter, row.to_json())

        def decide(replies: Replies, final: bool) -> Status | None:
            if count_status(replies, Status.OK) >= majority:
                return Status.OK
            if count_status(replies, Status.SUPERSEDED) >= majority:
                return Status.SUPERSEDED
            return Status.LOST if final else None

        verdict, replies = await self._quorum.ask(
            lambda node: node.table("renew", (self._leases(node), keys.NODE), node.identity, *stored),
            decide,
            timeout_ms=timeout_ms,
        )
        ahead = [
            int(reply.values[0]) for reply in replies if reply is not None and reply.status is Status.DUP
        ]
        return verdict or Status.LOST, max(ahead, default=0)

    async def bury(self, row: LeaseRow, timeout_ms: int) -> bool | None:
        """Marks a process as dead on all nodes, unless it has renewed since.

        Returns:
            Whether a majority has the mark; None: unknown.
        """
        majority = self._quorum.majority

        def decide(replies: Replies, _final: bool) -> bool | None:
            marked, renewed = count_status(replies, Status.OK), count_status(replies, Status.DUP)
            if marked >= majority:
                return True
            # A later renewal that counts is on a majority, which leaves too few nodes for the mark.
            return False if len(self._quorum.nodes) - renewed < majority else None

        verdict, _ = await self._quorum.ask(
            lambda node: node.table("bury", (self._leases(node),), row.node_id, row.session, row.counter),
            decide,
            timeout_ms=timeout_ms,
        )
        return verdict

    def forget(self, row: LeaseRow) -> None:
        """Removes a row from all nodes, unless it was renewed since."""
        for node in self._quorum.nodes:
            node.table("forget", (self._leases(node),), row.node_id, row.session, row.counter)

    def own(self, shard: int, row: OwnerRow) -> None:
        """Stores a claim in the owner table of all nodes."""
        stored = (shard, row.epoch, row.to_json())
        for node in self._quorum.nodes:
            node.table("own", (keys.OWNERS, keys.NODE), node.identity, *stored)


def _place(raw: bytes | None) -> Position | None:
    """The acknowledged position of a log; None: there is none, or something else is stored there."""
    try:
        return parse_id(raw) if raw else None
    except ValueError:
        return None


def next_run(known: LeaseRow | None, row: LeaseRow) -> LeaseRow:
    """The row of a process, with the number and counter that follow the stored row of its name."""
    if known is None:
        return replace(row, run=1, counter=1)
    if known.session == row.session:
        return replace(row, run=known.run, counter=known.counter + 1)
    return replace(row, run=known.run + 1, counter=1)


def lease_rows(raw: Any) -> dict[str, LeaseRow]:
    """The rows of a lease table, from the answer to HGETALL."""
    return _rows(raw, _name, LeaseRow.from_json)


def owner_rows(raw: Any) -> dict[int, OwnerRow]:
    """The rows of an owner table, from the answer to HGETALL."""
    return _rows(raw, int, OwnerRow.from_json)


def _wall_ms(reply: NodeReply) -> int | None:
    """A node's wall clock, Unix time; None if the user may not ask for it."""
    if reply.status is not Status.OK:
        return None
    seconds, microseconds = map(int, reply.values[0])
    return seconds * 1_000 + microseconds // 1_000


def _name(raw: bytes) -> str:
    return raw.decode("utf-8")


def _rows(raw: Any, key: Callable[[bytes], K], value: Callable[[bytes], V]) -> dict[K, V]:
    rows: dict[K, V] = {}
    for name, text in zip(raw[::2], raw[1::2], strict=True):
        try:
            rows[key(name)] = value(text)
        except ValueError:
            log.warning("table_row_unreadable", row=name.decode("utf-8", "replace"))
    return rows
