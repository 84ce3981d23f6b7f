"""A cluster whose processes run this version or the one before, each for itself."""

import asyncio
import compileall
import fcntl
import functools
import io
import json
import os
import subprocess
import sys
import tarfile
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from kit import forked
from kit.waiting import ended, killed, until
from muster_server.dev.ports import LOOPBACK, free_ports
from muster_server.dev.redis_nodes import RedisNodes
from muster_server.dev.role_process import RoleProcess
from muster_server.initialise import initialise_log
from muster_server.roles import COORDINATOR, DISCOVERY, METADATA

ROOT = Path(__file__).parents[3]
MEMBERS = ROOT / "tests" / "kit" / "started" / "steady_members.py"

PREVIOUS = "75629b8dda1a33cc47614132a1ee1934a9ba53fa"
"""The version before this one: the tag of the last release; until there is one, a commit."""

_SOURCES = ("protos/src", "clients/python", *(f"services/{part}" for part in (
    "core", "runtime", "discovery", "coordinator", "metadata", "server"
)))  # fmt: skip

_IMPORTED = (
    "muster_coordinator.coordinator",
    "muster_discovery.role",
    "muster_metadata.metadata",
    "muster_server.cli",
)
"""Modules of the version before that its servers import."""

_DISTRIBUTIONS = {"muster-server": "services", "muster-client": "clients/python"}
"""What tells its version, by where it is made: beside the sources it takes the place of what is installed."""


