"""Which servers without a lease are alive: metadata instances and their watchers, stored on the nodes."""

import asyncio
import json
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count

import structlog
from muster_protos.muster.internal.v1 import metadata_pb2

from muster_metadata.log.verdicts import count_status
from muster_metadata.nodes import keys
from muster_metadata.nodes.node import Answer
from muster_metadata.nodes.quorum import Quorum, Replies
from muster_metadata.nodes.reply import Status

log = structlog.get_logger()

INTERVAL_MS = 1_000
SILENT_MS = 5_000
_FORGET_MS = 600_000
_RUN = 1


@dataclass(frozen=True, slots=True)
class ServerRow:
    """What the nodes store of one server.

    Attributes:
        key: its name in the table, never used again.
        counter: grows with each write.
        role: of the server.
        name: which one of its role.
        version: of its software.
        features: names of those that it knows.
    """

    key: str
    counter: int
    role: str
    name: str
    version: str
    features: tuple[str, ...]

    def to_json(self) -> str:
        """As the table stores it: the scripts of the lease table read `session`, `run` and `counter`."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({**fields, "session": self.key, "run": _RUN})

    @classmethod
    @lru_cache(maxsize=256)  # Several nodes have the same row.
    def from_json(cls, text: bytes) -> "ServerRow":
        """Reads a row as the table stores it.

        Raises:
            ValueError: it is no row.
        """
        try:
            fields = json.loads(text)
            features = tuple(map(str, fields["features"] or ()))
            counter = int(fields["counter"])
            key, role, name, version = (str(fields[at]) for at in ("key", "role", "name", "version"))
        except (TypeError, KeyError) as error:
            raise ValueError("not a row of a server") from error
        return cls(key, counter, role, name, version, features)

    def to_proto(self) -> metadata_pb2.Server:
        """The message of the same content, as `ListFeatures` answers it."""
        return metadata_pb2.Server(
            role=self.role, name=self.name, version=self.version, features=self.features
        )


class Servers:
    """Writes the rows of this instance and of its watchers, and times all rows on its own clock.

    Args:
        quorum: the nodes.
        key: of this instance's own row.
        me: role, name, version and features of this instance.
        now_ms: boot clock.
    """

    def __init__(self, quorum: Quorum, key: str, me: metadata_pb2.Server, now_ms: Callable[[], int]) -> None:
        self._quorum = quorum
        self._key = key
        self._now_ms = now_ms
        self._numbers = count(1)
        self._mine = {key: _row(key, me)}
        self._seen: dict[str, tuple[ServerRow, int]] = {}
        self._stored: Set[str] = frozenset()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts to write and to read; the nodes must be known to be those of the cluster."""
        self._task = asyncio.create_task(self._run(), name="servers")

    async def stop(self) -> None:
        """Stops and removes the rows of this instance."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            gone = [answer for row in self._mine.values() for answer in self._forget(row)]
            await asyncio.wait(gone, timeout=self._quorum.step_timeout_ms / 1000)

    @contextmanager
    def watching(self, watcher: metadata_pb2.Server) -> Iterator[None]:
        """Counts a watcher as alive within the context; a coordinator is not counted: it has a lease."""
        if watcher.role == "coordinator":
            yield
            return
        key = f"{self._key}/{next(self._numbers)}"
        self._mine[key] = _row(key, watcher)
        self._write(key)
        try:
            yield
        finally:
            self._forget(self._mine.pop(key))

    async def alive(self) -> list[ServerRow] | None:
        """All that may be alive, by role and name; None if no majority of the nodes answers."""
        if not await self._read():
            return None
        now_ms = self._now_ms()
        changes = [self._seen[key] for key in self._stored]
        rows = [row for row, changed_ms in changes if now_ms - changed_ms < SILENT_MS]
        mine = [row for row in self._mine.values() if all(row.key != other.key for other in rows)]
        return sorted([*rows, *mine], key=lambda row: (row.role, row.name, row.key))

    async def _run(self) -> None:
        while True:
            try:
                for key in tuple(self._mine):
                    self._write(key)
                await self._read()
            except Exception:
                log.exception("servers_not_told")
            await asyncio.sleep(INTERVAL_MS / 1000)

    def _write(self, key: str) -> None:
        row = self._mine[key] = replace(self._mine[key], counter=self._mine[key].counter + 1)
        stored = (row.key, row.key, _RUN, row.counter, row.to_json())
        for node in self._quorum.nodes:
            node.table("renew", (keys.SERVERS, keys.NODE), node.identity, *stored)

    def _forget(self, row: ServerRow) -> list[Answer]:
        arguments = (row.key, row.key, row.counter)
        return [node.table("forget", (keys.SERVERS,), *arguments) for node in self._quorum.nodes]

    async def _read(self) -> bool:
        """Takes in the rows of a majority of the nodes; returns False if there is none."""
        majority = self._quorum.majority

        def decide(replies: Replies, _final: bool) -> bool | None:
            return count_status(replies, Status.OK) >= majority or None

        found, replies = await self._quorum.ask(lambda node: node.ask("HGETALL", keys.SERVERS), decide)
        if not found:
            return False
        now_ms = self._now_ms()
        rows: dict[str, ServerRow] = {}
        for reply in replies:
            if reply is None or reply.status is not Status.OK:
                continue
            for text in reply.values[0][1::2]:
                try:
                    row = ServerRow.from_json(text)
                except ValueError:
                    log.warning("server_row_unreadable")
                    continue
                if row.key not in rows or row.counter > rows[row.key].counter:
                    rows[row.key] = row
        self._stored = rows.keys()
        for key, row in rows.items():
            known = self._seen.get(key)
            changed_ms = now_ms if known is None or row.counter > known[0].counter else known[1]
            self._seen[key] = (row, changed_ms)
            if now_ms - changed_ms > _FORGET_MS:
                self._forget(row)
        # Other nodes may have answered before: a row that one of them kept is no new one.
        for key, (_, changed_ms) in tuple(self._seen.items()):
            if key not in rows and now_ms - changed_ms > _FORGET_MS:
                del self._seen[key]
        return True


def _row(key: str, server: metadata_pb2.Server) -> ServerRow:
    return ServerRow(key, 0, server.role, server.name, server.version, tuple(sorted(set(server.features))))
