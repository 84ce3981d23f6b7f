"""Client channels between the services."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence, Set
from typing import Any

import grpc

from muster_runtime.addresses import Address
from muster_runtime.rpc.trust.trust import Trust
from muster_runtime.rpc.wire import GRPC, Wire

CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    # A stopped peer is noticed within 1.5 s; a dead one at once, by its connection.
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.keepalive_timeout_ms", 500),
    ("grpc.http2.ping_timeout_ms", 500),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    # Also the time that one attempt to connect gets.
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Callers decide what may be repeated, and where.
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    # A channel has a connection of its own, so that what one stream does delays no other channel's.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)

_OPEN_CALLS_S = 600.0
"""How long calls may last on a channel that another one has replaced; a long stream has to look for that."""


def open_channel(
    address: Address | str,
    trust: Trust | None = None,
    wire: Wire = GRPC,
    *,
    options: Sequence[tuple[str, Any]] = (),
) -> grpc.aio.Channel:
    """A channel to another service. It connects by itself, never repeats a call, and has the running loop.

    Args:
        address: where to.
        trust: certificates and tokens; plain text and none if absent.
        wire: how processes reach each other.
        options: more options of grpc; they win over `CHANNEL_OPTIONS`.
    """
    merged = list({**dict(CHANNEL_OPTIONS), **dict(options)}.items())
    if trust is None:
        return wire.channel(str(address), None, merged)
    return trust.channel(str(address), merged, wire)


class ChannelCache:
    """Channels by address, opened when first used, and opened anew once certificates were renewed.

    Args:
        trust: certificates and tokens; plain text and none if absent.
        wire: how processes reach each other.
    """

    def __init__(self, trust: Trust | None = None, wire: Wire = GRPC) -> None:
        self._trust = trust
        self._wire = wire
        self._open: dict[Address, grpc.aio.Channel] = {}
        self._renewals = 0
        self._replaced: deque[tuple[float, grpc.aio.Channel]] = deque()

    def channel(self, address: Address) -> grpc.aio.Channel:
        """The channel to an address; another one than before once certificates were renewed."""
        self._leave_old_certificates()
        channel = self._open.get(address)
        if channel is None:
            channel = self._open[address] = open_channel(address, self._trust, self._wire)
        return channel

    async def keep(self, addresses: Set[Address]) -> None:
        """Closes the channels to all other addresses."""
        for address in self._open.keys() - addresses:
            await self._open.pop(address).close(None)

    async def close(self) -> None:
        """Closes all; open calls are cancelled."""
        channels = [*self._open.values(), *(channel for _, channel in self._replaced)]
        self._open.clear()
        self._replaced.clear()
        await asyncio.gather(*(channel.close(None) for channel in channels))

    def _leave_old_certificates(self) -> None:
        """Has channels opened anew after a renewal; calls on the old ones go on for a while."""
        renewals = 0 if self._trust is None else self._trust.renewals()
        if renewals == self._renewals:
            return
        self._renewals = renewals
        now_s = time.monotonic()
        self._replaced.extend((now_s, channel) for channel in self._open.values())
        self._open.clear()
        while self._replaced and now_s - self._replaced[0][0] > _OPEN_CALLS_S:
            self._replaced.popleft()  # grpc closes a channel that nobody holds


class Channels:
    """Channels to the instances of one service, opened when first used, one for each address."""

    def __init__(self, addresses: Sequence[Address], trust: Trust | None = None, wire: Wire = GRPC) -> None:
        if not addresses:
            raise ValueError("at least one address is needed")
        self.addresses = tuple(addresses)
        self._open = ChannelCache(trust, wire)

    def __len__(self) -> int:
        return len(self.addresses)

    def channel(self, index: int) -> grpc.aio.Channel:
        """The channel to an instance; the index wraps around."""
        return self._open.channel(self.addresses[index % len(self.addresses)])

    async def close(self) -> None:
        """Closes all; open calls are cancelled."""
        await self._open.close()
