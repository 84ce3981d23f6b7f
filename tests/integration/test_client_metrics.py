"""What a worker counts for a program that uses OpenTelemetry, by the real SDK and on real servers."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import muster
import pytest
from kit.clusters.server_cluster import find, running
from kit.waiting import stand_still, until, until_equal
from muster._metrics import instruments
from muster._metrics.member import Names
from muster._reactions import CONNECTION_LOST
from muster_protos.muster.v1 import common_pb2
from opentelemetry import metrics as otel
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

pytestmark = pytest.mark.cluster


class Meter:
    """What the SDK has collected, by metric and attributes."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self._reader = reader

    def points(self) -> dict[tuple[str, frozenset[tuple[str, str]]], Any]:
        data = self._reader.get_metrics_data()
        return {
            (
                metric.name,
                frozenset((key, str(value)) for key, value in (point.attributes or {}).items()),
            ): point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            if scope.scope.name == instruments.METER
            for metric in scope.metrics
            for point in metric.data.data_points
        }

    def read(self, metric: instruments.ClientMetric, **attributes: str) -> float | None:
        """The value of a counter or gauge, or how many values a histogram has; None: nothing was told."""
        point = self.points().get((metric.name, frozenset(attributes.items())))
        return None if point is None else getattr(point, "value", getattr(point, "count", None))


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    """The provider of the program, which can be set once in a process."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    otel.set_meter_provider(provider)
    yield Meter(reader)
    provider.shutdown()


async def test_a_program_with_opentelemetry_gets_what_its_worker_does(meter: Meter, tmp_path: Path) -> None:
    stop, blocked = asyncio.Event(), asyncio.Event()
    failures: list[int] = []

    async def work(p: muster.Partition) -> None:
        await p.commit(p.number + 1)
        if p.number == 2:
            failures.append(p.number)
            raise ValueError("no such tenant")
        if p.number == 1:
            await blocked.wait()
            stand_still(0.5)  # what is to be noticed
        await p.ending()

    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(running(tmp_path))
        worker = asyncio.create_task(
            muster.arun(
                work,
                group="tenants-by-otel",
                topic="tenants",
                partitions=3,
                servers=cluster.servers,
                stop=stop,
                retry_attempts=3,
                retry_backoff_ms=10,
            )
        )
        of_topic = {"group": "tenants-by-otel", "topic": "tenants"}
        await until_equal(lambda: meter.read(instruments.PARKED, **of_topic), 1)
        assert len(failures) == 3
        assert meter.read(instruments.OWNED, **of_topic) == 3
        assert meter.read(instruments.COMMITS, **of_topic) == 5  # 2 tries again and again
        # The mark of a parked partition is a commit that takes its time.
        assert meter.read(instruments.COMMIT_DURATION, group="tenants-by-otel") == 6
        assert meter.read(instruments.WORK_RETRIES, **of_topic, why="failed") == 2
        joined = {"group": "tenants-by-otel", "cause": "member_joined"}
        assert meter.read(instruments.REBALANCES, **joined) == 1

        blocks = meter.read(instruments.LOOP_BLOCKS) or 0
        blocked.set()
        await until(lambda: (meter.read(instruments.LOOP_BLOCKS) or 0) > blocks, "the block is counted")

        without = {"group": "tenants-by-otel"}
        before_s = meter.read(instruments.WITHOUT_COORDINATOR, **without) or 0.0
        served_at = await find(cluster.servers, "tenants-by-otel")
        owner = next(process for process in cluster.coordinators if process.address == served_at)
        await owner.kill()
        await until(
            lambda: (meter.read(instruments.WITHOUT_COORDINATOR, **without) or 0.0) > before_s,
            "the time without a coordinator is counted",
        )
        stop.set()
        await worker
        assert meter.read(instruments.OWNED, **of_topic) is None


async def test_what_a_coordinator_refuses_is_counted_by_its_answer(meter: Meter, tmp_path: Path) -> None:
    brief = {"MUSTER_GROUP_OFFSET_METADATA_MAX_BYTES": "10"}
    async with (
        running(tmp_path, coordinators=1, settings=brief) as cluster,
        muster.Cluster(cluster.servers) as client,
    ):
        await client.create_topic("t", 2)
        async with muster.Member(client, group_id="refused-by-otel", topics="t") as member:
            await until(lambda: len(member.partitions) == 2, "it has the topic")
            with pytest.raises(muster.CommitRejected, match="OFFSET_METADATA_TOO_LARGE"):
                await member.commit({member.partitions[0]: muster.Committed(5, "eleven byte")})
        attributes = {"group": "refused-by-otel", "topic": "t", "code": "OFFSET_METADATA_TOO_LARGE"}
        assert meter.read(instruments.COMMITS_REFUSED, **attributes) == 1


@pytest.mark.quick
def test_names_are_bounded_for_ever() -> None:
    names = Names(3)
    assert [names.of(name) for name in "abcd"] == ["a", "b", "c", "other"]
    assert [names.of(name) for name in "cbae"] == ["c", "b", "a", "other"]


@pytest.mark.quick
def test_codes_and_causes_of_later_servers_are_other() -> None:
    assert instruments.code_attribute(common_pb2.ERROR_CODE_ILLEGAL_GENERATION) == "ILLEGAL_GENERATION"
    assert instruments.code_attribute(CONNECTION_LOST) == "CONNECTION_LOST"
    assert instruments.code_attribute(31_999) == "other"
    assert instruments.cause_name(common_pb2.REBALANCE_CAUSE_KIND_MEMBER_JOINED) == "member_joined"
    assert instruments.cause_name(31_999) == "other"
