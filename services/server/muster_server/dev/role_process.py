"""Roles as child processes."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from muster_server.child_process import ChildProcess
from muster_server.dev.ports import LOOPBACK

READY_SECONDS = 30.0
METRICS_LISTEN = "MUSTER_TELEMETRY_PROMETHEUS_LISTEN"
"""Setting of the address for Prometheus, which only one process can use."""


class RoleProcess:
    """One `muster-server` process with one role on a fixed port of the loopback interface.

    Args:
        name: unique in the cluster; names its log and, for a coordinator, the node.
        role: `metadata`, `discovery` or `coordinator`.
        port: where it listens.
        folder: gets `<name>.log` and `<name>.ready`.
        environment: its settings; no other `MUSTER_` variable of this process reaches it.
        metrics_port: where it serves its metrics; 0: as `environment` says.
    """

    def __init__(
        self,
        name: str,
        role: str,
        port: int,
        folder: Path,
        environment: Mapping[str, str],
        metrics_port: int = 0,
    ) -> None:
        self.name = name
        self.role = role
        self.port = port
        self.metrics_port = metrics_port
        metrics = {METRICS_LISTEN: f"{LOOPBACK}:{metrics_port}"} if metrics_port else {}
        self._ready_file = folder / f"{name}.ready"
        self.process = ChildProcess(
            name,
            [
                sys.executable,
                "-m",
                "muster_server",
                "--roles",
                role,
                "--ready-file",
                str(self._ready_file),
            ],
            folder / f"{name}.log",
            environment={**environment, **metrics},
            removed=("MUSTER_",),
        )

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{LOOPBACK}:{self.port}"

    def spawn(self) -> None:
        """Starts the process without waiting for it."""
        self._ready_file.parent.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        self.process.start()

    async def ready(self) -> None:
        """Waits until it serves.

        Raises:
            ChildError: it ended, or did not serve in time.
        """
        await self.process.wait_until(lambda: self.is_ready, READY_SECONDS)

    @property
    def is_ready(self) -> bool:
        """Whether it serves, or did since it was started."""
        return self._ready_file.exists() and self.role in json.loads(self._ready_file.read_text())

    async def start(self) -> None:
        """Starts the process and waits until it serves."""
        self.spawn()
        await self.ready()

    async def kill(self) -> None:
        """Kills it with SIGKILL."""
        await self.process.kill()

    async def terminate(self) -> int:
        """Stops it with SIGTERM, on which it hands over; returns its exit code."""
        return await self.process.terminate()

    def pause(self) -> None:
        """Stops it with SIGSTOP."""
        self.process.pause()

    def resume(self) -> None:
        """Resumes it with SIGCONT."""
        self.process.resume()


async def start_all(processes: list[RoleProcess]) -> None:
    """Starts several at once; if one fails, all are killed.

    Raises:
        ChildError: one did not come up.
    """
    try:
        for process in processes:
            process.spawn()
        await asyncio.gather(*(process.ready() for process in processes))
    except BaseException:
        await asyncio.gather(*(process.kill() for process in processes))
        raise
