"""One pipelined connection to a node: the commands of one turn of the event loop go out in one write."""

import asyncio
import collections
import contextlib
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import structlog
from hiredis import pack_command
from redis.asyncio.connection import Connection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from muster_metadata.nodes.addresses import TLS_FILES
from muster_metadata.nodes.problem import NOT_REACHED_YET, SILENT, UNREACHABLE, Problem, ProblemKind
from muster_metadata.nodes.reply import DOWN, LOST, NodeReply, failure
from muster_metadata.nodes.scripts import SCRIPTS

try:
    from redis.driver_info import DriverInfo
except ImportError:  # redis-py below 7 has its version in another way
    _LIBRARY: dict[str, Any] = {}
else:
    _LIBRARY = {"driver_info": DriverInfo()}
"""What a connection says of the library, once for all of them: its version is read from a file."""

log = structlog.get_logger()

SYNCED = {"appendonly": b"yes", "appendfsync": b"always", "no-appendfsync-on-rewrite": b"no"}
"""Settings with which a server loses nothing that it has acknowledged."""

_WRITTEN = {"aof_enabled": "1", "aof_rewrite_in_progress": "0", "aof_rewrite_scheduled": "0"}
"""What such a server says of its append-only file when all that it has is in it. Where `appendonly` was just
switched on that is so only when the file is written for the first time; until then a crash takes all."""

Decoder = Callable[[Any], NodeReply]
_Waiting = tuple[float, asyncio.Future[NodeReply], Decoder]

_SLICE_BYTES = 256 << 10
"""What is longer is written in slices: the transport copies what the socket does not take at once."""

_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0
_CONNECT_S = 1.0
_TLS_CONNECT_S = 5.0

_TOO_SLOW = NodeReply(DOWN.status, problem=Problem(ProblemKind.SLOW, "it is too slow"))
_UNFORESEEN = Problem(ProblemKind.UNFORESEEN, "something unforeseen broke the connection")


class Packed(NamedTuple):
    """Arguments of commands as they are sent, which may have megabytes: packed once for several nodes.

    Attributes:
        number: how many they are.
        sent: their bytes.
    """

    number: int
    sent: bytes

    @classmethod
    def of(cls, arguments: Sequence[bytes | str | int]) -> Self:
        """Packs arguments."""
        whole = _pack(arguments)
        return cls(len(arguments), whole[whole.index(b"\r\n") + 2 :])


Argument: TypeAlias = bytes | str | int | Packed


