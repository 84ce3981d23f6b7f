#!/usr/bin/env python3
"""What it costs a coordinator to keep members alive: heartbeats, unary or on a stream, or beats of a stream.

Starts a coordinator in a process of its own, on metadata and one embedded log server in this process, with
groups whose members are on one stream each. Reads the CPU time of the coordinator's process, all threads,
around each kind of load; the loads take turns, so that whatever else the machine does hits all alike. What
the idle process uses by itself is measured the same way and taken off. Prints medians and ratios.

With --telemetry the same loads run on two coordinators in turns, one without telemetry and one with metrics
scraped and sent and with traces; the exit code is 1 if it costs 5 % more of any of them.

    ./x bench session [--members 100] [--rounds 5] [--seconds 1.5] [--telemetry]
"""

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import uvloop
from kit.collector import Collector
from kit.scrape import scrape
from muster_metadata.operator.initialise import initialise
from muster_metadata.server import MetadataServer
from muster_metadata.settings import MetadataSettings
from muster_protos.muster.v1 import coordinator_pb2, coordinator_pb2_grpc, session_pb2, session_pb2_grpc
from muster_runtime.rpc.channels import CHANNEL_OPTIONS
from muster_runtime.settings import load
from muster_server.dev.ports import LOOPBACK, free_ports
from muster_server.dev.redis_nodes import RedisNodes
from muster_server.dev.role_process import RoleProcess

SESSION_TIMEOUT_MS = 120_000
GATHER_MS = 1_500
STREAMS = 8
IN_FLIGHT = 4
BATCH = 50
LEASE_MS = 30_000
_CPU_CLOCK_OF_PROCESS = 2  # what clock_getcpuclockid makes of a pid
TELEMETRY_BAR = 0.05


