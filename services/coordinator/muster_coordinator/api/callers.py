"""Which host a call comes from, also through proxies."""

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated, Any

from muster_runtime.addresses import host_in_peer
from pydantic import BeforeValidator, PlainSerializer
from pydantic_settings import NoDecode

HEADER = "x-forwarded-for"
"""Header in which each proxy appends the address that connected to it."""

NETWORKS_MAX = 100

Network = IPv4Network | IPv6Network


class Callers:
    """Finds the host of a call's client.

    A connection from a trusted proxy is traced back through `x-forwarded-for`, from its last entry to the
    first one that is no trusted proxy. What anybody else says of itself is ignored, and so is all before an
    entry that is no IP address.

    Args:
        trusted: networks of the proxies.
    """

    def __init__(self, trusted: tuple[Network, ...] = ()) -> None:
        self._trusted = trusted

    def host(self, context: Any) -> str:
        """The client's IP address; empty for a local socket.

        Args:
            context: the call, as grpc gives it to a servicer.
        """
        host = host_in_peer(context.peer())
        if not self._trusted:
            return host
        # Of several such headers gRPC keeps the last one, which is that of the nearest proxy.
        noted = dict(context.invocation_metadata() or ()).get(HEADER, "")
        for name in reversed(noted.split(",")):
            said = _address(name)
            if not said or not self._is_trusted(host):
                break
            host = said
        return host

    def _is_trusted(self, host: str) -> bool:
        address = ip_address(host) if host else None
        return address is not None and any(address in network for network in self._trusted)


def _address(text: str) -> str:
    """An IP address in its usual form; empty: the text is none, or one with a zone, which may be any text."""
    try:
        return "" if "%" in text else str(ip_address(text.strip().strip("[]")))
    except ValueError:
        return ""


def _networks(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if len(parts) > NETWORKS_MAX:
        raise ValueError(f"there are {len(parts)} networks, at most {NETWORKS_MAX} are allowed")
    return tuple(ip_network(part) for part in parts)


NetworkList = Annotated[
    tuple[Network, ...],
    NoDecode,
    BeforeValidator(_networks),
    PlainSerializer(lambda value: ",".join(map(str, value))),
]
"""Type of a setting that is a list of networks, `10.0.0.0/8,192.168.1.7`."""
