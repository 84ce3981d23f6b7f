"""The simulated node and a real server are asked the same things and must give the same answers.

Random commands, and random calls of the log's own scripts, with the state at the end compared: a simulated
Redis that differs from the real one would prove nothing.
"""

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from muster_metadata.nodes.scripts import SCRIPTS
from muster_server.dev.redis_nodes import RedisNodes
from redis.connection import Connection, parse_url
from redis.exceptions import ResponseError
from simulation.network import Network
from simulation.redis_node import RedisNode
from simulation.redis_scripts import Scripts
from simulation.redis_store import Simple, Stream
from simulation.world import World

pytestmark = pytest.mark.cluster

KEYS = [b"muster:{0}:log", b"muster:{0}:promise", b"muster:{0}:acknowledged", b"muster:node"]
COPY = b"muster:{0}:copy"
VACANT = b"muster:{0}:vacant"
SNAPSHOT, SNAPSHOTS = b"muster:{0}:snapshot:1-3", b"muster:{0}:snapshots"
LEASES, OWNERS = b"muster:leases", b"muster:owners"
IDENTITY = b"cluster/1/1 of 3/1"
STEPS = 400


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Any]:
    """A connection to a real server."""
    nodes = RedisNodes(tmp_path, 1)
    await nodes.start()
    connection: Any = Connection(**parse_url(nodes[0].url), protocol=2)
    yield connection
    connection.disconnect()
    await nodes.stop()


class Both:
    """A simulated node and a real server side by side."""

    def __init__(self, real: Any) -> None:
        self._real = real
        world = World(0)
        self.node = RedisNode(world, Network(world), 1, Scripts(), lambda *_: None)
        for script in SCRIPTS.values():
            assert self.ask(b"SCRIPT", b"LOAD", script.source.encode()) == script.sha.encode()

    def ask(self, *command: bytes) -> Any:
        """The answer of both, after it was compared."""
        real = self.ask_real(*command)
        assert _plain(self.node.run(command)) == real, command
        return real

    def ask_real(self, *command: bytes) -> Any:
        """The answer of the real server."""
        self._real.send_command(*command)
        try:
            return _plain(self._real.read_response(disable_decoding=True))
        except ResponseError as error:
            return _plain(error)

    def script(self, name: str, keys: list[bytes], *arguments: bytes) -> Any:
        """Calls one of the log's scripts at both."""
        return self.ask(b"EVALSHA", SCRIPTS[name].sha.encode(), b"%d" % len(keys), *keys, *arguments)

    def compare(self) -> None:
        """Everything that both hold."""
        keys = sorted(self.ask_real(b"KEYS", b"*"))
        assert sorted(self.node.store.keys) == keys
        for key in keys:
            value = self.node.store.keys[key]
            if isinstance(value, Stream):
                self.ask(b"XRANGE", key, b"-", b"+")
                info = self.ask_real(b"XINFO", b"STREAM", key)
                assert info[info.index(b"last-generated-id") + 1] == b"%d-%d" % value.last
            elif isinstance(value, dict):
                found = self.ask_real(b"HGETALL", key)
                pairs = dict(zip(found[::2], found[1::2], strict=True))
                assert _rows(value) == _rows(pairs)
            else:
                self.ask(b"GET", key)


def _rows(fields: dict[bytes, bytes]) -> dict[bytes, Any]:
    """The fields of a hash; JSON by what it says, as nobody promises the order of its fields."""
    return {name: json.loads(value) if value.startswith(b"{") else value for name, value in fields.items()}


def _plain(answer: Any) -> Any:
    """An answer without what the client library makes of it."""
    if isinstance(answer, Exception):
        # The texts of errors begin with the same word; what follows names lines of the script.
        return type(answer).__name__
    if isinstance(answer, Simple):
        return bytes(answer)
    if isinstance(answer, list):
        return [_plain(part) for part in answer]
    return answer


@pytest.mark.parametrize("seed", range(4))
def test_commands_are_answered_alike(server: Any, seed: int) -> None:
    both, draw = Both(server), random.Random(seed)
    names = [b"a", b"b", b"s", b"t"]

    def some_id() -> bytes:
        return b"%d-%d" % (draw.randint(0, 3), draw.randint(0, 30))

    def bound() -> bytes:
        return draw.choice((b"-", b"+", some_id(), b"(" + some_id(), b"%d" % draw.randint(0, 3)))

    def value() -> bytes:
        return draw.choice((b"", b"x", b"\x00\xff", b"12"))

    def count() -> tuple[bytes, ...]:
        return draw.choice(((), (b"COUNT", b"1"), (b"COUNT", b"3"), (b"COUNT", b"0")))

    choices = (
        lambda: (b"SET", draw.choice(names), value()),
        lambda: (b"GET", draw.choice(names)),
        lambda: (b"EXISTS", draw.choice(names), draw.choice(names)),
        lambda: (b"DEL", draw.choice(names)),
        lambda: (b"RENAME", draw.choice(names), draw.choice(names)),
        lambda: (b"HSET", draw.choice(names), value(), value()),
        lambda: (b"HSET", draw.choice(names), value()),
        lambda: (b"HGET", draw.choice(names), value()),
        lambda: (b"HMGET", draw.choice(names), value(), value()),
        lambda: (b"HDEL", draw.choice(names), value(), value()),
        lambda: (b"HLEN", draw.choice(names)),
        lambda: (b"XADD", draw.choice(names), some_id(), b"r", value(), b"n", value()),
        lambda: (b"XADD", draw.choice(names), some_id(), b"r"),
        lambda: (b"XDEL", draw.choice(names), some_id(), some_id()),
        lambda: (b"XLEN", draw.choice(names)),
        lambda: (b"XRANGE", draw.choice(names), bound(), bound(), *count()),
        lambda: (b"XREVRANGE", draw.choice(names), bound(), bound(), *count()),
        lambda: (b"XTRIM", draw.choice(names), b"MINID", b"=", some_id()),
        lambda: (b"STRLEN", draw.choice(names)),
        lambda: (b"EVALSHA", b"0" * 40, b"0"),
    )
    for _ in range(STEPS):
        both.ask(*draw.choice(choices)())
    both.compare()


