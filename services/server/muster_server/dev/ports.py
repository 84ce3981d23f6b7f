"""Free TCP ports of this machine."""

import random
import socket
from collections import deque

LOOPBACK = "127.0.0.1"
_SERVERS = range(15_000, 32_768)
"""Where servers listen: below the ports that systems give to the near end of outgoing connections. One of
those could be taken by any connection between the choice and the start of the server."""

_drawn: deque[int] = deque(maxlen=4_096)
"""The last ones that this process drew: what they were drawn for may not listen yet."""


def free_ports(count: int) -> list[int]:
    """Different ports on which nobody listens now, none of them among the last that were given.

    They are drawn at random, so that two processes hardly draw the same.

    Raises:
        OSError: there are not so many.
    """
    found: list[int] = []
    for port in random.sample(_SERVERS, len(_SERVERS)):
        if len(found) == count:
            _drawn.extend(found)
            return found
        if port not in _drawn and is_free(port):
            found.append(port)
    raise OSError(f"this machine has no {count} free ports from {_SERVERS.start} to {_SERVERS.stop - 1}")


def is_free(port: int) -> bool:
    """Whether nobody listens on a port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
