"""The gRPC server of a process."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from muster_protos.muster.internal.v1 import process_pb2_grpc
from muster_protos.muster.v1 import quotas_pb2_grpc
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from muster_runtime.about import ProcessServicer
from muster_runtime.errors import StartupError
from muster_runtime.rpc._awaited import AwaitedRequests
from muster_runtime.rpc._deadlines import Deadlines
from muster_runtime.rpc._guard import CallTracker, Guard, OpenCalls, Recorder, Unknown
from muster_runtime.rpc.access.access import Access
from muster_runtime.rpc.health import MOST_BYTES, Health
from muster_runtime.rpc.quotas.quotas import Quotas
from muster_runtime.rpc.quotas.servicer import QuotaServicer
from muster_runtime.rpc.quotas.settings import QuotaSettings
from muster_runtime.rpc.trust.trust import Trust
from muster_runtime.rpc.unread import TimedWrites, Unread
from muster_runtime.rpc.wire import GRPC, Wire
from muster_runtime.settings import Settings
from muster_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()

StopHook = Callable[[], Awaitable[None] | None]

MIB = 1 << 20

ALIVE = "alive"
"""A service by this name is always healthy: the event loop answers, so a process that hangs does not."""

REFLECTION_MAX_BYTES = 1_024
"""What a request for reflection may hold: the name of a service, a file or a symbol."""

_OVERDUE_S = 5.0
"""How long the end of the server may take beyond the time that open calls have."""

_HOOK_S = 30.0
"""How long a hook may take: a process that shall end must end."""


async def _within(limit_s: float, part: str, work: Awaitable[None]) -> None:
    """Waits for a part of the end, but not longer than that: then it is given up, and logged."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait([task], timeout=limit_s)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if done:
        task.result()
    else:
        log.warning("server_stop_overdue", part=part, after_s=limit_s)
        task.cancel()


class PortUse(Enum):
    """Who makes calls at a port."""

    ALL = "all"
    """Clients, and the cluster's own processes."""
    PUBLIC = "public"
    """Clients alone: it has no internal service."""
    INTERNAL = "internal"
    """The cluster's own processes alone. Where their names are known (`MUSTER_INTERNAL_PEERS`), who connects
    must show a certificate."""


class ListenError(StartupError):
    """The server cannot listen where it should."""


