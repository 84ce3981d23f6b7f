import asyncio
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from kit.collector import Collector
from kit.scrape import scrape
from kit.waiting import stand_still, until
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc
from muster_runtime.errors import StartupError
from muster_runtime.logs import alarm
from muster_runtime.rpc.refusals import ResourceExhausted
from muster_runtime.rpc.server import RpcServer
from muster_runtime.settings import SettingsError, load
from muster_runtime.telemetry import Kind, Metric, Sample, Source, TelemetrySettings
from muster_runtime.telemetry.instruments import Counter, Histogram
from muster_runtime.telemetry.process import ALARM_EVENTS
from muster_runtime.telemetry.process_telemetry import ProcessTelemetry
from muster_runtime.telemetry.prometheus import CONNECTIONS_MAX

CALLS = Metric("test_calls", Kind.COUNTER, "Calls.", labels={"kind": ("join", "sync")})
TIMES = Metric("test_time", Kind.HISTOGRAM, "Times.", "seconds", bounds=(0.1, 1.0))
ROOM = Metric("test_room", Kind.GAUGE, "Room.", "bytes")


class Numbers(Source):
    metrics = (CALLS, TIMES, ROOM)

    def __init__(self) -> None:
        self.calls = Counter(CALLS)
        self.times = Histogram(TIMES)
        self.instruments = (self.calls, self.times)
        self.broken = False
        self.room = 42

    async def read(self) -> Sequence[Sample]:
        if self.broken:
            raise RuntimeError("broken")
        return [Sample(ROOM, self.room)]


def settings(**values: Any) -> TelemetrySettings:
    return load(TelemetrySettings, **values)


@asynccontextmanager
async def running(**values: Any) -> AsyncIterator[tuple[ProcessTelemetry, Numbers, int]]:
    patient = {"collect_timeout_ms": 20_000, **values}
    telemetry = ProcessTelemetry(settings(**patient), ["metadata"], "9.9.9", "here")
    numbers = Numbers()
    telemetry.add(lambda: numbers)
    port = await telemetry.start()
    try:
        yield telemetry, numbers, port
    finally:
        await telemetry.stop()


async def test_prometheus_reads_what_was_counted() -> None:
    async with running(prometheus_listen="127.0.0.1:0") as (_, numbers, port):
        numbers.calls.add(("join",))
        numbers.calls.add(("join",), 2)
        for value in (0.05, 0.1, 0.5, 7.0, -3.0):
            numbers.times.observe(value)
        scraped = await scrape(port)
    assert scraped.value("test_calls_total", kind="join") == 3
    assert scraped.value("test_room_bytes") == 42
    assert [scraped.value("test_time_seconds_bucket", le=le) for le in ("0.1", "1.0", "+Inf")] == [3, 4, 5]
    assert scraped.value("test_time_seconds_sum") == pytest.approx(7.65)
    assert scraped.value("muster_build_info", version="9.9.9", roles="metadata") == 1
    assert scraped.value("process_resident_memory_bytes") > 0


async def test_metrics_without_a_number_are_told_too() -> None:
    async with running(prometheus_listen="127.0.0.1:0") as (_, _numbers, port):
        assert "test_calls_total" in (await scrape(port)).names


def test_labels_have_the_values_of_their_list_and_no_others() -> None:
    counter, histogram = (
        Counter(CALLS),
        Histogram(Metric("test_t", Kind.HISTOGRAM, "T.", labels={"kind": ("join",)}, bounds=(1.0,))),
    )
    for number in range(1_000):
        counter.add((f"group-{number}",))
        histogram.observe(0.5, (f"group-{number}",))
    counter.add(("sync",))
    counts, times = (next(instrument.collect()).samples for instrument in (counter, histogram))
    assert {sample.labels["kind"]: sample.value for sample in counts} == {"other": 1_000, "sync": 1}
    assert {sample.labels["kind"] for sample in times} == {"other"}


async def test_loop_that_hangs_costs_a_scrape_its_timeout_and_no_more() -> None:
    async with running(prometheus_listen="127.0.0.1:0", collect_timeout_ms=100) as (_, numbers, port):
        numbers.calls.add(("join",))
        assert (await scrape(port)).value("test_calls_total") == 1
        numbers.calls.add(("join",))
        numbers.room = 43
        scraping = asyncio.create_task(scrape(port))
        await asyncio.sleep(0)
        stand_still(1.0)  # the loop hangs
        scraped = await scraping
        assert (scraped.value("test_room_bytes"), scraped.value("test_calls_total")) == (42, 2)
        scraped = await scrape(port)
        assert scraped.value("test_room_bytes") == 43
        assert scraped.value("muster_telemetry_timeouts_total") == 1
        assert scraped.value("muster_loop_lag_seconds_sum") > 0.5


async def test_source_that_fails_hides_no_other() -> None:
    async with running(prometheus_listen="127.0.0.1:0") as (_, numbers, port):
        numbers.broken = True
        scraped = await scrape(port)
    assert scraped.value("muster_build_info") == 1
    assert "test_calls_total" in scraped.names
    assert scraped.value("test_room_bytes") == 0


