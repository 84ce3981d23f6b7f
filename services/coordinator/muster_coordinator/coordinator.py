"""A coordinator: its parts put together, started and stopped."""

import asyncio
import uuid
from collections.abc import Callable, Mapping

import grpc
import structlog
from muster_core.clock import Now, reading
from muster_core.features import FEATURE_NAMES, Feature
from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_protos.muster.internal.v1 import coordinator_pb2_grpc as peer_pb2_grpc
from muster_protos.muster.v1 import common_pb2, coordinator_pb2_grpc, session_pb2_grpc
from muster_runtime import clock
from muster_runtime.about import software_version
from muster_runtime.addresses import Address
from muster_runtime.cluster.metrics import ViewSource
from muster_runtime.cluster.trail_sender import sends_to
from muster_runtime.cluster.view import ClusterView, Watcher
from muster_runtime.garbage import COLLECTOR, nothing
from muster_runtime.rpc.access.keeper import Keeper
from muster_runtime.rpc.access.metrics import AccessSource
from muster_runtime.rpc.channels import CHANNEL_OPTIONS, ChannelCache, Channels, open_channel
from muster_runtime.rpc.quotas.metrics import QuotaSource
from muster_runtime.rpc.quotas.settings import QuotaSettings
from muster_runtime.rpc.server import RpcServer, ServerSettings
from muster_runtime.rpc.trust.trust import Trust
from muster_runtime.rpc.wire import GRPC, Wire
from muster_runtime.telemetry import OFF, Telemetry

from muster_coordinator.api.admission import Admission
from muster_coordinator.api.callers import Callers
from muster_coordinator.api.calls import Calls
from muster_coordinator.api.counted_groups import CountedGroups
from muster_coordinator.api.rights import Rights
from muster_coordinator.api.servicer import (
    METHOD_LIMITS,
    SESSION_LIMITS,
    GroupCoordinatorServicer,
    GroupSessionServicer,
)
from muster_coordinator.assignment.aside import Aside
from muster_coordinator.assignment.assignors import SERVER_ASSIGNORS
from muster_coordinator.assignment.expressions import Re2Expressions
from muster_coordinator.clients import clients_of
from muster_coordinator.failstop.faults import Faults
from muster_coordinator.holds import holds_of
from muster_coordinator.log.in_use import in_use
from muster_coordinator.log.load_budget import LoadBudget
from muster_coordinator.log.loader import Loader
from muster_coordinator.log.log_client import LogClient, LogPace, Nonces
from muster_coordinator.ownership.cluster_follower import ClusterFollower
from muster_coordinator.ownership.lease import Holder, LeaseCallbacks, LeaseKeeper, LeasePace
from muster_coordinator.ownership.lease_line import LeaseLine, LeaseThread
from muster_coordinator.ownership.ownership import Ownership, OwnershipPace
from muster_coordinator.ownership.peers import CoordinatorPeerServicer, Peers
from muster_coordinator.ports import Ports
from muster_coordinator.session.sessions import Sessions
from muster_coordinator.settings import (
    CoordinatorSettings,
    FaultSettings,
    GroupSettings,
    SessionSettings,
    ShardLogSettings,
)
from muster_coordinator.shard.dependencies import Claimant, Dependencies
from muster_coordinator.shard.owned_shard import OwnedShard
from muster_coordinator.shard.phase import Phase
from muster_coordinator.shard.process_room import ProcessRoom
from muster_coordinator.shard.snapshot_taker import SnapshotTaker
from muster_coordinator.shard.strangers import Strangers
from muster_coordinator.telemetry.off import Measures, UnaryHandler

log = structlog.get_logger()


