"""Health on a real server: who asks proves nothing, so nothing that he does may cost others anything."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from errno import EMFILE
from typing import Any

import grpc
import pytest
from abuse.http2 import Connection
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kit.waiting import until
from muster_runtime.rpc import health
from muster_runtime.rpc.server import RpcServer, ServerSettings
from muster_runtime.rpc.unread import Cuts, cut

pytestmark = pytest.mark.cluster

WATCH = "/grpc.health.v1.Health/Watch"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Running:
    """A server, and a client that has no credentials."""

    def __init__(self, server: RpcServer, channel: grpc.aio.Channel) -> None:
        self.server = server
        self.stub: Any = health_pb2_grpc.HealthStub(channel)
        self.address = f"127.0.0.1:{server.port}"
        self.connections: list[Connection] = []

    @property
    def watches(self) -> int:
        return self.server._health.watches

    @property
    def open(self) -> list[object]:
        return [watch for watches in self.server._health._watches.values() for watch in watches]

    def watch(self, service: str = "") -> Any:
        return self.stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=60)

    def connect(self, window: int, source: str = "") -> Connection:
        """Opens a connection of HTTP/2 by hand."""
        self.connections.append(Connection(self.address, window, source))
        return self.connections[-1]

    async def deaf(self) -> Connection:
        """A watcher that takes no byte of what it is told."""

        def watch() -> Connection:
            connection = self.connect(0)
            connection.poll(1)  # the server takes the window in with its settings
            connection.open(WATCH, b"")
            connection.poll(0.1)
            return connection

        before = set(self.open)
        connection = await asyncio.to_thread(watch)
        await until(lambda: bool(set(self.open) - before), "the watch is open")
        return connection


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    server = RpcServer(ServerSettings(read_timeout_ms=300))
    await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        instance = Running(server, channel)
        yield instance
        for connection in instance.connections:
            connection.close()
    await server.stop(0)


async def test_a_watcher_that_does_not_read_holds_up_nobody_and_loses_its_connection(
    running: Running,
) -> None:
    deaf = await running.deaf()
    async with asyncio.timeout(20):
        await running.server.set_serving(True)
    watch = running.watch()
    assert (await watch.read()).status == SERVING
    async with asyncio.timeout(20):
        await running.server.set_serving(False)
    assert (await watch.read()).status == NOT_SERVING

    def ended() -> bool:
        deaf.poll(0.05)
        return deaf.dead

    await until(ended, "the connection is cut")
    watch.cancel()
    await until(lambda: running.watches == 0, "nobody watches")


async def test_a_watcher_is_cut_off_though_its_connection_was_not_found_at_first(running: Running) -> None:
    """Where a process can open no more files, none can be looked at: the watcher kept its place for ever."""
    looks: list[Iterable[str]] = []

    def cut_off(peers: Iterable[str]) -> set[str]:
        looks.append(peers)
        if len(looks) == 1:
            raise OSError(EMFILE, "Too many open files")
        return cut(peers) if len(looks) > 2 else set()

    running.server.timed_writes._cuts = Cuts(cut_off)
    await running.deaf()
    await until(lambda: running.watches == 0, "nobody watches")
    assert len(looks) == 3


async def test_a_watcher_that_leaves_deafens_nobody(running: Running) -> None:
    stays, leaves = running.watch(), running.watch()
    assert (await stays.read()).status == (await leaves.read()).status == NOT_SERVING
    leaves.cancel()
    await until(lambda: running.watches == 1, "one has left")
    await running.server.set_serving(True)
    assert (await stays.read()).status == SERVING


async def test_watches_are_bounded_and_the_host_with_most_of_them_gives_way(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "MOST_WATCHES", 5)
    alone = await asyncio.to_thread(running.connect, 65_535, "127.0.0.2")
    await asyncio.to_thread(alone.open, WATCH, b"")
    await until(lambda: running.watches == 1, "the watch of the other host is open")
    watches = []
    for _ in range(9):
        watches.append(running.watch())
        assert (await watches[-1].read()).status == NOT_SERVING
    assert running.watches == 5
    for watch in watches[:5]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watch.read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await running.server.set_serving(True)
    for watch in watches[5:]:
        assert (await watch.read()).status == SERVING
    alone.poll()
    assert not alone.ended


async def test_watches_that_nobody_reads_are_bounded_too(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC would keep what was not taken: they go with their connections."""
    monkeypatch.setattr(health, "MOST_WATCHES", 1)
    running.server._health._writes._timeout_s = 3_600
    first, _ = await running.deaf(), await running.deaf()

    def ended() -> bool:
        first.poll(0.05)
        return first.dead

    await until(ended, "the connection of the first is cut")
    assert running.watches == 1


async def test_names_of_services_are_bounded(running: Running) -> None:
    """One that is watched is kept for as long as that."""
    for method in (running.stub.Check, lambda request: running.watch(request.service).read()):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(health_pb2.HealthCheckRequest(service="x" * health.MOST_BYTES))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.stub.Check(health_pb2.HealthCheckRequest(service="nothing.of.ours"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    unknown = await running.watch("nothing.of.ours").read()
    assert unknown.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
