"""The transport that sends everything of a process over one session stream per coordinator."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from muster_protos.muster.v1 import incremental_pb2

from muster._clock import boot_ms
from muster._session.attachment import Attachment
from muster._session.channels import ChannelPool
from muster._session.end import How, SessionEnded, StreamEnd
from muster._session.frames import fits
from muster._session.session import Session
from muster._session.transport import GroupRequest, GroupResponse, KeepAlive, Route, UnaryTransport, Vitals
from muster._standing.seat import Pulse

log = logging.getLogger("muster")

UNSUPPORTED_FOR_MS = 600_000
"""How long a server that has no streams is not asked for one again."""
REFUSED_FOR_MS = 60_000
"""How long a server that had no room for a stream is not asked again."""
SHUNNED_FOR_MS = 1_000
"""A silent coordinator has most likely been replaced: for this long discovery is asked for its successor."""

_NUMBERED = incremental_pb2.ConsumerGroupHeartbeatRequest
"""Travels on a stream with the number of a connection alone (`muster._session.stream_calls`)."""

Response = TypeVar("Response", bound=GroupResponse)


class ExpiringAddresses:
    """A set of addresses, each of which is forgotten after a time."""

    def __init__(self) -> None:
        self._until_ms: dict[str, int] = {}

    def __len__(self) -> int:
        """Addresses kept; expired ones count until the next `add`."""
        return len(self._until_ms)

    def add(self, address: str, for_ms: int) -> None:
        """Adds an address for a time from now on, and forgets the expired ones."""
        now_ms = boot_ms()
        self._until_ms = {place: until_ms for place, until_ms in self._until_ms.items() if until_ms > now_ms}
        self._until_ms[address] = now_ms + for_ms

    def holds(self, address: str) -> bool:
        """Whether the address was added and has not expired."""
        return boot_ms() < self._until_ms.get(address, 0)


class SessionTransport:
    """Streams where a server has them, unary calls where it does not.

    Args:
        channels: connections.
        unary: for servers without streams, and for calls that are too large for one.
    """

    def __init__(self, channels: ChannelPool, unary: UnaryTransport) -> None:
        self._channels = channels
        self._unary = unary
        self._sessions: dict[str, Session] = {}
        self._streamless = ExpiringAddresses()
        self._shunned = ExpiringAddresses()
        self._running: set[Session] = set()
        self._closed = False

    async def call(
        self, address: str, request: GroupRequest, response_type: type[Response], *, timeout_ms: int
    ) -> Response:
        """See `muster._session.transport.Transport`."""
        session = self.at(address) if fits(request) and type(request) is not _NUMBERED else None
        if session is not None:
            with suppress(SessionEnded):
                return await session.call(request, response_type, timeout_ms)
        return await self._unary.call(address, request, response_type, timeout_ms=timeout_ms)

    def keep_alive(self, route: Route, vitals: Vitals, deliver: Callable[[Pulse], None]) -> KeepAlive:
        """See `muster._session.transport.Transport`."""
        return Attachment(self, route, vitals, deliver)

    def shuns(self, address: str) -> bool:
        """See `muster._session.transport.Transport`."""
        return self._shunned.holds(address)

    def at(self, address: str) -> Session | None:
        """The stream to a coordinator, opened if necessary; None if it takes unary calls only."""
        session = self._sessions.get(address)
        if session is None or not session.open:
            if self._closed or self._streamless.holds(address):
                return None
            session = self._sessions[address] = Session(address, self._channels, self._ended)
            self._running.add(session)
        return session

    async def close(self) -> None:
        """Closes all streams, each after sending what waits; a member that is still leaving calls without."""
        self._closed = True
        await asyncio.gather(*(session.close() for session in tuple(self._running)))

    def _ended(self, session: Session, end: StreamEnd) -> None:
        self._running.discard(session)
        if self._sessions.get(session.address) is session:
            del self._sessions[session.address]
        if end.how is How.SILENT:
            self._shunned.add(session.address, SHUNNED_FOR_MS)
        for_ms = {How.UNSUPPORTED: UNSUPPORTED_FOR_MS, How.REFUSED: REFUSED_FOR_MS}.get(end.how, 0)
        if for_ms:
            self._streamless.add(session.address, for_ms)
            log.info(
                "no session stream with %s (%s): going on by unary calls for %d s",
                session.address,
                end.error,
                for_ms // 1_000,
            )