class NodeConnection:
    """A pipelined connection that reconnects by itself.

    Commands are answered in order. If the oldest command has no answer within the time-out, the connection
    is given up: all outstanding commands are answered LOST, and it reconnects in the background. Without a
    connection commands are answered DOWN at once, so that a dead node never delays the others.

    Args:
        url: address of the node.
        reply_timeout_ms: how long the oldest command may wait for its answer.
        max_outstanding_bytes: commands beyond this are answered DOWN until answers come.
        on_connect: called after each successful connect.

    Attributes:
        on_reply: if set, called with how long each command waited for its answer, in seconds.
        losses: connections that broke or were given up.
        problem: why there is no connection; None: there is one.
        run_id: of the server's process at the other end of the connection; empty: unknown.
        started_s: when that process was started, Unix time.
        synced: whether it syncs each write.
        logs_writes: whether it writes an append-only file at all, as far as it says.
    """

    def __init__(
        self,
        url: str,
        reply_timeout_ms: int,
        max_outstanding_bytes: int = 64 << 20,
        on_connect: Callable[[], None] | None = None,
    ) -> None:
        self._arguments: dict[str, Any] = dict(parse_url(url))
        self._class = self._arguments.pop("connection_class", Connection)
        self._reply_timeout_s = reply_timeout_ms / 1000
        self._connect_timeout_s = self._patience_s()
        self._max_outstanding_bytes = max_outstanding_bytes
        self._on_connect = on_connect
        self.on_reply: Callable[[float], None] | None = None
        self.losses = 0
        self.run_id = ""
        self.started_s = 0
        self.synced = False
        self.logs_writes = True
        self._connection: Connection | SSLConnection | None = None
        self._outbox: list[bytes] = []
        self._wake = asyncio.Event()
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._outstanding_bytes = 0
        self._sizes: collections.deque[int] = collections.deque()
        self._runner: asyncio.Task[None] | None = None
        self._made: tuple[list[int], Any] | None = None
        self.problem: Problem | None = NOT_REACHED_YET

    def _patience_s(self) -> float:
        """How long a connect may take: longer with TLS. No command waits for it."""
        return _TLS_CONNECT_S if self._class is SSLConnection else min(_CONNECT_S, self._reply_timeout_s)

    @property
    def run(self) -> str:
        """The run of the server, as it is stored with its promises."""
        return f"{self.run_id}/always" if self.run_id and self.synced else self.run_id

    @property
    def unanswered(self) -> int:
        """How many commands wait for their answer."""
        return len(self._waiting)

    @property
    def connected(self) -> bool:
        """Whether commands are sent now."""
        return self._connection is not None

    def start(self) -> None:
        """Starts to connect in the background."""
        self._runner = asyncio.create_task(self._run(), name="redis-connection")

    async def stop(self) -> None:
        """Closes the connection; outstanding commands are answered LOST."""
        if self._runner is not None:
            self._runner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._runner
            self._runner = None

    async def move(self, url: str) -> None:
        """Connects to another server instead; outstanding commands are answered LOST."""
        await self.stop()
        self._arguments = dict(parse_url(url))
        self._class = self._arguments.pop("connection_class", Connection)
        self._connect_timeout_s = self._patience_s()
        self._made = None
        self.problem = NOT_REACHED_YET
        self.start()

    def send(self, decode: Decoder, *command: Argument) -> "asyncio.Future[NodeReply]":
        """Sends a command together with the others of this loop turn. The future never fails."""
        future: asyncio.Future[NodeReply] = asyncio.get_running_loop().create_future()
        if self._connection is None or self._outstanding_bytes > self._max_outstanding_bytes:
            future.set_result(DOWN if self._connection is None else _TOO_SLOW)
            return future
        before = len(self._outbox)
        self._outbox += _pieces(command)
        size_bytes = sum([len(piece) for piece in self._outbox[before:]])
        self._waiting.append((time.monotonic(), future, decode))
        self._sizes.append(size_bytes)
        self._outstanding_bytes += size_bytes
        self._wake.set()
        return future

    async def _run(self) -> None:
        backoff_s = _BACKOFF_FIRST_S
        while True:
            connection: Any = None
            try:
                connection = self._connection_to_make()
                async with asyncio.timeout(self._connect_timeout_s):
                    await connection.connect()
                    await self._load_scripts(connection)
                backoff_s = _BACKOFF_FIRST_S
                self._connection, self.problem = connection, None
                if self._on_connect is not None:
                    self._on_connect()
                await self._carry(connection)
            except (RedisError, OSError, TimeoutError) as error:
                self.problem = _describe(error)
            except Exception:  # a task that ended would leave its node alone until the next start
                self.problem = _UNFORESEEN
                log.exception("node_connection_failed")
            finally:
                self.losses += self._connection is not None
                self._connection = None
                self._drop_outstanding()
                if connection is not None:
                    with contextlib.suppress(RedisError, OSError, TimeoutError):
                        await connection.disconnect(nowait=True)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)

    def _connection_to_make(self) -> Any:
        # One object serves all attempts until a certificate changes: creating one reads the authorities from
        # files, which would block the loop for milliseconds each time.
        stamp = _changed_ns(self._arguments)
        if self._made is None or self._made[0] != stamp:
            connection = self._class(
                **self._arguments,
                **_LIBRARY,
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=None,
                socket_connect_timeout=self._connect_timeout_s,
                health_check_interval=0,
            )
            self._made = (stamp, connection)
        return self._made[1]

    async def _carry(self, connection: Connection) -> None:
        """Reads, writes and watches the time until one of them fails."""
        tasks = [
            asyncio.create_task(step)
            for step in (self._write(connection), self._read(connection), self._watch())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _load_scripts(self, connection: Connection) -> None:
        commands = [_pack(("SCRIPT", "LOAD", script.source)) for script in SCRIPTS.values()]
        await connection.send_packed_command(commands, check_health=False)
        for _ in commands:
            await connection.read_response(disconnect_on_error=False)
        await self._hear_run(connection)

    async def _hear_run(self, connection: Connection) -> None:
        """Asks which run of the server this is: a later run may have forgotten what this one said."""
        settings = (("CONFIG", "GET", name) for name in SYNCED)
        questions = [("INFO", "server"), ("INFO", "persistence"), *settings]
        await connection.send_packed_command([_pack(question) for question in questions], check_health=False)
        answers: list[Any] = []
        for _ in questions:
            try:
                raw = await connection.read_response(disable_decoding=True, disconnect_on_error=False)
            except ResponseError:
                raw = None  # not allowed: what the server forgets then goes unnoticed
            answers.append(raw)
        about = fields(answers[0] or b"")
        self.run_id = about.get("run_id", "")
        self.started_s = int(time.time()) - int(about.get("uptime_in_seconds", "0"))
        wanted = [[name.encode(), value] for name, value in SYNCED.items()]
        self.synced = answers[2:] == wanted and all_written(answers[1] or b"")
        self.logs_writes = logs_writes(answers[1] or b"")

    async def _write(self, connection: Connection) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            pieces, self._outbox = self._outbox, []
            for slice_ in _slices(pieces):
                if not connection.is_connected:
                    raise OSError("the connection broke")  # else the rest of a command would go to a new one
                await connection.send_packed_command([slice_], check_health=False)

    async def _read(self, connection: Connection) -> None:
        while True:
            try:
                # No limit, since `socket_timeout` is None. With one, the kernel's time-out (ETIMEDOUT, of the
                # keepalive of an idle connection to a dead machine) would look like the answer nil.
                raw = await connection.read_response(disable_decoding=True, disconnect_on_error=False)
            except ResponseError as error:
                raw = error
            sent, future, decode = self._waiting.popleft()
            if self.on_reply is not None:
                self.on_reply(time.monotonic() - sent)
            self._outstanding_bytes -= self._sizes.popleft()
            reply = decode(raw)
            if not future.done():
                future.set_result(reply)
            if isinstance(raw, NoScriptError):
                raise OSError("scripts were flushed")

    async def _watch(self) -> None:
        while True:
            now = time.monotonic()
            wait_s = self._reply_timeout_s
            if self._waiting:
                wait_s = self._waiting[0][0] + self._reply_timeout_s - now
                if wait_s <= 0:
                    raise TimeoutError
            await asyncio.sleep(max(wait_s, 0.02))

    def _drop_outstanding(self) -> None:
        waiting, self._waiting = self._waiting, collections.deque()
        self._outbox.clear()
        self._sizes.clear()
        self._outstanding_bytes = 0
        self._wake.clear()
        for _, future, _ in waiting:
            if not future.done():
                future.set_result(LOST)


def fields(info: bytes) -> dict[str, str]:
    """The fields of an answer to INFO."""
    lines = info.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def all_written(persistence: bytes) -> bool:
    """Whether the append-only file of a server has everything, by its answer to INFO.

    A rewrite that replaces the file looks like the first one: the server then counts as one that may forget.
    """
    said = fields(persistence)
    return all(said.get(name) == value for name, value in _WRITTEN.items())


def logs_writes(persistence: bytes) -> bool:
    """Whether a server writes an append-only file, by its answer to INFO; yes if it does not say."""
    return fields(persistence).get("aof_enabled") != "0"


def _pack(command: Sequence[bytes | str | int]) -> bytes:
    packed: bytes = pack_command(tuple(command))  # type: ignore[arg-type]  # its stub wants one type of arguments
    return packed


def _pieces(command: Sequence[Argument]) -> list[bytes]:
    """A command as it is sent, in pieces: what is packed already is not copied."""
    if Packed not in map(type, command):
        return [_pack(command)]  # type: ignore[arg-type]  # as was just seen
    parts = [part if isinstance(part, Packed) else Packed.of([part]) for part in command]
    return [b"*%d\r\n" % sum([part.number for part in parts]), *(part.sent for part in parts)]


def _slices(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """What is written at a time: small pieces together, a large one in slices."""
    for is_large, some in groupby(pieces, lambda piece: len(piece) > _SLICE_BYTES):
        if not is_large:
            yield b"".join(some)
            continue
        for piece in some:
            yield from (piece[begin : begin + _SLICE_BYTES] for begin in range(0, len(piece), _SLICE_BYTES))


def _changed_ns(arguments: Mapping[str, Any]) -> list[int]:
    """When each certificate file was changed; 0 if it does not exist."""
    return [_file_changed_ns(Path(arguments[name])) for name in TLS_FILES if name in arguments]


def _file_changed_ns(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _describe(error: Exception) -> Problem | None:
    """Why the connect failed, without addresses."""
    if isinstance(error, ResponseError | BusyLoadingError):
        return failure(error).problem
    if isinstance(error, AuthenticationError):
        return Problem(ProblemKind.BAD_CREDENTIALS, "it refuses the credentials")
    if isinstance(error, TimeoutError | RedisTimeoutError):
        return SILENT
    return _describe_tls(error) or UNREACHABLE


def _describe_tls(error: BaseException) -> Problem | None:
    """The TLS problem behind an error; None: there is none."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            detail = f"its certificate is not accepted: {cause.verify_message}"
            return Problem(ProblemKind.BAD_CERTIFICATE, detail)
        if isinstance(cause, ssl.SSLError):
            reason = (cause.reason or "it speaks no TLS").lower().replace("_", " ")
            return Problem(ProblemKind.TLS_REFUSED, f"it refuses this TLS connection: {reason}")
        cause = cause.__cause__ or cause.__context__
    return None
