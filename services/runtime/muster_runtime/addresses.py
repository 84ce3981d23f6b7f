"""Addresses of services, `host:port`, and the types of settings that hold them."""

from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import BeforeValidator, PlainSerializer
from pydantic_settings import NoDecode

ADDRESSES_MAX = 100
_HOST_MAX_CHARACTERS = 253


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


def host_in_peer(peer: str) -> str:
    """The address in what grpc calls a peer: `ipv4:10.0.0.7:5123` → `10.0.0.7`; empty for a local socket."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    host, _, _ = unquote(rest).rpartition(":")
    return host.strip("[]")


def parse_address(text: str, *, lowest_port: int = 1) -> Address:
    """Reads `host:port`; IPv6 addresses are in brackets.

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
        raise ValueError(f"{text!r}: an IPv6 address must be in brackets, [address]:port")
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
