import asyncio
import importlib.metadata
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from abuse.http2 import DATA, Connection, frame, grpc_message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from kit.waiting import until, until_equal
from muster_protos.muster.internal.v1 import (
    metadata_pb2,
    metadata_pb2_grpc,
    process_pb2,
    process_pb2_grpc,
)
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc
from muster_runtime.rpc.large import LARGE_BYTES
from muster_runtime.rpc.refusals import InvalidArgument, ResourceExhausted, Unimplemented, Violation
from muster_runtime.rpc.server import ALIVE, REFLECTION_MAX_BYTES, ListenError, RpcServer, ServerSettings
from structlog.testing import capture_logs

pytestmark = pytest.mark.cluster

SERVICE = "/muster.v1.CoordinatorDiscoveryService/"
METADATA = "/muster.internal.v1.MetadataService/"


class Servicer(discovery_pb2_grpc.CoordinatorDiscoveryServiceServicer):
    def __init__(self) -> None:
        self.remaining_s: list[float | None] = []
        self.stopping = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def FindCoordinator(self, request: Any, context: Any) -> Any:
        self.remaining_s.append(context.time_remaining())
        return discovery_pb2.FindCoordinatorResponse()

    async def DescribeCluster(self, request: Any, context: Any) -> Any:
        raise RuntimeError("redis://secret-host in /some/file.py")

    async def ListTopics(self, request: Any, context: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    async def CreateTopic(self, request: Any, context: Any) -> Any:
        raise InvalidArgument([Violation("topic.name", "must be at most 249 characters\n")])

    async def AlterTopic(self, request: Any, context: Any) -> Any:
        raise ResourceExhausted("too many", 1_500)

    async def WatchCluster(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield discovery_pb2.WatchClusterResponse()
        await self.stopping.wait()

    async def DeleteTopic(self, request: Any, context: Any) -> Any:
        raise Unimplemented("not in this version")


class LogServicer(metadata_pb2_grpc.MetadataServiceServicer):  # what is missing is what a test asks for
    async def Log(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        async for request in request_iterator:
            yield metadata_pb2.LogResponse(results=[metadata_pb2.LogResult(call_id=len(request.calls))])

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield metadata_pb2.WatchResponse(lease_ms=int("internals"))

    async def Lease(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # the stubs know no servicers that are async
        while True:
            request = await context.read()
            if request is grpc.aio.EOF:
                return
            await context.write(metadata_pb2.LeaseResponse(number=request.number))


class Running:
    def __init__(self, server: RpcServer, servicer: Servicer, channel: Any) -> None:
        self.server = server
        self.servicer = servicer
        self.channel = channel

    async def unary(self, method: str, body: bytes = b"", timeout: float | None = 20) -> Any:
        return await self.channel.unary_unary(method)(body, timeout=timeout)

    async def refused(
        self, method: str, body: bytes = b"", timeout: float | None = 20
    ) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.unary(method, body, timeout)
        return caught.value


async def start(settings: ServerSettings) -> Running:
    server = RpcServer(settings)
    servicer = Servicer()
    server.add(
        discovery_pb2_grpc.add_CoordinatorDiscoveryServiceServicer_to_server,
        servicer,
        method_limits={"FindCoordinator": 4_096},
    )
    server.add(metadata_pb2_grpc.add_MetadataServiceServicer_to_server, LogServicer())
    port = await server.start("127.0.0.1:0")
    assert port == server.port > 0
    return Running(server, servicer, grpc.aio.insecure_channel(f"127.0.0.1:{port}"))


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    instance = await start(ServerSettings(max_request_bytes=1_024, max_deadline_ms=1_000))
    yield instance
    instance.servicer.stopping.set()
    await instance.channel.close()
    await instance.server.stop(0)


def details(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    trailers = dict(error.trailing_metadata())
    return status_pb2.Status.FromString(trailers["grpc-status-details-bin"])


def violations(error: grpc.aio.AioRpcError) -> list[tuple[str, str]]:
    bad = error_details_pb2.BadRequest()
    assert details(error).details[0].Unpack(bad)
    return [(v.field, v.description) for v in bad.field_violations]


async def test_garbage_bytes_are_an_invalid_argument(running: Running) -> None:
    for method in ("FindCoordinator", "DescribeCluster"):
        error = await running.refused(SERVICE + method, b"\xff\xff\xff")
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert violations(error) == [("", "the request is not a valid message of its type")]
    error = await running.refused(SERVICE + "FindCoordinator", b"\n\x01\xff")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await running.unary(SERVICE + "FindCoordinator") == b""


@pytest.mark.parametrize("method", ["Log", "Lease"])
async def test_garbage_bytes_in_a_stream_end_it_as_an_invalid_argument(running: Running, method: str) -> None:
    call = running.channel.stream_stream(METADATA + method)(timeout=60)
    await call.write(b"")
    assert isinstance(await call.read(), bytes)
    await call.write(b"\xff\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "Decode" not in str(caught.value.details())


async def test_garbage_bytes_of_a_watch(running: Running) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.channel.unary_stream(SERVICE + "WatchCluster")(b"\xff", timeout=60).read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_oversized_request_is_told_the_limit_of_its_call(running: Running) -> None:
    error = await running.refused(SERVICE + "FindCoordinator", b"\n\x00" * 2_049)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violations(error) == [("", "the request is larger than 4096 bytes")]
    assert await running.unary(SERVICE + "FindCoordinator", b"\n\x00" * 2_048) == b""
    error = await running.refused(SERVICE + "CreateTopic", b"\n\x00" * 600)
    assert "1024 bytes" in str(error.details())


async def test_a_far_too_large_request_never_reaches_the_process(running: Running) -> None:
    error = await running.refused(SERVICE + "FindCoordinator", b"x" * 100_000)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_what_is_far_too_large_when_it_is_unpacked_never_reaches_the_process(running: Running) -> None:
    call = running.channel.unary_unary(SERVICE + "FindCoordinator")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(bytes(10 << 20), timeout=60, compression=grpc.Compression.Gzip)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_who_says_nothing_is_cut_off_after_the_time_for_a_handshake() -> None:
    instance = await start(ServerSettings(handshake_timeout_ms=100))
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", instance.server.port)
        async with asyncio.timeout(60):
            await reader.read()  # to the end of the connection
        writer.close()
    finally:
        await instance.channel.close()
        await instance.server.stop(0)


async def test_oversized_headers_are_refused(running: Running) -> None:
    call = running.channel.unary_unary(SERVICE + "FindCoordinator")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"", metadata=(("x", "y" * 60_000),), timeout=60)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_unforeseen_error_shows_nothing_and_is_logged(running: Running) -> None:
    with capture_logs() as logs:
        error = await running.refused(SERVICE + "DescribeCluster")
    assert error.code() is grpc.StatusCode.INTERNAL
    text = str(error.details())
    assert text.startswith("internal error, request ")
    assert "secret" not in text + str(error.trailing_metadata())
    [entry] = [entry for entry in logs if entry["event"] == "rpc_failed"]
    assert entry["request_id"] == text.rsplit(" ", 1)[1]
    assert isinstance(entry["exc_info"], RuntimeError)


async def test_an_unforeseen_error_of_a_stream(running: Running) -> None:
    with capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.channel.unary_stream(METADATA + "Watch")(b"", timeout=60).read()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "internals" not in str(caught.value.details())
    assert [entry["method"] for entry in logs] == ["muster.internal.v1.MetadataService/Watch"]


async def test_a_caller_who_leaves_a_stream_with_an_answer_unread_is_no_defect(running: Running) -> None:
    """Each who was cut off for what it did not read was an error with a traceback in the log."""
    request = metadata_pb2.LeaseRequest(number=1).SerializeToString()
    with capture_logs() as logs:
        for _ in range(20):
            caller = await asyncio.to_thread(Connection, f"127.0.0.1:{running.server.port}", 0)
            caller.poll(1)  # the server takes the window in with its settings
            stream = caller.open(METADATA + "Lease", None)
            caller.send(frame(DATA, 0, stream, grpc_message(request)))
            await asyncio.sleep(0.05)
            caller.close()
        await asyncio.sleep(0.5)
    assert [entry for entry in logs if entry["event"] == "rpc_failed"] == []


async def test_a_method_that_is_not_written_is_unimplemented(running: Running) -> None:
    error = await running.refused(SERVICE + "DeleteTopic")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    error = await running.refused(METADATA + "ChangeTopic")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_refusals_carry_details(running: Running) -> None:
    error = await running.refused(SERVICE + "CreateTopic")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violations(error) == [("topic.name", "must be at most 249 characters\\n")]
    error = await running.refused(SERVICE + "AlterTopic")
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    retry = error_details_pb2.RetryInfo()
    assert details(error).details[0].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1_500


@pytest.mark.parametrize("timeout", [None, 3_600])
async def test_a_missing_or_too_long_deadline_is_capped(running: Running, timeout: float | None) -> None:
    error = await running.refused(SERVICE + "ListTopics", timeout=timeout)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "1 s that this server allows" in str(error.details())
    assert running.servicer.cancelled.is_set()


async def test_a_cancelled_call_cancels_its_handler(running: Running) -> None:
    call = running.channel.unary_unary(SERVICE + "ListTopics")(b"", timeout=0.2)
    with pytest.raises(grpc.aio.AioRpcError):
        await call
    async with asyncio.timeout(60):
        await running.servicer.cancelled.wait()


async def test_health_follows_set_serving(running: Running) -> None:
    stub: Any = health_pb2_grpc.HealthStub(running.channel)
    for service in ("", "muster.v1.CoordinatorDiscoveryService"):
        check = health_pb2.HealthCheckRequest(service=service)
        assert (await stub.Check(check)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await running.server.set_serving(True)
        assert (await stub.Check(check)).status == health_pb2.HealthCheckResponse.SERVING
        await running.server.set_serving(False)


async def test_a_process_is_alive_before_it_serves_and_after(running: Running) -> None:
    stub: Any = health_pb2_grpc.HealthStub(running.channel)
    for serving in (False, True, False):
        await running.server.set_serving(serving)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=ALIVE))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_lists_the_services(running: Running) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(running.channel)
    call = stub.ServerReflectionInfo(timeout=60)
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = [service.name for service in (await call.read()).list_services_response.service]
    assert "muster.v1.CoordinatorDiscoveryService" in names
    assert "grpc.health.v1.Health" in names
    await call.done_writing()


async def test_a_large_request_for_reflection_is_refused_with_its_limit() -> None:
    """Large messages of a stream are decoded by who reads them, and the library's servicer would not."""
    instance = await start(ServerSettings())
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(instance.channel)
    call = stub.ServerReflectionInfo(timeout=60)
    await call.write(reflection_pb2.ServerReflectionRequest(file_by_filename="x" * (LARGE_BYTES + 1)))
    with pytest.raises(grpc.aio.AioRpcError, match=f"larger than {REFLECTION_MAX_BYTES} bytes") as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await instance.channel.close()
    await instance.server.stop(0)


async def test_stop_ends_open_streams() -> None:
    instance = await start(ServerSettings())
    instance.server.on_stop(instance.servicer.stopping.set)
    watch = instance.channel.unary_stream(SERVICE + "WatchCluster")(b"", timeout=60)
    assert await watch.read() == b""
    stub: Any = health_pb2_grpc.HealthStub(instance.channel)
    health = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
    assert (await health.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    async with asyncio.timeout(60):
        await instance.server.stop(60_000)
    assert await watch.read() is grpc.aio.EOF
    assert await health.code() is grpc.StatusCode.UNAVAILABLE
    await instance.channel.close()


async def test_stop_cancels_what_does_not_end() -> None:
    instance = await start(ServerSettings())
    call = instance.channel.unary_unary(SERVICE + "ListTopics")(b"", timeout=60)
    await instance.unary(SERVICE + "FindCoordinator")
    async with asyncio.timeout(60):
        await instance.server.stop(50)
        await instance.server.stop(50)
    with pytest.raises(grpc.aio.AioRpcError):
        await call
    await instance.channel.close()


async def test_a_taken_port_is_a_clear_error() -> None:
    """Also when the other one is a server of ours: they must not share the connections."""
    first, second = RpcServer(ServerSettings()), RpcServer(ServerSettings())
    port = await first.start("127.0.0.1:0")
    with pytest.raises(ListenError, match="the port is taken"):
        await second.start(f"127.0.0.1:{port}")
    await first.stop(0)


def test_limits_of_unknown_methods_are_refused() -> None:
    with pytest.raises(ValueError, match="Nonsense"):
        RpcServer(ServerSettings()).add(
            discovery_pb2_grpc.add_CoordinatorDiscoveryServiceServicer_to_server,
            Servicer(),
            method_limits={"Nonsense": 1},
        )


async def test_thousands_of_parked_calls_fit() -> None:
    """A burst of them was cancelled with the defaults of gRPC; a connection has a thousand at most."""
    instance = await start(ServerSettings())
    own = [("grpc.use_local_subchannel_pool", 1)]
    others = [grpc.aio.insecure_channel(f"127.0.0.1:{instance.server.port}", options=own) for _ in range(2)]
    methods: list[Any] = [channel.unary_unary(SERVICE + "ListTopics") for channel in others]
    calls = [method(b"", timeout=60) for method in methods for _ in range(1_000)]
    caller = await until(lambda: next(instance.server.quotas.parties(), None))
    await until_equal(lambda: caller.open_calls, 2_000, "parked calls")
    assert await instance.unary(SERVICE + "FindCoordinator") == b""
    assert not [call for call in calls if call.done()]
    for call in calls:
        call.cancel()
    for channel in (*others, instance.channel):
        await channel.close()
    await instance.server.stop(0)


async def test_process_tells_its_version_and_its_clock(running: Running) -> None:
    stub: Any = process_pb2_grpc.ProcessServiceStub(running.channel)
    before_ms = time.time_ns() // 1_000_000
    described = await stub.DescribeProcess(process_pb2.DescribeProcessRequest(), timeout=60)
    assert described.version == importlib.metadata.version("muster-server")
    assert before_ms <= described.wall_clock_ms <= time.time_ns() // 1_000_000
