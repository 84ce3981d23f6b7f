"""A simulated cluster: nodes of the log, servers and workers, which start, die and come back."""

from collections.abc import Callable
from typing import Any

from muster import MemberSettings
from muster_metadata.operator.initialise import initialise
from simulation.network import Network
from simulation.owners import Owners
from simulation.processes import Process, Watch
from simulation.redis_node import RedisNode, Written
from simulation.redis_scripts import Scripts
from simulation.servers import (
    COORDINATORS,
    DISCOVERY,
    METADATA,
    NODES,
    SHARDS,
    URLS,
    CoordinatorRole,
    DiscoveryRole,
    MetadataRole,
    Role,
)
from simulation.worker import TOPIC, History, Worker
from simulation.world import World

GROUPS = ("orders", "mail", "index")

_ROLES: dict[str, tuple[Callable[..., Role], Any]] = {
    **{f"metadata-{n}": (MetadataRole, a) for n, a in enumerate(METADATA, 1)},
    **{f"discovery-{n}": (DiscoveryRole, a) for n, a in enumerate(DISCOVERY, 1)},
    **{f"coordinator-{n}": (CoordinatorRole, a) for n, a in enumerate(COORDINATORS, 1)},
}
SERVERS = tuple(_ROLES)
"""Names of the servers."""

Unforeseen = Callable[[str, dict[str, Any]], None]


class Cluster:
    """All machines of a run.

    Args:
        world: time.
        written: told of every change at a node of the log.
        unforeseen: told of errors that nobody caught.
        watch: looks at the messages of all processes.
        owners: looks at what workers take for their own.
        skew: how much clocks may run fast or slow: 0.1 is 10 %.

    Attributes:
        servers: the running process of each server by name; absent: it is down.
        workers: every worker that was ever started and did not die.
    """

    def __init__(
        self,
        world: World,
        written: Written,
        unforeseen: Unforeseen,
        watch: Watch,
        owners: Owners,
        skew: float,
    ) -> None:
        self.world = world
        self.network = Network(world)
        scripts = Scripts()
        self.nodes = [
            RedisNode(world, self.network, index, scripts, written) for index in range(1, NODES + 1)
        ]
        self.history = History()
        self.servers: dict[str, Process] = {}
        self.roles: dict[str, Role] = {}
        self.ending: dict[str, Any] = {}
        self.workers: list[Worker] = []
        self.started: list[Process] = []
        self._unforeseen = unforeseen
        self._watch = watch
        self._skew = skew
        self._hosts = 0
        self._owners = owners

    def process(self, name: str, host: str) -> Process:
        """A new process on a machine whose clock runs as it likes."""
        rate = 1 + self.world.random.uniform(-self._skew, self._skew)
        process = Process(self.world, self.network, name, host, rate, self._unforeseen, self._watch)
        self.started.append(process)
        return process

    def initialise(self) -> None:
        """Makes the logs."""
        process = self.process("init", "10.0.9.1")
        made = process.run(initialise(URLS, SHARDS, "6c6a34a1-0000-4000-8000-000000000000"))
        self.world.run(self.world.now_s + 5)
        made.result()

    # --- servers

    def start(self, name: str) -> None:
        """Starts a server that is down."""
        if name in self.servers:
            return
        make, address = _ROLES[name]
        process = self.servers[name] = self.process(name, address.host)
        self.world.note("start", name)

        async def begin() -> None:
            role = self.roles[name] = make(process, address)
            await role.start()

        process.run(begin())

    def kill(self, name: str) -> None:
        """SIGKILL."""
        process = self.servers.pop(name, None)
        if process is not None:
            self.world.note("kill", name)
            self.roles.pop(name, None)
            process.kill()

    def end(self, name: str, then: Callable[[], None]) -> None:
        """SIGTERM; `then` runs when the process has ended."""
        process, role = self.servers.get(name), self.roles.get(name)
        if process is None or role is None:
            return
        self.world.note("end", name)

        async def finish() -> None:
            await role.end()
            self.world.after(0.001, gone)

        def gone() -> None:
            if self.servers.get(name) is process:
                self.kill(name)
                then()

        process.run(finish())

    # --- workers

    def hire(
        self,
        group_id: str,
        pace_s: tuple[float, float],
        settings: MemberSettings,
        topics: tuple[str, ...] = (TOPIC,),
    ) -> Worker:
        """Starts a worker."""
        self._hosts += 1
        number = self._hosts
        process = self.process(f"worker-{number}", f"10.1.{number // 250}.{number % 250 + 1}")
        worker = Worker(process, group_id, self.history, pace_s, settings, topics)
        self.workers.append(worker)
        self._owners.watch(worker)
        self.world.note("hire", process.name, group_id)
        worker.start()
        return worker

    def crash(self, worker: Worker) -> None:
        """SIGKILL of a worker."""
        self.world.note("crash", worker.process.name)
        self.workers.remove(worker)
        worker.process.kill()
