"""Remembers the latest nonces, in a bounded piece of memory."""

from collections.abc import Sequence
from itertools import islice

from muster_core.audit.nonces import NONE_LATE, Late
from muster_core.position import Position

NONCE_BYTES_EACH = 128
"""What a nonce takes in memory, with its share of the table."""


class NonceWindow:
    """Tells a repeat of one of the latest nonces; older ones are forgotten.

    Args:
        limit: how many are remembered at least; twice as many at most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = max(limit, 1)
        self._seen: dict[bytes, None] = {}

    def add(self, nonce: bytes, position: Position) -> bool:
        """Takes a nonce; False: it is one of the latest."""
        if nonce in self._seen:
            return False
        self._take([nonce])
        return True

    def add_all(self, nonces: Sequence[bytes], first: Position) -> bool:
        """Takes the nonces of entries that follow each other, if none is known to be a repeat."""
        if len(set(nonces)) < len(nonces) or not self._seen.keys().isdisjoint(nonces):
            return False
        self._take(nonces)
        return True

    def late(self, limit: int) -> Late:
        """No repeats: `add` and `add_all` reported them at once."""
        return NONE_LATE

    def _take(self, nonces: Sequence[bytes]) -> None:
        self._seen.update(dict.fromkeys(nonces))
        if len(self._seen) >= 2 * self._limit:
            self._seen = dict.fromkeys(islice(self._seen, len(self._seen) - self._limit, None))
