"""Free TCP ports of this machine."""

import random
import socket

LOOPBACK = "127.0.0.1"
_SERVERS = range(15_000, 32_768)
"""Where servers listen: below the ports that systems give to the near end of outgoing connections. One of
those could be taken by any connection between the choice and the start of the server."""


def free_ports(count: int) -> list[int]:
    """Different ports on which nobody listens now, drawn at random, so that two draws hardly meet.

    Raises:
        OSError: there are not so many.
    """
    found: list[int] = []
    for port in random.sample(_SERVERS, len(_SERVERS)):
        if len(found) == count:
            return found
        if is_free(port):
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
