"""Reads logs directly from one node. Nothing is ever written."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import redis
from google.protobuf.message import DecodeError
from muster_core.audit.node_log import NodeLog, NodePromise
from muster_core.audit.stored_snapshots import Snapshots, StoredSnapshot
from muster_core.log.page import Page
from muster_core.log.replay import Entry
from muster_core.position import NOWHERE, Position
from muster_metadata.cluster.owners import OwnerRow
from muster_metadata.nodes.configuration import Introduction
from muster_metadata.nodes.keys import NODE, OWNERS, LogKeys, log_keys
from muster_protos.muster.log.v1 import records_pb2
from redis.backoff import NoBackoff
from redis.retry import Retry

PAGE_ENTRIES = 400
"""Entries in one request: few enough to stay in a core's cache. More would also make the server slow for
others."""

_FIRST_ENTRIES = 8
_GROWTH = 4
_PAGE_BYTES = 4 << 20
"""A page has fewer entries where they are large: one has up to 8 MiB. The first page is small, and the next
ones grow as far as the sizes so far allow."""

_NAMES = (b"r", b"n", b"h")
_ALL_NAMES = [{name} for name in _NAMES]
_FIELDS = 2 * len(_NAMES)
_OTHER_TYPE = "WRONGTYPE"
_PART_HASHES = b"hashes"  # of a stored snapshot, 32 bytes for each of its parts
_TIMEOUT_SECONDS = 5.0
_READ_BYTES = 1 << 20  # of a connection at a time: all of a page, where redis-py would take 64 KiB


class LogUnreadableError(Exception):
    """No log can be read there; the message says why."""


class LogTrimmedError(LogUnreadableError):
    """A log was trimmed while it was read: read it again."""


def _page(rows: list[list[Any]]) -> Page:
    """A page from an answer to XRANGE: id, and the fields `r`, `n` and `h` of each entry in this order.

    Where an entry has other fields, or another order of them, something else is in its place.
    """
    ids, fields = [id_ for id_, _ in rows], [words for _, words in rows]
    columns = tuple(zip(*fields, strict=False)) if {*map(len, fields)} == {_FIELDS} else ()
    if not columns or [{*column} for column in columns[::2]] != _ALL_NAMES:
        columns = tuple(zip(*map(_or_nothing, fields), strict=True)) or ((),) * _FIELDS
    return Page.of_stream(ids, columns[1], columns[3], columns[5])


def _rows(answer: list[tuple[bytes, dict[bytes, bytes]]]) -> list[list[Any]]:
    """An answer of redis-py as a connection gives it."""
    return [[id_, [word for pair in fields.items() for word in pair]] for id_, fields in answer]


def _position(text: bytes) -> Position | None:
    """Reads a position from text; None: the text is not one."""
    try:
        place = Position.parse(text.decode("utf-8", "replace"))
    except ValueError:
        return None
    return place if place.stream_id.encode() == text else None


def _only(found: list[Any] | None) -> Position:
    """The position of the one entry that was asked for; NOWHERE: there is none."""
    return Position.parse(found[0][0].decode()) if found else NOWHERE


def _beginning_of(epoch: int) -> tuple[str, str, int]:
    """What XRANGE is given for the first entry of an epoch."""
    return f"{epoch}-0", f"{epoch}", 1


def _number(name: bytes) -> tuple[int, bytes]:
    """Sort key of the parts of a snapshot: their numbers, and after them what is not a number."""
    return (int(name), b"") if name.isdigit() else (1 << 62, name)


def _is_claim(record: bytes) -> bool:
    try:
        return records_pb2.Record.FromString(record).HasField("claim")
    except DecodeError:
        return False


def _or_nothing(fields: list[bytes]) -> list[bytes]:
    """The fields of an entry; empty ones where they are not those of an entry."""
    return fields if tuple(fields[::2]) == _NAMES else [word for name in _NAMES for word in (name, b"")]


def _written_at_ms(record: bytes) -> int:
    try:
        return records_pb2.Record.FromString(record).written_at_ms
    except DecodeError:
        return 0


class NodeReader:
    """One node of the log.

    Args:
        index: its place in the list, from 1.
        url: its address.

    Attributes:
        damaged: keys with unexpected content → what is wrong.
    """

    def __init__(self, index: int, url: str) -> None:
        self.index = index
        self.damaged: dict[str, str] = {}
        self._run_id = ""
        self._redis: Any = redis.Redis.from_url(
            url,
            socket_timeout=_TIMEOUT_SECONDS,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            socket_read_size=_READ_BYTES,
        )

    def problem(self) -> str:
        """Why it cannot be read; empty: it can."""
        try:
            self._redis.ping()
        except redis.RedisError as error:
            return str(error) or type(error).__name__
        return ""

    def introduction(self) -> Introduction:
        """What it says of itself; nothing where it has no data of a cluster."""
        stored = self._read(NODE, self._redis.hmget, NODE, "identity", "created_at_ms", "nodes")
        identity, _, addresses = ((value or b"").decode("utf-8", "replace") for value in stored or [b""] * 3)
        with suppress(redis.ResponseError):
            # Who may not ask can do without: it shows one server under two names, and a restart.
            self._run_id = str(self._redis.info("server").get("run_id", ""))
        return Introduction(identity, addresses=tuple(addresses.split(",")), run_id=self._run_id)

    def acknowledged(self, shard: int, shard_count: int) -> Position:
        """The acknowledged position that this node has stored."""
        key = log_keys(shard, shard_count).acknowledged
        return self._place(key, self._read(key, self._redis.get, key))

    def _place(self, key: str, found: bytes | None) -> Position:
        """The position that a key holds; NOWHERE: none."""
        if found is None:
            return NOWHERE
        place = _position(found)
        if place is None:
            self.damaged[key] = "it holds no position"
        return place or NOWHERE

    def said(self, shard: int, shard_count: int) -> NodeLog:
        """What it says of acknowledgements in a log; nothing of the entries yet, see `seen`."""
        keys, is_catalog = log_keys(shard, shard_count), shard == shard_count
        acknowledged, exported, index, owner = self._read_together(
            (keys.acknowledged, "get"),
            (keys.exported, "get"),
            (keys.snapshots, "hgetall"),
            (OWNERS, "hgetall") if is_catalog else (OWNERS, "hget", str(shard)),
        )
        if is_catalog:  # the owners of all shards
            for number, row in (owner or {}).items():
                self._epoch_of(number.decode(errors="replace"), row)
        places = (
            (_position(upto), _position(marker))
            for upto, marker in self._listed(keys, index).items()
            if marker
        )
        return NodeLog(
            self.index,
            acknowledged=self._place(keys.acknowledged, acknowledged),
            exported=self._place(keys.exported, exported),
            markers={upto: marker for upto, marker in places if upto is not None and marker is not None},
            owner_epoch=0 if is_catalog or owner is None else self._epoch_of(str(shard), owner),
        )

    def seen(self, said: NodeLog, shard: int, shard_count: int) -> NodeLog:
        """What it says of a log, with the ends of what it has, and after these what it promised."""
        keys = log_keys(shard, shard_count)
        names = [keys.log, keys.promise, keys.acknowledged, keys.exported, keys.snapshots]
        names += (NODE, OWNERS) if shard == shard_count else ()  # they are of no log, and go with the catalog
        names += [keys.snapshot(upto.stream_id) for upto in said.markers]
        likely = said.acknowledged.epoch  # which it promised, if nobody has claimed the log just now
        *left_ms, first, end, promise, begins = self._read_together(
            *((name, "pttl") for name in names),
            (keys.log, "xrange", "-", "+", 1),
            (keys.log, "xrevrange", "+", "-", 1),
            (keys.promise, "hmget", "epoch", "nonce", "run"),
            (keys.log, "xrange", *_beginning_of(likely)),
        )
        for name, left in zip(names, left_ms, strict=True):
            if left >= 0:  # no script of ours leaves a key so that it vanishes
                self.damaged[name] = "it is set to expire"
        promised = self._promise(keys, promise, {likely: begins})
        return replace(said, first=_only(first), end=_only(end), promise=promised)

    def _epoch_of(self, shard: str, row: bytes) -> int:
        try:
            return OwnerRow.from_json(row).epoch
        except ValueError:
            self.damaged[OWNERS] = f"it holds no owner for shard {shard}"
            return 0

    def _promise(
        self, keys: LogKeys, found: list[bytes | None] | None, begins: dict[int, Any]
    ) -> NodePromise | None:
        """What it promised, by the fields of the key; `begins`: first entries that were read, by epoch."""
        if not found or found[0] is None:
            return None
        if not found[0].isdigit():
            self.damaged[keys.promise] = "it holds no epoch"
            return None
        epoch = int(found[0])
        if epoch not in begins:
            begins[epoch] = self._read(keys.log, self._redis.xrange, keys.log, *_beginning_of(epoch))
        entry = begins[epoch][0][1] if begins[epoch] else {}
        begins_with = entry.get(b"n", b"") if _is_claim(entry.get(b"r", b"")) else b""
        return NodePromise(epoch, found[1] or b"", begins_with, self._is_another_run(found[2] or b""))

    def _is_another_run(self, mark: bytes) -> bool:
        """Whether a promise is from a run of the server after which it may have been forgotten (LOG-50)."""
        run_id, _, synced = mark.decode("utf-8", "replace").partition("/")
        return bool(run_id and self._run_id) and run_id != self._run_id and synced != "always"

    def has(self, shard: int, shard_count: int, position: Position) -> bool:
        """Whether there is an entry at a place."""
        return self.at(shard, shard_count, position) is not None

    def reach(self, shard: int, shard_count: int) -> NodeLog:
        """Only how far it knows a log to be acknowledged, and where its last entry is."""
        keys = log_keys(shard, shard_count)
        acknowledged, end = self._read_together(
            (keys.acknowledged, "get"), (keys.log, "xrevrange", "+", "-", 1)
        )
        place = self._place(keys.acknowledged, acknowledged)
        return NodeLog(self.index, acknowledged=place, end=_only(end))

    def end(self, shard: int, shard_count: int) -> Position:
        """Position of the last entry; NOWHERE: there is no log."""
        key = log_keys(shard, shard_count).log
        return _only(self._read(key, self._redis.xrevrange, key, count=1))

    def at(self, shard: int, shard_count: int, position: Position) -> Entry | None:
        """The entry at a place; None: it has none."""
        key, place = log_keys(shard, shard_count).log, position.stream_id
        found = self._read(key, self._redis.xrange, key, place, place)
        return next(iter(_page(_rows(found)).entries()), None) if found else None

    def first(self, shard: int, shard_count: int) -> Position:
        """Position of the first entry; NOWHERE: there is no log."""
        key = log_keys(shard, shard_count).log
        return _only(self._read(key, self._redis.xrange, key, count=1))

    def length(self, shard: int, shard_count: int) -> int:
        """Number of entries."""
        key = log_keys(shard, shard_count).log
        return int(self._read(key, self._redis.xlen, key) or 0)

    def place_of(self, shard: int, shard_count: int, offset: int) -> Position | None:
        """Position of the entry with an offset; None: there is none."""
        if offset < 1:
            return None
        key = log_keys(shard, shard_count).log
        low, high = 0, self.end(shard, shard_count).epoch
        while low < high:  # the last epoch that begins at or before the offset
            middle = (low + high + 1) // 2
            found = self._read(key, self._redis.xrange, key, f"{middle}-0", count=1)
            if found and Position.parse(found[0][0].decode()).offset <= offset:
                low = middle
            else:
                high = middle - 1
        place = Position(low, offset)
        return place if self.has(shard, shard_count, place) else None

    def times_ms(self, shard: int, shard_count: int) -> tuple[int, int]:
        """When the first and the last entry were written, by their writers' clocks, Unix time; 0: unknown."""
        key = log_keys(shard, shard_count).log
        ends = self._read_together((key, "xrange", "-", "+", 1), (key, "xrevrange", "+", "-", 1))
        first, last = (_written_at_ms(found[0][1].get(b"r", b"")) if found else 0 for found in ends)
        return first, last

    def pages(
        self,
        shard: int,
        shard_count: int,
        upto: Position,
        after: Position = NOWHERE,
        count: int = PAGE_ENTRIES,
    ) -> Iterator[Page]:
        """Yields the entries in order; the next page is requested before the current one is yielded.

        Args:
            shard: number of the log.
            shard_count: of the cluster.
            upto: last position wanted.
            after: position before the first one wanted.
            count: entries in a page at most; fewer at first, and where they are large.

        Raises:
            LogTrimmedError: the log was trimmed during the read: start again.
        """
        key = log_keys(shard, shard_count).log
        connection = self._redis.connection_pool.get_connection()
        try:
            asked = min(_FIRST_ENTRIES, count)
            connection.send_command("XRANGE", key, f"({after.stream_id}", upto.stream_id, "COUNT", asked)
            last = after
            while rows := self._read(key, connection.read_response):
                more = len(rows) == asked
                if more:
                    size_bytes = sum(len(words[1]) for _, words in rows)
                    asked = max(1, min(_GROWTH * asked, asked * _PAGE_BYTES // max(size_bytes, 1), count))
                    start = f"({rows[-1][0].decode()}"
                    connection.send_command("XRANGE", key, start, upto.stream_id, "COUNT", asked)
                page = _page(rows)
                if last != NOWHERE and page.first.offset != last.offset + 1:
                    self._check_not_trimmed(key, last)
                yield page
                if not more:
                    return
                last = page.last
        except GeneratorExit:
            connection.disconnect()  # an answer may be on its way
            raise
        finally:
            self._redis.connection_pool.release(connection)

    def _check_not_trimmed(self, key: str, last: Position) -> None:
        first = self._read(key, self._redis.xrange, key, count=1)
        if first and Position.parse(first[0][0].decode()).offset > last.offset:
            raise LogTrimmedError(f"{key} on node {self.index} was trimmed beyond {last.stream_id} meanwhile")

    def around(self, shard: int, shard_count: int, position: Position, each_side: int) -> list[Entry]:
        """The entries before and after a place, and the one at it."""
        key, place = log_keys(shard, shard_count).log, position.stream_id
        before: list[Any] = []
        if position != NOWHERE:  # nothing is before it, and Redis refuses to look
            before = self._read(key, self._redis.xrevrange, key, f"({place}", "-", count=each_side) or []
        after = self._read(key, self._redis.xrange, key, place, "+", count=each_side + 1) or []
        return list(_page(_rows(before[::-1] + after)).entries())

    def snapshots(self, shard: int, shard_count: int) -> Snapshots:
        """The stored snapshots that have a marker: the position that each covers → a reader of its parts."""
        keys = log_keys(shard, shard_count)
        index = self._read(keys.snapshots, self._redis.hgetall, keys.snapshots)
        return {
            upto: partial(self._stored, keys, text.decode())
            for text, marker in self._listed(keys, index).items()
            if marker and (upto := _position(text)) is not None
        }

    def _listed(self, keys: LogKeys, index: dict[bytes, bytes] | None) -> dict[bytes, bytes]:
        """The list of snapshots; what is no place in it is noted as damage."""
        index = index or {}
        for upto, marker in index.items():
            for text in (upto, marker):
                if text and _position(text) is None:
                    self.damaged[keys.snapshots] = f"{text[:40]!r} is no position"
        return index

    def _stored(self, keys: LogKeys, upto: str) -> StoredSnapshot | None:
        """A snapshot; None: it was listed, and was removed since then."""
        key = keys.snapshot(upto)
        found = self._read(key, self._redis.hgetall, key) or {}
        if not found and not self._read(keys.snapshots, self._redis.hexists, keys.snapshots, upto):
            return None
        hashes = found.pop(_PART_HASHES, b"")
        return StoredSnapshot([found[name] for name in sorted(found, key=_number)], hashes)

    def _read(self, key: str, command: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """The answer to a command; None, and the key is added to `damaged`, if it has another type.

        Raises:
            redis.RedisError: the server does not answer, or refuses: it says nothing about the key.
        """
        try:
            return command(*arguments, **options)
        except redis.ResponseError as error:
            self._note(key, error)
            return None

    def _read_together(self, *asked: tuple[Any, ...]) -> list[Any]:
        """The answers to commands that are sent together, carried out in this order; see `_read`.

        Args:
            asked: key, name of the command and what else it is given, of each.
        """
        with self._redis.pipeline(transaction=False) as pipeline:
            for key, command, *arguments in asked:
                getattr(pipeline, command)(key, *arguments)
            answers = pipeline.execute(raise_on_error=False)
        return [self._answer(key, answer) for (key, *_), answer in zip(asked, answers, strict=True)]

    def _answer(self, key: str, answer: Any) -> Any:
        if not isinstance(answer, redis.ResponseError):
            return answer
        self._note(key, answer)
        return None

    def _note(self, key: str, error: redis.ResponseError) -> None:
        """Notes that a key has another type; raises any other error."""
        if not str(error).startswith(_OTHER_TYPE):
            raise error
        self.damaged[key] = str(error)

    def close(self) -> None:
        """Closes the connection."""
        self._redis.close()
