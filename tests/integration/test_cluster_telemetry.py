"""Traces and metrics of a whole cluster: processes of every role, a client that traces, a collector."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.clusters.server_cluster import running
from kit.collector import Collector
from kit.waiting import until
from muster import Cluster, Member
from muster import _tracing as client_tracing
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

pytestmark = pytest.mark.cluster

CLIENT = "test-client"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """What the cluster and the client send to; the client's provider can be set once in a process."""
    with Collector() as collector:
        provider = TracerProvider(resource=Resource.create({"service.name": CLIENT}), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=collector.endpoint, insecure=True)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        yield collector
        provider.shutdown()


class Spans:
    """Spans at a collector, with their places in their traces."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def named(self, name: str) -> list[Any]:
        return [span for span in self._collector.spans if span.name == name]

    def below(self, span: Any) -> list[Any]:
        return [other for other in self._collector.spans if other.parent_span_id == span.span_id]

    def service(self, span: Any) -> str:
        return self._collector.resources[span.span_id]["service.name"]

    def above(self, span: Any) -> Any:
        return next((other for other in self._collector.spans if other.span_id == span.parent_span_id), None)


def attribute(span: Any, key: str) -> Any:
    found = [item.value for item in span.attributes if item.key == key]
    return None if not found else found[0].string_value or found[0].int_value


async def test_a_rebalance_is_one_trace_down_to_redis_with_its_joins_linked(
    collector: Collector, tmp_path: Path
) -> None:
    telemetry = {
        "MUSTER_TELEMETRY_OTLP_ENDPOINT": collector.endpoint,
        "MUSTER_TELEMETRY_TRACE_RATIO": "0.0001",
        "MUSTER_LOG_FORMAT": "json",
    }
    spans = Spans(collector)
    async with running(tmp_path, coordinators=1, settings=telemetry) as cluster:
        async with Cluster(cluster.servers) as client:
            await client.create_topic("work", 4)
            with trace.get_tracer("test").start_as_current_span("deploy") as deploy:
                members = [
                    Member(client, group_id="group", topics="work", protocol="classic") for _ in range(2)
                ]
                await asyncio.gather(*(member.start() for member in members))
                await until(lambda: [m for m in members if m.partitions] == members, "both have work")
            await asyncio.gather(*(member.close() for member in members))
        rebalances = await until(lambda: _complete(spans), "the spans of a rebalance of two members")
    rebalance = rebalances[0]
    assert spans.service(rebalance) == "muster-coordinator"
    assert rebalance.parent_span_id == b""
    assert attribute(rebalance, "muster.group_id") == "group"
    assert attribute(rebalance, "muster.cause") == "member_joined"
    joins = {span.span_id: span for span in spans.named("muster.v1.GroupSessionService/JoinGroup")}
    syncs = {span.span_id: span for span in spans.named("muster.v1.GroupSessionService/SyncGroup")}
    linked = [link.span_id for link in rebalance.links]
    assert len([link for link in linked if link in joins]) == 2
    assert len([link for link in linked if link in syncs]) == 1
    # client → coordinator: the join belongs to the trace of the program that asked for it
    callers = [spans.above(joins[link]) for link in linked if link in joins]
    assert {spans.service(caller) for caller in callers} == {CLIENT}
    assert all(joins[link].trace_id == _trace_id(deploy) for link in linked if link in joins)
    # coordinator → metadata → Redis: the generation and the assignment
    steps = [span for span in spans.below(rebalance) if span.name == "log append"]
    assert len(steps) == 2
    for step in steps:
        (quorum,) = spans.below(step)
        assert (quorum.name, spans.service(quorum)) == ("quorum append", "muster-metadata")
        nodes = spans.below(quorum)
        assert {span.name for span in nodes} == {"redis append"}
        assert {attribute(span, "muster.node") for span in nodes} == {1, 2, 3}
    finds = spans.named("muster.v1.CoordinatorDiscoveryService/FindCoordinator")
    assert any(spans.service(find) == "muster-discovery" and spans.above(find) for find in finds)
    # logs: the line that tells of the rebalance names its trace
    lines = await asyncio.to_thread(_lines, tmp_path)
    assert f'"trace_id": "{rebalance.trace_id.hex()}"' in lines
    assert {span.name for span in collector.spans if "Heartbeat" in span.name} == set()


async def test_what_a_member_does_after_its_start_is_a_trace_of_its_own(collector: Collector) -> None:
    with trace.get_tracer("test").start_as_current_span("start"):
        with client_tracing.span("muster within", "g"):
            pass
        later = asyncio.create_task(_call_later())
    await later
    spans = Spans(collector)
    (start,) = spans.named("start")
    (within,) = spans.named("muster within")
    (after,) = spans.named("muster after")
    assert within.parent_span_id == start.span_id
    assert after.parent_span_id == b""
    assert after.trace_id != start.trace_id
    assert [link.span_id for link in after.links] == [start.span_id]


async def _call_later() -> None:
    await asyncio.sleep(0)
    with client_tracing.span("muster after", "g"):
        sent = client_tracing.metadata()
        assert sent is not None
        assert sent[0][0] == "traceparent"


def _complete(spans: Spans) -> list[Any]:
    """The rebalances of two members of which everything has come."""
    return [
        span
        for span in spans.named("rebalance")
        if attribute(span, "muster.members") == 2
        and sum(len(spans.below(quorum)) for step in spans.below(span) for quorum in spans.below(step)) == 6
        and all(any(link.span_id == other.span_id for other in spans._collector.spans) for link in span.links)
    ]


def _lines(folder: Path) -> str:
    return "".join(file.read_text() for file in folder.rglob("*coordinator*.log"))


def _trace_id(span: trace.Span) -> bytes:
    return span.get_span_context().trace_id.to_bytes(16, "big")
