"""A simulated node of the log: a Redis server with its connections, its disk and its failures."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from redis.exceptions import BusyLoadingError, NoScriptError, ResponseError
from simulation.network import End, Network, Place
from simulation.redis_scripts import Scripts
from simulation.redis_store import FREEING, OK, WRITES, Simple, Store
from simulation.world import EPOCH_S, World

PORT = 6379
SYNC_S = 1.0
"""With `everysec`, what is younger may be lost with the machine."""

Effect = tuple[float, list[tuple[bytes, list[bytes]]]]
Written = Callable[["RedisNode", bytes, Sequence[bytes]], None]


class RedisNode:
    """A server on a machine of its own. Alive and not stopped it serves one command after the other.

    Args:
        world: time.
        network: where it listens.
        index: its number, from 1.
        scripts: runs Lua.
        written: told of every change before it is made.

    Attributes:
        refusing: what every write is answered with: MISCONF or OOM, or empty.
        loading_until_s: until then it reads its data and answers LOADING.
        delay_s: what it takes longer for each batch of commands.
    """

    def __init__(
        self, world: World, network: Network, index: int, scripts: Scripts, written: Written
    ) -> None:
        self.world = world
        self.network = network
        self.index = index
        self.name = f"redis-{index}"
        self.place = Place(f"10.0.1.{index}", self)
        self.store = Store()
        self.alive = True
        self.stopped = False
        self.refusing = ""
        self.loading_until_s = 0.0
        self.delay_s = 0.0
        self._starts = 1
        self._scripts = scripts
        self._loaded: set[bytes] = set()
        self._written = written
        self._file: list[Effect] = []
        self._effects: list[tuple[bytes, list[bytes]]] = []
        self._waiting: collections.deque[tuple[float, _Client, bytes]] = collections.deque()
        self._busy_until_s = 0.0
        network.listen(self.place, PORT, lambda end: _Client(self, end))

    # --- failures

    def stop(self) -> None:
        """SIGSTOP: it takes what is sent, and does nothing with it."""
        self.stopped = True

    def resume(self) -> None:
        """SIGCONT."""
        self.stopped = False
        self._work()

    def kill(self) -> None:
        """SIGKILL; the file has everything that was written."""
        self.alive = False
        self.stopped = False
        self._waiting.clear()
        self._loaded.clear()
        self.network.gone(self.place)

    def start(self, loading_s: float = 0.0) -> None:
        """Starts it again from its file."""
        self.alive = True
        self._starts += 1
        self.loading_until_s = self.world.now_s + loading_s
        self.network.listen(self.place, PORT, lambda end: _Client(self, end))

    def lose_power(self) -> None:
        """Like `kill`, and what the file had not synced is gone."""
        self.kill()
        self._file = self._synced()
        self.store = _played(self._file)

    @property
    def run_id(self) -> bytes:
        """Of the process that it is now."""
        return b"%020d%020d" % (self.index, self._starts)

    @property
    def votes(self) -> bool:
        """Whether it votes on every log: what it may have forgotten decides nothing any more."""
        return all(
            not isinstance(value, dict) or value.get(b"run", self.run_id) == self.run_id
            for key, value in self.store.keys.items()
            if key.endswith(b":promise")
        )

    def _synced(self) -> list[Effect]:
        synced_s = self.world.now_s - SYNC_S
        return [effect for effect in self._file if effect[0] <= synced_s]

    def lose_disk(self) -> None:
        """Like `kill`, with an empty disk afterwards."""
        self.kill()
        self._file.clear()
        self.store = Store()

    # --- serving

    def take(self, client: "_Client", data: bytes) -> None:
        """Bytes of a client; everybody's are served in the order in which they came."""
        if not self.alive:
            return
        if not (self.stopped or self.delay_s or self._waiting):
            self._serve(client, data)
            return
        self._busy_until_s = max(self.world.now_s, self._busy_until_s) + self.delay_s
        self._waiting.append((self._busy_until_s, client, data))
        self.world.at(self._busy_until_s, self._work)

    def _work(self) -> None:
        while self._waiting and not self.stopped and self._waiting[0][0] <= self.world.now_s:
            _, client, data = self._waiting.popleft()
            self._serve(client, data)

    def _serve(self, client: "_Client", data: bytes) -> None:
        if client.over:
            return
        client.reader.feed(data)
        answers = []
        while (command := client.reader.gets()) is not False:
            answers.append(encoded(self.run(command)))
        if answers:
            answer = b"".join(answers)
            client.end.send(answer, len(answer))

    def run(self, command: Sequence[bytes]) -> Any:
        """Carries a command out; an error is a value."""
        name, *arguments = command
        try:
            if self.world.now_s < self.loading_until_s:
                return BusyLoadingError("Redis is loading the dataset in memory")
            return self._run(name.upper(), arguments)
        except ResponseError as error:
            return error
        finally:
            if self._effects:
                self._file.append((self.world.now_s, self._effects))
                self._effects = []

    def _run(self, name: bytes, arguments: list[bytes]) -> Any:
        if name == b"EVALSHA":
            if arguments[0] not in self._loaded:
                raise NoScriptError("No matching script. Please use EVAL.")
            count = int(arguments[1])
            if self.refusing == "OOM":
                raise ResponseError("OOM command not allowed when used memory > 'maxmemory'.")
            return self._scripts.run(arguments[0], arguments[2 : 2 + count], arguments[2 + count :], self._do)
        if name == b"SCRIPT":
            sha = self._scripts.load(arguments[1])
            self._loaded.add(sha)
            return sha
        if name == b"SELECT":
            return OK
        if name == b"INFO":
            return self.store.info(*arguments) + b"run_id:%b\r\n" % self.run_id
        if name == b"TIME":
            seconds = EPOCH_S + self.world.now_s
            return [str(int(seconds)).encode(), str(int(seconds % 1 * 1e6)).encode()]
        return self._do(name, arguments)

    def _do(self, name: bytes, arguments: Sequence[bytes]) -> Any:
        name = name.upper()
        if name == b"INFO":
            return self.store.info(*arguments)
        if name in WRITES:
            if self.refusing == "OOM" and name not in FREEING:
                raise ResponseError("OOM command not allowed when used memory > 'maxmemory'.")
            if self.refusing == "MISCONF":
                raise ResponseError("MISCONF Errors writing to the AOF file: No space left on device")
            self._written(self, name, arguments)
            answer = self.store.run(name, arguments)
            self._effects.append((name, list(arguments)))
            return answer
        return self.store.run(name, arguments)


def _played(effects: Sequence[Effect]) -> Store:
    store = Store()
    for _, commands in effects:
        for name, arguments in commands:
            store.run(name, arguments)
    return store


class _Client:
    """A connection of a client."""

    def __init__(self, node: RedisNode, end: End) -> None:
        self.node = node
        self.end = end
        self.over = False
        self.reader = hiredis.Reader()

    def received(self, data: Any) -> None:
        self.node.take(self, data)

    def lost(self, _reason: str) -> None:
        # What arrived before is still carried out, as by a server that reads it before it sees the end.
        pass


def encoded(value: Any) -> bytes:
    """A value as Redis sends it."""
    if isinstance(value, Simple):
        return b"+%b\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if isinstance(value, int):
        return b":%d\r\n" % value
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, list):
        return b"*%d\r\n%b" % (len(value), b"".join(map(encoded, value)))
    text = str(value)
    if isinstance(value, NoScriptError):
        text = f"NOSCRIPT {text}"
    elif isinstance(value, BusyLoadingError):
        text = f"LOADING {text}"
    elif not text.split(" ", 1)[0].isupper():
        text = f"ERR {text}"
    return b"-%b\r\n" % text.replace("\r\n", " ").encode()
