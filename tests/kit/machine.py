"""How tests share this machine: its cores, and the ports that their servers listen on.

The client's tests use it, also where only the client is installed.
"""

import os

CORES = os.cpu_count() or 2

WAITING = 5
"""Processes beside those that compute: a test with a cluster waits most of its time."""

_PORTS = range(15_000, 32_768)


def ports_of(number: int, count: int) -> str:
    """The ports for what one of several processes starts, as `MUSTER_DEV_PORTS` takes them.

    Args:
        number: of the process, from 0.
        count: how many processes there are.
    """
    share = len(_PORTS) // count
    first = _PORTS.start + share * number
    return f"{first}-{first + share - 1}"