async def test_scrapes_that_say_nothing_leave_room_for_others() -> None:
    async with running(prometheus_listen="127.0.0.1:0") as (_, _numbers, port):
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS_MAX)]
        try:
            scraped = await scrape(port)
            assert scraped.value("muster_build_info") == 1
            silent[0].settimeout(5)  # half of what a silent one has
            assert await asyncio.to_thread(silent[0].recv, 1) == b""
        finally:
            for connection in silent:
                connection.close()


@pytest.mark.cluster
async def test_who_connects_again_and_again_closes_no_scrape_of_another_host() -> None:
    async with running(prometheus_listen="127.0.0.1:0") as (_, _numbers, port):
        at = ("127.0.0.1", port)
        slow = socket.create_connection(at, source_address=("127.0.0.2", 0))
        slow.sendall(b"GET /metrics HTTP/1.0\r\n")
        others = [await asyncio.to_thread(socket.create_connection, at) for _ in range(3 * CONNECTIONS_MAX)]
        try:
            others[0].settimeout(5)  # half of what a silent one has
            assert await asyncio.to_thread(others[0].recv, 1) == b""
            slow.settimeout(5)
            slow.sendall(b"\r\n")
            assert await asyncio.to_thread(slow.recv, 15) == b"HTTP/1.0 200 OK"
        finally:
            for connection in (slow, *others):
                connection.close()


@pytest.mark.cluster
async def test_taken_port_is_said_at_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        telemetry = ProcessTelemetry(settings(prometheus_listen=f"127.0.0.1:{port}"), ["metadata"], "1")
        with pytest.raises(StartupError, match=f"PROMETHEUS_LISTEN=127.0.0.1:{port}: cannot listen there"):
            await telemetry.start()
        await telemetry.stop()


@pytest.mark.cluster
async def test_collector_gets_metrics_with_their_kinds() -> None:
    with Collector() as collector:
        async with running(
            otlp_endpoint=collector.endpoint, otlp_interval_ms=100, otlp_headers="authorization=Bearer x"
        ) as (_, numbers, port):
            assert port == 0
            numbers.calls.add(("join",))
            numbers.times.observe(0.5)
            metrics = await until(lambda: _with(collector, "test_calls"), "metrics at the collector")
    assert [point.as_double or point.as_int for point in metrics["test_calls"].sum.data_points] == [1]
    assert metrics["test_calls"].sum.is_monotonic
    assert metrics["test_room"].gauge.data_points[0].as_int == 42
    assert metrics["test_room"].unit == "By"
    (point,) = metrics["test_time"].histogram.data_points
    assert (list(point.bucket_counts), list(point.explicit_bounds)) == ([0, 1, 0], [0.1, 1.0])
    assert collector.headers["authorization"] == "Bearer x"


def _with(collector: Collector, name: str) -> dict[str, Any] | None:
    metrics = collector.metrics()
    return metrics if name in metrics else None


@pytest.mark.cluster
async def test_collector_that_is_down_costs_only_what_it_would_have_got() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    async with running(
        prometheus_listen="127.0.0.1:0",
        otlp_endpoint=f"http://127.0.0.1:{port}",
        otlp_interval_ms=100,
        otlp_timeout_ms=200,
        trace_ratio=1.0,
    ) as (telemetry, _, metrics_port):
        assert telemetry.tracing is not None
        for _ in range(10):
            telemetry.tracing.span("something").end()

        async def dropped() -> Any:
            scraped = await scrape(metrics_port)
            lost = [
                scraped.value("muster_telemetry_dropped_total", signal=signal, reason="not_taken")
                for signal in ("metrics", "spans")
            ]
            return lost[0] > 0 and lost[1] == 10

        await until(dropped, "the losses")


@pytest.mark.cluster
async def test_collector_that_is_silent_fills_the_queue_and_holds_nobody_up() -> None:
    with Collector() as collector:
        collector.silent = True
        async with running(
            prometheus_listen="127.0.0.1:0",
            otlp_endpoint=collector.endpoint,
            otlp_timeout_ms=60_000,
            max_waiting_spans=512,
            trace_ratio=1.0,
        ) as (telemetry, _, port):
            assert telemetry.tracing is not None
            for _ in range(1_500):
                telemetry.tracing.span("something").end()
            scraped = await scrape(port)
            assert scraped.value("muster_telemetry_dropped_total", signal="spans", reason="no_room") == 988
            began = time.monotonic()
        assert time.monotonic() - began < 15


