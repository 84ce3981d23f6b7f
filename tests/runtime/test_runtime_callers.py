"""Callers who send no request, or read no answer: the server ends that, and health is never refused."""

import asyncio
import gc
import os
import resource
import socket
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from typing import Any

import grpc
import pytest
from abuse.http2 import HEADERS, Connection
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kit.waiting import stand_still, until
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc
from muster_runtime.rpc._deadlines import AT_ONCE, CallOverdue, Deadlines
from muster_runtime.rpc.server import ALIVE, RpcServer, ServerSettings
from muster_runtime.rpc.unread import Cuts, cut

pytestmark = pytest.mark.cluster

SERVICE = "/muster.v1.CoordinatorDiscoveryService/"
FIND = SERVICE + "FindCoordinator"
LIST = SERVICE + "ListTopics"
WATCH = SERVICE + "WatchCluster"
LARGE_BYTES = 900_000


class Servicer(discovery_pb2_grpc.CoordinatorDiscoveryServiceServicer):
    async def FindCoordinator(self, request: Any, context: Any) -> Any:
        return discovery_pb2.FindCoordinatorResponse()

    async def ListTopics(self, request: Any, context: Any) -> Any:
        return discovery_pb2.ListTopicsResponse(topics=[discovery_pb2.Topic(name="x" * LARGE_BYTES)])

    async def WatchCluster(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield discovery_pb2.WatchClusterResponse()


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[str, Any]]:
    """A server with these settings: its address, and a channel to it."""
    server = RpcServer(ServerSettings(**settings))
    server.add(discovery_pb2_grpc.add_CoordinatorDiscoveryServiceServicer_to_server, Servicer())
    address = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
    async with grpc.aio.insecure_channel(address) as channel:
        yield address, channel
    await server.stop(0)


async def connect(address: str, window: int = 65_535) -> Connection:
    return await asyncio.to_thread(Connection, address, window)


async def leave_unread(caller: Connection) -> None:
    """Asks for a large answer and reads no more of it than that it has begun."""
    caller.open(LIST, b"")

    def begun() -> bool:
        caller.poll()
        return caller.frames.get(HEADERS, 0) > 0

    await until(begun, "the beginning of an answer")


async def outcome(channel: Any, method: str) -> str:
    """`OK`, or the status and what it says."""
    try:
        await channel.unary_unary(method)(b"", timeout=60)
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name} {error.details()}"
    return "OK"


@pytest.mark.parametrize("method", [FIND, WATCH])
async def test_the_deadline_runs_from_the_headers_on(method: str) -> None:
    async with serving(max_deadline_ms=1_000) as (address, _):
        with closing(await connect(address)) as caller:
            caller.open(method, None)

            def answered() -> bool:
                caller.poll()
                return caller.frames.get(HEADERS, 0) > 0

            await until(answered, "a status for the call without a request")


async def test_of_calls_that_send_no_request_the_oldest_give_way() -> None:
    async with serving(max_concurrent_calls=100, max_calls_without_request=20) as (address, channel):
        with closing(await connect(address)) as caller:
            for _ in range(150):
                caller.open(FIND, None)

            def displaced() -> bool:
                caller.poll()
                return caller.frames.get(HEADERS, 0) >= 130

            await until(displaced, "a status for all but the last")
            assert await outcome(channel, FIND) == "OK"


