"""Where attacks are tried: two clusters on loopback, and W, an innocent worker of the first.

The attacker is a process of its own, niced and held to a part of one core. It attacks the second cluster
first, so that it is known what W loses by sharing a machine, and then W's: its commits must keep a p99 of
three times that, and it may not be without one for long. W calls from an address of its own: quotas are for
each host.
"""

import asyncio
import itertools
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

import grpc
from abuse.innocent import INTERVAL_S
from abuse.relay import Relay
from kit.programs import BROKEN, HELD, Broken, report, run
from kit.waiting import until
from muster_coordinator.ownership.placement import place
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc
from muster_server.dev.cluster import DevCluster

GROUP = "innocent"
"""The group of W, in the cluster that has none too."""

GAP_S = 0.5
"""W must commit again within this time, whatever the attacker does."""

TIMES_CALM = 3.0
"""How much longer the commits of W may take (p99) than beside the same attack on another cluster."""

_SURE_MS = 50.0
"""On a busy machine p99 goes up to this by itself: what is below is not taken for the attacker's doing."""
_SHARE_OF_GAP = 1.5
"""On a machine that is busy: how much longer W's gap may be than beside the attack on another cluster."""
_QUOTA = 0.5
_PERIOD_S = 0.1
_SAMPLE_S = 0.1
_QUIET_S = 2.0
_SETTLES_S = 60.0
_AFTER_S = 2.0
_NAMES_AT_ONCE = 500
_LIMIT_S = 420.0
_IN_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30
_BEGINS = "-- the attack begins"


@dataclass(frozen=True)
class Target:
    """What an attacker knows of a cluster.

    Attributes:
        servers: address of discovery.
        owner: address of the coordinator of the group `innocent`.
    """

    servers: str
    owner: str

    @classmethod
    async def at(cls, servers: str) -> "Target":
        """The cluster of a discovery."""
        return cls(servers, await find(servers, GROUP))

    async def groups(self, number: int, prefix: str) -> list[str]:
        """Names of groups that the coordinator of `innocent` has."""
        found: list[str] = []
        tried = 0
        async with grpc.aio.insecure_channel(self.servers) as channel:
            stub = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)
            while len(found) < number:
                names = [f"{prefix}{index}" for index in range(tried, tried + _NAMES_AT_ONCE)]
                tried += _NAMES_AT_ONCE
                answer = await stub.FindCoordinator(discovery_pb2.FindCoordinatorRequest(group_ids=names))
                found += [
                    result.group_id
                    for result in answer.results
                    if f"{result.coordinator.host}:{result.coordinator.port}" == self.owner
                ]
        return found[:number]


async def find(servers: str, group_id: str) -> str:
    """The address of a group's coordinator."""
    async with grpc.aio.insecure_channel(servers) as channel:
        stub = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)

        async def ask() -> str:
            request = discovery_pb2.FindCoordinatorRequest(group_ids=[group_id])
            result = (await stub.FindCoordinator(request, timeout=5)).results[0]
            return f"{result.coordinator.host}:{result.coordinator.port}" if not result.error_code else ""

        return await until(ask, f"a coordinator of {group_id!r}")


Attack = Callable[[Target], Awaitable[str]]
"""An attack: says what came of it, and raises `Broken` where an answer is not what it must be."""


@dataclass(frozen=True)
class Window:
    """W in some span of time.

    Attributes:
        gap_s: longest time without a commit.
        p99_ms: how long 99 of 100 commits took at most, with those that would have begun while one took long.
        commits: how many there were.
        events: what else happened to W.
        coordinator_mb: the most memory that a coordinator of W's cluster had.
    """

    gap_s: float
    p99_ms: float
    commits: int
    events: tuple[str, ...]
    coordinator_mb: int