@pytest.mark.cluster
async def test_spans_reach_the_collector_with_their_context() -> None:
    from muster_runtime.telemetry import tracing as traces

    with Collector() as collector:
        async with running(otlp_endpoint=collector.endpoint, trace_ratio=0.0001) as (telemetry, _, _port):
            tracing = telemetry.tracing
            assert tracing is not None
            root = tracing.span("rebalance", attributes={traces.ALWAYS: True})
            sent = traces.traceparent_of(root)
            received = traces.context_from(sent)
            assert received is not None
            with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as lines:
                child = tracing.span("append", parent=received)
                with traces.within(child):
                    structlog.get_logger().info("said_within")
                structlog.get_logger().info("said_after")
            child.end()
            root.end()
        by_name = {span.name: span for span in collector.spans}
    assert by_name["append"].parent_span_id == by_name["rebalance"].span_id
    assert by_name["append"].trace_id == by_name["rebalance"].trace_id
    within, after = lines
    assert bytes.fromhex(within["trace_id"]) == by_name["append"].trace_id
    assert bytes.fromhex(within["span_id"]) == by_name["append"].span_id
    assert "trace_id" not in after
    assert collector.resources[by_name["append"].span_id]["service.instance.id"] == "here"


@pytest.mark.parametrize("text", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 5_000])
def test_context_that_makes_no_sense_is_none(text: str) -> None:
    from muster_runtime.telemetry import tracing as traces

    assert traces.context_from(text) is None


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (
            {"otlp_endpoint": "collector:4317"},
            "MUSTER_TELEMETRY_OTLP_ENDPOINT='collector:4317': must be http://",
        ),
        ({"trace_ratio": 1.5}, "MUSTER_TELEMETRY_TRACE_RATIO='1.5': input should be less than or equal to 1"),
        ({"prometheus_listen": "nowhere"}, "is not an address of the form host:port"),
        (
            {"otlp_endpoint": "http://c:1", "otlp_ca_file": "/ca.pem"},
            "MUSTER_TELEMETRY_OTLP_CA_FILE needs a MUSTER_TELEMETRY_OTLP_ENDPOINT of https://",
        ),
    ],
)
def test_wrong_settings_are_explained(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as refused:
        settings(**values)
    assert problem in str(refused.value)


async def test_certificates_that_cannot_be_read_are_said_at_the_start() -> None:
    with pytest.raises(
        StartupError, match=r"MUSTER_TELEMETRY_OTLP_CA_FILE='/no/such.pem': the file cannot be read"
    ):
        ProcessTelemetry(
            settings(otlp_endpoint="https://c:1", otlp_ca_file="/no/such.pem"), ["metadata"], "1"
        )


class Servicer(discovery_pb2_grpc.CoordinatorDiscoveryServiceServicer):
    async def FindCoordinator(self, request: Any, context: Any) -> Any:
        return discovery_pb2.FindCoordinatorResponse()

    async def ListTopics(self, request: Any, context: Any) -> Any:
        raise ResourceExhausted("too many", 1_500)

    async def DescribeCluster(self, request: Any, context: Any) -> Any:
        raise RuntimeError("a defect")


@pytest.mark.cluster
async def test_unary_calls_are_counted_by_their_status() -> None:
    async with running(prometheus_listen="127.0.0.1:0") as (telemetry, _, metrics_port):
        server = RpcServer(telemetry=telemetry)
        server.add(discovery_pb2_grpc.add_CoordinatorDiscoveryServiceServicer_to_server, Servicer())
        port = await server.start("127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)
            for _ in range(3):
                await stub.FindCoordinator(discovery_pb2.FindCoordinatorRequest())
            for call, request in (
                (stub.ListTopics, discovery_pb2.ListTopicsRequest()),
                (stub.DescribeCluster, discovery_pb2.DescribeClusterRequest()),
            ):
                with pytest.raises(grpc.aio.AioRpcError):
                    await call(request)
        scraped = await scrape(metrics_port)
        await server.stop(0)
    service = "CoordinatorDiscoveryService/"
    counted = {
        (sample.labels["method"].removeprefix(service), sample.labels["status"]): sample.value
        for sample in scraped.samples
        if sample.name == "muster_rpcs_total"
    }
    assert counted == {
        ("FindCoordinator", "OK"): 3,
        ("ListTopics", "RESOURCE_EXHAUSTED"): 1,
        ("DescribeCluster", "INTERNAL"): 1,
    }
    assert scraped.value("muster_rpc_duration_seconds_count", method=f"{service}FindCoordinator") == 3


@pytest.mark.slow
def test_nothing_is_loaded_when_nothing_is_set() -> None:
    """Telemetry that is off costs nothing: not even its libraries are in the process."""
    program = (
        "import sys, muster_server.commands, muster_server.roles, muster_coordinator, muster_discovery;"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'prometheus_client'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_alarms_are_counted() -> None:
    async with running(prometheus_listen="127.0.0.1:0") as (_, _numbers, port):
        before = (await scrape(port)).value("muster_alarms_total", event="shard_failed")
        alarm("shard_failed", shard=3)
        alarm("something_new")
        scraped = await scrape(port)
    assert scraped.value("muster_alarms_total", event="shard_failed") == before + 1
    assert scraped.value("muster_alarms_total", event="other") >= 1


@pytest.mark.slow
def test_every_alarm_has_a_label_of_its_own() -> None:
    services = Path(__file__).parents[2] / "services"
    raised = {
        event
        for file in services.rglob("*.py")
        for event in re.findall(r'\balarm\(\s*"(\w+)"', file.read_text())
    }
    assert tuple(sorted(raised)) == ALARM_EVENTS
