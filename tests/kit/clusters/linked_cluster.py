"""A cluster of real processes in which every link that a fault may hit can be cut."""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kit.links import Links
from kit.waiting import until
from muster_server.child_process import ChildProcess
from muster_server.dev.ports import LOOPBACK, free_ports
from muster_server.dev.redis_nodes import RedisNode, RedisNodes
from muster_server.dev.role_process import RoleProcess, start_all
from muster_server.initialise import initialise_log
from muster_server.roles import COORDINATOR, DISCOVERY, METADATA

INSIDE = Path(__file__).resolve().parent / "inside"


def inside(**changes: str) -> dict[str, str]:
    """Environment of a process in which `inside/sitecustomize.py`, which lists the changes, is loaded."""
    paths = [str(INSIDE), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), **changes}


def link_name(source: str, target: str) -> str:
    """What the link between two processes is called, e.g. `metadata-1 redis-2`."""
    return f"{source} {target}"


class LinkedCluster:
    """Redis nodes, metadata, discovery and coordinators; an async context manager.

    Metadata reaches each Redis node, and everybody reaches metadata, over a link of its own. Clients reach
    discovery and coordinators directly, and so do coordinators each other and a metadata that looks whether
    somebody listens there.

    Args:
        folder: data and logs.
        redis_nodes: 1, 3 or 5.
        metadata: how many.
        discovery: how many.
        coordinators: how many.
        fsync: of the Redis nodes.
        settings: further variables for every process.
        shard_count: of the cluster.
    """

    def __init__(
        self,
        folder: Path,
        *,
        redis_nodes: int = 3,
        metadata: int = 2,
        discovery: int = 2,
        coordinators: int = 3,
        fsync: str = "everysec",
        settings: Mapping[str, str] | None = None,
        shard_count: int = 50,
    ) -> None:
        self.folder = folder
        self.shard_count = shard_count
        self.nodes = RedisNodes(folder, redis_nodes, fsync)
        self.links = Links()
        self._counts = {METADATA: metadata, DISCOVERY: discovery, COORDINATOR: coordinators}
        self._settings = dict(settings or {})
        self._instances: dict[str, str] = {}
        self.metadata: list[RoleProcess] = []
        self.discovery: list[RoleProcess] = []
        self.coordinators: list[RoleProcess] = []

    @property
    def servers(self) -> str:
        """Discovery addresses for clients."""
        return ",".join(process.address for process in self.discovery)

    @property
    def redis_url(self) -> str:
        """The nodes of the log, without links."""
        return self.nodes.url

    @property
    def roles(self) -> Sequence[RoleProcess]:
        """All processes but the Redis nodes, in the order of their start."""
        return [*self.metadata, *self.discovery, *self.coordinators]

    @property
    def children(self) -> dict[str, ChildProcess]:
        """Every process by its name."""
        return {
            child.name: child
            for child in (
                *(node.process for node in self.nodes),
                *(process.process for process in self.roles),
            )
        }

    def role(self, name: str) -> RoleProcess:
        """The process of that name."""
        return next(process for process in self.roles if process.name == name)

    def node(self, index: int) -> RedisNode:
        """A Redis node by its number, from 1."""
        return self.nodes[index - 1]

    async def start(self) -> None:
        """Starts everything and waits until it serves."""
        await self.links.__aenter__()
        await self.nodes.start()
        await initialise_log(self.redis_url, self.shard_count)
        ports = iter(free_ports(sum(self._counts.values())))
        names = {
            role: [f"{role}-{index + 1}" for index in range(count)] for role, count in self._counts.items()
        }
        port = {name: next(ports) for some in names.values() for name in some}
        for name in names[METADATA]:
            # All instances name a node by the same address, as the log's configuration wants it.
            routes = [
                f"{LOOPBACK}:{node.port}={await self.links.add(link_name(name, f'redis-{index}'), node.port)}"
                for index, node in enumerate(self.nodes, 1)
            ]
            self.metadata.append(
                self._process(METADATA, name, port[name], ",".join(routes), REDIS_URL=self.redis_url)
            )
        for role, processes in ((DISCOVERY, self.discovery), (COORDINATOR, self.coordinators)):
            for name in names[role]:
                hosts = []
                for instance in names[METADATA]:
                    host = f"{LOOPBACK}:{await self.links.add(link_name(name, instance), port[instance])}"
                    self._instances[host] = instance
                    hosts.append(host)
                own = {"NODE_ID": name} if role == COORDINATOR else {}
                processes.append(self._process(role, name, port[name], "", METADATA=",".join(hosts), **own))
        await start_all(list(self.roles))

    def _process(self, role: str, name: str, port: int, routes: str, **own: str) -> RoleProcess:
        prefix = f"MUSTER_{role.upper()}_"
        settings = {prefix + key: value for key, value in own.items()}
        settings[f"{prefix}LISTEN"] = f"{LOOPBACK}:{port}"
        settings |= inside(LINKED_ROUTES=routes)
        return RoleProcess(name, role, port, self.folder / "logs", {**self._settings, **settings})

    async def watch(self, instance: str, watchers: Sequence[str]) -> None:
        """Brings processes to watch that metadata instance, and the others no more.

        Args:
            instance: name of a metadata instance.
            watchers: names of discovery instances and coordinators.
        """
        others = [process.name for process in self.metadata if process.name != instance]
        cuts = [link_name(watcher, other) for watcher in watchers for other in others]
        await asyncio.gather(*(self.links.hold(cut) for cut in cuts))
        try:
            await until(
                lambda: all(self._watched(watcher) == instance for watcher in watchers),
                f"{', '.join(watchers)} watch {instance}",
            )
        finally:
            await asyncio.gather(*(self.links.release(cut) for cut in cuts))

    def _watched(self, watcher: str) -> str:
        """The metadata instance that a process said last that it watches; empty while it watches none."""
        path = self.folder / "logs" / f"{watcher}.log"
        said = [line for line in path.read_text().splitlines() if '"metadata_watch_' in line]
        last = json.loads(said[-1]) if said else {}
        if last.get("event") != "metadata_watch_began":
            return ""
        return self._instances[last["address"]]

    async def stop(self) -> None:
        """Stops everything; nothing is left running."""
        for layer in (self.coordinators, self.discovery, self.metadata):
            await asyncio.gather(*(process.terminate() for process in layer))
        await self.nodes.stop()
        await self.links.__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()
