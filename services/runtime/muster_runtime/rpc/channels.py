"""Client channels between the services."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc

from muster_runtime.addresses import Address
from muster_runtime.rpc.tls import TlsSettings
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


def open_channel(
    address: Address | str,
    tls: TlsSettings | None = None,
    wire: Wire = GRPC,
    *,
    options: Sequence[tuple[str, Any]] = (),
) -> grpc.aio.Channel:
    """A channel to another service. It connects by itself, never repeats a call, and has the running loop.

    Args:
        address: where to.
        tls: certificates; plain text if absent or without any.
        wire: how processes reach each other.
        options: more options of grpc; they win over `CHANNEL_OPTIONS`.
    """
    merged = list({**dict(CHANNEL_OPTIONS), **dict(options)}.items())
    return wire.channel(str(address), None if tls is None else tls.channel_credentials(), merged)


class Channels:
    """Channels to the instances of one service, opened when first used, one for each address."""

    def __init__(
        self, addresses: Sequence[Address], tls: TlsSettings | None = None, wire: Wire = GRPC
    ) -> None:
        if not addresses:
            raise ValueError("at least one address is needed")
        self.addresses = tuple(addresses)
        self._tls = tls
        self._wire = wire
        self._open: dict[int, grpc.aio.Channel] = {}

    def __len__(self) -> int:
        return len(self.addresses)

    def channel(self, index: int) -> grpc.aio.Channel:
        """The channel to an instance; the index wraps around."""
        place = index % len(self.addresses)
        channel = self._open.get(place)
        if channel is None:
            channel = self._open[place] = open_channel(self.addresses[place], self._tls, self._wire)
        return channel

    async def close(self) -> None:
        """Closes all; open calls are cancelled."""
        channels = list(self._open.values())
        self._open.clear()
        await asyncio.gather(*(channel.close(None) for channel in channels))
