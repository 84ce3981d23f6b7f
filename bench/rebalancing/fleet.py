"""Processes of library members of one incremental group, and what they have said."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import muster

MEMBERS_OF_A_PROCESS = 100
PATIENCE_S = 300.0
_PROGRAM = Path(__file__).parents[1] / "rebalance_members.py"


class Said(NamedTuple):
    """A callback of a member: `assigned`, `revoked` or `lost`."""

    at_ns: int
    event: str
    member: str
    partitions: tuple[int, ...]


@dataclass
class Process:
    """A process of members.

    Attributes:
        child: the process.
        reading: reads what it says.
        members: those that were added to it.
    """

    child: asyncio.subprocess.Process
    reading: asyncio.Task[None]
    members: int = 0

    def tell(self, command: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{command}\n".encode())


@dataclass
class Fleet:
    """Members of one group, at most a hundred to a process, and the one that joins in a process of its own.

    Attributes:
        servers: of the cluster.
        group: the group, and its topic.
        partitions: of the topic.
        owned: what each member runs.
        said: callbacks since they were last taken.
        last: newest times of other events.
    """

    servers: str
    group: str
    partitions: int
    owned: dict[str, set[int]] = field(default_factory=dict)
    said: list[Said] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    _ready: int = 0
    _commits: list[tuple[int, int, int]] = field(default_factory=list)
    _taken: int = 0
    _heard: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def start(self, members: int, *, to_a_process: int = MEMBERS_OF_A_PROCESS) -> Self:
        """A stable group of so many members; the last process has none yet."""
        async with muster.Cluster(self.servers) as client:
            await client.ensure_topic(self.group, self.partitions)
        counts = [min(to_a_process, members - first) for first in range(0, members, to_a_process)]
        for number in range(len(counts) + 1):
            await self._start_process(number)
        await self._until(lambda: self._ready == len(self.processes))
        for process, count in zip(self.processes, counts, strict=False):
            process.members = count
            process.tell(f"add {count}")
        await self.balanced(members)
        return self

    async def _start_process(self, number: int) -> None:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            str(_PROGRAM),
            self.servers,
            self.group,
            str(number),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 26,
        )
        self.processes.append(Process(child, asyncio.create_task(self._read(child))))

    @property
    def joiner(self) -> Process:
        """The process of the member that joins."""
        return self.processes[-1]

    async def _read(self, child: asyncio.subprocess.Process) -> None:
        assert child.stdout is not None
        async for line in child.stdout:
            event = json.loads(line)
            async with self._heard:
                self._hear(event)
                self._heard.notify_all()

    def _hear(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "ready":
            self._ready += 1
        elif kind == "commits":
            self._commits += [tuple(row) for row in event["rows"]]
            self._taken += 1
        elif kind in ("assigned", "revoked", "lost"):
            some = tuple(event["partitions"])
            self.said.append(Said(event["at_ns"], kind, event["member"], some))
            own = self.owned.setdefault(event["member"], set())
            if kind == "assigned":
                own.update(some)
            else:
                own.difference_update(some)
        else:
            self.last[kind] = event["at_ns"]

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S), self._heard:
            await self._heard.wait_for(condition)

    async def balanced(self, members: int) -> None:
        """Waits until so many members run everything, in shares that differ by one at most."""
        least, extras = divmod(self.partitions, members)

        def is_balanced() -> bool:
            shares = [len(own) for own in self.owned.values() if own]
            return (
                sum(shares) == self.partitions
                and len(shares) == min(members, self.partitions)
                and max(shares) <= least + (extras > 0)
            )

        await self._until(is_balanced)

    async def command(self, process: Process, command: str, event: str) -> int:
        """Gives a process a command, waits for its event, and says when that was, ns."""
        self.last.pop(event, None)
        process.tell(command)
        await self._until(lambda: event in self.last)
        return self.last.pop(event)

    async def kill(self, process: Process) -> int:
        """Kills a process; its members are gone. Returns when, ns."""
        number = self.processes.index(process)
        killed_ns = time.monotonic_ns()
        process.child.kill()
        await process.child.wait()
        await process.reading
        for name in [name for name in self.owned if name.startswith(f"{number}-")]:
            del self.owned[name]
        return killed_ns

    async def commits(self) -> list[tuple[int, int, int]]:
        """Partition, time of sending and duration, ns, of the commits since the last time."""
        self._commits, self._taken = [], 0
        for process in self.processes:
            process.tell("take")
        await self._until(lambda: self._taken == len(self.processes))
        return self._commits

    async def stop(self) -> None:
        """Kills all processes."""
        for process in self.processes:
            if process.child.returncode is None:
                process.child.kill()
            await process.child.wait()
            await process.reading
