"""What a Redis server holds, and the commands on it that the log needs."""

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from redis.exceptions import ResponseError

Id = tuple[int, int]
Entry = tuple[bytes, ...]

_HIGHEST = (1 << 64) - 1


class Simple(bytes):
    """An answer that is a status, such as OK."""


OK = Simple(b"OK")


@dataclass
class Stream:
    """A stream: entries in the order of their ids.

    Attributes:
        last: highest id that it ever had.
    """

    ids: list[Id] = field(default_factory=list)
    entries: dict[Id, Entry] = field(default_factory=dict)
    last: Id = (0, 0)

    def between(self, low: Id, high: Id) -> list[Id]:
        """The ids from one to another, both included."""
        return self.ids[bisect.bisect_left(self.ids, low) : bisect.bisect_right(self.ids, high)]

    def remove(self, id_: Id) -> bool:
        """Takes an entry out; the highest id stays."""
        if id_ not in self.entries:
            return False
        del self.entries[id_]
        del self.ids[bisect.bisect_left(self.ids, id_)]
        return True


def shown(id_: Id) -> bytes:
    """An id as text."""
    return b"%d-%d" % id_


def id_of(text: bytes, missing: int) -> Id:
    """Reads an id; `missing` stands for a part that is not given."""
    first, dash, second = text.partition(b"-")
    try:
        return int(first), int(second) if dash else missing
    except ValueError:
        raise ResponseError("Invalid stream ID specified as stream command argument") from None


def _bound(text: bytes, *, low: bool) -> Id:
    if text == b"-":
        return 0, 0
    if text == b"+":
        return _HIGHEST, _HIGHEST
    if text.startswith(b"("):
        major, minor = id_of(text[1:], 0 if low else _HIGHEST)
        if low:
            return (major, minor + 1) if minor < _HIGHEST else (major + 1, 0)
        return (major, minor - 1) if minor else (major - 1, _HIGHEST)
    return id_of(text, 0 if low else _HIGHEST)


Value = bytes | dict[bytes, bytes] | Stream