async def test_a_call_that_ends_with_a_status_leaves_nothing_for_the_garbage_collector() -> None:
    async with serving() as (_, channel):

        async def refused() -> None:
            call = channel.stream_unary(FIND)(iter(()), timeout=60)
            with pytest.raises(grpc.aio.AioRpcError):
                await call

        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                await refused()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            assert not any(isinstance(found, grpc.aio.AbortError) for found in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()


async def test_health_is_never_refused() -> None:
    async with serving(max_concurrent_calls=100, max_calls_without_request=1_000) as (address, channel):
        with closing(await connect(address)) as caller:
            for _ in range(100):
                caller.open(FIND, None)
            stub: Any = health_pb2_grpc.HealthStub(channel)

            async def full() -> bool:
                return "RESOURCE_EXHAUSTED this server has 100 open calls" in await outcome(channel, FIND)

            await until(full, "as many open calls as there may be")
            for service, status in (
                (ALIVE, health_pb2.HealthCheckResponse.SERVING),
                ("", health_pb2.HealthCheckResponse.NOT_SERVING),
            ):
                answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
                assert answer.status == status

        async def free() -> bool:
            return await outcome(channel, FIND) == "OK"

        await until(free, "room again after the caller has gone")


async def test_who_does_not_read_loses_the_connection_and_nobody_else_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(read_timeout_ms=500) as (address, channel):
        with closing(await connect(address, 0)) as caller, closing(await connect(address)) as other:
            caller.open(LIST, b"")

            def gone() -> bool:
                caller.poll()
                other.poll()
                return caller.dead

            await until(gone, "the end of the connection")
            assert not other.dead
            assert await channel.unary_unary(FIND)(b"", timeout=60) == b""
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_what_is_unread_is_bounded_and_small_answers_go_on() -> None:
    async with serving(max_unread_bytes=1 << 20) as (address, channel):
        with closing(await connect(address, 0)) as caller:
            await leave_unread(caller)

            async def full() -> bool:
                caller.poll()
                said = await outcome(channel, LIST)
                return said.startswith("RESOURCE_EXHAUSTED") and "bytes of answers unread" in said

            await until(full, "a refusal")
            assert await channel.unary_unary(FIND)(b"", timeout=60) == b""

        async def room() -> bool:
            return await outcome(channel, LIST) == "OK"

        await until(room, "room again after the caller has gone")


async def test_the_slowest_reader_makes_room() -> None:
    async with serving(max_unread_bytes=1 << 20) as (address, channel):
        with closing(await connect(address, 0)) as caller:
            await leave_unread(caller)

            async def room() -> bool:
                caller.poll()
                return await outcome(channel, LIST) == "OK" and caller.dead

            await until(room, "room, at the cost of who does not read")


async def test_a_call_that_ends_without_a_request_is_answered() -> None:
    async with serving() as (_, channel):
        call = channel.stream_unary(FIND)(iter(()), timeout=60)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "peer", ["", "unix:", "ipv4:127.0.0.1:nothing", "ipv4:127.0.0.1:1", "ipv6:%5B::1%5D:1"]
)
def test_nothing_is_cut_for_a_peer_that_is_not_there(peer: str) -> None:
    assert cut([peer]) == set()


def test_many_are_cut_off_with_one_look_at_the_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    listdir = os.listdir

    def counted(folder: str) -> list[str]:
        looks.append(folder)
        return listdir(folder)

    monkeypatch.setattr(os, "listdir", counted)
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as opened:
        callers = [opened.enter_context(socket.create_connection(server.getsockname())) for _ in range(5)]
        served = [opened.enter_context(server.accept()[0]) for _ in callers]
        peers = ["ipv4:{}:{}".format(*one.getpeername()) for one in served[:4]]
        assert cut([*peers, "ipv4:127.0.0.1:1"]) == set(peers)
        assert len(looks) == 1
        assert [one.recv(1) for one in callers[:4]] == [b""] * 4
        served[4].sendall(b"x")
        assert callers[4].recv(1) == b"x"


async def test_a_caller_is_cut_off_where_no_file_can_be_opened() -> None:
    """Else who takes all connections and reads on none of them would keep what others may leave unread."""
    cuts = Cuts()
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as opened:
        caller = opened.enter_context(socket.create_connection(server.getsockname()))
        served = opened.enter_context(server.accept()[0])
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 3, before[1]))
        with suppress(OSError):
            while True:
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        cuts.soon("ipv4:{}:{}".format(*served.getpeername()), unread_bytes=1)
        caller.setblocking(False)
        async with asyncio.timeout(60):
            assert await asyncio.get_running_loop().sock_recv(caller, 1) == b""


async def test_those_who_are_named_during_a_look_are_cut_off_together_with_the_next_one() -> None:
    looks: list[tuple[set[str], bool]] = []
    looking, go_on = threading.Event(), threading.Event()

    def cut_off(peers: Iterable[str]) -> set[str]:
        looks.append((set(peers), threading.current_thread() is threading.main_thread()))
        looking.set()
        assert go_on.wait(20)
        return set(peers)

    cuts = Cuts(cut_off)
    cuts.soon("a", unread_bytes=1)
    await until(looking.is_set, "the first look, while the loop goes on")
    for peer in ("b", "c", "b"):
        cuts.soon(peer, unread_bytes=1)
    go_on.set()
    await until(lambda: len(looks) == 2, "the second look")
    assert looks == [({"a"}, False), ({"b", "c"}, False)]


async def test_calls_that_are_overdue_together_end_some_at_a_time() -> None:
    deadlines = Deadlines(100)
    began = asyncio.Event()
    overdue: list[float] = []

    async def stay(_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    async def call() -> None:
        with pytest.raises(CallOverdue):
            await deadlines.run(stay, None)
        overdue.append(asyncio.get_running_loop().time())

    calls = [asyncio.create_task(call()) for _ in range(3 * AT_ONCE)]
    await began.wait()
    stand_still(0.2)  # the loop stands still until all of them are due
    most, before = 0, 0
    while len(overdue) < len(calls):
        await asyncio.sleep(0)
        most, before = max(most, len(overdue) - before), len(overdue)
    await asyncio.gather(*calls)
    assert most <= AT_ONCE


async def test_a_call_whose_caller_goes_away_is_not_overdue() -> None:
    deadlines = Deadlines(600_000)
    task = asyncio.create_task(deadlines.run(lambda _: asyncio.Event().wait(), None))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
