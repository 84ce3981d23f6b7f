"""One instance of the metadata service: creates, starts and stops its parts."""

import asyncio
import socket
import uuid
from collections.abc import Coroutine

import structlog
from muster_core.clock import reading
from muster_core.features import FEATURE_NAMES
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.about import software_version
from muster_runtime.clock import boot_ms, wall_ms
from muster_runtime.logs import alarm
from muster_runtime.telemetry import OFF, Telemetry

from muster_metadata.catalog.catalog import CatalogLog
from muster_metadata.catalog.reading import CatalogReader
from muster_metadata.catalog.snapshots import CatalogSnapshots
from muster_metadata.cluster.features import Features
from muster_metadata.cluster.followers import Followers
from muster_metadata.cluster.lease_stream import Leases
from muster_metadata.cluster.leases import LeaseObserver
from muster_metadata.cluster.membership import Membership
from muster_metadata.cluster.monitor import Monitor
from muster_metadata.cluster.owners import OwnerRow
from muster_metadata.cluster.publisher import ViewPublisher
from muster_metadata.cluster.refill import refill_of
from muster_metadata.cluster.servers import Servers
from muster_metadata.cluster.tables import Tables
from muster_metadata.cluster.trail import TrailStore
from muster_metadata.log.claim import Claimer
from muster_metadata.log.logs import Logs
from muster_metadata.log.patrol import Patrol
from muster_metadata.log.reading import LogReader
from muster_metadata.log.repairs.repair import Repairer
from muster_metadata.log.snapshots import Snapshots
from muster_metadata.log.upkeep import Upkeep
from muster_metadata.nodes.addresses import split_urls
from muster_metadata.nodes.configuration import UNREACHED, Unusable
from muster_metadata.nodes.doubts import Doubts
from muster_metadata.nodes.durability import DurabilityWatch
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.off import Measures
from muster_metadata.settings import MetadataSettings

log = structlog.get_logger()

_RETRY_S = 0.05
_PATIENCE_MS = 1_000