class Client:
    """All members of one group, on one channel and one stream.

    Args:
        target: address of the coordinator.
        group_id: the group.
    """

    def __init__(self, target: str, group_id: str) -> None:
        self._group_id = group_id
        self._channel = grpc.aio.insecure_channel(target, options=list(CHANNEL_OPTIONS))
        self._stub: Any = coordinator_pb2_grpc.GroupCoordinatorServiceStub(self._channel)
        self._stream: Any = None
        self._numbers = itertools.count(1)
        self._heartbeat = coordinator_pb2.HeartbeatRequest()

    async def start(self, count: int) -> None:
        """Forms the group, and puts one member on the stream."""
        joined = await asyncio.gather(*(self._join() for _ in range(count)))
        leader = next(answer for answer in joined if answer.members)
        assert len(leader.members) == count, "the members did not all come into one generation"
        given = [
            coordinator_pb2.SyncGroupRequest.Assignment(member_id=m.member_id, assignment=b"a")
            for m in leader.members
        ]
        await asyncio.gather(
            *(
                self._stub.SyncGroup(
                    coordinator_pb2.SyncGroupRequest(
                        group_id=self._group_id,
                        member_id=answer.member_id,
                        generation=answer.generation,
                        assignments=given if answer.members else (),
                    )
                )
                for answer in joined
            )
        )
        self._members = [answer.member_id for answer in joined]
        self._heartbeat = coordinator_pb2.HeartbeatRequest(
            group_id=self._group_id, member_id=self._members[0], generation=leader.generation
        )
        self._stream = session_pb2_grpc.GroupSessionServiceStub(self._channel).Session()
        hello = session_pb2.Hello(client_id="bench", beat_interval_ms=1_000)
        await self._send(session_pb2.ClientFrame(hello=hello), self._attach(0))
        assert (await self._read())[0].attach_result.error_code == 0

    async def attach_all(self) -> None:
        """Puts all others on the stream too."""
        await self._send(*(self._attach(index) for index in range(1, len(self._members))))
        left = len(self._members) - 1
        while left:
            frames = await self._read()
            assert all(frame.attach_result.error_code == 0 for frame in frames)
            left -= len(frames)

    async def detach_others(self) -> None:
        """Takes all but one off the stream."""
        for member_id in self._members[1:]:
            request = session_pb2.Detach(group_id=self._group_id, member_id=member_id)
            await self._send(session_pb2.ClientFrame(detach=request))

    def _attach(self, index: int) -> session_pb2.ClientFrame:
        request = session_pb2.Attach(
            group_id=self._group_id, member_id=self._members[index], generation=self._heartbeat.generation
        )
        return session_pb2.ClientFrame(attach=request)

    async def _join(self) -> coordinator_pb2.JoinGroupResponse:
        request = coordinator_pb2.JoinGroupRequest(
            group_id=self._group_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[coordinator_pb2.GroupProtocol(name="range", metadata=b"m")],
        )
        request.member_id = (await self._stub.JoinGroup(request)).member_id
        answer: coordinator_pb2.JoinGroupResponse = await self._stub.JoinGroup(request)
        assert answer.error_code == 0, answer
        return answer

    async def _send(self, *frames: session_pb2.ClientFrame) -> None:
        await self._stream.write(session_pb2.SessionRequest(frames=frames))

    async def _read(self) -> Any:
        message = await self._stream.read()
        assert message is not grpc.aio.EOF, "the coordinator ended the stream"
        return message.frames

    async def unary(self, until: float) -> int:
        """Heartbeats one by one, some in flight."""

        async def beat() -> int:
            done = 0
            while time.perf_counter() < until:
                assert (await self._stub.Heartbeat(self._heartbeat)).error_code == 0
                done += 1
            return done

        return sum(await asyncio.gather(*(beat() for _ in range(IN_FLIGHT))))

    async def frames(self, until: float, *, batch: int) -> int:
        """Heartbeats as frames, so many to a message; the next message goes when all are answered."""
        done = 0
        while time.perf_counter() < until:
            await self._send(
                *(
                    session_pb2.ClientFrame(
                        call=session_pb2.Call(call_id=next(self._numbers), heartbeat=self._heartbeat)
                    )
                    for _ in range(batch)
                )
            )
            left = batch
            while left:
                answers = await self._read()
                assert all(frame.reply.heartbeat.error_code == 0 for frame in answers)
                left -= len(answers)
            done += batch
        return done

    async def beats(self, until: float) -> int:
        """Beats of the stream, for everybody on it."""
        done = 0
        while time.perf_counter() < until:
            number = next(self._numbers)
            await self._send(session_pb2.ClientFrame(beat=session_pb2.Beat(number=number)))
            (frame,) = await self._read()
            assert frame.beat_ack.number == number
            assert not frame.beat_ack.unheard
            done += 1
        return done

    async def close(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        await self._channel.close()


class Sample(NamedTuple):
    """A round of a load: CPU of the coordinator's process, how long it took, how much was done."""

    cpu_s: float
    lasted_s: float
    operations: int


@dataclass
class Load:
    """One kind of load and what it took, round by round."""

    name: str
    run: Callable[[float], Awaitable[int]]
    before: Callable[[], Awaitable[Any]] | None = None
    after: Callable[[], Awaitable[Any]] | None = None
    samples: list[Sample] = field(default_factory=list)

    def costs_us(self, idle: float) -> list[float]:
        """CPU per operation of each round, without what the process uses by itself, in s per second."""
        return [(cpu_s - idle * lasted_s) / operations * 1e6 for cpu_s, lasted_s, operations in self.samples]

    def median_us(self, idle: float) -> float:
        return statistics.median(self.costs_us(idle))


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, that of threads that have ended included (Linux)."""
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK_OF_PROCESS)


async def idle_share(pid: int, seconds: float) -> float:
    """CPU that the process uses by itself, in seconds per second."""
    began, cpu_before = time.perf_counter(), cpu_s(pid)
    await asyncio.sleep(seconds)
    return (cpu_s(pid) - cpu_before) / (time.perf_counter() - began)


async def run(load: Load, pid: int, seconds: float) -> None:
    if load.before is not None:
        await load.before()
    began, cpu_before = time.perf_counter(), cpu_s(pid)
    count = await load.run(began + seconds)
    load.samples.append(Sample(cpu_s(pid) - cpu_before, time.perf_counter() - began, count))
    if load.after is not None:
        await load.after()


def all_of(clients: Sequence[Client], what: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
    """Does something with all clients at once; gives the sum of what they count."""

    async def act(*more: Any) -> int:
        counts = await asyncio.gather(*(what(client, *args, *more, **options) for client in clients))
        return sum(count or 0 for count in counts)

    return act


def loads_of(clients: Sequence[Client], members: int) -> list[Load]:
    """Every kind of load, on all clients at once."""
    return [
        Load("heartbeat, unary", all_of(clients, Client.unary)),
        Load("heartbeat, a frame in a message", all_of(clients, Client.frames, batch=1)),
        Load(f"heartbeat, {BATCH} frames in a message", all_of(clients, Client.frames, batch=BATCH)),
        Load("beat of a stream, 1 member", all_of(clients, Client.beats)),
        Load(
            f"beat of a stream, {members} members",
            all_of(clients, Client.beats),
            all_of(clients, Client.attach_all),
            all_of(clients, Client.detach_others),
        ),
    ]


async def measure(setup: "Setup", options: argparse.Namespace) -> None:
    members = options.members
    loads = loads_of(setup.clients, members)
    unary, _, _, lone, full = loads
    idles = []
    for _ in range(options.rounds):
        idles.append(await idle_share(setup.pid, options.seconds / 2))
        for kind in loads:
            await run(kind, setup.pid, options.seconds)
    idle = statistics.median(idles)
    unary_us, lone_us, full_us = (kind.median_us(idle) for kind in (unary, lone, full))
    print(f"{'CPU of the coordinator':38}{'µs':>10}{'of a unary heartbeat':>24}")
    for kind in loads:
        print(f"{kind.name:38}{kind.median_us(idle):10.2f}{kind.median_us(idle) / unary_us:23.1%}")
    for name, cost_us in (
        (f"{members} members beating, each", full_us / members),
        ("each member more", (full_us - lone_us) / max(members - 1, 1)),
    ):
        print(f"{name:38}{cost_us:10.2f}{cost_us / unary_us:23.1%}")


async def compare(off: "Setup", on: "Setup", options: argparse.Namespace) -> int:
    """The same loads on a coordinator without telemetry and on one with it, in turns.

    What each uses while it is idle is taken off: scrapes and sendings cost the same whether there are
    heartbeats or not, and are told apart. The rounds of a load on the two follow each other, and their ratio
    is taken: a machine that is slower for a while is so for both. What counts is the median of the ratios.
    """
    pairs = list(
        zip(loads_of(off.clients, options.members), loads_of(on.clients, options.members), strict=True)
    )
    idles: dict[int, list[float]] = {off.pid: [], on.pid: []}
    for number in range(options.rounds):
        for setup in (off, on):
            idles[setup.pid].append(await idle_share(setup.pid, options.seconds))
        for without, with_it in pairs:
            both = [(without, off), (with_it, on)]
            for kind, setup in both if number % 2 == 0 else reversed(both):
                await run(kind, setup.pid, options.seconds)
    idle_off, idle_on = (statistics.median(idles[setup.pid]) for setup in (off, on))
    print(f"{'CPU of the coordinator':38}{'off, µs':>10}{'on, µs':>10}{'more':>9}{'half of the rounds':>20}")
    most = 0.0
    for without, with_it in pairs:
        rounds = zip(without.costs_us(idle_off), with_it.costs_us(idle_on), strict=True)
        lower, middle, upper = statistics.quantiles([cost_on / cost_off - 1 for cost_off, cost_on in rounds])
        most = max(most, middle)
        print(
            f"{without.name:38}{without.median_us(idle_off):10.2f}{with_it.median_us(idle_on):10.2f}"
            f"{middle:9.1%}{f'{lower:.1%} to {upper:.1%}':>20}"
        )
    print(f"bar: {TELEMETRY_BAR:.0%} more; the most is {most:.1%}")
    print(f"idle: {idle_off * 1e3:.1f} ms of CPU per second without telemetry, {idle_on * 1e3:.1f} with it")
    return 0 if most < TELEMETRY_BAR else 1


@dataclass(frozen=True)
class Setup:
    """A coordinator in a process of its own, and its clients."""

    pid: int
    clients: Sequence[Client]


@asynccontextmanager
async def started(
    folder: Path, members: int, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Setup]:
    """A coordinator on metadata and a log of its own, with a group for each client."""
    nodes = RedisNodes(folder / "log", 1)
    await nodes.start()
    await initialise(nodes.url, 8)
    # Under this load metadata, which runs in this process too, may be late with a renewal.
    server = MetadataServer(
        load(MetadataSettings, redis_url=nodes.url, listen=f"{LOOPBACK}:0", lease_ms=LEASE_MS)
    )
    await server.start()
    (port,) = free_ports(1)
    coordinator = RoleProcess(
        "bench",
        "coordinator",
        port,
        folder,
        {
            "MUSTER_COORDINATOR_LISTEN": f"{LOOPBACK}:{port}",
            "MUSTER_COORDINATOR_NODE_ID": "bench",
            "MUSTER_COORDINATOR_METADATA": server.address,
            "MUSTER_GROUP_INITIAL_REBALANCE_DELAY_MS": str(GATHER_MS),
            **(settings or {}),
        },
    )
    await coordinator.start()
    group_ids = [f"bench-{number}" for number in range(STREAMS)]
    clients = [Client(coordinator.address, group_id) for group_id in group_ids]
    try:
        await served(coordinator.address, group_ids)
        await all_of(clients, Client.start, members)()
        pid = coordinator.process.pid
        assert pid is not None
        yield Setup(pid, clients)
    finally:
        for client in clients:
            await client.close()
        await coordinator.kill()
        await server.stop(0)
        await nodes.stop()


async def scrape_forever(port: int, seconds: float) -> None:
    """Reads the metrics as Prometheus does."""
    while True:
        await scrape(port)
        await asyncio.sleep(seconds)


async def main_async(options: argparse.Namespace, folder: Path) -> int:
    async with started(folder / "off", options.members) as off:
        if not options.telemetry:
            await measure(off, options)
            return 0
        (port,) = free_ports(1)
        with Collector() as collector:
            settings = {
                "MUSTER_TELEMETRY_PROMETHEUS_LISTEN": f"{LOOPBACK}:{port}",
                "MUSTER_TELEMETRY_OTLP_ENDPOINT": collector.endpoint,
                "MUSTER_TELEMETRY_OTLP_INTERVAL_MS": str(options.interval * 1_000),
            }
            async with started(folder / "on", options.members, settings) as on:
                scraping = asyncio.create_task(scrape_forever(port, options.interval))
                result = await compare(off, on, options)
                scraping.cancel()
                return result


async def served(target: str, group_ids: Sequence[str]) -> None:
    """Waits until the coordinator answers for the groups."""
    async with grpc.aio.insecure_channel(target) as channel:
        stub: Any = coordinator_pb2_grpc.GroupCoordinatorServiceStub(channel)
        async with asyncio.timeout(20):
            request = coordinator_pb2.DescribeGroupsRequest(group_ids=group_ids)
            while any(
                group.error_code not in (0, 69) for group in (await stub.DescribeGroups(request)).groups
            ):
                pass


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=100, help="members on the stream (default 100)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every load (default 5)")
    parser.add_argument("--seconds", type=float, default=1.5, help="time of a load per turn (default 1.5)")
    parser.add_argument(
        "--telemetry", action="store_true", help="compare a coordinator that tells metrics and traces"
    )
    parser.add_argument(
        "--interval", type=int, default=15, help="seconds between two scrapes and two sendings (default 15)"
    )
    options = parser.parse_args()
    if options.rounds < (2 if options.telemetry else 1):
        parser.error(f"--rounds {options.rounds}: at least 1 is needed, 2 with --telemetry")
    with tempfile.TemporaryDirectory() as folder:
        return uvloop.run(main_async(options, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
