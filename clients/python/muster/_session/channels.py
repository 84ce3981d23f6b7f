"""gRPC channels, one per address, closed when unused."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import grpc
import grpc.aio

from muster._errors import MusterError, RequestRefused, SettingsError
from muster._session.forks import forked_from_connected, note_closed, note_connected
from muster._session.tls import RenewedCredentials, TlsFiles
from muster._session.token import FILE_VARIABLE, PLAIN_VARIABLE, RenewedToken, TokenFile

IDLE_MS = 60_000
"""A channel without a call is closed after this time."""

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""The answer to a leader's join holds the metadata of every member."""

OPTIONS: tuple[tuple[str, int], ...] = (
    # Calls that are not idempotent are repeated by this library, which knows the outcome, not by the channel.
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),
    # A peer that stopped without closing its socket is noticed after 7 s while calls are open.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A restarted server is found again within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)


@dataclass(slots=True)
class _Pooled:
    channel: grpc.aio.Channel
    users: int = 0
    given_up: bool = False
    idle: asyncio.TimerHandle | None = None


Connect: TypeAlias = Callable[[str], grpc.aio.Channel]
"""Makes the channel to an address `host:port`."""

_in_process: Connect | None = None

_SCHEME = "Bearer "


@contextmanager
def in_process(connect: Connect) -> Iterator[None]:
    """Has all pools of this process make their channels in this way, whatever they were given."""
    global _in_process
    before, _in_process = _in_process, connect
    try:
        yield
    finally:
        _in_process = before