class Store:
    """The keys of one server.

    Every change is a command of `WRITES`, so that those of a file, played again, give the same keys.

    Attributes:
        keys: value of each key: a string, a hash or a stream.
    """

    def __init__(self) -> None:
        self.keys: dict[bytes, Value] = {}

    def run(self, name: bytes, arguments: Sequence[bytes]) -> Any:
        """Carries a command out.

        Raises:
            ResponseError: as the server would answer.
        """
        command = COMMANDS.get(name.upper())
        if command is None:
            raise ResponseError(f"unknown command '{name.decode()}'")
        try:
            return command(self, *arguments)
        except TypeError as error:
            if "positional argument" not in str(error):
                raise
            raise ResponseError(f"wrong number of arguments for '{name.decode().lower()}' command") from None

    def _typed(self, key: bytes, kind: type[Any]) -> Any:
        value = self.keys.get(key)
        if value is not None and not isinstance(value, kind):
            raise ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
        return value

    def commands(self) -> Iterator[tuple[bytes, ...]]:
        """What gives an empty server the same keys."""
        for key, value in self.keys.items():
            if isinstance(value, bytes):
                yield b"SET", key, value
            elif isinstance(value, Stream):
                for id_ in value.ids:
                    yield b"XADD", key, shown(id_), *value.entries[id_]
            elif value:
                yield b"HSET", key, *chain.from_iterable(value.items())

    # strings and keys

    def get(self, key: bytes) -> Any:
        return self._typed(key, bytes)

    def set(self, key: bytes, value: bytes, *options: bytes) -> Any:
        if options:
            if options != (b"NX",):
                raise ResponseError("syntax error")
            if key in self.keys:
                return None
        self.keys[key] = value
        return OK

    def strlen(self, key: bytes) -> int:
        return len(self._typed(key, bytes) or b"")

    def getrange(self, key: bytes, start: bytes, end: bytes) -> bytes:
        value = self._typed(key, bytes) or b""
        first, last = int(start), int(end)
        first = max(len(value) + first, 0) if first < 0 else first
        last = len(value) + last if last < 0 else last
        return bytes(value[first : last + 1])

    def append(self, key: bytes, value: bytes) -> int:
        whole = (self._typed(key, bytes) or b"") + value
        self.keys[key] = whole
        return len(whole)

    def exists(self, *keys: bytes) -> int:
        return sum(key in self.keys for key in keys)

    def delete(self, *keys: bytes) -> int:
        return sum(self.keys.pop(key, None) is not None for key in keys)

    def rename(self, old: bytes, new: bytes) -> bytes:
        if old not in self.keys:
            raise ResponseError("no such key")
        self.keys[new] = self.keys.pop(old)
        return OK

    def type(self, key: bytes) -> bytes:
        kinds = {bytes: b"string", dict: b"hash", Stream: b"stream"}
        return Simple(kinds[type(self.keys[key])] if key in self.keys else b"none")

    # hashes

    def hget(self, key: bytes, name: bytes) -> Any:
        return (self._typed(key, dict) or {}).get(name)

    def hmget(self, key: bytes, *names: bytes) -> list[Any]:
        found = self._typed(key, dict) or {}
        return [found.get(name) for name in names]

    def hgetall(self, key: bytes) -> list[bytes]:
        return [part for pair in (self._typed(key, dict) or {}).items() for part in pair]

    def hkeys(self, key: bytes) -> list[bytes]:
        return list(self._typed(key, dict) or {})

    def hlen(self, key: bytes) -> int:
        return len(self._typed(key, dict) or {})

    def hset(self, key: bytes, *pairs: bytes) -> int:
        if not pairs or len(pairs) % 2:
            raise ResponseError("wrong number of arguments for 'hset' command")
        found = self._typed(key, dict)
        if found is None:
            found = self.keys[key] = {}
        before = len(found)
        found.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(found) - before

    def hdel(self, key: bytes, *names: bytes) -> int:
        found = self._typed(key, dict)
        if found is None:
            return 0
        count = sum(found.pop(name, None) is not None for name in names)
        if not found:
            del self.keys[key]
        return count

    # streams

    def xadd(self, key: bytes, id_: bytes, *pairs: bytes) -> bytes:
        if not pairs or len(pairs) % 2:
            raise ResponseError("wrong number of arguments for 'xadd' command")
        stream = self._typed(key, Stream)
        if id_ == b"*":  # without a clock: after what is there
            major, minor = (0, 0) if stream is None else stream.last
            position = (major, minor + 1)
        else:
            position = id_of(id_, 0)
        if position == (0, 0):
            raise ResponseError("The ID specified in XADD must be greater than 0-0")
        if stream is not None and position <= stream.last:
            raise ResponseError(
                "The ID specified in XADD is equal or smaller than the target stream top item"
            )
        if stream is None:
            stream = self.keys[key] = Stream()
        stream.ids.append(position)
        stream.entries[position] = pairs
        stream.last = position
        return shown(position)

    def xlen(self, key: bytes) -> int:
        stream = self._typed(key, Stream)
        return 0 if stream is None else len(stream.ids)

    def xrange(self, key: bytes, low: bytes, high: bytes, *options: bytes) -> list[Any] | None:
        return self._range(key, low, high, options, backwards=False)

    def xrevrange(self, key: bytes, high: bytes, low: bytes, *options: bytes) -> list[Any] | None:
        return self._range(key, low, high, options, backwards=True)

    def _range(
        self, key: bytes, low: bytes, high: bytes, options: Sequence[bytes], *, backwards: bool
    ) -> list[Any] | None:
        count = None
        if options:
            if len(options) != 2 or options[0].upper() != b"COUNT":
                raise ResponseError("syntax error")
            count = max(0, int(float(options[1])))
        first, last = _bound(low, low=True), _bound(high, low=False)
        stream = self._typed(key, Stream)
        if stream is None:
            return []
        if count == 0:
            return None
        if backwards and count == 1 and stream.ids and last >= stream.ids[-1] >= first:
            found = [stream.ids[-1]]
        else:
            found = stream.between(first, last)
            if backwards:
                found.reverse()
            found = found[:count]
        return [[shown(id_), list(stream.entries[id_])] for id_ in found]

    def xdel(self, key: bytes, *ids: bytes) -> int:
        stream = self._typed(key, Stream)
        return 0 if stream is None else sum(stream.remove(id_of(id_, 0)) for id_ in ids)

    def xtrim(self, key: bytes, strategy: bytes, *options: bytes) -> int:
        if strategy.upper() not in (b"MINID", b"MAXLEN") or not options or len(options) > 2:
            raise ResponseError("syntax error")
        if len(options) == 2 and options[0] != b"=":
            raise ResponseError("syntax error")
        stream = self._typed(key, Stream)
        if stream is None:
            return 0
        if strategy.upper() == b"MAXLEN":
            gone = stream.ids[: max(0, len(stream.ids) - int(options[-1]))]
        else:
            gone = stream.ids[: bisect.bisect_left(stream.ids, id_of(options[-1], 0))]
        del stream.ids[: len(gone)]
        for id_ in gone:
            del stream.entries[id_]
        return len(gone)

    def xinfo(self, what: bytes, key: bytes) -> list[Any]:
        stream = self._typed(key, Stream)
        if what.upper() != b"STREAM":
            raise ResponseError("syntax error")
        if stream is None:
            raise ResponseError("no such key")
        return [b"length", len(stream.ids), b"last-generated-id", shown(stream.last)]

    # the server

    def ping(self) -> bytes:
        return Simple(b"PONG")

    def client(self, *_: bytes) -> bytes:
        return OK

    def config(self, what: bytes, name: bytes) -> list[bytes]:
        values = {
            b"appendonly": b"yes",
            b"appendfsync": b"everysec",
            b"maxmemory-policy": b"noeviction",
            b"no-appendfsync-on-rewrite": b"no",
        }
        return [name, values[name]] if name in values else []

    def info(self, *_: bytes) -> bytes:
        return b"# Server\r\nredis_version:7.2.4\r\nrole:master\r\n"


