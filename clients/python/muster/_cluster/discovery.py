"""Calls to the discovery service, over several addresses."""

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import grpc.aio
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc

from muster._backoff import Backoff, Waiting
from muster._clock import boot_ms
from muster._config import check_texts
from muster._errors import ClusterUnavailable, RequestRefused, SettingsError
from muster._session.channels import ChannelPool
from muster._session.tls import why_not
from muster._session.transport import ConnectionLost, Overloaded, prove_and_call

log = logging.getLogger("muster")

DEFAULT_SERVERS = "localhost:7400"
DEFAULT_PORT = 7400
ATTEMPT_TIMEOUT_MS = 5_000
"""How long a server may take before the next one is asked."""
OLD_VIEW_MS = 5_000
"""A server whose view is older than this is asked after the others from then on."""
_HUNG_UP, _REFUSED = "Socket closed", "Connection refused"
_UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED.name
MOST_LOOKUPS = 1_000
"""Limit of groups in one FindCoordinator."""

Response = TypeVar(
    "Response",
    discovery_pb2.FindCoordinatorResponse,
    discovery_pb2.DescribeClusterResponse,
    discovery_pb2.ListTopicsResponse,
    discovery_pb2.CreateTopicResponse,
    discovery_pb2.AlterTopicResponse,
    discovery_pb2.AlterPartitionsResponse,
    discovery_pb2.DeleteTopicResponse,
)


@dataclass(frozen=True, slots=True)
class FoundCoordinator:
    """Where the coordinator of a group is.

    Attributes:
        result: the answer.
        server: address of the discovery server that gave it.
    """

    result: discovery_pb2.FindCoordinatorResponse.Result
    server: str


_Lookup: TypeAlias = tuple[str, int]
_Lookups: TypeAlias = "dict[_Lookup, asyncio.Future[FoundCoordinator]]"


def _fail(lookups: _Lookups, error: Exception) -> None:
    for found in lookups.values():
        if not found.done():
            found.set_exception(error)
            found.exception()  # whoever asked may have been cancelled


def parse_servers(servers: str | Sequence[str] | None) -> tuple[str, ...]:
    """Addresses `host:port` from an argument, else from MUSTER_SERVERS, else localhost:7400.

    Raises:
        SettingsError: an address cannot be read.
    """
    source = "servers"
    if servers is None:
        servers = os.environ.get("MUSTER_SERVERS", "") or DEFAULT_SERVERS
        source = "MUSTER_SERVERS"
    parts = servers.split(",") if isinstance(servers, str) else check_texts("servers", servers)
    return tuple(_address(source, part.strip()) for part in parts if part.strip()) or (DEFAULT_SERVERS,)


def _address(source: str, text: str) -> str:
    host, colon, port = text.rpartition(":")
    if text.endswith("]") or not colon:  # an IPv6 address without a port, or a bare name
        host, port = text, str(DEFAULT_PORT)
    if not host or "/" in host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65_535:
        raise SettingsError(
            source, f"{text!r} is not an address; write host:port, several with commas between"
        )
    return f"{host}:{port}"