class ServerSettings(Settings):
    """Limits of the gRPC server."""

    model_config = SettingsConfigDict(env_prefix="MUSTER_SERVER_")

    max_request_bytes: int = Field(
        default=MIB,
        ge=1024,
        le=64 * MIB,
        description=("Largest request, unless its call has a limit of its own; larger ones are refused."),
    )
    max_response_bytes: int = Field(default=64 * MIB, ge=MIB, le=512 * MIB, description="Largest answer.")
    max_metadata_bytes: int = Field(
        default=8_192,
        ge=1_024,
        le=65_536,
        description="Headers of a call; twice that is refused for certain.",
    )
    max_pending_calls: int = Field(
        default=20_000,
        ge=100,
        le=1_000_000,
        description="Calls that wait to be accepted; more are cancelled.",
    )
    max_concurrent_calls: int = Field(
        default=20_000,
        ge=100,
        le=1_000_000,
        description=(
            "Open calls of the process, parked ones included; more are answered "
            "RESOURCE_EXHAUSTED; health never is. A parked JoinGroup takes about 20 KB."
        ),
    )
    max_calls_without_request: int = Field(
        default=1_000,
        ge=10,
        le=1_000_000,
        description=(
            "Calls of the process whose request has not come yet; for another one the oldest is answered "
            "RESOURCE_EXHAUSTED."
        ),
    )
    max_concurrent_streams: int = Field(
        default=1_000,
        ge=10,
        le=1_000_000,
        description=(
            "Open calls of one connection, with those that were given up and are not forgotten yet; more "
            "wait at the client, behind parked ones too. A session stream is one call."
        ),
    )
    max_deadline_ms: int = Field(
        default=600_000,
        ge=1_000,
        le=86_400_000,
        description=(
            "Longest time that a unary call gets, from its headers on, also without a deadline of its own."
        ),
    )
    max_unread_bytes: int = Field(
        default=128 * MIB,
        ge=MIB,
        le=64 << 30,
        description=(
            "Unary answers of the process that callers have not read yet; more are answered "
            "RESOURCE_EXHAUSTED, and who reads slowest is cut off. Above MUSTER_SERVER_MAX_RESPONSE_BYTES."
        ),
    )
    read_timeout_ms: int = Field(
        default=30_000,
        ge=100,
        le=3_600_000,
        description=(
            "Time for a caller to read a unary answer, or what it watches, before its connection is cut."
        ),
    )
    keepalive_ms: int = Field(
        default=10_000, ge=100, le=3_600_000, description="Time after which a silent client is pinged."
    )
    keepalive_timeout_ms: int = Field(
        default=5_000,
        ge=100,
        le=600_000,
        description="Time for the answer to that ping before the connection is cut.",
    )
    handshake_timeout_ms: int = Field(
        default=10_000, ge=100, le=600_000, description="Time for a new connection to say what it is."
    )
    idle_timeout_ms: int = Field(
        default=900_000,
        ge=1_000,
        le=86_400_000,
        description="Time after which a connection without calls is closed.",
    )

    def options(self, largest_request_bytes: int) -> list[tuple[str, Any]]:
        """Options of grpc for these limits."""
        return [
            ("grpc.max_receive_message_length", largest_request_bytes),
            ("grpc.max_send_message_length", self.max_response_bytes),
            ("grpc.max_metadata_size", self.max_metadata_bytes),
            ("grpc.absolute_max_metadata_size", 2 * self.max_metadata_bytes),
            ("grpc.server.max_pending_requests", self.max_pending_calls),
            ("grpc.server.max_pending_requests_hard_limit", self.max_pending_calls),
            ("grpc.max_concurrent_streams", self.max_concurrent_streams),
            ("grpc.keepalive_time_ms", self.keepalive_ms),
            ("grpc.keepalive_timeout_ms", self.keepalive_timeout_ms),
            ("grpc.http2.ping_timeout_ms", self.keepalive_timeout_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            # To answer a ping is cheap, and where answers are not read no more is read. Of a connection that
            # gRPC ends for its pings, each further one copies what was found wrong with all those before it.
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.server_handshake_timeout_ms", self.handshake_timeout_ms),
            ("grpc.max_connection_idle_ms", self.idle_timeout_ms),
            # Two processes on one port would each get some of the connections.
            ("grpc.so_reuseport", 0),
        ]


class RpcServer:
    """A gRPC server with limits, health and reflection.

    Servicers raise `Refused` to answer with a status; anything else that they raise is answered INTERNAL
    without details and logged. A unary call without a deadline, or with a longer one, gets `max_deadline_ms`;
    streams have none. It belongs to the event loop that starts it.

    Args:
        settings: the limits; the environment's if absent.
        trust: certificates, and tokens of internal calls; plain text and none if absent.
        wire: how processes reach each other.
        telemetry: counts and traces the calls.
        use: who makes calls there.
        quotas: what callers of public services may ask for; the environment's if absent.

    Attributes:
        access: what callers may do; servicers ask it.
        quotas: who asks for what.
        timed_writes: with these servicers tell those who watch something.
    """

    def __init__(
        self,
        settings: ServerSettings | None = None,
        trust: Trust | None = None,
        wire: Wire = GRPC,
        telemetry: Telemetry = OFF,
        use: PortUse = PortUse.ALL,
        quotas: QuotaSettings | None = None,
    ) -> None:
        self._settings = ServerSettings() if settings is None else settings
        self._use = use
        self._trust = trust
        self._callers = None if trust is None or use is PortUse.INTERNAL else trust.callers()
        self.access = Access() if trust is None else trust.rights()
        self._following: list[asyncio.Task[None]] = []
        self._wire = wire
        self._telemetry = telemetry
        self._largest_request_bytes = self._settings.max_request_bytes
        self._handlers: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
        self.timed_writes = TimedWrites(self._settings.read_timeout_ms)
        self._health = Health(self.timed_writes)
        self.quotas = Quotas(quotas)
        self._tracker = CallTracker()
        self._unread = Unread(self._settings.max_unread_bytes, self._settings.read_timeout_ms)
        self._deadlines = Deadlines(self._settings.max_deadline_ms)
        self._awaited = AwaitedRequests(self._settings.max_calls_without_request)
        self._open_calls = OpenCalls(self._settings.max_concurrent_calls)
        self._stop_hooks: list[StopHook] = []
        self._server: grpc.aio.Server | None = None
        self._port = 0
        self._stopped = False

    @property
    def port(self) -> int:
        """The bound port; 0 before `bind`."""
        return self._port

    @property
    def unauthenticated(self) -> int:
        """How many calls were refused because of who made them, or because that could not be said."""
        return 0 if self._callers is None else self._callers.refused

    @property
    def keys_outdated(self) -> bool:
        """Whether tokens are checked with keys whose newer ones could not be read or fetched."""
        return self._callers is not None and self._callers.keys_outdated

    def add(
        self,
        add_servicer: Callable[[Any, Any], None],
        servicer: Any,
        *,
        method_limits: Mapping[str, int] | None = None,
    ) -> None:
        """Adds a servicer. Only before `serve`.

        Args:
            add_servicer: the generated `add_…Servicer_to_server`.
            servicer: its methods are coroutines or asynchronous generators.
            method_limits: largest request in bytes of single methods, by name: `{"SyncGroup": 16 << 20}`.
        """
        limits = dict(method_limits or {})
        largest_bytes = max(self._largest_request_bytes, *limits.values(), 0)
        if self._server is not None and largest_bytes > self._largest_request_bytes:
            raise ValueError(
                f"the port was bound for requests of at most {self._largest_request_bytes} bytes"
            )
        self._largest_request_bytes = largest_bytes
        self._register(add_servicer, servicer, limits, None)

    def on_stop(self, hook: StopHook) -> None:
        """Registers what runs at the beginning of `stop`: there services end their own long streams."""
        self._stop_hooks.append(hook)

    async def start(self, listen: str) -> int:
        """Binds and serves in one step: see `bind` and `serve`."""
        port = await self.bind(listen, self._largest_request_bytes)
        await self.serve()
        return port

    async def bind(self, listen: str, largest_request_bytes: int) -> int:
        """Takes the port; who connects waits for `serve`.

        Args:
            listen: `host:port`; port 0 picks one, `0.0.0.0` and `[::]` listen everywhere.
            largest_request_bytes: what no method's limit is above.

        Returns:
            The bound port.

        Raises:
            ListenError: the address is taken, or is none of this machine's.
        """
        self._largest_request_bytes = largest_request_bytes
        credentials = (
            None
            if self._trust is None
            else self._trust.server_credentials(internal=self._use is PortUse.INTERNAL)
        )
        # More than any call accepts, so that the refusal is ours and names the limit; beyond it gRPC refuses.
        server = self._wire.server(
            self._settings.options(self._largest_request_bytes + self._settings.max_request_bytes)
        )
        try:
            if credentials is None:
                self._port = server.add_insecure_port(listen)
            else:
                self._port = server.add_secure_port(listen, credentials)
        except RuntimeError:
            await server.stop(None)
            raise ListenError(
                f"cannot listen on {listen!r}: the port is taken or the address is not one of this machine's"
            ) from None
        self._server = server
        return self._port

    async def serve(self) -> None:
        """Serves what was added on the port that was bound; health is NOT_SERVING until `set_serving`."""
        assert self._server is not None
        if self._use is not PortUse.PUBLIC:
            self.add(
                process_pb2_grpc.add_ProcessServiceServicer_to_server,
                ProcessServicer(
                    lambda: self.access.state,
                    knows_internal_callers=self._trust is not None and self._trust.internal.knows_callers,
                ),
            )
        if self._use is not PortUse.INTERNAL:
            self.add(
                quotas_pb2_grpc.add_QuotaServiceServicer_to_server, QuotaServicer(self.quotas, self.access)
            )
        services = [*self._handlers, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name]
        self._register(
            health_pb2_grpc.add_HealthServicer_to_server,
            self._health,
            {"Check": MOST_BYTES, "Watch": MOST_BYTES},
            self._tracker,
            refuses=False,
        )
        self._register(
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server,
            reflection.aio.ReflectionServicer(services),
            {"ServerReflectionInfo": REFLECTION_MAX_BYTES},
            self._tracker,
        )
        await self.set_serving(False)
        self._health.set([ALIVE], health_pb2.HealthCheckResponse.SERVING)
        self._server.add_generic_rpc_handlers(
            (
                *(
                    grpc.method_handlers_generic_handler(name, methods)
                    for name, methods in self._handlers.items()
                ),
                Unknown(self.quotas.given_up),
            )
        )
        if self._callers is not None:
            self._callers.start()
        await self._server.start()
        loop = asyncio.get_running_loop()
        if self.access.on:
            self._following.append(
                loop.create_task(self.access.follow(tells=self._use is not PortUse.INTERNAL))
            )
        if self.quotas.has_file and self._use is not PortUse.INTERNAL:
            self._following.append(loop.create_task(self.quotas.follow()))

    async def set_serving(self, serving: bool) -> None:
        """Sets what health says, for the process and each of its services."""
        state = (
            health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        self._health.set(("", *self._handlers), state)

    async def stop(self, grace_ms: int = 1_000) -> None:
        """Stops: hooks first, then no new calls, then `grace_ms` for open ones; what is left is cancelled."""
        if self._stopped:
            return
        self._stopped = True
        for following in self._following:
            following.cancel()
        self._health.end()
        for hook in self._stop_hooks:
            try:
                result = hook()
                if inspect.isawaitable(result):
                    await _within(_HOOK_S, "hook", result)
            except Exception:
                log.exception("stop_hook_failed")
        self._tracker.end_all()
        if self._server is not None:
            # gRPC does not always notice that its last call has ended.
            await _within(grace_ms / 1000 + _OVERDUE_S, "grpc", self._server.stop(grace_ms / 1000))
        self._unread.close()
        if self._callers is not None:
            self._callers.stop()
        self.quotas.close()

    def _register(
        self,
        add_servicer: Callable[[Any, Any], None],
        servicer: Any,
        limits: Mapping[str, int],
        tracker: CallTracker | None,
        *,
        refuses: bool = True,
    ) -> None:
        recorder = Recorder()
        add_servicer(servicer, recorder)
        guard = Guard(
            max_request_bytes=self._settings.max_request_bytes,
            method_limits=limits,
            deadlines=self._deadlines,
            awaited=self._awaited,
            unread=self._unread,
            open_calls=self._open_calls if refuses else None,
            tracker=tracker,
            telemetry=self._telemetry,
            internal_calls=None if self._trust is None else self._trust.internal_calls(),
            inside=refuses and self._use is PortUse.INTERNAL,
            callers=self._callers if refuses else None,
            quotas=self.quotas if refuses else None,
            given_up=self.quotas.given_up,
        )
        for service, methods in recorder.services.items():
            unknown = _unknown_methods(limits, methods)
            if unknown:
                raise ValueError(f"{service} has no method {', '.join(unknown)}")
            self._handlers[service] = {name: guard.wrap(service, name, h) for name, h in methods.items()}


def _unknown_methods(limits: Mapping[str, int], methods: Mapping[str, Any]) -> Sequence[str]:
    return sorted(set(limits) - set(methods))