COMMANDS: dict[bytes, Callable[..., Any]] = {
    b"GET": Store.get, b"SET": Store.set, b"STRLEN": Store.strlen, b"GETRANGE": Store.getrange,
    b"APPEND": Store.append, b"EXISTS": Store.exists, b"DEL": Store.delete, b"UNLINK": Store.delete,
    b"RENAME": Store.rename, b"TYPE": Store.type, b"HGET": Store.hget, b"HMGET": Store.hmget,
    b"HGETALL": Store.hgetall, b"HKEYS": Store.hkeys, b"HLEN": Store.hlen, b"HSET": Store.hset,
    b"HDEL": Store.hdel, b"XADD": Store.xadd, b"XLEN": Store.xlen, b"XRANGE": Store.xrange,
    b"XREVRANGE": Store.xrevrange, b"XDEL": Store.xdel, b"XTRIM": Store.xtrim, b"XINFO": Store.xinfo,
    b"PING": Store.ping, b"CLIENT": Store.client, b"CONFIG": Store.config, b"INFO": Store.info,
}  # fmt: skip

WRITES = frozenset(
    {b"SET", b"APPEND", b"DEL", b"UNLINK", b"RENAME", b"HSET", b"HDEL", b"XADD", b"XDEL", b"XTRIM"}
)
"""Commands that change something; all but deletions need memory."""

FREEING = frozenset({b"DEL", b"UNLINK", b"HDEL", b"XDEL", b"XTRIM"})