class Coordinator:
    """One coordinator in the running event loop; several may live in one process.

    Args:
        settings: where it listens, its name, where metadata is.
        group: limits of the group protocol; the environment's if absent.
        session: limits of session streams; the environment's if absent.
        shard_log: snapshots and trimming; the environment's if absent.
        faults: where events are kept that made the group protocol fail; the environment's if absent.
        server: limits of its gRPC server; the environment's if absent.
        quotas: what callers may ask for; the environment's if absent.
        trust: certificates and tokens; plain text and none if absent.
        wire: how processes reach each other.
        lease_line: what the lease is renewed on; a thread of its own if absent.
        telemetry: where its numbers go.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        *,
        group: GroupSettings | None = None,
        session: SessionSettings | None = None,
        shard_log: ShardLogSettings | None = None,
        faults: FaultSettings | None = None,
        server: ServerSettings | None = None,
        quotas: QuotaSettings | None = None,
        trust: Trust | None = None,
        wire: Wire = GRPC,
        lease_line: LeaseLine | None = None,
        telemetry: Telemetry = OFF,
    ) -> None:
        self._settings = settings
        self._config = (GroupSettings() if group is None else group).to_config()
        self._session_settings = SessionSettings() if session is None else session
        self._pace = (ShardLogSettings() if shard_log is None else shard_log).to_pace()
        self._faults = Faults((FaultSettings() if faults is None else faults).to_folder())
        self._trust = trust
        self._wire = wire
        self._lease_line = LeaseThread(self._lease_channel) if lease_line is None else lease_line
        self._ports = Ports(settings, lambda use: RpcServer(server, trust, wire, telemetry, use, quotas))
        self._telemetry = telemetry
        self._holding: asyncio.Event = asyncio.Event()
        self._superseded: asyncio.Event = asyncio.Event()
        self._parts: _Parts | None = None
        self._sessions: Sessions | None = None
        self._becoming_ready: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def port(self) -> int:
        """The bound port for clients; 0 before `start`."""
        return self._ports.port

    @property
    def address(self) -> Address:
        """The address that clients get: `advertise`, or the host it listens on with the bound port."""
        return self._ports.address

    @property
    def internal_address(self) -> Address | None:
        """The address that other processes of the cluster get; None: that of clients."""
        return self._ports.internal_address

    @property
    def node_id(self) -> str:
        """The coordinator's name in the cluster."""
        return self._settings.node_id

    @property
    def serving(self) -> dict[int, int]:
        """The shards that are loaded here, with the epochs of their claims."""
        return {shard.number: shard.epoch for shard in self.shards.values() if shard.serving}

    @property
    def shards(self) -> Mapping[int, OwnedShard]:
        """The shards that this process serves, loads or takes over; to be read only."""
        return {} if self._parts is None else self._parts.ownership.shards

    async def start(self) -> int:
        """Listens, renews its lease, and begins to take shards; health is SERVING once the lease is held.

        Returns:
            The bound port.

        Raises:
            StartupError: it cannot listen, or a certificate cannot be read.
        """
        settings = self._settings
        # Who this process is, is known only with its port; nobody is answered before `serve`.
        await self._ports.bind()
        address, internal = self._ports.address, self._ports.internal_address
        session = str(uuid.uuid4())
        version = software_version()
        channels = Channels(settings.metadata, self._trust, self._wire)
        view = ClusterView(channels, Watcher("coordinator", settings.node_id, FEATURE_NAMES))
        now = _clocks(view)
        targets = [str(address) for address in settings.metadata]
        log_client = LogClient(
            targets,
            lambda target: open_channel(target, self._trust, self._wire),
            LogPace.of(settings.log_limit_ms),
        )
        measures = _measured(self._telemetry, log_client, now) if self._telemetry.on else Measures(log_client)
        budget = LoadBudget(settings.load_bytes(), lambda: ownership.cores)
        loader = Loader(channels.channel, len(channels), self._config, settings.log_limit_ms, budget)
        peers = Peers(ChannelCache(self._trust, self._wire))
        lease = LeaseKeeper(
            targets,
            self._lease_line,
            Holder(settings.node_id, session, address, version, internal=internal),
            LeasePace(
                margin_ms=settings.lease_margin_ms,
                interval_ms=settings.lease_interval_ms,
                limit_ms=settings.lease_limit_ms,
            ),
            LeaseCallbacks(self._suspend, self._resume, self._supersede),
            clock.boot_ms,
        )
        follower = ClusterFollower(view, lease, loader)
        rights = Rights(self._ports.public.access)
        trail = self._ports.public.access.trail
        aside = Aside()
        ownership = Ownership(
            common_pb2.Coordinator(node_id=settings.node_id, host=address.host, port=address.port),
            view,
            lease,
            follower,
            Dependencies(
                claimant=Claimant(settings.node_id, session, version),
                log=measures.log,
                nonces=Nonces(),
                loader=loader,
                now=now,
                may_answer=follower.may_answer,
                features=lambda: follower.features,
                catalog=lambda: follower.catalog,
                watch=measures.watch,
                room=ProcessRoom(
                    lambda: ownership.cores,
                    clock.boot_ms,
                    lambda limit: measures.refused(limit.value),
                    Strangers(clock.boot_ms, measures.unproven, trail.unproven).spoke,
                    foreign=trail.foreign,
                    assignors=SERVER_ASSIGNORS,
                    log_trouble=lambda: log_client.trouble,
                    expressions=Re2Expressions(),
                    sees=rights.sees,
                    ended=lambda group: counted.ended(group),
                    resized=self._ports.public.quotas.resized,
                    whose=lambda group_id: counted.whose(group_id),
                ).room,
                aside=aside.submit,
                faults=self._faults,
                load_wait_ms=settings.load_wait_ms,
                is_operator=rights.is_operator,
            ),
            loader,
            peers,
            OwnershipPace(
                join_delay_ms=settings.join_delay_ms,
                settle_ms=settings.settle_ms,
                moves_max=settings.moves_max,
                drain_limit_ms=settings.drain_limit_ms,
                quiet_ms=settings.quiet_log_ms,
            ),
        )
        taker = SnapshotTaker(lambda: ownership.shards, loader, log_client, now, self._pace)
        keeper = self._ports.public.access.trail.keeper = Keeper(f"coordinator {settings.node_id}")
        calls = Calls(ownership, view, settings.max_answer_bytes, rights)
        rights.subscribed = calls.topics_of
        quotas = self._ports.public.quotas
        counted = CountedGroups(quotas, lambda: ownership.cores, calls.core_of)
        self._parts = _Parts(
            channels, view, log_client, lease, ownership, peers, taker, keeper, aside, counted
        )
        admission = Admission(
            quotas,
            lambda group_id: calls.core_of(group_id) is not None,
            calls.is_new,
            calls.group_of,
            rights.may,
            counted.begun,
        )
        calls.admit_late = admission.admit_late
        sessions = self._sessions = Sessions(
            self._session_settings,
            calls,
            lease.may_answer,
            clock.boot_ms,
            measures.of_stream,
            says_unsure=lambda: Feature.UNSURE_BEATS in follower.features,
            refused=measures.refused,
            admit=admission.admit,
        )
        ownership.listen(sessions)
        measures.attach(ownership, lease, sessions)
        self._telemetry.add(lambda: ViewSource(view, "coordinator"))
        public = self._ports.public
        self._telemetry.add(lambda: AccessSource(public, "coordinator"))
        self._telemetry.add(lambda: QuotaSource(quotas, "coordinator"))
        self._add_servicers(measures.answering(calls.answer), calls, admission, sessions, ownership)
        await self._ports.serve()
        log_client.start()
        await view.start()
        keeper.start(sends_to(channels))
        ownership.start()
        taker.start()
        counted.start()
        COLLECTOR.in_use = lambda: in_use(ownership.cores)
        lease.start(asyncio.get_running_loop())
        log.info(
            "coordinator_started",
            node_id=settings.node_id,
            address=str(address),
            internal_address=str(internal or address),
        )
        return self.port

    async def ready(self) -> None:
        """Waits until the lease is held for the first time."""
        await self._holding.wait()

    async def superseded(self) -> None:
        """Waits until another process of this name has taken the lease; then this one has to end."""
        await self._superseded.wait()

    async def drain_and_stop(self) -> None:
        """Hands all shards over, gives up the lease, and stops. May be called again.

        Health says SERVING until the shards are gone: clients are sent on by the answers themselves.
        Where other coordinators live, it goes on for `linger_ms` to answer late callers with the
        successor of their shard. Cancelled, it stops at once.
        """
        if self._stopped:
            return
        self._stopped = True
        parts = self._parts
        try:
            if parts is not None and not self._superseded.is_set():
                began_ms = clock.boot_ms()
                shards = len(self.serving)
                await parts.ownership.drain()
                log.info("coordinator_drained", shards=shards, drain_ms=clock.boot_ms() - began_ms)
                await self._linger(parts)
        finally:
            await self._ports.set_serving(False)
            await self._end(release=True, grace_ms=500)

    async def _linger(self, parts: "_Parts") -> None:
        """Answers NOT_COORDINATOR for a while: a refused connection names no successor."""
        if not parts.ownership.outlook.others_live or not self._settings.linger_ms:
            return
        await self._ports.set_serving(False)
        await parts.lease.stop(release=True)
        if self._sessions is not None:
            await self._sessions.stop()
        await asyncio.sleep(self._settings.linger_ms / 1000)

    async def abort(self) -> None:
        """Stops at once, without hand-over or release, as a killed process does."""
        if self._stopped:
            return
        self._stopped = True
        if self._sessions is not None:
            self._sessions.abandon()
        await self._end(release=False, grace_ms=0)

    async def _end(self, *, release: bool, grace_ms: int) -> None:
        parts = self._parts
        if parts is None:
            await self._ports.stop(grace_ms)
            return
        if release:
            await parts.lease.stop(release=True)
            await self._ports.stop(grace_ms)
        else:
            await self._ports.stop(grace_ms)
            await parts.lease.stop(release=False)
        await parts.keeper.stop(flush=release)
        await parts.taker.stop()
        parts.counted.stop()
        COLLECTOR.in_use = nothing
        await parts.ownership.stop()
        await parts.aside.stop()
        await parts.log_client.stop()
        await parts.view.stop()
        await parts.peers.close()
        await parts.channels.close()
        log.info("coordinator_stopped", node_id=self.node_id)

    def _add_servicers(
        self,
        answer: UnaryHandler,
        calls: Calls,
        admission: Admission,
        sessions: Sessions,
        ownership: Ownership,
    ) -> None:
        public = self._ports.public
        callers = Callers(self._settings.trusted_proxies)
        if self._settings.trusted_proxies:
            self._ports.public.quotas.behind_proxies = callers.host
        public.add(
            coordinator_pb2_grpc.add_GroupCoordinatorServiceServicer_to_server,
            GroupCoordinatorServicer(answer, calls.encoded, callers, admission.admit),
            method_limits=METHOD_LIMITS,
        )
        public.add(
            session_pb2_grpc.add_GroupSessionServiceServicer_to_server,
            GroupSessionServicer(sessions.serve, callers),
            method_limits=SESSION_LIMITS,
        )
        public.on_stop(sessions.stop)
        self._ports.add_internal(
            peer_pb2_grpc.add_CoordinatorPeerServiceServicer_to_server,
            CoordinatorPeerServicer(ownership.give, self._failed),
        )

    async def _failed(self) -> peer_pb2.DescribeFaultsResponse:
        """What an operator has to know of failures here, and of the members' clients."""
        answer = peer_pb2.DescribeFaultsResponse(
            failed_shards=sorted(
                shard.number for shard in self.shards.values() if shard.phase is Phase.FAILED
            )
        )
        for fault in self._faults:
            answer.faults.add(
                shard=fault.shard,
                group_id=fault.group_id,
                failed_at_ms=fault.failed_at_ms,
                error=fault.error,
                file=fault.file,
                quarantined=fault.group_id in self._faults.quarantine(fault.shard).groups,
            )
        answer.clients.extend(await clients_of(tuple(self.shards.values())))
        answer.holds.extend(await holds_of(tuple(self.shards.values())))
        return answer

    def _lease_channel(self, target: str) -> grpc.Channel:
        if self._trust is None:
            return grpc.insecure_channel(target, options=list(CHANNEL_OPTIONS))
        return self._trust.blocking_channel(target, CHANNEL_OPTIONS)

    def _suspend(self) -> None:
        if self._parts is not None:
            self._parts.ownership.suspended()

    def _resume(self) -> None:
        if self._parts is not None:
            self._parts.ownership.resumed()
        if not self._holding.is_set():
            self._holding.set()
            self._becoming_ready = asyncio.get_running_loop().create_task(self._ports.set_serving(True))

    def _supersede(self) -> None:
        self._superseded.set()


