"""The chain hash: what ties each entry of a log to all entries before it."""

import struct
from hashlib import sha256

from muster_core.position import Position

HEAD = struct.Struct(">QQ")
"""Epoch and offset as they go into the hash."""

BEFORE_GENESIS = bytes(32)
"""Hash that the genesis entry is chained to."""


def chain_hash(previous: bytes, position: Position, nonce: bytes, record: bytes) -> bytes:
    """The hash of an entry, 32 bytes: SHA-256 over the hash before, the place, the nonce and the record.

    The parts before the record have fixed lengths (32, 16 and 16 bytes), so no two entries share an
    input. There is no other checksum (docs/safety.md, "The log").
    """
    return sha256(previous + HEAD.pack(*position) + nonce + record).digest()
