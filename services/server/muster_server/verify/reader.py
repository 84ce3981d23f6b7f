"""Reads logs straight from the nodes. Nothing is ever written."""

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import redis
from muster_core.position import GENESIS, NOWHERE, Position
from muster_core.replay import Entry
from muster_metadata.keys import log_keys
from muster_protos.muster.log.v1 import records_pb2
from redis.backoff import NoBackoff
from redis.retry import Retry

_PAGE = 2_000
_CATALOG = 0  # of no shards: the catalog's log is the one whose number is the shard count
_TIMEOUT_SECONDS = 5.0


class LogUnreadableError(Exception):
    """No log can be read there; the message says why."""


def split_url(url: str) -> list[str]:
    """One URL per node of `redis://[user:password@]host:port,host:port,…`.

    Raises:
        LogUnreadableError: it is no such URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss") or not parts.netloc:
        raise LogUnreadableError(f"{url!r} is no address of a log: redis://host:port,host:port,…")
    login, at, hosts = parts.netloc.rpartition("@")
    return [
        urlunsplit((parts.scheme, f"{login}{at}{host}", parts.path, parts.query, ""))
        for host in hosts.split(",")
    ]


class NodeReader:
    """One node of the log.

    Args:
        index: its place in the list, from 1.
        url: its address.

    Attributes:
        damaged: keys that hold something else than they should, with what is wrong.
    """

    def __init__(self, index: int, url: str) -> None:
        self.index = index
        self.damaged: dict[str, str] = {}
        self._redis: Any = redis.Redis.from_url(
            url,
            socket_timeout=_TIMEOUT_SECONDS,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )

    def problem(self) -> str:
        """Why it cannot be read; empty: it can."""
        try:
            self._redis.ping()
        except redis.RedisError as error:
            return str(error) or type(error).__name__
        return ""

    def genesis(self) -> records_pb2.Genesis | None:
        """The genesis of the catalog's log: it tells the number of shards; None: there is none."""
        key = log_keys(_CATALOG, _CATALOG).log
        found = self._redis.xrange(key, GENESIS.stream_id, GENESIS.stream_id)
        if not found:
            return None
        return records_pb2.Record.FromString(found[0][1][b"r"]).genesis

    def acknowledged(self, shard: int, shard_count: int) -> Position:
        """Position up to which a majority has the log, as this node knows it."""
        key = log_keys(shard, shard_count).acknowledged
        found = self._read(key, self._redis.get, key)
        if found is None:
            return NOWHERE
        try:
            return Position.parse(found.decode())
        except ValueError:
            self.damaged[key] = "it holds no position"
            return NOWHERE

    def end(self, shard: int, shard_count: int) -> Position:
        """Place of the last entry; nowhere: there is no log."""
        key = log_keys(shard, shard_count).log
        found = self._read(key, self._redis.xrevrange, key, count=1)
        return Position.parse(found[0][0].decode()) if found else NOWHERE

    def entries(self, shard: int, shard_count: int, upto: Position) -> Iterator[Entry]:
        """Entries in order, up to a position."""
        key = log_keys(shard, shard_count).log
        start = "-"
        while True:
            page = self._read(key, self._redis.xrange, key, start, upto.stream_id, count=_PAGE) or []
            for raw_id, fields in page:
                place = Position.parse(raw_id.decode())
                yield Entry(place, fields.get(b"r", b""), fields.get(b"n", b""), fields.get(b"h", b""))
            if len(page) < _PAGE:
                return
            start = f"({page[-1][0].decode()}"

    def _read(self, key: str, command: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """What a command answers; None, and noted as damage, where the key is not of its kind."""
        try:
            return command(*arguments, **options)
        except redis.ResponseError as error:
            self.damaged[key] = str(error)
            return None

    def close(self) -> None:
        """Closes the connection."""
        self._redis.close()


class LogReader:
    """The logs of a cluster, read-only; a context manager.

    Args:
        url: `redis://host:port,host:port,…`.

    Attributes:
        nodes: those that answer.
        problems: of the others, by index.
        shard_count: of the cluster.

    Raises:
        LogUnreadableError: not even a majority answers, or there is no log.
    """

    def __init__(self, url: str) -> None:
        everybody = [NodeReader(index, one) for index, one in enumerate(split_url(url), 1)]
        self.count = len(everybody)
        problems = {node.index: node.problem() for node in everybody}
        self.problems = {index: problem for index, problem in problems.items() if problem}
        self.nodes = [node for node in everybody if node.index not in self.problems]
        if len(self.nodes) <= self.count // 2:
            told = "; ".join(f"node {index}: {problem}" for index, problem in self.problems.items())
            raise LogUnreadableError(f"{len(self.nodes)} of {self.count} nodes answer, no majority: {told}")
        geneses = [genesis for node in self.nodes if (genesis := node.genesis()) is not None]
        if not geneses:
            raise LogUnreadableError("no node has a log: it was never initialised")
        self.shard_count: int = geneses[0].shard_count
        self.cluster_id: str = geneses[0].cluster_id

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
        """What a log is called in reports."""
        return "catalog" if shard == self.shard_count else f"shard {shard}"

    def acknowledged(self, shard: int) -> Position:
        """The highest acknowledged position that any node knows."""
        return max(node.acknowledged(shard, self.shard_count) for node in self.nodes)

    def best(self, shard: int) -> NodeReader:
        """The node whose log goes furthest."""
        return max(self.nodes, key=lambda node: node.end(shard, self.shard_count))

    def entries(self, shard: int, node: NodeReader, upto: Position) -> Iterator[Entry]:
        """Entries of a log as one node has them, up to a position."""
        return node.entries(shard, self.shard_count, upto)
