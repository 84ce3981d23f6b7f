"""This version and the one before, side by side: an upgrade and a rollback under load, process by process."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import muster
import pytest
from kit.clusters.fenced_fleet import GROUP as FENCED_GROUP
from kit.clusters.fenced_fleet import Fleet as FencedFleet
from kit.clusters.server_cluster import FAST_GROUPS
from kit.clusters.two_versions import SteadyMembers, TwoVersions, history_problem
from kit.waiting import until
from muster_core.features import ALL_FEATURES
from muster_protos.muster.v1 import discovery_pb2
from muster_runtime.rpc.trust.trust import Trust
from muster_server.doctor.examination import Patient, examine
from muster_server.doctor.findings import CheckResult
from muster_server.features.command import FeaturesError, enable_one, listing
from muster_server.roles import COORDINATOR, DISCOVERY, METADATA
from muster_server.verify.anchors import Anchoring
from muster_server.verify.verifier import verify

pytestmark = pytest.mark.cluster

GROUP, MEMBERS = "steady", 4
SETTINGS = {
    **FAST_GROUPS,
    # Each version loads from snapshots that the other one took, and from logs that it trimmed.
    "MUSTER_SHARD_LOG_SNAPSHOT_RECORDS": "100",
    "MUSTER_SHARD_LOG_RETENTION_MS": "3000",
}
CONVERTING = {"MUSTER_GROUP_CONVERT": "auto", "MUSTER_GROUP_CONVERT_AFTER_MS": "3000"}
VERIFY = """
import sys
from muster_server.verify.verifier import verify
sys.exit(not verify(sys.argv[1]).clean)
"""
REFUSED = "the cluster has features enabled that this server"
ORDERS = {
    "as documented": (METADATA, COORDINATOR, DISCOVERY),
    "the other way round": (DISCOVERY, COORDINATOR, METADATA),
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[TwoVersions]:
    if history_problem():
        pytest.skip(history_problem())
    async with TwoVersions(tmp_path, SETTINGS) as running:
        yield running


class Fleet:
    """Members of both versions in one group."""

    def __init__(self, *members: SteadyMembers) -> None:
        self._members = members

    @property
    def rebalances(self) -> int:
        return sum(members.rebalances for members in self._members)

    @property
    def settled(self) -> bool:
        generations = {number for members in self._members for number in members.generations.values()}
        return len(generations) == 1 and sum(len(members.commits) for members in self._members) == MEMBERS

    async def go_on(self) -> None:
        """Waits until every member has committed five times more."""
        await asyncio.gather(*(members.go_on() for members in self._members))


@asynccontextmanager
async def fleet_of(cluster: TwoVersions) -> AsyncIterator[Fleet]:
    """Half of the members are of the version before. None of them may see a rebalance meanwhile."""
    async with muster.Cluster(cluster.servers) as client:
        await client.create_topic(GROUP, MEMBERS)
        half = MEMBERS // 2
        async with AsyncExitStack() as stack:
            old = SteadyMembers(cluster.servers, GROUP, cluster.previous, 0, half)
            new = SteadyMembers(cluster.servers, GROUP, "", half, MEMBERS - half)
            fleet = Fleet(*[await stack.enter_async_context(members) for members in (old, new)])
            await until(lambda: fleet.settled, "members of both versions share the work", 60)
            began = fleet.rebalances
            yield fleet
            assert fleet.rebalances == began
        assert len(await client.committed(GROUP)) == MEMBERS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
async def test_upgrade_and_rollback_under_load(cluster: TwoVersions, order: tuple[str, ...]) -> None:
    slots = sorted(cluster.slots, key=lambda slot: order.index(slot.role))
    async with fleet_of(cluster) as fleet:
        for slot in slots:
            await slot.run(new=True)
            await fleet.go_on()
        for slot in reversed(slots):
            await slot.run(new=False)
            await fleet.go_on()
    report = verify(cluster.nodes.url)
    assert report.clean, report.evidence
    assert report.kinds["snapshot"] > 0
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        VERIFY,
        cluster.nodes.url,
        env={**os.environ, "PYTHONPATH": cluster.previous},
    )
    assert await process.wait() == 0


def all_work(members: SteadyMembers) -> bool:
    return len(members.commits) == MEMBERS


@pytest.mark.timeout(600)
async def test_what_the_version_before_wrote_alone_is_audited_right(
    cluster: TwoVersions, tmp_path: Path
) -> None:
    """Members of that version came, worked and left; its processes were stopped, and one was killed."""
    async with muster.Cluster(cluster.servers) as client:
        await client.create_topic(GROUP, MEMBERS)
    for _ in range(2):
        async with SteadyMembers(cluster.servers, GROUP, cluster.previous, 0, MEMBERS) as members:
            await until(partial(all_work, members), "all members work", 60)
            await members.go_on()
            await cluster.coordinators[0].kill()
            await members.go_on()
            await cluster.coordinators[0].run(new=False)
    for slot in reversed(cluster.slots):
        await slot.stop()
    place = str(tmp_path / "anchor.json")
    report = verify(cluster.nodes.url, anchoring=Anchoring(keep=place))
    assert (report.clean, report.to_repair) == (True, []), report.evidence
    assert report.kinds["claim"] > 0
    assert report.kinds["member_left"] + report.kinds["generation_started"] > 0
    assert verify(cluster.nodes.url, anchoring=Anchoring(place)).clean


async def owners(servers: str) -> set[str]:
    """Names of the coordinators that own shards."""
    async with muster.Cluster(servers) as client:
        cluster: discovery_pb2.Cluster = await client.describe()
        return {owner.node_id for owner in cluster.shards}


@pytest.mark.timeout(600)
async def test_features_are_enabled_after_the_upgrade_and_shut_the_version_before_out(
    cluster: TwoVersions,
) -> None:
    """What an old process has, and that no feature can be enabled before the last one is gone."""
    trust = Trust.load()
    metadata = [slot.address for slot in cluster.metadata]
    async with fleet_of(cluster) as fleet:
        with pytest.raises(FeaturesError, match="a version without features"):
            await listing(metadata, trust)
        for slot in cluster.metadata:
            await slot.run(new=True)
        for slot in (*cluster.coordinators, *cluster.discovery):
            with pytest.raises(FeaturesError, match="servers are alive that do not know it"):
                await enable_one(metadata, trust, min(ALL_FEATURES))
            await slot.run(new=True)
            await fleet.go_on()

        await enable_all(cluster)
        await fleet.go_on()

        # An operator goes back by mistake, with one process of each role.
        first, second = cluster.coordinators
        old_metadata, old_discovery = cluster.metadata[1], cluster.discovery[1]
        await old_metadata.spawn(new=False)
        await first.spawn(new=False)
        await until(lambda: "WRONGTYPE" in old_metadata.log, "the old metadata finds no leases")
        await until(lambda: REFUSED in first.log, "the old coordinator is refused")
        for _ in range(5):
            await fleet.go_on()
        assert not first.ready
        assert await owners(cluster.discovery[0].address) == {second.name}
        await old_metadata.kill()
        await old_metadata.run(new=True)
        await old_discovery.spawn(new=False)
        await until(lambda: REFUSED in old_discovery.log, "the old discovery is refused")
        for old in (old_discovery, first):
            await old.kill()
            await old.run(new=True)
        await fleet.go_on()
    report = verify(cluster.nodes.url)
    assert report.clean, report.evidence


@pytest.mark.timeout(300)
async def test_doctor_tells_the_versions_apart(cluster: TwoVersions) -> None:
    await cluster.metadata[0].run(new=True)
    metadata = [slot.address for slot in cluster.metadata]
    patient = Patient([cluster.discovery[0].address], metadata, "", Trust.load())
    (versions,) = [finding for finding in await examine(patient) if finding.check == "versions"]
    assert versions.result is CheckResult.WARNING
    assert "4 × 0.1.0, 2 × 0.2.0" in versions.detail
    assert "0.1.0 is run by coordinator" in versions.detail


class Deployment:
    """Worker processes that share a sink, of this version or the one before."""

    def __init__(self, folder: Path, cluster: TwoVersions) -> None:
        self._cluster = cluster
        self.fleet = FencedFleet(folder, cluster.servers, "-")

    def start(self, name: str, *, new: bool) -> None:
        environment = {} if new else {"PYTHONPATH": self._cluster.previous}
        self.fleet.start(name, environment=environment)

    async def replace(self, old: str, name: str, *, new: bool) -> None:
        """One worker goes and another one comes; what was done stays done."""
        done = self.fleet.done()
        await self.fleet.stop(old)
        self.start(name, new=new)
        await self.fleet.shared()
        assert all(at >= done[number] for number, at in self.fleet.done().items())


async def kind_of(client: muster.Cluster) -> str:
    return next(group.type for group in await client.list_groups() if group.group_id == FENCED_GROUP)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_fleet_of_the_version_before_becomes_incremental_and_goes_back(tmp_path: Path) -> None:
    """Servers first, back and forth with the feature off; then workers, the feature, and workers back."""
    if history_problem():
        pytest.skip(history_problem())
    async with TwoVersions(tmp_path / "cluster", SETTINGS, CONVERTING) as cluster:
        deployment = Deployment(tmp_path, cluster)
        fleet = deployment.fleet
        try:
            for name in ("a", "b"):
                deployment.start(name, new=False)
            await fleet.shared()
            before, starts = fleet.held(), fleet.starts()
            for slot in cluster.slots:
                await slot.run(new=True)
            for slot in (*cluster.discovery, *cluster.coordinators):  # shards move to the version before
                await slot.run(new=False)
                await fleet.progresses()
            for slot in (*cluster.coordinators, *cluster.discovery):
                await slot.run(new=True)
                await fleet.progresses()
            assert (fleet.held(), fleet.starts()) == (before, starts)

            await deployment.replace("a", "c", new=True)
            await deployment.replace("b", "d", new=True)
            async with muster.Cluster(cluster.servers) as client:
                before, starts = fleet.held(), fleet.starts()
                await asyncio.sleep(4)  # that nothing happens can only be seen by waiting
                assert await kind_of(client) == "classic", "the feature is off"
                await cluster.coordinators[0].run(new=False)  # and so the version before can still come back
                await fleet.progresses()
                await cluster.coordinators[0].run(new=True)
                await fleet.progresses()
                assert (fleet.held(), fleet.starts()) == (before, starts)
                await enable_all(cluster)

                async def is_incremental() -> bool:
                    return await kind_of(client) == "consumer"

                # Members said that they can be incremental when they joined, when the log did not keep that.
                await deployment.replace("c", "e", new=True)
                await deployment.replace("d", "f", new=True)
                before, starts = fleet.held(), fleet.starts()
                await until(is_incremental, "the group is an incremental one", 60)
                await fleet.progresses()
                assert (fleet.held(), fleet.starts()) == (before, starts)
                await deployment.replace("e", "g", new=False)
                assert await kind_of(client) == "classic"
                await deployment.replace("f", "h", new=False)
                await fleet.progresses()
        finally:
            for name in tuple(fleet.workers):
                await fleet.stop(name)
        assert fleet.sink.rows("SELECT * FROM wrong") == []
        assert fleet.held() == {}
        report = verify(cluster.nodes.url)
        assert report.clean, report.evidence


async def enable_all(cluster: TwoVersions) -> None:
    trust = Trust.load()
    metadata = [slot.address for slot in cluster.metadata]

    async def enabled() -> bool:
        for feature in sorted(ALL_FEATURES):
            try:
                await enable_one(metadata, trust, feature)
            except FeaturesError:
                return False
        return (await listing(metadata, trust)).enabled == ALL_FEATURES

    await until(enabled, "the last old process is forgotten", 60)