class ChannelPool:
    """A pool of channels. Belongs to the event loop that it is used in.

    Args:
        credentials: TLS credentials, or the files to make them of; None: plain text.
        connect: makes the channels instead.
        token: the file of the token that calls show; None: they show none.
        idle_ms: a channel without a call is closed after this time.

    Raises:
        SettingsError: a file cannot be read, or the token would be sent over plain text.
        MusterError: this process was forked from one that was connected.
    """

    def __init__(
        self,
        credentials: grpc.ChannelCredentials | TlsFiles | None = None,
        *,
        connect: Connect | None = None,
        token: TokenFile | None = None,
        idle_ms: int = IDLE_MS,
    ) -> None:
        if forked_from_connected():
            raise MusterError(
                "this process was forked from one that was connected to a cluster, and gRPC does not survive "
                "that; fork before you connect, or start it with multiprocessing.get_context('spawn')"
            )
        self._renewed = RenewedCredentials(credentials) if isinstance(credentials, TlsFiles) else None
        self._credentials = None if isinstance(credentials, TlsFiles) else credentials
        self._connect = connect
        if token is not None and self.plain and not token.plain_text:
            raise SettingsError(
                "token_file",
                "the token would be sent over plain text, where whoever listens reads it: name the "
                "certificates that servers are checked against (MUSTER_TLS_CA_FILE), or allow it "
                f"({PLAIN_VARIABLE}=true)",
            )
        self._token = None if token is None else RenewedToken(token)
        self._idle_ms = idle_ms
        self._entries: dict[str, _Pooled] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def addresses(self) -> frozenset[str]:
        """Addresses that have a channel now."""
        return frozenset(self._entries)

    @property
    def files(self) -> TlsFiles | None:
        """What its connections are made with; None: nothing that is in files."""
        return None if self._renewed is None else self._renewed.files

    @property
    def plain(self) -> bool:
        """Whether it makes connections without TLS."""
        return all(one is None for one in (_in_process, self._connect, self._credentials, self._renewed))

    @asynccontextmanager
    async def use(self, address: str) -> AsyncIterator[grpc.aio.Channel]:
        """The channel to `address`, kept open for the duration of a call or a stream."""
        if self._renewed is not None and self._renewed.renew():
            for old in self.addresses:
                self.give_up(old)
        entry = self._entries.get(address)
        if entry is None:
            entry = self._entries[address] = _Pooled(self._open(address))
        if entry.idle is not None:
            entry.idle.cancel()
            entry.idle = None
        entry.users += 1
        try:
            yield entry.channel
        finally:
            entry.users -= 1
            if entry.users == 0:
                self._unused(address, entry)

    def _unused(self, address: str, entry: _Pooled) -> None:
        """Nobody uses a channel now: one that may be used again is closed later, any other at once."""
        if self._entries.get(address) is not entry:
            if entry.given_up:
                self._close_soon(entry)
        elif self._closed:  # of a member that was still leaving
            self.give_up(address)
        else:
            loop = asyncio.get_running_loop()
            entry.idle = loop.call_later(self._idle_ms / 1_000, self._drop, address, entry)

    def proof(self) -> tuple[tuple[str, str], ...]:
        """What a call shows about who makes it, as metadata; empty: nothing. From any thread."""
        return () if self._token is None else (("authorization", f"{_SCHEME}{self._token.current()}"),)

    def proved(self) -> None:
        """A server has taken the proof."""
        if self._token is not None:
            self._token.works()

    def refused(self, proof: tuple[tuple[str, str], ...], what: str, details: str) -> RequestRefused | None:
        """The error after a server did not take a proof; None: to be tried again, with the one of then."""
        if self._token is None:
            hint = f"name a token with token_file or {FILE_VARIABLE}, or a client certificate"
            return RequestRefused("UNAUTHENTICATED", f"{what} was refused: {details}; {hint}")
        sent = dict(proof).get("authorization", "").removeprefix(_SCHEME)
        if self._token.outlives(sent, details):
            return None
        return RequestRefused(
            "UNAUTHENTICATED", f"{what} was refused: {details} (token_file, {FILE_VARIABLE})"
        )

    def open_blocking(self, address: str) -> grpc.Channel | None:
        """A channel of its own for a thread, which closes it; None: only the user can make channels."""
        if self._connect is not None:
            return None
        credentials = self._credentials if self._renewed is None else self._renewed.current
        if credentials is None:
            return grpc.insecure_channel(address, options=OPTIONS)
        return grpc.secure_channel(address, credentials, options=OPTIONS)

    def give_up(self, address: str) -> None:
        """Drops a connection: the next call opens another one, and calls that are open on it go on.

        For one that is dead though it reports no error, or has old certificates.
        """
        entry = self._entries.pop(address, None)
        if entry is None:
            return
        entry.given_up = True
        if entry.idle is not None:
            entry.idle.cancel()
        if entry.users == 0:
            self._close_soon(entry)

    async def close(self) -> None:
        """Closes all channels, also if it is cancelled; open calls are cancelled.

        Who is still at something, as a member that leaves, gets a channel that is closed right after it.
        """
        self._closed = True
        entries, self._entries = list(self._entries.values()), {}
        for entry in entries:
            if entry.idle is not None:
                entry.idle.cancel()
            self._close_soon(entry)
        if not self._closing:
            note_closed(self)
        while self._closing:
            await asyncio.wait(self._closing)

    def _open(self, address: str) -> grpc.aio.Channel:
        if _in_process is not None:
            return _in_process(address)
        note_connected(self)
        if self._connect is not None:
            return self._connect(address)
        credentials = self._credentials if self._renewed is None else self._renewed.current
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=OPTIONS)
        return grpc.aio.secure_channel(address, credentials, options=OPTIONS)

    def _drop(self, address: str, entry: _Pooled) -> None:
        if entry.users or self._entries.get(address) is not entry:
            return
        del self._entries[address]
        self._close_soon(entry)

    def _close_soon(self, entry: _Pooled) -> None:
        task = asyncio.get_running_loop().create_task(self._close(entry))
        self._closing.add(task)
        task.add_done_callback(self._has_closed)

    def _has_closed(self, task: "asyncio.Task[None]") -> None:
        self._closing.discard(task)
        if self._closed and not self._closing and not self._entries:
            note_closed(self)

    async def _close(self, entry: _Pooled) -> None:
        await entry.channel.close()