@functools.cache
def history_problem() -> str:
    """Why the version before cannot be had; empty: it can."""
    try:
        found = subprocess.run(
            ["git", "cat-file", "-e", f"{PREVIOUS}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
        )
    except FileNotFoundError:
        return "needs git"
    return "" if found.returncode == 0 else f"needs the history of the repository with {PREVIOUS}"


@functools.cache
def unpack_previous() -> str:
    """Has the sources of the version before unpacked, and compiled; gives the PYTHONPATH that runs them.

    They stay, for other processes and runs: each server would else compile them for itself.
    """
    folder = ROOT / "build" / "previous" / PREVIOUS
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / "whole"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            _unpack(folder)
            whole.touch()
    path = os.pathsep.join(str(folder / source) for source in _SOURCES)
    forked.prepare_version(path, _IMPORTED)
    return path


def _unpack(folder: Path) -> None:
    packed = subprocess.run(
        ["git", "archive", "--format=tar", PREVIOUS, "--", "protos", "clients", "services"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    for name, project in _DISTRIBUTIONS.items():
        stated = tomllib.loads((folder / project / "pyproject.toml").read_text("utf-8"))["project"]["version"]
        told = folder / _SOURCES[0] / f"{name.replace('-', '_')}-{stated}.dist-info"
        told.mkdir(exist_ok=True)
        (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {stated}\n")
    for source in _SOURCES:
        compileall.compile_dir(folder / source, quiet=1)


class Slot:
    """One process of the cluster, which may be of either version.

    Args:
        name: of the process.
        role: of the process.
        port: where it listens, whatever its version.
        folder: for its log.
        settings: its variables.
        previous: the PYTHONPATH of the version before.
        new: further variables of this version, which the one before does not know.
    """

    def __init__(
        self,
        name: str,
        role: str,
        port: int,
        folder: Path,
        settings: Mapping[str, str],
        previous: str,
        new: Mapping[str, str],
    ) -> None:
        self.name = name
        self.role = role
        self.address = f"{LOOPBACK}:{port}"
        self._new = RoleProcess(name, role, port, folder / "new", {**settings, **new})
        self._old = RoleProcess(name, role, port, folder / "old", {**settings, "PYTHONPATH": previous})
        self._running: RoleProcess | None = None

    async def run(self, *, new: bool) -> None:
        """Ends it in good order if it runs, and starts it in a version."""
        await self.spawn(new=new)
        assert self._running is not None
        await self._running.ready()

    async def spawn(self, *, new: bool) -> None:
        """The same, without waiting until it serves."""
        await self.stop()
        self._running = self._new if new else self._old
        self._running.spawn()

    @property
    def ready(self) -> bool:
        """Whether it serves, or did."""
        return self._running is not None and self._running.is_ready

    @property
    def log(self) -> str:
        """What the running version has logged."""
        assert self._running is not None
        return self._running.process.log.read_text("utf-8")

    async def kill(self) -> None:
        """Ends it at once."""
        if self._running is not None:
            await self._running.kill()
            self._running = None

    async def stop(self) -> None:
        """Ends it in good order."""
        if self._running is not None:
            assert await self._running.terminate() == 0, self._running.process.tail()
            self._running = None


class TwoVersions:
    """Three Redis nodes, and two processes of each role; an async context manager.

    All processes start as the version before.

    Args:
        folder: data and logs.
        settings: further variables for every process.
        of_coordinators: further variables for coordinators of this version alone.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, str], of_coordinators: Mapping[str, str] | None = None
    ) -> None:
        self.previous = unpack_previous()
        self.nodes = RedisNodes(folder, 3)
        ports = iter(free_ports(8))
        metadata_ports = [next(ports), next(ports)]
        metadata = ",".join(f"{LOOPBACK}:{port}" for port in metadata_ports)

        def slot(role: str, number: int, port: int, **own: str) -> Slot:
            own |= {"LISTEN": f"{LOOPBACK}:{port}"}
            variables = {f"MUSTER_{role.upper()}_{key}": value for key, value in own.items()}
            name = f"{role}-{number}"
            # Coordinators of this version have a port for internal calls, of which the others know nothing.
            new = (
                {"MUSTER_COORDINATOR_INTERNAL_LISTEN": f"{LOOPBACK}:{next(ports)}", **(of_coordinators or {})}
                if role == COORDINATOR
                else {}
            )
            return Slot(name, role, port, folder / "logs", {**settings, **variables}, self.previous, new)

        self.metadata = [
            slot(METADATA, number, port, REDIS_URL=self.nodes.url)
            for number, port in enumerate(metadata_ports, 1)
        ]
        self.coordinators = [
            slot(COORDINATOR, number, next(ports), METADATA=metadata, NODE_ID=f"coordinator-{number}")
            for number in (1, 2)
        ]
        self.discovery = [slot(DISCOVERY, number, next(ports), METADATA=metadata) for number in (1, 2)]

    @property
    def slots(self) -> list[Slot]:
        """All of them in the order of an upgrade."""
        return [*self.metadata, *self.coordinators, *self.discovery]

    @property
    def servers(self) -> str:
        """Discovery addresses for clients."""
        return ",".join(slot.address for slot in self.discovery)

    async def __aenter__(self) -> Self:
        await self.nodes.start()
        await initialise_log(self.nodes.url, 10, features=())
        await asyncio.gather(*(slot.run(new=False) for slot in self.slots))
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for slot in reversed(self.slots):
            await slot.stop()
        await self.nodes.stop()


class SteadyMembers:
    """A process with members of one group that commit all the time; an async context manager.

    Args:
        servers: discovery addresses.
        group: of the members; its topic has the same name.
        previous: PYTHONPATH of the version before, if the client is of that version.
        first: number of the first member.
        count: how many.

    Attributes:
        commits: how often each member was told that its commit is stored.
        generations: the last one of each member.
        rebalances: how often a member came into another generation after its first.
    """

    def __init__(self, servers: str, group: str, previous: str, first: int, count: int) -> None:
        self._arguments = (servers, group, str(first), str(count))
        self._numbers = range(first, first + count)
        self._environment = {**os.environ, "PYTHONPATH": previous}
        self.commits: dict[int, int] = defaultdict(int)
        self.generations: dict[int, int] = {}
        self.rebalances = 0

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(MEMBERS),
            *self._arguments,
            env=self._environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await ended(self._process, 120)
        finally:
            await killed(self._process)
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            event = json.loads(line)
            member = event["member"]
            if event["event"] == "committed":
                self.commits[member] += 1
            elif self.generations.get(member) != event["generation"]:
                self.rebalances += member in self.generations
                self.generations[member] = event["generation"]

    async def go_on(self) -> None:
        """Waits until every member has committed five times more."""
        before = {number: self.commits[number] for number in self._numbers}
        await until(
            lambda: all(self.commits[number] >= count + 5 for number, count in before.items()),
            "every member commits five times more",
            60,
        )
