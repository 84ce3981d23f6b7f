"""Makes things go wrong, never more at once than the log promises to survive."""

from collections.abc import Callable
from functools import partial
from itertools import product

from simulation.cluster import GROUPS, SERVERS, Cluster
from simulation.deployments import Deployments
from simulation.ledger import Ledger
from simulation.redis_node import RedisNode
from simulation.redis_store import Store, Stream
from simulation.topic_changes import Operator
from simulation.worker import (
    AUTO,
    CLASSIC,
    INCREMENTAL,
    SIDE_TOPIC,
    TOPIC,
    Protocol,
    Worker,
    settings_for,
)

COORDINATORS = tuple(name for name in SERVERS if name.startswith("coordinator"))
METADATA = tuple(name for name in SERVERS if name.startswith("metadata"))
DISCOVERY = tuple(name for name in SERVERS if name.startswith("discovery"))

MEMBERS = 6
"""Members that a group should have."""


class Nemesis:
    """Draws a set of faults for the run and injects them one after the other.

    Args:
        cluster: what suffers.
        ledger: tells which data may be lost.
        pace_s: of the workers that it hires.
        changing: whether every group changes its kind, and most faults make it; else seeds draw that.

    Attributes:
        faults: names of the faults of this run.
        injected: how often each happened.
        kinds: of each group; `AUTO`: it changes.
    """

    def __init__(
        self, cluster: Cluster, ledger: Ledger, pace_s: tuple[float, float], *, changing: bool
    ) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._random = cluster.world.random
        self._ledger = ledger
        self._pace_s = pace_s
        self._until_s = 0.0
        self._hurt: RedisNode | None = None
        self.injected: dict[str, int] = {}
        # Swarm testing: what never happens in a run lets the rest go further.
        names = [name for name in _FAULTS if self._random.random() < 0.5]
        self.faults = names or [self._random.choice(list(_FAULTS))]
        if changing:
            self.faults += len(names) // 4 * _CHANGES
        self.unary = self._random.random() < 0.25
        self.static = self._random.random() < 0.4
        self._statics = 0
        self._topics = (TOPIC, SIDE_TOPIC) if "change_topic" in self.faults else (TOPIC,)
        self._operator = Operator(cluster) if "change_topic" in self.faults else None
        kinds = (AUTO,) if changing else (CLASSIC, INCREMENTAL, AUTO)
        self.kinds = {group_id: self._random.choice(kinds) for group_id in GROUPS}
        self._deployments = Deployments(cluster, self.kinds, self._hire, self._later)

    def start(self, until_s: float) -> None:
        """Begins; nothing new is begun after a time, and everything is well again soon after."""
        self._until_s = until_s
        self._next()

    def _next(self) -> None:
        self._world.after(self._random.expovariate(1 / 6.0), self._inject)

    def _inject(self) -> None:
        if self._world.now_s >= self._until_s:
            return
        for group_id in self._deployments.take_refused():
            self._later(3.0, partial(self.hire, group_id), 0.5)
        name = self._random.choice(self.faults)
        if _FAULTS[name](self):
            self.injected[name] = self.injected.get(name, 0) + 1
        self._next()

    def _later(self, longest_s: float, do: Callable[[], object], shortest_s: float = 0.05) -> None:
        """Undoes something after a while, at the end of the faults at the latest."""
        when_s = self._world.now_s + self._random.uniform(shortest_s, longest_s)
        self._world.at(min(when_s, self._until_s + self._random.uniform(0, 1)), do)

    def hire(self, group_id: str) -> Worker:
        """A new worker of this run's kinds."""
        return self._hire(group_id, self._deployments.next_kind(group_id), "")

    def _hire(self, group_id: str, protocol: Protocol, static: str) -> Worker:
        if not static and self.static and self._random.random() < 0.5:
            self._statics += 1
            static = f"seat-{self._statics}"
        settings = settings_for(
            self._random,
            unary=self.unary and self._random.random() < 0.5,
            static=static,
            protocol=protocol,
            assignors=self._deployments.assignors(group_id, protocol),
        )
        return self._cluster.hire(group_id, self._pace_s, settings, self._topics)

    # --- servers

    def _kill(self, names: tuple[str, ...]) -> bool:
        running = [name for name in names if name in self._cluster.servers]
        if not running:
            return False
        name = self._random.choice(running)
        self._cluster.kill(name)
        self._later(8.0, lambda: self._cluster.start(name))
        return True

    def kill_coordinator(self) -> bool:
        """SIGKILL, and a new run of it later."""
        return self._kill(COORDINATORS)

    def kill_metadata(self) -> bool:
        """SIGKILL of one of the two."""
        return self._kill(METADATA)

    def kill_discovery(self) -> bool:
        """SIGKILL of one of the two."""
        return self._kill(DISCOVERY)

    def end_coordinator(self) -> bool:
        """SIGTERM, and a new run of it later."""
        running = [name for name in COORDINATORS if name in self._cluster.roles]
        if not running:
            return False
        name = self._random.choice(running)
        self._cluster.end(name, lambda: self._later(3.0, lambda: self._cluster.start(name)))
        return True

    def _pause(self, names: tuple[str, ...], longest_s: float) -> bool:
        running = [
            name
            for name in names
            if name in self._cluster.servers and not self._cluster.servers[name].stopped
        ]
        if not running:
            return False
        name = self._random.choice(running)
        process = self._cluster.servers[name]
        self._world.note("stop", name)
        process.stop()
        self._later(longest_s, process.resume)
        return True

    def pause_shortly(self) -> bool:
        """SIGSTOP for less than a lease."""
        return self._pause(SERVERS, 1.2)

    def pause_long(self) -> bool:
        """SIGSTOP for more than a lease."""
        return self._pause(SERVERS, 12.0)

    def wrong_clock(self) -> bool:
        """The wall clock of a coordinator jumps, and is set right later; those of the log are right."""
        running = [name for name in COORDINATORS if name in self._cluster.servers]
        if not running:
            return False
        process = self._cluster.servers[self._random.choice(running)]
        error_s = self._random.choice((-1, 1)) * self._random.choice((20.0, 90.0, 3_600.0, 30 * 86_400.0))
        self._world.note("wrong clock", process.name, error_s)
        process.set_clock(error_s)
        self._later(20.0, partial(process.set_clock, None))
        return True

    def change_topic(self) -> bool:
        """A topic is created, enlarged or deleted while the groups work on it."""
        return self._operator is not None and self._operator.change()

    # --- groups that change their kind

    def deploy(self) -> bool:
        """Workers are replaced, one after the other, by some of another kind, and perhaps back."""
        return self._deployments.deploy()

    def empty_group(self) -> bool:
        """All workers of a group leave, and others come."""
        return self._deployments.empty()

    def visit(self) -> bool:
        """A worker comes that can be of one kind alone."""
        return self._deployments.visit()

    def convert_group(self) -> bool:
        """An administrator asks for a kind."""
        return self._deployments.convert()

    # --- nodes of the log

    def _node(self) -> RedisNode | None:
        """A node that may be hurt: only while the others are well."""
        if self._hurt is not None and not self._whole(self._hurt):
            return None
        self._hurt = self._random.choice(self._cluster.nodes)
        return self._hurt if all(map(self._whole, self._cluster.nodes)) else None

    def _whole(self, node: RedisNode) -> bool:
        """Whether it runs, has every log and votes on it."""
        if not node.alive or node.stopped or node.refusing or node.loading_until_s > self._world.now_s:
            return False
        if not node.votes:
            return False
        keys = {key for other in self._cluster.nodes for key in other.store.keys if key.endswith(b":log")}
        return all(key in node.store.keys for key in keys)

    def kill_node(self) -> bool:
        """SIGKILL of a node; its file has everything."""
        node = self._node()
        if node is None:
            return False
        self._world.note("kill", node.name)
        node.kill()
        self._later(10.0, lambda: node.start(self._random.uniform(0, 0.5)))
        return True

    def pause_node(self) -> bool:
        """SIGSTOP of a node."""
        node = self._node()
        if node is None:
            return False
        self._world.note("stop", node.name)
        node.stop()
        self._later(10.0, node.resume)
        return True

    def stop_majority(self) -> bool:
        """SIGSTOP of a majority of the nodes, for a session at most: nothing is lost, and nobody is sure."""
        if self._node() is None:
            return False
        stopped = self._random.sample(self._cluster.nodes, len(self._cluster.nodes) // 2 + 1)
        self._world.note("stop", *(node.name for node in stopped))
        for node in stopped:
            node.stop()

        def resume() -> None:
            for node in stopped:
                node.resume()

        self._later(10.0, resume)
        return True

    def slow_node(self) -> bool:
        """A node that takes its time."""
        node = self._random.choice(self._cluster.nodes)
        node.delay_s = self._random.choice((0.002, 0.02, 0.1))
        self._world.note("slow", node.name, node.delay_s)
        self._later(15.0, lambda: setattr(node, "delay_s", 0.0))
        return True

    def full_node(self) -> bool:
        """A node that refuses every write."""
        node = self._node()
        if node is None:
            return False
        node.refusing = self._random.choice(("MISCONF", "OOM"))
        self._world.note("full", node.name, node.refusing)
        self._later(8.0, lambda: setattr(node, "refusing", ""))
        return True

    def wipe_node(self) -> bool:
        """A node loses its disk; the others have everything that was acknowledged."""
        node = self._node()
        if node is None or not self._spare(node, Store()):
            return False
        self._world.note("wipe", node.name)
        node.lose_disk()
        self._later(6.0, node.start)
        return True

    def power_cut(self) -> bool:
        """A node with `everysec` loses its last second; no other one forgot anything."""
        node = self._node()
        if node is None:
            return False
        self._world.note("power cut", node.name)
        node.lose_power()
        self._later(6.0, lambda: node.start(self._random.uniform(0, 0.5)))
        return True

    def _spare(self, node: RedisNode, left: Store) -> bool:
        """Whether what a node would lose stands on every other one, entries and promises."""
        others = [other for other in self._cluster.nodes if other is not node]
        for key, value in node.store.keys.items():
            kept = left.keys.get(key)
            if key.endswith(b":log") and isinstance(value, Stream):
                had = kept.entries if isinstance(kept, Stream) else {}
                chain = self._ledger.chain(key)
                for id_, fields in value.entries.items():
                    if id_ in had and had[id_] == fields:
                        continue
                    if id_ not in chain and id_[0]:
                        return False
                    if not all(self._ledger.has(other.store, (key, id_, fields[5])) for other in others):
                        return False
            elif key.endswith(b":promise") and any(
                _promise(other.store.keys.get(key)) != _promise(value) for other in others
            ):
                return False
        return True

    # --- the network

    def cut(self) -> bool:
        """Two machines, or one and all others, cannot hear each other, one way or both."""
        network = self._cluster.network
        places = [process.place.host for process in self._cluster.servers.values()]
        places += [node.place.host for node in self._cluster.nodes]
        places += [worker.process.place.host for worker in self._cluster.workers]
        host = self._random.choice(places)
        others = [place for place in places if place != host]
        if self._random.random() < 0.6:
            others = [self._random.choice(others)]
        way = self._random.choice(("out", "in", "both"))
        pairs = [(host, other) for other in others] if way != "in" else []
        pairs += [(other, host) for other in others] if way != "out" else []
        self._world.note("cut", host, way, len(others))
        for source, target in pairs:
            network.cut(source, target)

        def heal() -> None:
            for source, target in pairs:
                network.heal(source, target)

        self._later(10.0, heal)
        return True

    def cut_metadata_from_log(self) -> bool:
        """An instance of metadata reaches no node of the log, and all others reach it."""
        running = [name for name in METADATA if name in self._cluster.servers]
        if not running:
            return False
        name = self._random.choice(running)
        host = self._cluster.servers[name].place.host
        nodes = [node.place.host for node in self._cluster.nodes]
        pairs = [pair for node in nodes for pair in ((host, node), (node, host))]
        self._world.note("cut from the log", name)
        for source, target in pairs:
            self._cluster.network.cut(source, target)

        def heal() -> None:
            for source, target in pairs:
                self._cluster.network.heal(source, target)

        self._later(12.0, heal)
        return True

    def reset(self) -> bool:
        """Some connections break."""
        standing = self._cluster.network.connections()
        for connection in self._random.sample(standing, min(len(standing), self._random.randint(1, 6))):
            self._cluster.network.reset(connection)
        return bool(standing)

    def stall(self) -> bool:
        """What is sent on some connections arrives very late."""
        standing = self._cluster.network.connections()
        for connection in self._random.sample(standing, min(len(standing), self._random.randint(1, 5))):
            end = self._random.choice(connection.ends)
            for_s = self._random.choice((0.3, 2.0, 8.0, 30.0))
            self._cluster.network.stall(end, min(for_s, self._until_s - self._world.now_s))
        return bool(standing)

    def slow_network(self) -> bool:
        """Every message takes longer, and they differ more."""
        network = self._cluster.network
        network.delay_s = self._random.choice(((0.000_5, 0.02), (0.01, 0.06)))
        self._world.note("slow network", network.delay_s)
        self._later(12.0, lambda: setattr(network, "delay_s", (0.000_2, 0.001)))
        return True

    def repeat(self) -> bool:
        """For a while unary calls are carried out twice, the second time much later."""
        self._cluster.network.repeat = 0.3
        self._later(15.0, lambda: setattr(self._cluster.network, "repeat", 0.0))
        self._cluster.network.repeat_until_s = self._until_s
        return True

    # --- workers

    def crash_worker(self) -> bool:
        """SIGKILL of a worker; another one comes."""
        worker = self._random.choice(self._cluster.workers)
        group_id, settings = worker.group_id, worker.settings
        self._cluster.crash(worker)
        if settings.get("group_instance_id"):
            self._later(9.0, partial(self._cluster.hire, group_id, self._pace_s, settings, self._topics))
        else:
            self._later(9.0, partial(self.hire, group_id))
        return True

    def leave_worker(self) -> bool:
        """A worker leaves in order; another one comes."""
        worker = self._random.choice(self._cluster.workers)
        worker.leave()
        self._cluster.workers.remove(worker)
        self._later(6.0, partial(self.hire, worker.group_id))
        return True

    def extra_worker(self) -> bool:
        """One more than there should be, for a while."""
        worker = self.hire(self._random.choice(GROUPS))

        def part() -> None:
            if worker in self._cluster.workers:
                worker.leave()
                self._cluster.workers.remove(worker)

        self._later(25.0, part, 3.0)
        return True

    def pause_worker(self) -> bool:
        """SIGSTOP of a worker."""
        worker = self._random.choice(self._cluster.workers)
        if worker.process.stopped:
            return False
        worker.process.stop()
        self._later(self._random.choice((2.0, 15.0)), worker.process.resume)
        return True

    def sleep_worker(self) -> bool:
        """The machine of a worker sleeps: its timers stand still meanwhile."""
        worker = self._random.choice(self._cluster.workers)
        if worker.process.stopped:
            return False
        self._world.note("sleep", worker.process.name)
        worker.process.sleep()
        self._later(self._random.choice((2.0, 15.0)), worker.process.resume)
        return True

    def rejoin_worker(self) -> bool:
        """A member asks for a new round."""
        worker = self._random.choice(self._cluster.workers)
        member = worker.member
        if member is None:
            return False
        worker.process.loop.post(member.rejoin, "the worker wishes it")
        return True

    # --- the end

    def heal(self) -> None:
        """Nothing is wrong any more: everything runs, and every group has its members."""
        cluster = self._cluster
        cluster.network.heal_all()
        cluster.network.delay_s = (0.000_2, 0.001)
        cluster.network.repeat = 0.0
        for node in cluster.nodes:
            node.delay_s, node.refusing = 0.0, ""
            node.resume()
            if not node.alive:
                node.start()
        for process in list(cluster.servers.values()) + [worker.process for worker in cluster.workers]:
            process.resume()
        for process in cluster.servers.values():
            if process.clock_was_set:
                process.set_clock(None)
        for name in SERVERS:
            if name not in cluster.servers:
                cluster.start(name)
        self._deployments.settle()
        self.replace_failed()

    def replace_failed(self) -> None:
        """Hires where a group has fewer members than it should."""
        cluster = self._cluster
        self._deployments.take_refused()
        for group_id, _ in product(GROUPS, range(MEMBERS)):
            there = [w for w in cluster.workers if w.group_id == group_id and w.error is None]
            if len(there) < MEMBERS:
                self.hire(group_id)


_CHANGES = ["deploy", "empty_group", "visit", "convert_group"]
"""What makes a group one of the other kind."""

_FAULTS: dict[str, Callable[[Nemesis], bool]] = {
    name: getattr(Nemesis, name)
    for name in (
        "kill_coordinator", "kill_metadata", "kill_discovery", "end_coordinator", "pause_shortly",
        "pause_long", "kill_node", "pause_node", "slow_node", "full_node", "wipe_node", "power_cut", "cut",
        "reset", "stall", "slow_network", "repeat", "crash_worker", "leave_worker", "extra_worker",
        "pause_worker", "rejoin_worker", "stop_majority", "sleep_worker",
        "wrong_clock", "cut_metadata_from_log", "change_topic", *_CHANGES,
    )
}  # fmt: skip

FAULTS = tuple(_FAULTS)
"""Names of all faults."""


def _promise(value: object) -> tuple[bytes | None, bytes | None] | None:
    """Epoch and nonce of what a node promised."""
    return (value.get(b"epoch"), value.get(b"nonce")) if isinstance(value, dict) else None
