"""Connections that say nothing, half of a greeting, or something else than HTTP/2; calls without an end.

Must hold: who does not say in time what it is is cut off, an honest newcomer gets its answer meanwhile, and W
goes on.
"""

import asyncio
import os
import socket
import time
from contextlib import suppress
from functools import partial

import grpc
from abuse.caller import GROUPS, connection, raw
from abuse.http2 import END_HEADERS, HEADERS, PREFACE, PRIORITY, frame, headers
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from kit.waiting import until_equal
from muster_protos.muster.v1 import coordinator_pb2

EACH = 500
HANDSHAKE_MS = 2_000
PATIENCE_S = 10.0
"""Shorter than the time that gRPC gives by itself, which is about 20 s."""
HEARTBEAT = GROUPS + "Heartbeat"

GREETINGS: dict[str, bytes] = {
    "silent": b"",
    "half a preface": PREFACE[:10],
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "noise": os.urandom(2_000),
    "a call on stream 0": PREFACE + frame(HEADERS, END_HEADERS, 0, headers(HEARTBEAT)),
    "a frame of 16 MiB": PREFACE + b"\xff\xff\xff" + bytes(6),
    "priorities without a length": PREFACE + frame(PRIORITY, 0, 1, b"\0"),
}
"""None of them becomes a connection: each must be closed."""


async def attack(target: Target) -> str:
    begins()
    told = []
    for what, greeting in GREETINGS.items():
        sockets = await asyncio.to_thread(connect, target.owner, greeting)
        began_s = time.monotonic()
        try:
            await honest(target.owner)
            await until_equal(partial(number_open, sockets), 0, "open connections", PATIENCE_S)
        except AssertionError as error:
            raise Broken(f"{what}: connections are open after {PATIENCE_S:g} s: {error}") from error
        finally:
            for opened in sockets:
                opened.close()
        told.append(f"{what} {time.monotonic() - began_s:.1f} s")
    return f"{EACH} connections each were closed: {', '.join(told)}"


def connect(address: str, greeting: bytes) -> list[socket.socket]:
    """Opens connections, and says the same on each of them."""
    host, _, port = address.rpartition(":")
    made = []
    for _ in range(EACH):
        one = socket.create_connection((host, int(port)), 10)
        with suppress(OSError):  # what is refused at once is closed already
            one.sendall(greeting)
        one.setblocking(False)
        made.append(one)
    return made


def number_open(sockets: list[socket.socket]) -> int:
    """How many connections the server has not closed yet."""
    return sum(map(is_open, sockets))


def is_open(one: socket.socket) -> bool:
    """Whether the server has not closed a connection yet; takes what it said."""
    try:
        while one.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


async def honest(address: str) -> None:
    """Raises `Broken` unless a new client is answered."""
    async with connection(address) as channel:
        body = coordinator_pb2.HeartbeatRequest(group_id="honest", member_id="m").SerializeToString()
        status, _, text = await raw(channel, HEARTBEAT, body, timeout_s=10)
    if status is not grpc.StatusCode.OK:
        raise Broken(f"a new client's heartbeat was answered {status.name}: {text}")


if __name__ == "__main__":
    stage(attack, settings={"MUSTER_SERVER_HANDSHAKE_TIMEOUT_MS": str(HANDSHAKE_MS)}, coordinator_mb=400)
