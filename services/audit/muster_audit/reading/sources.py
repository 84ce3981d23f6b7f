"""Where logs are read from: the nodes of a running cluster, or what was exported of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self, TypeVar

from muster_core.audit.log_audit import LogAudit
from muster_core.audit.node_log import NodeLog
from muster_core.audit.stored_snapshots import Snapshots
from muster_core.log.page import Page
from muster_core.log.replay import Entry
from muster_core.position import NOWHERE, Position
from muster_protos.muster.log.v1 import records_pb2
from muster_server.verify.reader import LogUnreadableError, NodeReader
from muster_server.verify.stored_logs import StoredLogs
from redis.exceptions import RedisError

T = TypeVar("T")


class LogSource(Protocol):
    """The logs of a cluster, read-only.

    Attributes:
        genesis: what each Genesis of the cluster says, but for the shard.
        shard_count: of the cluster; the number of the catalog's log.
        cluster_id: identity of the cluster.
        count: how many nodes it has.
        problems: why nodes could not be read, by number.
        is_copy: whether it was copied from the nodes at some time, and may be behind.
    """

    genesis: records_pb2.Genesis
    shard_count: int
    cluster_id: str
    count: int
    problems: dict[int, str]
    is_copy: bool

    def logs(self) -> Sequence[int]:
        """Numbers of the logs: the shards, then the catalog."""
        ...

    def name(self, shard: int) -> str:
        """What a log is called in reports."""
        ...

    def node_numbers(self) -> list[int]:
        """Numbers of the nodes that can be read."""
        ...

    def best_node(self, shard: int, said: Sequence[NodeLog] = ()) -> int:
        """The node whose log goes furthest, of those that have what is acknowledged.

        Args:
            shard: number of the log.
            said: what the nodes said of it; nothing: they are asked.
        """
        ...

    def length(self, shard: int, node: int) -> int:
        """Number of entries that a node has, about."""
        ...

    def acknowledged(self, shard: int) -> Position:
        """Place up to which a majority has the log."""
        ...

    def marks(self, shard: int) -> Mapping[int, Position]:
        """How far each node knows a log to be acknowledged, by its number."""
        ...

    def first(self, shard: int, node: int) -> Position:
        """Place of the first entry that a node has."""
        ...

    def times_ms(self, shard: int) -> tuple[int, int]:
        """When the first and the last entry were written; 0, 0: not known."""
        ...

    def pages(
        self, shard: int, node: int, upto: Position, count: int, after: Position = NOWHERE
    ) -> Iterator[Page]:
        """Entries in order: those after a place, up to another."""
        ...

    def place_of(self, shard: int, offset: int) -> Position | None:
        """The place of the entry with an offset; None: there is none."""
        ...

    def entry_at(self, shard: int, position: Position) -> Entry | None:
        """The entry at a place; None: there is none."""
        ...

    def around(self, shard: int, position: Position) -> Iterator[str]:
        """The entries around a place, as text."""
        ...

    def snapshots(self, shard: int) -> Snapshots:
        """The stored snapshots."""
        ...

    def node_logs(self, shard: int) -> Sequence[NodeLog]:
        """What each node says of a log; none: it is not read from nodes."""
        ...

    def check_nodes(self, audit: LogAudit, nodes: Sequence[NodeLog], acknowledged: Position) -> None:
        """Has an audit check all that is stored of its log beside the entries, after the last page."""
        ...

    def problems_of(self, shard: int) -> list[str]:
        """What else is wrong with what is stored of a log."""
        ...

    def leave_silent(self) -> None:
        """Goes on without the nodes that answer no more.

        Raises:
            LogUnreadableError: what is left is no majority.
        """
        ...

    def close(self) -> None:
        """Closes connections and files."""
        ...


class NodesSource:
    """The logs on the nodes of a cluster.

    Args:
        url: `redis://host:port,…`; a user that may only read will do.

    Raises:
        LogUnreadableError: no majority answers, or there is no log.
    """

    is_copy = False

    def __init__(self, url: str) -> None:
        self.reader = StoredLogs(url)
        self.genesis = self.reader.genesis
        self.shard_count = self.reader.shard_count
        self.cluster_id = self.reader.cluster_id
        self.count = self.reader.count
        self.problems = self.reader.problems

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def logs(self) -> Sequence[int]:
        """Numbers of all logs: the shards, then the catalog."""
        return self.reader.logs()

    def name(self, shard: int) -> str:
        """What a log is called in reports."""
        return self.reader.name(shard)

    @property
    def _nodes(self) -> dict[int, NodeReader]:
        return {node.index: node for node in self.reader.nodes}

    def node_numbers(self) -> list[int]:
        """Numbers of the nodes that answer."""
        return sorted(self._nodes)

    def best_node(self, shard: int, said: Sequence[NodeLog] = ()) -> int:
        """The node whose log goes furthest, of those that have what is acknowledged."""
        return self.reader.best(shard, said).index

    def length(self, shard: int, node: int) -> int:
        """Number of entries that a node has."""
        return self._nodes[node].length(shard, self.shard_count)

    def acknowledged(self, shard: int) -> Position:
        """The highest acknowledged position that any node knows."""
        return self.reader.acknowledged(shard)

    def marks(self, shard: int) -> Mapping[int, Position]:
        """How far each node knows a log to be acknowledged, by its number."""
        return self.reader.marks(shard)

    def first(self, shard: int, node: int) -> Position:
        """Place of the first entry that a node has."""
        return self._nodes[node].first(shard, self.shard_count)

    def times_ms(self, shard: int) -> tuple[int, int]:
        """When the first and the last entry of the best node were written."""
        return self.reader.best(shard).times_ms(shard, self.shard_count)

    def pages(
        self, shard: int, node: int, upto: Position, count: int, after: Position = NOWHERE
    ) -> Iterator[Page]:
        """Entries in order, as one node has them."""
        return self._nodes[node].pages(shard, self.shard_count, upto, after, count)

    def place_of(self, shard: int, offset: int) -> Position | None:
        """The place of the entry with an offset on the best node; None: there is none."""
        return self.reader.best(shard).place_of(shard, self.shard_count, offset)

    def entry_at(self, shard: int, position: Position) -> Entry | None:
        """The entry at a place, from any node; None: no node has it."""
        return self.reader.entry_at(shard, position)

    def around(self, shard: int, position: Position) -> Iterator[str]:
        """The entries around a place, as text."""
        return self.reader.around(shard, position)

    def snapshots(self, shard: int) -> Snapshots:
        """The stored snapshots, each from a node that has it."""
        return self.reader.snapshots(shard)

    def problems_of(self, shard: int) -> list[str]:
        """Keys of a log that hold something else than they should."""
        return self.reader.damage(shard)

    def node_logs(self, shard: int) -> Sequence[NodeLog]:
        """What each node says of a log."""
        return self.reader.node_logs(shard)

    def check_nodes(self, audit: LogAudit, nodes: Sequence[NodeLog], acknowledged: Position) -> None:
        """Has an audit check all that is stored of its log beside the entries."""
        self.reader.check_nodes(audit, nodes, acknowledged)

    def leave_silent(self) -> None:
        """Goes on without the nodes that answer no more; `problems` says why."""
        self.reader.leave_silent()

    def close(self) -> None:
        """Closes the connections."""
        for node in self.reader.nodes:
            node.close()


def steadily(source: LogSource, read: Callable[[], T]) -> T:
    """What a read gives, begun again without the nodes that are lost meanwhile.

    Raises:
        LogUnreadableError: what is left is no majority.
        RedisError: a node answers, and breaks the read off each time.
    """
    for _ in range(source.count):
        try:
            return read()
        except RedisError:
            source.leave_silent()
    return read()


def open_source(address: str) -> LogSource:
    """The logs at an address.

    Args:
        address: `redis://…` or `rediss://…`, or the folder of an export.

    Raises:
        LogUnreadableError: there is nothing to read; the message says why.
    """
    if "://" in address:
        return NodesSource(address)
    from muster_audit.reading.exported import EXPORT_MARK, ExportSource

    folder = Path(address)
    if not (folder / EXPORT_MARK).is_file():
        raise LogUnreadableError(
            f"{address!r} is neither the address of a log (redis://host:port,…) nor a folder that "
            "`muster-audit export` made"
        )
    return ExportSource(folder)
