"""HTTP/2 by hand, for what no gRPC library does: calls without a body, answers that nobody reads."""

import os
import select
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM = 1
END_HEADERS = 4
ACKNOWLEDGED = 1
_INITIAL_WINDOW = 4
_FRAME_BYTES = 16_384


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def headers(path: str, extra: Sequence[tuple[str, str]] = ()) -> bytes:
    """Headers of a gRPC call: literals that no table remembers."""
    block = b""
    for name, value in (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "attacker"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *extra,
    ):
        block += b"\x10" + _text(name) + _text(value)
    return block


def _text(value: str) -> bytes:
    encoded = value.encode()
    length = len(encoded)
    if length < 127:
        return bytes([length]) + encoded
    rest, prefix = length - 127, b"\x7f"
    while rest >= 128:
        prefix += bytes([rest % 128 | 128])
        rest //= 128
    return prefix + bytes([rest]) + encoded


def grpc_message(body: bytes) -> bytes:
    """A message as gRPC frames it."""
    return b"\0" + struct.pack(">I", len(body)) + body


class Connection:
    """A connection that answers pings and settings, so that keepalive is content with it.

    Args:
        address: `host:port`.
        window: how many bytes of an answer each call takes before it wants an update.
        source: address of this machine to connect from; empty: any.
        port: port to connect from; 0: any.

    Attributes:
        dead: whether the server closed it.
        goaway: what the server said at its end.
        received: bytes of answers that came.
        frames: how many frames of each kind came.
        ended: the calls that the server has ended, by their numbers.
        port: the port that it came from.
    """

    def __init__(self, address: str, window: int = 65_535, source: str = "", port: int = 0) -> None:
        host, _, to = address.rpartition(":")
        self.dead = False
        self.goaway = ""
        self.received = 0
        self.frames: dict[int, int] = {}
        self.ended: set[int] = set()
        self._buffer = b""
        self._next = 1
        here = (source, port) if source or port else None
        self._socket = socket.create_connection((host, int(to)), 5, here)
        self.port: int = self._socket.getsockname()[1]
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, window)))

    def open(self, path: str, body: bytes | None) -> int:
        """Starts a call; without a body it never ends its side. Gives the stream's number."""
        stream, self._next = self._next, self._next + 2
        sent = frame(HEADERS, END_HEADERS, stream, headers(path))
        if body is not None:
            message = grpc_message(body)
            for begin in range(0, len(message), _FRAME_BYTES):
                sent += frame(DATA, 0, stream, message[begin : begin + _FRAME_BYTES])
            sent += frame(DATA, END_STREAM, stream)
        self.send(sent)
        return stream

    def ping(self, times: int) -> None:
        """Pings that nobody asked for."""
        self.send(b"".join(frame(PING, 0, 0, os.urandom(8)) for _ in range(times)))

    def send(self, data: bytes) -> None:
        """Sends bytes as they stand; a closed connection is `dead` then."""
        self._socket.settimeout(5)
        try:
            self._socket.sendall(data)
        except OSError:
            self.dead = True

    def poll(self, patience_s: float = 0.0) -> None:
        """Takes what came."""
        if self.dead or not select.select([self._socket], [], [], patience_s)[0]:
            return
        try:
            data = self._socket.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self.dead = True
            return
        self._buffer += data
        while len(self._buffer) >= 9:
            length = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 9 + length:
                return
            kind, flags = self._buffer[3], self._buffer[4]
            if kind == RESET or (kind in (DATA, HEADERS) and flags & END_STREAM):
                self.ended.add(int.from_bytes(self._buffer[5:9], "big"))
            payload, self._buffer = self._buffer[9 : 9 + length], self._buffer[9 + length :]
            self._take(kind, flags, payload)

    def _take(self, kind: int, flags: int, payload: bytes) -> None:
        self.frames[kind] = self.frames.get(kind, 0) + 1
        if kind == DATA:
            self.received += len(payload)
        elif kind == GOAWAY:
            self.goaway = f"{payload[8:].decode(errors='replace')} ({int.from_bytes(payload[4:8], 'big')})"
        elif kind == PING and not flags & ACKNOWLEDGED:
            self.send(frame(PING, ACKNOWLEDGED, 0, payload))
        elif kind == SETTINGS and not flags & ACKNOWLEDGED:
            self.send(frame(SETTINGS, ACKNOWLEDGED, 0))

    def close(self) -> None:
        """Ends the connection."""
        with suppress(OSError):
            self._socket.close()
