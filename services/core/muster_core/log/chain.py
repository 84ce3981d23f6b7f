"""The chain hash: what ties each entry of a log to all entries before it."""

import struct
import sys
from array import array
from collections.abc import Sequence
from hashlib import sha256

from muster_core.position import Position

HEAD = struct.Struct(">QQ")
"""Epoch and offset as they go into the hash."""

BEFORE_GENESIS = bytes(32)
"""Hash that the genesis entry is chained to."""

NONCE_BYTES = 16
"""Length of a nonce."""

HASH_BYTES = 32
"""Length of a chain hash."""


def chain_hash(previous: bytes, position: Position, nonce: bytes, record: bytes) -> bytes:
    """The hash of an entry, 32 bytes: SHA-256 over the hash before, the place, the nonce and the record.

    The parts before the record have fixed lengths (32, 16 and 16 bytes), so no two entries share an
    input. There is no other checksum (docs/safety.md, "The log").
    """
    hashed = sha256(previous + HEAD.pack(*position) + nonce)
    hashed.update(record)  # by itself, for it may have megabytes
    return hashed.digest()


def chain_hashes(
    previous: bytes,
    first: Position,
    nonces: Sequence[bytes],
    records: Sequence[bytes],
    hashes: Sequence[bytes],
) -> list[bytes]:
    """The hashes of entries that follow each other in one epoch.

    Each is computed with the hash that is *stored* for the entry before it, so all are as stored when the
    chain holds, and else the first other one belongs to the entry that is wrong. The work is done in columns,
    as calls for each entry took a third of the time of a check.

    Args:
        previous: hash of the entry before.
        first: place of the first one.
        nonces: nonces of the entries, 16 bytes each.
        records: their records.
        hashes: their stored hashes, 32 bytes each.
    """
    count = len(records)
    places = array("Q", [first.epoch]) * (2 * count)
    places[1::2] = array("Q", range(first.offset, first.offset + count))
    if sys.byteorder == "little":
        places.byteswap()
    heads = pieces(places.tobytes(), HEAD.size)
    entries = map(b"".join, zip((previous, *hashes[:-1]), heads, nonces, records, strict=True))
    return [hashed.digest() for hashed in map(sha256, entries)]


def pieces(joined: bytes, width: int) -> list[bytes]:
    """Bytes cut into pieces of one width, of which they are a multiple."""
    return [piece for (piece,) in struct.iter_unpack(f"{width}s", joined)]