class Lab:
    """A cluster and, if wanted, W on it; an async context manager.

    Args:
        folder: of the cluster.
        settings: further variables of its processes.
        with_worker: whether W works there.
        protocol: kind of W's group: `classic` or `incremental`; `auto`: as users have it.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, str], *, with_worker: bool, protocol: str = "auto"
    ) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.cluster = DevCluster(folder, coordinators=2, settings={"MUSTER_LOG_FORMAT": "json", **settings})
        self._with_worker = with_worker
        self._protocol = protocol
        self._journal = folder / "innocent.jsonl"
        self._worker: asyncio.subprocess.Process | None = None
        self._relay = Relay()
        self._memory: list[tuple[float, int]] = []
        self._stopping = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    async def __aenter__(self) -> Self:
        await self.cluster.start()
        await settled(self.cluster.servers)
        await find(self.cluster.servers, GROUP)
        if self._with_worker:
            await self._relay.__aenter__()
            self._worker = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "abuse.innocent", self.cluster.servers, str(self._journal), GROUP),
                self._protocol,
                env=os.environ | self._relay.variables,
            )
            await until(lambda: bool(self._committed()), "the first commit of W")
        self._sampler.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping.set()
        if self._worker is not None:
            self._worker.terminate()
            try:
                await asyncio.wait_for(self._worker.wait(), 10)
            except TimeoutError:
                self._worker.kill()
            await self._relay.__aexit__(None)
        await self.cluster.stop()

    def window(self, begin_s: float, end_s: float) -> Window:
        """How W did."""
        rows = [row for row in self._rows() if begin_s <= row["at_s"] < end_s]
        commits = [row for row in rows if row["event"] == "committed"]
        times = [begin_s, *(row["at_s"] for row in commits), end_s]
        gap_s = max(after - before for before, after in itertools.pairwise(times))
        events = tuple(
            f"{row['event']} {row.get('error', '')}".strip() for row in rows if row["event"] != "committed"
        )
        memory = [size for at_s, size in self._memory if begin_s <= at_s < end_s]
        took_s = [row["took_s"] for row in commits] + [end_s - times[-2]]
        return Window(gap_s, _p99_s(took_s) * 1e3, len(commits), events, max(memory, default=0) >> 10)

    def log_lines(self, *words: str) -> list[str]:
        """Lines of the processes' logs that contain one of the words."""
        return [
            line
            for path in sorted((self.folder / "logs").glob("*.log"))
            for line in path.read_text(errors="replace").splitlines()
            if any(word in line for word in words)
        ]

    def _rows(self) -> list[dict[str, Any]]:
        if not self._journal.exists():
            return []
        lines = self._journal.read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def _committed(self) -> list[dict[str, Any]]:
        return [row for row in self._rows() if row["event"] == "committed"]

    def _sample(self) -> None:
        pids = [process.process.pid for process in self.cluster.coordinators]
        while not self._stopping.wait(_SAMPLE_S):
            self._memory.append((time.monotonic(), max(map(_resident_kb, pids), default=0)))


def _p99_s(took_s: Sequence[float]) -> float:
    """p99 of commits that are owed once in an interval: one that took longer kept others from beginning."""
    owed = [took - late * INTERVAL_S for took in took_s for late in range(int(took / INTERVAL_S) + 1)]
    return sorted(owed)[math.ceil(len(owed) * 0.99) - 1]


async def settled(servers: str) -> None:
    """Waits until the shards are shared out: one that moves later would disturb W without an attacker."""
    async with grpc.aio.insecure_channel(servers) as channel:
        stub: Any = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)

        async def shared_out() -> bool:
            cluster = (await stub.DescribeCluster(discovery_pb2.DescribeClusterRequest(), timeout=5)).cluster
            owners = {row.shard: row.node_id for row in cluster.shards if row.serving}
            names = [coordinator.node_id for coordinator in cluster.coordinators]
            return bool(names) and owners == place(names, cluster.shard_count)

        await until(shared_out, "shards that are shared out", _SETTLES_S)