@pytest.mark.parametrize("seed", range(6))
def test_scripts_are_answered_alike(server: Any, seed: int) -> None:
    """Writers of several claims, with right and wrong ends, cuts, copies, trims, leases and owners."""
    both, draw = Both(server), random.Random(1_000 + seed)
    both.script(
        "initialise", [KEYS[3], *KEYS[:3]], IDENTITY, b"5", b"a,b,c", b"genesis", bytes(16), b"h" * 32, b"r1"
    )
    ends = [(b"0-1", b"h" * 32)]

    def epoch() -> bytes:
        return b"%d" % draw.randint(1, 6)

    def nonce() -> bytes:
        return draw.choice((b"n" * 16, b"m" * 16))

    def end() -> tuple[bytes, bytes]:
        return draw.choice(ends[-4:])

    def entries(number: bytes) -> list[bytes]:
        first = draw.randint(2, 12)
        flat: list[bytes] = []
        for offset in range(first, first + draw.randint(1, 3)):
            id_, hash_ = b"%s-%d" % (number, offset), draw.randbytes(32)
            ends.append((id_, hash_))
            flat += [id_, b"record", nonce(), hash_]
        return flat

    def identity() -> bytes:
        return IDENTITY if draw.random() < 0.95 else b"other"

    def run_id() -> bytes:
        return draw.choice((b"", b"r1", b"r1", b"r1/always", b"r2", b"r2/always"))

    def row(run: int, counter: int) -> bytes:
        return b'{"run": %d, "session": "s%d", "counter": %d, "serving": [[1, 2]]}' % (run, run, counter)

    for _ in range(STEPS):
        number = epoch()
        begin = (identity(), number, nonce())
        run, counter = draw.randint(1, 3), draw.randint(1, 9)
        lease = [LEASES, KEYS[3]]
        last = both.script("inspect", KEYS, IDENTITY, b"0", b"", run_id())
        if last[0] == b"OK" and draw.random() < 0.7:
            ends.append((last[1], last[2]))
            number = last[4]
            begin = (IDENTITY, number, last[5])
        steps: dict[str, tuple[Any, ...]] = {
            "prepare": (KEYS, *begin, draw.choice((b"", b"tag")), draw.choice((b"", b"0", b"2"))),
            "append": (KEYS, *begin, *end(), end()[0], draw.choice((b"0", b"7")), *entries(number)),
            "repair": ([*KEYS, COPY], *begin, *end(), *end(), *entries(number)),
            "portion": ([*KEYS, COPY], *begin, *end(), *end(), b"%d" % draw.choice((1, 500))),
            "check": (KEYS, *begin),
            "acknowledge": (KEYS, *begin, *end()),
            "trim": ([*KEYS, SNAPSHOT], *begin, end()[0], *end(), draw.choice((b"1-3", end()[0]))),
            "snapshot": (
                [*KEYS, SNAPSHOT, SNAPSHOTS],
                *begin,
                b"1-3",
                *draw.choice(((b"0", b"part"), (b"0", b"other"), (b"1", b"part"), (b"hashes", b"h" * 64))),
                draw.choice((b"", end()[0])),
            ),
            "mark": ([*KEYS, SNAPSHOT, SNAPSHOTS], *begin, b"1-3", *end(), end()[0], SNAPSHOT[:-3]),
            "hashes": (KEYS, *begin, end()[0], b"%d" % draw.randint(1, 5)),
            "stage": (
                [*KEYS, COPY],
                *begin,
                *draw.choice((end(), (b"", b""))),
                draw.choice((b"", b"gone")),
                *entries(number),
            ),
            "install": (
                [*KEYS, COPY, VACANT],
                *begin,
                *end(),
                *draw.choice((end(), (b"", b""))),
                b"0-1",
                b"5",
                b"a,b,c",
                b"%d" % draw.randint(0, 8),
                run_id(),
            ),
            "discard": ([*KEYS, COPY], *begin),
            "vacant": ([*KEYS, VACANT], *begin, draw.randbytes(8)),
            "raise": (KEYS, *begin, b"%d" % draw.randint(0, 8)),
            "lower": (KEYS, *begin, b"%d" % draw.randint(0, 8)),
            "note": (KEYS, *begin),
            "readmit": (
                KEYS,
                *begin,
                *draw.choice((end(), (b"", b""))),
                b"%d" % draw.randint(0, 8),
                draw.choice((b"r1", b"r2")),
            ),
            "renew": (lease, identity(), b"c", b"s%d" % run, b"%d" % run, b"%d" % counter, row(run, counter)),
            "bury": ([LEASES], b"c", b"s%d" % run, b"%d" % counter),
            "own": ([OWNERS, KEYS[3]], identity(), b"0", number, b'{"epoch": %s}' % number),
        }
        name = draw.choice(list(steps))
        keys, *arguments = steps[name]
        if name not in ("renew", "bury", "own"):
            arguments.append(run_id())
        both.script(name, list(keys), *arguments)
    both.compare()
