"""Discovery and a coordinator in this process, as they are served, on a clock that jumps.

Servicers, core and checks are the product's; the log is in memory (`muster_testing`). What gRPC does with the
answers is left out, and so are sockets.
"""

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import grpc
import structlog
from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass
from kit.lives.shard_fuzz import REUSED_ID, known_of
from kit.logs.core_audit import broken_in
from muster.testing._time import VirtualTime
from muster_coordinator.settings import GroupSettings, SessionSettings
from muster_core.config import GroupConfig
from muster_core.position import Position
from muster_core.protocol.membership.joins import STATIC_WITH_A_NEW_ID
from muster_core.shard import Shard
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_runtime.rpc._guard import _decoder
from muster_runtime.rpc.refusals import Refused
from muster_testing.servers import DISCOVERY, Servers

from fuzz.target import Broken

FORESEEN = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
    }
)
GROUPS = "/muster.v1.GroupCoordinatorService/"
TOPICS = "/muster.v1.CoordinatorDiscoveryService/"
SESSIONS = "/muster.v1.GroupSessionService/Session"
REQUEST_MAX_BYTES = 1 << 20

_SETTINGS = {
    "MUSTER_GROUP_MIN_SESSION_TIMEOUT_MS": "50",
    "MUSTER_GROUP_INITIAL_REBALANCE_DELAY_MS": "50",
    "MUSTER_GROUP_OFFSETS_RETENTION_MS": "5000",
    "MUSTER_GROUP_RETENTION_CHECK_INTERVAL_MS": "2000",
}


class Caller:
    """The context of a call, as much of it as servicers use."""

    def __init__(self) -> None:
        self.ended: tuple[grpc.StatusCode, str] | None = None

    def peer(self) -> str:
        return "ipv4:10.0.0.7:40000"

    def invocation_metadata(self) -> tuple[Any, ...]:
        return ()

    def time_remaining(self) -> float | None:
        return None

    def done(self) -> bool:
        return False


class World:
    """The servers, while they run.

    Attributes:
        time: the clock.
    """

    def __init__(self, time: VirtualTime, servers: Servers, errors: list[str]) -> None:
        self.time = time
        self._servers = servers
        self._errors = errors

    def handler(self, path: str) -> Any:
        """The handler of a method."""
        coordinator = self._servers.coordinator
        assert coordinator is not None
        address = DISCOVERY if path.startswith(TOPICS) else coordinator
        return self._servers.handler(address, path)

    async def call(self, path: str, body: bytes) -> Any:
        """Answers a unary call.

        Raises:
            Refused: it is answered with a status.
            Broken: it is refused at once, and has changed the log.
        """
        others: list[bool] = []
        asyncio.get_running_loop().call_soon(others.append, True)
        before = self.log_length
        try:
            return await self._answer(path, body)
        except Refused:
            if not others and self.log_length != before:
                raise Broken(f"{path} was refused and changed the log") from None
            raise

    async def _answer(self, path: str, body: bytes) -> Any:
        handler = self.handler(path)
        request = _decoder(handler.request_deserializer, REQUEST_MAX_BYTES, by_value=True)(body)
        if isinstance(request, Refused):
            raise request
        answer = await handler.unary_unary(request, Caller())
        if not isinstance(answer, bytes):  # a large one is encoded already
            answer = handler.response_serializer(answer)
        service, name = path.rsplit("/", 2)[1:]
        method = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
        return GetMessageClass(method.output_type).FromString(answer)

    @property
    def log_length(self) -> int:
        """Number of the entries in the log."""
        return len(self._servers._log._entries)

    def check_refusal(self, refused: Refused) -> None:
        """A refusal is one of those that callers know.

        Raises:
            Broken: it is not.
        """
        if refused.status not in FORESEEN:
            raise Broken(f"refused with {refused.status}: {refused.message}")

    def check_answer(self, answer: Any) -> None:
        """No answer says that the server failed.

        Raises:
            Broken: it does.
        """
        foreseen = getattr(answer, "error_message", "") == STATIC_WITH_A_NEW_ID
        if "UNKNOWN_SERVER_ERROR" in str(answer) and not foreseen:
            raise Broken(f"the server failed: {answer}")

    def check(self) -> None:
        """What is served is what the log says, the log breaks no promise, and nothing went wrong unseen.

        Raises:
            Broken: it does.
        """
        if self._errors:
            raise Broken(self._errors[0])
        node = self._servers._node
        assert node is not None
        live = node.shards[0].core
        entries = self._servers._log._entries
        log = [(Position.from_proto(one.position), _record(one)) for one in entries]
        replayed = Shard(0, self._servers._config)
        for position, record in log:
            replayed.replay(position, record)
        if live is not None:
            served, said = known_of(live), known_of(replayed)
            for facts in (*served.values(), *said.values()):
                del facts["renewed_topics"]  # see `ShardLife.check`
            if served != said:
                raise Broken(f"served is {served}, the log says {said}")
        broken = [one for one in broken_in(log[1:], self._servers._config) if one.invariant != REUSED_ID]
        if broken:
            raise Broken(f"{broken[0].invariant} at {broken[0].position.stream_id}: {broken[0].detail}")


class _Limits(NamedTuple):
    config: GroupConfig

    def to_config(self) -> GroupConfig:
        return self.config


@functools.cache
def _group_settings() -> _Limits:
    """To read them takes as long as twenty calls."""
    with patch.dict(os.environ, _SETTINGS):
        return _Limits(GroupSettings().to_config())


@functools.cache
def _session_settings() -> SessionSettings:
    return SessionSettings()


def run(story: Callable[[World], Awaitable[None]]) -> None:
    """Plays a story with servers of its own."""
    groups = patch("muster_testing.servers.GroupSettings", _group_settings)
    sessions = patch("muster_testing.node.SessionSettings", _session_settings)
    with groups, sessions, _heard() as errors:
        asyncio.run(_run(story, errors))
        if errors:
            raise Broken(errors[0])


async def _run(story: Callable[[World], Awaitable[None]], errors: list[str]) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, what: errors.append(_text(what)))
    time = VirtualTime()
    time.start()
    servers = Servers(time.boot_ms, time.wall_ms)
    try:
        await servers.start_coordinator()
        await story(World(time, servers, errors))
    finally:
        servers.stop()
        await asyncio.sleep(0)
        time.stop()


def _text(what: dict[str, Any]) -> str:
    return f"{what.get('message')}: {what.get('exception')!r}"


@contextmanager
def _heard() -> Iterator[list[str]]:
    """What is logged as an error meanwhile: the servers go on after some failures, and log them."""
    errors: list[str] = []

    def hear(_: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        if method in ("error", "exception", "critical"):
            errors.append(str(structlog.processors.format_exc_info(None, method, event)))
        raise structlog.DropEvent

    before, configured = structlog.get_config(), structlog.is_configured()
    structlog.configure(processors=[hear], cache_logger_on_first_use=False)
    try:
        yield errors
    finally:
        if configured:
            structlog.configure(**before)
        else:
            structlog.reset_defaults()


def _record(entry: metadata_pb2.LogEntry) -> records_pb2.Record:
    return records_pb2.Record.FromString(entry.record)