class _Parts:
    """What a started coordinator consists of."""

    def __init__(
        self,
        channels: Channels,
        view: ClusterView,
        log_client: LogClient,
        lease: LeaseKeeper,
        ownership: Ownership,
        peers: Peers,
        taker: SnapshotTaker,
        keeper: Keeper,
        aside: Aside,
        counted: CountedGroups,
    ) -> None:
        self.counted = counted
        self.aside = aside
        self.taker = taker
        self.keeper = keeper
        self.channels = channels
        self.view = view
        self.log_client = log_client
        self.lease = lease
        self.ownership = ownership
        self.peers = peers


def _measured(telemetry: Telemetry, log_client: LogClient, now: Callable[[], Now]) -> Measures:
    from muster_coordinator.telemetry.measures import CoordinatorMeasures

    traces = None
    if telemetry.tracing is not None:
        from muster_coordinator.telemetry.traces import CoordinatorTraces

        traces = CoordinatorTraces(telemetry.tracing)
    measures = CoordinatorMeasures(log_client, now, traces, telemetry.max_groups)
    telemetry.add(lambda: measures)
    return measures


def _clocks(view: ClusterView) -> Callable[[], Now]:
    """What reads both clocks of this process, beside those of the log."""
    return lambda: reading(clock.boot_ms(), clock.wall_ms(), view.log_ahead_ms)
