"""The load: processes with members of 30 groups of both kinds, the sink they write to, and the prober."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path

from chaos.history import Event
from kit.clusters.linked_cluster import LinkedCluster
from kit.waiting import ended, killed
from muster_server.dev.redis_nodes import RedisNode

TESTS = Path(__file__).resolve().parent.parent
PROBED = ("probe-1", "probe-2")


class Load:
    """Processes of members; an async context manager.

    Args:
        cluster: what they use.
        folder: gets `histories/` and their output.
        groups: how many groups.
        members: of each group, and partitions of its topic.
        processes: how many share the members.
        kinds: of the groups, in turn.

    Attributes:
        kinds: of each group.
        slots: names of all members.
        last_ok_ns: of each, when its last commit was acknowledged.
    """

    def __init__(
        self,
        cluster: LinkedCluster,
        folder: Path,
        *,
        groups: int,
        members: int,
        processes: int,
        kinds: Sequence[str],
    ) -> None:
        self.groups = [f"g{number:02}" for number in range(groups)]
        self.kinds = dict(zip(self.groups, cycle(kinds), strict=False))
        self.members = members
        self.slots = [f"{group}/{member}" for group in self.groups for member in range(members)]
        self.histories = folder / "histories"
        self.sink = RedisNode(folder / "sink", fsync="no")
        self.processes: list[asyncio.subprocess.Process] = []
        self.last_ok_ns: dict[str, int] = dict.fromkeys(self.slots, 0)
        self._cluster = cluster
        self._folder = folder
        self._count = processes
        self._slot_of: dict[str, str] = {}

    async def __aenter__(self) -> "Load":
        await self.sink.start()
        for number in range(self._count):
            self.processes.append(
                await self.worker(f"worker-{number}", number, self._count, self.members, self.kinds)
            )
        addresses = [f"{process.name}={process.address}" for process in self._cluster.coordinators]
        self.processes.append(
            await self._spawn("prober", "chaos.prober", str(self.histories), *PROBED, "--", *addresses)
        )
        return self

    async def worker(
        self, name: str, number: int, count: int, members: int, kinds: Mapping[str, str]
    ) -> asyncio.subprocess.Process:
        """Starts a process with some members of these groups; see `chaos.worker`.

        Args:
            name: of the process.
            number: which of the processes that share the members.
            count: how many share them.
            members: of each group.
            kinds: the groups, with their kinds.
        """
        places = [self._cluster.servers, self.sink.url, str(self.histories)]
        numbers = [str(number), str(count), str(members)]
        groups = [f"{kind}/{group}" for group, kind in kinds.items()]
        return await self._spawn(name, "chaos.worker", name, *places, *numbers, *groups)

    async def _spawn(self, name: str, module: str, *arguments: str) -> asyncio.subprocess.Process:
        with (self._folder / f"{name}.log").open("ab") as output:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                *arguments,
                cwd=TESTS,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
            )

    async def __aexit__(self, *_: object) -> None:
        await self.end()
        await self.sink.stop()

    async def end(self) -> None:
        """The members leave and their processes end; the sink stays."""
        processes, self.processes = self.processes, []
        await end(processes)

    def see(self, event: Event) -> None:
        """Takes note of when members commit."""
        if event["e"] == "invoke" and event["f"] == "commit" and event.get("s") in self.last_ok_ns:
            self._slot_of[event["op"]] = event["s"]
        elif event["e"] in ("ok", "info") and event["op"] in self._slot_of:
            slot = self._slot_of.pop(event["op"])
            if event["e"] == "ok":
                self.last_ok_ns[slot] = event["t"]


async def end(processes: Sequence[asyncio.subprocess.Process]) -> None:
    """Ends processes of members in order."""
    for process in processes:
        if process.stdin is not None:
            process.stdin.close()
    for process in processes:
        with suppress(TimeoutError):
            await ended(process, 20)
        await killed(process)