class DiscoveryClient:
    """Asks one server after the other, beginning with the last one that gave an answer not doubted since."""

    def __init__(self, servers: tuple[str, ...], channels: ChannelPool) -> None:
        self.servers = servers
        self._channels = channels
        self._first = 0
        self._lookups: _Lookups = {}
        self._waiting: Waiting | None = None
        self._finding: set[asyncio.Task[None]] = set()

    async def find(self, group_id: str, seen_epoch: int) -> FoundCoordinator:
        """Finds the coordinator of a group. Lookups of one turn of the event loop travel together.

        Raises:
            ConnectionLost: no server answered.
            RequestRefused: the request was refused.
        """
        lookup = (group_id, seen_epoch)
        if lookup not in self._lookups:
            loop = asyncio.get_running_loop()
            if not self._lookups:
                task = loop.create_task(self._find_all(), name="muster-find")
                self._finding.add(task)
                task.add_done_callback(self._finding.discard)
            self._lookups[lookup] = loop.create_future()
        return await asyncio.shield(self._lookups[lookup])

    async def _find_all(self) -> None:
        lookups, self._lookups = self._lookups, {}
        waiting = list(lookups.items())
        try:
            for start in range(0, len(waiting), MOST_LOOKUPS):
                await self._find_some(dict(waiting[start : start + MOST_LOOKUPS]))
        finally:
            _fail(lookups, ConnectionLost("the lookup was given up"))

    async def _find_some(self, lookups: _Lookups) -> None:
        request = discovery_pb2.FindCoordinatorRequest(
            group_ids=[group_id for group_id, _ in lookups], seen_epochs=[epoch for _, epoch in lookups]
        )
        try:
            server, answer = await self._ask_in_turn(
                "FindCoordinator", request, discovery_pb2.FindCoordinatorResponse
            )
        except RequestRefused as error:
            if len(lookups) == 1:
                _fail(lookups, error)
            else:  # one group must not spoil it for the others
                for lookup, found in lookups.items():
                    await self._find_some({lookup: found})
        except ConnectionLost as error:
            _fail(lookups, error)
        else:
            for ((group_id, _), found), result in zip(lookups.items(), answer.results, strict=False):
                if not found.done() and result.group_id == group_id:
                    found.set_result(FoundCoordinator(result, server))
            _fail(lookups, ConnectionLost("the answer does not name the group that was asked for"))

    async def ask_once(self, method: str, request: Any, response_type: type[Response]) -> Response:
        """Asks each server at most once, and returns the first answer.

        Raises:
            ConnectionLost: none of them answered; the outcome is unknown.
            RequestRefused: one of them refused the request.
        """
        return (await self._ask_in_turn(method, request, response_type))[1]

    def doubt(self, server: str) -> None:
        """Notes that the answer of a server leads nowhere: the next one is asked first from now on."""
        if self.servers[self._first] == server:
            self._first = (self._first + 1) % len(self.servers)

    async def _ask_in_turn(
        self, method: str, request: Any, response_type: type[Response]
    ) -> tuple[str, Response]:
        trouble = ""
        for step in range(len(self.servers)):
            index = (self._first + step) % len(self.servers)
            try:
                response = await self._ask(self.servers[index], method, request)
            except (ConnectionLost, Overloaded) as error:
                trouble = f"{self.servers[index]}: {await self._explained(self.servers[index], error)}"
                continue
            self._first = index
            self._waiting = None
            if not isinstance(response, response_type):
                raise TypeError(f"{method} gave {type(response).__name__}")
            if getattr(response, "view_age_ms", 0) > OLD_VIEW_MS:
                self.doubt(self.servers[index])
            return self.servers[index], response
        self._first = (self._first + 1) % len(self.servers)
        raise ConnectionLost(trouble)

    async def _explained(self, address: str, error: Exception) -> str:
        """Why a call failed; where a server hangs up, or one of its addresses refuses, that is found out."""
        if _HUNG_UP not in str(error) and _REFUSED not in str(error):
            return str(error)
        files = self._channels.files
        if files is None and not self._channels.plain:  # what the user made connects
            return str(error)
        return await why_not(address, files) or str(error)

    async def ask(
        self, method: str, request: Any, response_type: type[Response], *, timeout_ms: int
    ) -> Response:
        """Asks until a server answers.

        Raises:
            ClusterUnavailable: none did in time.
            RequestRefused: a server refused the request.
        """
        ends_at_ms = boot_ms() + timeout_ms
        backoff = Backoff()
        trouble = "it has not answered yet"
        self._waiting = self._waiting or Waiting()

        def say() -> None:
            log.warning("none of the servers %s answers (%s); trying again", ", ".join(self.servers), trouble)

        with self._waiting.saying(say):
            while True:
                try:
                    return await self.ask_once(method, request, response_type)
                except ConnectionLost as error:
                    trouble = str(error)
                    if boot_ms() >= ends_at_ms:
                        raise self.unavailable(f"{timeout_ms / 1_000:g} s", trouble) from error
                await backoff.pause(connection_broken=True)

    def unavailable(self, how_long: str, trouble: str) -> ClusterUnavailable:
        """The error for a cluster that did not answer."""
        return ClusterUnavailable(
            f"no server of {', '.join(self.servers)} answered within {how_long} (last: {trouble}); "
            f"start one with `muster dev`, or name yours with `servers` or MUSTER_SERVERS"
        )

    async def _ask(self, address: str, method: str, request: Any) -> object:
        async with self._channels.use(address) as channel:
            stub = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)
            call: Any = getattr(stub, method)
            try:
                return await prove_and_call(self._channels, call, request, ATTEMPT_TIMEOUT_MS, method)
            except RequestRefused as error:
                if error.status != _UNIMPLEMENTED:
                    raise
                text = (
                    f"{address} does not know {method}: it is a coordinator or metadata, or of an older "
                    f"version; name the addresses of discovery with `servers` or MUSTER_SERVERS"
                )
                raise RequestRefused(error.status, text) from error
