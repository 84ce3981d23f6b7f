"""Remembers nonces: whether one was seen before."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from muster_core.position import Position


class Repeat(NamedTuple):
    """A nonce that was used before: the later place and the nonce."""

    position: Position
    nonce: bytes


class Late(NamedTuple):
    """Repeats that are reported at the end: how many there are, and the first of them by place."""

    total: int
    first: Sequence[Repeat]


NONE_LATE = Late(0, ())


class NonceBook(Protocol):
    """What a checker asks about nonces, of 16 bytes. It may report a repeat late, but never misses one."""

    def add(self, nonce: bytes, position: Position) -> bool:
        """Takes a nonce; False: it is known to have been taken before."""
        ...

    def add_all(self, nonces: Sequence[bytes], first: Position) -> bool:
        """Takes the nonces of entries that follow each other.

        False: one of them may be a repeat, and none was taken; they must be given one by one.
        """
        ...

    def late(self, limit: int) -> Late:
        """Repeats that `add` and `add_all` did not report, the first `limit` by place; called once, last."""
        ...


class NonceSet:
    """Keeps all nonces in memory: about 100 bytes each."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, nonce: bytes, position: Position) -> bool:
        """Takes a nonce; False: it was taken before."""
        if nonce in self._seen:
            return False
        self._seen.add(nonce)
        return True

    def add_all(self, nonces: Sequence[bytes], first: Position) -> bool:
        """Takes nonces if none of them is a repeat."""
        if len(set(nonces)) < len(nonces) or not self._seen.isdisjoint(nonces):
            return False
        self._seen.update(nonces)
        return True

    def late(self, limit: int) -> Late:
        """No repeats: `add` and `add_all` reported them at once."""
        return NONE_LATE