class Metadata:
    """An instance: a proxy without durable state. Belongs to the event loop in which it was made.

    Args:
        settings: addresses of the log's nodes, and times.
        telemetry: where its metrics and spans go.

    Attributes:
        measures: counts what it does.
        problem: why calls are refused until it is ready, for people.
        outdated: set when the cluster uses something that this version does not know.
    """

    def __init__(self, settings: MetadataSettings, telemetry: Telemetry = OFF) -> None:
        self.settings = settings
        self.instance = f"metadata-{uuid.uuid4()}"
        self.shard_count = 0
        self.cluster_id = ""
        self.problem = UNREACHED.reason
        self.stopping = asyncio.Event()
        urls = split_urls(settings.redis_url.get_secret_value())
        nodes = [
            Node(index, url, settings.step_timeout_ms, self._connected) for index, url in enumerate(urls, 1)
        ]
        self.quorum = Quorum(nodes, settings.step_timeout_ms)
        self.tables = Tables(self.quorum, lambda: bool(self.catalog.features))
        self.view = ViewPublisher(LeaseObserver(settings.lease_ms), boot_ms)
        repairer = Repairer(self.quorum, settings.rebuild_delay_ms, refill_tables=refill_of(self.quorum))
        self.membership = Membership(self.quorum, repairer, settings.step_timeout_ms)
        self.upkeep = Upkeep(self.quorum, repairer)
        self._doubts = Doubts(self.quorum, lambda: self._patrol.hurry())
        self._patrol = Patrol(
            self.quorum,
            self.upkeep,
            on_unclaimed_catalog=self._hold_catalog,
            on_looked=self._doubts.hurry,
        )
        self.reader = LogReader(self.quorum)
        claimer = Claimer(self.quorum, repairer, self._stamp_ms, settings.claim_timeout_ms)
        self.logs = Logs(self.quorum, claimer, self.upkeep, self._claimed)
        self.snapshots = Snapshots(self.quorum, self.upkeep)
        self.leases = Leases(
            self.tables,
            self.view,
            self.upkeep,
            lambda: self.catalog.features,
            settings.renew_timeout_ms,
            settings.probe_timeout_ms,
            boot_ms,
        )
        catalog_reader = CatalogReader(self.reader)
        self.catalog = CatalogLog(
            self.logs,
            catalog_reader,
            self.upkeep,
            self.instance,
            self._stamp_ms,
            self.view.topics,
            self._outdated,
            settings.change_timeout_ms,
            Followers(self.view.observer, boot_ms).carried_out,
        )
        version = software_version()
        self.catalog_snapshots = CatalogSnapshots(
            self.catalog,
            catalog_reader,
            self.snapshots,
            version,
            settings.catalog_snapshot_records,
            only_exported=settings.catalog_export,
        )
        me = metadata_pb2.Server(
            role="metadata", name=_named(settings), version=version, features=FEATURE_NAMES
        )
        self.servers = Servers(self.quorum, self.instance, me, boot_ms)
        self.trail = TrailStore(self.quorum, self._stamp_ms, settings.trail_events, settings.trail_days)
        self.features = Features(self.catalog, self.servers, self.view.observer, version)
        self._monitor = Monitor(
            self.quorum,
            self.tables,
            self.view,
            settings.poll_ms,
            boot_ms,
            on_catalog=self.catalog.acknowledged,
            on_empty=self.upkeep.recheck,
            on_foreign=self._follow,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = asyncio.Event()
        self.outdated = asyncio.Event()
        self._waits_for = UNREACHED
        self._waiting_since_ms = boot_ms()
        self._reported = False
        self.measures = self._measured(telemetry) if telemetry.on else Measures()

    @property
    def ready(self) -> asyncio.Event:
        """Set once the catalog was read from a majority of the nodes: calls are served from then on."""
        return self._ready

    async def start(self) -> None:
        """Starts to connect and to read; calls are refused until `ready` is set."""
        self.quorum.start()
        self.upkeep.start()
        self._spawn(self._discover())

    async def drain(self) -> None:
        """Ends all streams; the first half of `stop`."""
        await self.leases.stop()
        self.stopping.set()
        self.view.end()

    async def stop(self) -> None:
        """Stops all parts. Nothing is handed over: other instances go on."""
        await self.drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.servers.stop()
        await self._patrol.stop()
        await self._monitor.stop()
        await self.catalog_snapshots.stop()
        await self.catalog.stop()
        await self.upkeep.stop()
        await self.quorum.stop()

    async def _discover(self) -> None:
        """Learns from a majority which log this is."""
        while isinstance(found := await self.membership.discover(), Unusable):
            self._wait_because(found)
            await asyncio.sleep(_RETRY_S)
        self.cluster_id = found.cluster_id
        self.view.known(found.cluster_id, found.shard_count)
        self.catalog.known(found.shard_count)
        self.catalog_snapshots.start(found.shard_count)
        self._monitor.start()
        self.servers.start()
        self._spawn(self._doubts.run())
        # Before the catalog is read: nodes that restarted all at once must be readmitted first.
        self._patrol.start(found.shard_count + 1)
        self.problem = "the catalog was not read yet"
        await self.catalog.wait_read()
        # No call is served before: a coordinator might lack a feature that the cluster has enabled.
        self.shard_count = found.shard_count
        self._ready.set()
        log.info(
            "cluster_found",
            cluster_id=found.cluster_id,
            shard_count=found.shard_count,
            configuration=found.number,
        )
        self._spawn(DurabilityWatch(self.quorum.nodes).run())

    def _wait_because(self, found: Unusable) -> None:
        """Sets what callers are refused with, and logs it once if it lasts."""
        self.problem = found.reason
        if found.contradiction:
            self.problem += f" (setting {self.settings.variable('redis_url')})"
        if found != self._waits_for:
            self._waits_for, self._waiting_since_ms, self._reported = found, boot_ms(), False
        if self._reported or boot_ms() - self._waiting_since_ms < _PATIENCE_MS:
            return
        self._reported = True
        nodes = {
            f"{node.index} ({node.place})": str(node.tables.problem or "it answers")
            for node in self.quorum.nodes
        }
        write = log.error if found.contradiction else log.warning
        write("log_not_usable_yet", problem=self.problem, nodes=nodes)

    def _stamp_ms(self) -> int:
        """The time for new records: the log's time if this machine's wall clock is wrong."""
        return reading(boot_ms(), wall_ms(), self.view.log_ahead_ms).wall_ms

    def _outdated(self, reason: str) -> None:
        """Ends all streams and refuses every call: the cluster uses what this version does not know."""
        if self.outdated.is_set():
            return
        self.outdated.set()
        self.problem, self.shard_count = reason, 0
        alarm(
            "metadata_outdated", reason=reason, remedy="run the version of the other servers, or a later one"
        )
        self._spawn(self.drain())

    def _claimed(self, shard: int, epoch: int, node_id: str, session: str) -> None:
        if shard < self.shard_count:
            row = OwnerRow(epoch, node_id, session)
            self.tables.own(shard, row)
            self.view.claimed(shard, row)

    def _connected(self, node: Node) -> None:
        self.upkeep.recheck(node)
        self._doubts.hurry()
        self._patrol.hurry()

    def _follow(self) -> None:
        self._spawn(self.membership.follow())

    def _hold_catalog(self) -> None:
        if not self.outdated.is_set():
            self._spawn(self.catalog.hold())

    def _measured(self, telemetry: Telemetry) -> Measures:
        from muster_metadata.measures import MetadataMeasures

        traces = None
        if telemetry.tracing is not None:
            from muster_metadata.traces import MetadataTraces

            traces = MetadataTraces(telemetry.tracing)
            self.logs.on_asked = traces.asked
        measures = MetadataMeasures(self.quorum, self.upkeep, self._ready, traces)
        telemetry.add(lambda: measures)
        return measures

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _named(settings: MetadataSettings) -> str:
    """The name of an instance for operators: its address."""
    return settings.advertise or f"{socket.gethostname()}:{settings.listen.rpartition(':')[2]}"
