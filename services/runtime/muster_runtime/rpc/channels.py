"""Client channels between the services."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import grpc
from pydantic import BeforeValidator, PlainSerializer
from pydantic_settings import NoDecode

from muster_runtime.rpc.tls import TlsSettings
from muster_runtime.rpc.wire import GRPC, Wire

ADDRESSES_MAX = 100
_HOST_MAX_CHARACTERS = 253

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


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service listens.

    Attributes:
        host: name or IP address; IPv6 without brackets.
        port: TCP port, 1 to 65535.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, *, lowest_port: int = 1) -> Address:
    """Reads `host:port`; IPv6 addresses stand in brackets.

    Args:
        text: the address.
        lowest_port: 0 where a free port may be picked.

    Raises:
        ValueError: it says what is wrong.
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host:
        raise ValueError(f"{text!r} is not an address of the form host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address must stand in brackets, [address]:port")
    if not host or len(host) > _HOST_MAX_CHARACTERS or not host.isprintable() or set(host) & set(" /,@[]"):
        raise ValueError(f"{text!r}: {host!r} is not a host name or address")
    if not (port.isascii() and port.isdigit() and lowest_port <= int(port[:9]) <= 65_535):
        raise ValueError(f"{text!r}: the port must be a number from {lowest_port} to 65535")
    return Address(host, int(port))


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Reads `host:port,host:port`: 1 to 100 different addresses.

    Raises:
        ValueError: it says what is wrong.
    """
    addresses = tuple(parse_address(part) for part in text.split(",") if part.strip())
    if not addresses:
        raise ValueError("at least one address is needed, as host:port,host:port")
    if len(addresses) > ADDRESSES_MAX:
        raise ValueError(f"there are {len(addresses)} addresses, at most {ADDRESSES_MAX} are allowed")
    repeated = {str(address) for address in addresses if addresses.count(address) > 1}
    if repeated:
        raise ValueError(f"repeated: {', '.join(sorted(repeated))}")
    return addresses


def _addresses(value: Any) -> Any:
    return parse_addresses(value) if isinstance(value, str) else value


def _one_address(value: Any) -> Any:
    return parse_address(value) if isinstance(value, str) else value


def _listen_address(value: Any) -> Any:
    return parse_address(value, lowest_port=0) if isinstance(value, str) else value


AddressList = Annotated[
    tuple[Address, ...],
    NoDecode,
    BeforeValidator(_addresses),
    PlainSerializer(lambda value: ",".join(map(str, value))),
]
"""Type of a setting that is a list `host:port,host:port`."""

ListenAddress = Annotated[Address, NoDecode, BeforeValidator(_listen_address), PlainSerializer(str)]
"""Type of a setting that says where to listen; port 0 picks a free one."""

OneAddress = Annotated[Address, NoDecode, BeforeValidator(_one_address), PlainSerializer(str)]
"""Type of a setting that is one `host:port`."""


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
