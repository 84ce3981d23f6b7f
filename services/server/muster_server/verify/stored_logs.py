"""The logs of a cluster as its nodes have them. Nothing is ever written."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from muster_core.audit.catalog_audit import CatalogAudit
from muster_core.audit.groups.removal_checker import Catalog
from muster_core.audit.log_audit import LogAudit
from muster_core.audit.node_log import NodeLog
from muster_core.audit.stored_snapshots import Snapshots, StoredSnapshot
from muster_core.audit.tails import compare_tails
from muster_core.log.page import Page
from muster_core.log.record_text import surroundings
from muster_core.log.replay import Entry
from muster_core.position import GENESIS, NOWHERE, Position
from muster_metadata.nodes.addresses import BadUrlsError, split_urls
from muster_metadata.nodes.keys import NODE, OWNERS, log_keys
from muster_protos.muster.log.v1 import records_pb2

from muster_server.verify.identities import Disagreement, agreed
from muster_server.verify.reader import LogTrimmedError, LogUnreadableError, NodeReader

_AROUND = 2
"""Entries that are shown on each side of a place."""


def split_url(url: str) -> list[str]:
    """One URL per node of `redis://[user:password@]host:port,host:port,…`.

    Raises:
        LogUnreadableError: it is no such URL.
    """
    try:
        return split_urls(url)
    except BadUrlsError as error:
        raise LogUnreadableError(str(error)) from None


class StoredLogs:
    """The logs of a cluster, read-only; a context manager.

    Args:
        url: `redis://host:port,host:port,…`.

    Attributes:
        nodes: the nodes that answer and belong to the log.
        problems: why others do not answer, by index.
        faults: why others do not belong to the log, by index.
        genesis: content of a Genesis of the cluster, except for the shard.
        shard_count: of the cluster.
        cluster_id: its identity.

    Raises:
        LogUnreadableError: not even a majority answers, or there is no log.
    """

    def __init__(self, url: str) -> None:
        everybody = [NodeReader(index, one) for index, one in enumerate(split_url(url), 1)]
        self.count = len(everybody)
        problems = {node.index: node.problem() for node in everybody}
        self.problems = {index: problem for index, problem in problems.items() if problem}
        self.nodes = [node for node in everybody if node.index not in self.problems]
        self._require_majority()
        try:
            cluster = agreed({node.index: node.introduction() for node in self.nodes}, self.count)
        except Disagreement as error:
            raise LogUnreadableError(str(error)) from None
        self.faults = cluster.faults
        self._configurations = cluster.configurations
        self._read_catalog: tuple[Position, Catalog | None] | None = None
        self._nameless = cluster.nameless
        self.nodes = [node for node in self.nodes if node.index not in cluster.faults]
        self.cluster_id: str = cluster.cluster_id
        self.shard_count: int = cluster.shard_count
        self.genesis = records_pb2.Genesis(cluster_id=self.cluster_id, shard_count=self.shard_count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for node in self.nodes:
            node.close()

    def logs(self) -> range:
        """Numbers of all logs: the shards, then the catalog."""
        return range(self.shard_count + 1)

    def name(self, shard: int) -> str:
        """The name of a log in reports."""
        return "catalog" if shard == self.shard_count else f"shard {shard}"

    def acknowledged(self, shard: int) -> Position:
        """The highest acknowledged position that any node has stored."""
        return max(self.marks(shard).values())

    def marks(self, shard: int) -> dict[int, Position]:
        """How far each node knows a log to be acknowledged, by its number."""
        return {node.index: node.acknowledged(shard, self.shard_count) for node in self.nodes}

    def node_logs(self, shard: int) -> list[NodeLog]:
        """What each node says of a log: of acknowledgements first, of its entries then."""
        said = [node.said(shard, self.shard_count) for node in self.nodes]
        return [node.seen(one, shard, self.shard_count) for node, one in zip(self.nodes, said, strict=True)]

    def check_nodes(self, audit: LogAudit, nodes: Sequence[NodeLog], acknowledged: Position) -> None:
        """Lets an audit check what the nodes store of its log besides the entries that it has read.

        Args:
            audit: it has taken the last page.
            nodes: what the nodes said before it was read.
            acknowledged: up to where it was read.
        """
        shard = audit.checker.shard
        audit.check_nodes(nodes, self.copies(shard))
        if shard < self.shard_count:
            catalog = max(node.end(self.shard_count, self.shard_count) for node in self.nodes)
            audit.check_catalog_seen(catalog)
            audit.check_removed(self._catalog)
        self._check_tails(audit, nodes, acknowledged)
        if shard == self.shard_count:
            for index, fault in self.faults.items():
                audit.findings.expect("L8", False, GENESIS, f"node {index}: {fault}")
            for one in nodes:
                if one.node in self._nameless and one.end != NOWHERE:
                    audit.notes.append(
                        f"node {one.node} does not say of which cluster it is: it takes no part"
                    )
            if len(self._nameless) > self.count // 2:
                text = f"nodes {self._nameless}, a majority, do not say of which cluster they are"
                audit.findings.expect("L8", False, GENESIS, text)
        if isinstance(audit, CatalogAudit):
            for index, configuration in self._configurations.items():
                audit.check_configuration(index, configuration)
        self.require_still_there(shard, nodes)

    def _check_tails(self, audit: LogAudit, nodes: Sequence[NodeLog], acknowledged: Position) -> None:
        """Lets an audit check what nodes hold after the acknowledged position."""
        shard = audit.checker.shard
        tails: dict[int, Callable[[], Iterator[Page]]] = {}
        for node, one in zip(self.nodes, nodes, strict=True):
            if one.end <= acknowledged:
                continue
            read = tails[node.index] = partial(node.pages, shard, self.shard_count, one.end, acknowledged)
            before = node.at(shard, self.shard_count, acknowledged)
            if before is not None:
                audit.check_tail(node.index, before, read)
            elif one.end.epoch == acknowledged.epoch:
                # Else the node ends with what a claimant left there that died (LOG-26).
                first = node.first(shard, self.shard_count)
                text = f"node {node.index} lacks it and has earlier and later ones"
                audit.findings.expect("L6n", not NOWHERE < first < acknowledged, acknowledged, text)
        compare_tails({node: read() for node, read in tails.items()}, acknowledged.epoch, audit.findings)

    def _catalog(self) -> Catalog | None:
        """The catalog as it is acknowledged; None: it cannot be made of its log, which is found there."""
        shard = self.shard_count
        end = self.acknowledged(shard)
        if self._read_catalog is None or self._read_catalog[0] != end:
            audit = CatalogAudit(shard, snapshots=self.snapshots(shard))
            for page in self.pages(shard, self.best(shard), end):
                audit.add_page(page)
            restored_ms = max((restore.at_ms for restore in audit.restores), default=0)
            self._read_catalog = end, Catalog(audit.topics, restored_ms) if audit.topics is not None else None
        return self._read_catalog[1]

    def require_still_there(self, shard: int, nodes: Sequence[NodeLog]) -> None:
        """Makes sure that no node lost the end that it had when the read of a log began.

        Raises:
            LogTrimmedError: one did: what was read may be neither what it had nor what it has. Read it again.
        """
        for node, one in zip(self.nodes, nodes, strict=True):
            if node.end(shard, self.shard_count) < one.end:
                raise LogTrimmedError(f"{self.name(shard)} lost its end on node {node.index} meanwhile")

    def damage(self, shard: int) -> list[str]:
        """Keys of a log with unexpected content; for the catalog also those that belong to no log."""
        base = log_keys(shard, self.shard_count).snapshots.removesuffix("snapshots")
        return [
            f"{key} on node {node.index}: {problem}"
            for node in self.nodes
            for key, problem in node.damaged.items()
            if key.startswith(base) or (shard == self.shard_count and key in (NODE, OWNERS))
        ]

    def best(self, shard: int, said: Sequence[NodeLog] = ()) -> NodeReader:
        """The node whose log goes furthest, of those that have what is acknowledged.

        A node may end with the Claim of a claimant that died, and lack what the owner has written since.

        Args:
            shard: number of the log.
            said: what the nodes said of it; nothing: they are asked.
        """
        said = said or [node.reach(shard, self.shard_count) for node in self.nodes]
        place, ends = max(one.acknowledged for one in said), {one.node: one.end for one in said}

        def reach(node: NodeReader) -> tuple[bool, Position]:
            end = ends.get(node.index, NOWHERE)
            has = end == place or (end > place and node.has(shard, self.shard_count, place))
            return has, end

        return max(self.nodes, key=reach)

    def pages(self, shard: int, node: NodeReader, upto: Position) -> Iterator[Page]:
        """Entries of a log as one node has them, up to a position."""
        return node.pages(shard, self.shard_count, upto)

    def entry_at(self, shard: int, position: Position) -> Entry | None:
        """The entry at a place, from the node whose log goes furthest, or else from any."""
        nodes = sorted(self.nodes, key=lambda node: node.end(shard, self.shard_count), reverse=True)
        return next(
            (entry for node in nodes if (entry := node.at(shard, self.shard_count, position)) is not None),
            None,
        )

    def leave_silent(self) -> None:
        """Goes on without the nodes that answer no more; `problems` says why.

        Raises:
            LogUnreadableError: what is left is no majority.
        """
        for node in self.nodes:
            problem = node.problem()
            if problem:
                self.problems[node.index] = problem
                node.close()
        self.nodes = [node for node in self.nodes if node.index not in self.problems]
        self._require_majority()

    def _require_majority(self) -> None:
        if len(self.nodes) <= self.count // 2:
            why = "; ".join(f"node {index}: {problem}" for index, problem in self.problems.items())
            raise LogUnreadableError(f"{len(self.nodes)} of {self.count} nodes answer, no majority: {why}")

    def around(self, shard: int, position: Position) -> Iterator[str]:
        """The entries around a place, and the one at it, as text; nothing where there is none."""
        node = self.best(shard)
        yield from surroundings(node.around(shard, self.shard_count, position, _AROUND), position)

    def copies(self, shard: int) -> dict[int, Snapshots]:
        """The stored snapshots of a log, by the number of the node that has them."""
        return {node.index: node.snapshots(shard, self.shard_count) for node in self.nodes}

    def snapshots(self, shard: int) -> Snapshots:
        """The stored snapshots of a log, each from a node that has it."""
        found: dict[Position, Callable[[], StoredSnapshot | None]] = {}
        for node in self.nodes:
            found |= node.snapshots(shard, self.shard_count)
        return found
