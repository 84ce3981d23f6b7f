"""Free TCP ports of this machine."""

import os
import random
import re
import socket
from collections import deque
from itertools import islice

LOOPBACK = "127.0.0.1"
PORTS_VARIABLE = "MUSTER_DEV_PORTS"
"""Environment variable with the range of ports to draw from (`20000-20999`), so that programs that run side
by side draw different ones."""

_SERVERS = range(15_000, 32_768)
"""Below the ephemeral ports, which systems give to outgoing connections: any connection could take one of
those between the draw and the start of the server."""

_drawn: deque[int] = deque(maxlen=4_096)
"""The ports that this process drew last: their servers may not listen yet."""


def free_ports(count: int) -> list[int]:
    """Draws different free ports, none of them among the last ones drawn.

    They are drawn at random, so that two processes are unlikely to draw the same.

    Raises:
        OSError: there are too few.
        ValueError: `MUSTER_DEV_PORTS` is no range of ports.
    """
    servers = _servers()
    recent = set(islice(reversed(_drawn), len(servers) // 2))
    found: list[int] = []
    tried: set[int] = set()
    while len(found) < count and len(tried) < len(servers):
        port = random.choice(servers)  # noqa: S311  no secret
        if port not in tried:
            tried.add(port)
            if port not in recent and is_free(port):
                found.append(port)
    if len(found) == count:
        _drawn.extend(found)
        return found
    raise OSError(f"this machine has no {count} free ports from {servers.start} to {servers.stop - 1}")


def _servers() -> range:
    text = os.environ.get(PORTS_VARIABLE, "")
    if not text:
        return _SERVERS
    if not (match := re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)):
        raise ValueError(f"{PORTS_VARIABLE}={text!r} is no range of ports; an example: 20000-20999")
    first, last = map(int, match.groups())
    return range(first, last + 1)


def is_free(port: int) -> bool:
    """Whether a port can be bound."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