def _resident_kb(pid: int | None) -> int:
    """Memory of a process; 0 where nobody says it."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])
    return 0


def stage(
    attack: Attack,
    *,
    settings: Mapping[str, str] | None = None,
    lifted: Mapping[str, str] | None = None,
    coordinator_mb: int = 1_000,
    gap_s: float = GAP_S,
    protocol: str = "auto",
    check: Callable[[Lab], Awaitable[None]] | None = None,
    in_memory: bool = False,
    limit_s: float = _LIMIT_S,
) -> NoReturn:
    """Runs a program that is an attack, and judges what W noticed of it.

    Args:
        attack: what the attacker does, in a process of its own.
        settings: of the attacked clusters.
        lifted: quotas that keep the attack off: it is tried with them, then without, for what is behind them.
        coordinator_mb: how much memory a coordinator may come to have.
        gap_s: how long W may be without a commit.
        protocol: kind of W's group, as in `Lab`, where the attack is on a group of one kind.
        check: what must hold of W's cluster after the attack.
        in_memory: for an attack that fills the log with megabytes a second: the clusters' files are in
            memory, if there is room. A server whose file system frees blocks with its journal stands for a
            tenth of a second whenever it has rewritten its file (docs/sizing.md); these have one node each.
        limit_s: a program that takes longer could not judge.
    """
    if sys.argv[1:2] == ["attack"]:
        run(partial(_attack, attack, sys.argv[2]), limit_s)
    judged = Judged(settings or {}, coordinator_mb, gap_s, protocol, check, in_memory)
    run(partial(_measure, judged, lifted), limit_s * (2 if lifted else 1))


async def _attack(attack: Attack, servers: str) -> None:
    print(await attack(await Target.at(servers)), flush=True)


@dataclass(frozen=True)
class Judged:
    """What must hold of W and its cluster: see `stage`."""

    settings: Mapping[str, str]
    coordinator_mb: int
    gap_s: float
    protocol: str
    check: Callable[[Lab], Awaitable[None]] | None
    in_memory: bool


async def _measure(judged: Judged, lifted: Mapping[str, str] | None) -> None:
    await _measured(judged, "with the default quotas: " if lifted else "")
    if lifted:
        await _measured(replace(judged, settings={**judged.settings, **lifted}), "without: ")


async def _measured(judged: Judged, how: str) -> None:
    where = _IN_MEMORY if judged.in_memory and _has_room(_IN_MEMORY) else None
    with tempfile.TemporaryDirectory(prefix="muster-abuse-", dir=where) as made:
        folder = Path(made)
        async with (
            Lab(folder / "mine", judged.settings, with_worker=True, protocol=judged.protocol) as lab,
            Lab(folder / "other", judged.settings, with_worker=False) as other,
        ):
            await asyncio.sleep(_QUIET_S)
            beside = await _while_attacked(lab, other.cluster.servers, "the other cluster")
            during = await _while_attacked(lab, lab.cluster.servers, "W's cluster")
            report(
                f"{how}p99 of W's commits {during.p99_ms:.0f} ms (attack on the other cluster: "
                f"{beside.p99_ms:.0f} ms), longest gap {during.gap_s:.2f} s ({beside.gap_s:.2f} s), "
                f"its coordinators at most {during.coordinator_mb} MB"
            )
            if during.events:
                raise Broken(f"W was disturbed: {'; '.join(during.events[:5])}")
            if during.gap_s > max(judged.gap_s, _SHARE_OF_GAP * beside.gap_s):
                raise Broken(f"W was without a commit for {during.gap_s:.2f} s")
            if during.p99_ms > max(_SURE_MS, TIMES_CALM * beside.p99_ms):
                raise Broken(f"W's commits took {during.p99_ms / beside.p99_ms:.1f} times as long")
            if during.coordinator_mb > judged.coordinator_mb:
                raise Broken(f"a coordinator came to {during.coordinator_mb} MB")
            if ended := lab.cluster.ended():
                raise Broken(f"ended: {', '.join(ended)}")
            if judged.check is not None:
                await judged.check(lab)


def _has_room(folder: Path) -> bool:
    return folder.is_dir() and shutil.disk_usage(folder).free > _ROOM_BYTES


async def _while_attacked(lab: Lab, servers: str, where: str) -> Window:
    """W while somebody attacks a cluster, and for a while after."""
    spec = sys.modules["__main__"].__spec__
    assert spec is not None
    began_s = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *("nice", "-n", "19", sys.executable, "-m", spec.name, "attack", servers),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={name: value for name, value in os.environ.items() if name != "MUSTER_PROGRAM_REPORT"},
    )
    said: list[str] = []
    assert process.stdout is not None
    with _Quota(process.pid):
        async for line in process.stdout:
            said.append(line.decode(errors="replace").rstrip())
            if said[-1] == _BEGINS:
                began_s = time.monotonic()
        await process.wait()
    await asyncio.sleep(_AFTER_S)
    window = lab.window(began_s, time.monotonic())
    text = "\n".join(line for line in said if line != _BEGINS)
    print(f"attack on {where}: {text}\n  W: {window}", flush=True)
    if process.returncode == BROKEN:
        raise Broken(text.splitlines()[-1])
    if process.returncode != HELD:
        raise RuntimeError(f"the attacker ended with {process.returncode}")
    return window


def begins() -> None:
    """Called by an attack after its preparations: what W loses is counted from here."""
    print(_BEGINS, flush=True)


class _Quota:
    """Holds a process to a part of one core, by stopping it for the rest of each period."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._hold, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _hold(self) -> None:
        with suppress(ProcessLookupError):
            while not self._over.wait(_PERIOD_S * _QUOTA):
                os.kill(self._pid, signal.SIGSTOP)
                self._over.wait(_PERIOD_S * (1 - _QUOTA))
                os.kill(self._pid, signal.SIGCONT)
