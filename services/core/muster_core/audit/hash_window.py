"""The hashes of the latest entries of a log: what a snapshot's marker says is compared with them."""

from collections import deque
from collections.abc import Sequence

from muster_core.position import Position

_ENTRIES = 65_536
"""Hashes that are kept at least: a marker comes some thousand entries after what its snapshot covers."""


class HashWindow:
    """Remembers the chain hashes of the latest entries."""

    def __init__(self) -> None:
        self._runs: deque[tuple[Position, Sequence[bytes]]] = deque()
        self._count = 0

    def add(self, first: Position, hashes: Sequence[bytes]) -> None:
        """Takes the hashes of entries that follow each other in one epoch."""
        self._runs.append((first, hashes))
        self._count += len(hashes)
        while self._count - len(self._runs[0][1]) >= _ENTRIES:
            self._count -= len(self._runs.popleft()[1])

    def at(self, position: Position) -> bytes | None:
        """The hash of the entry at a place; empty: there is no such entry; None: it is too long ago."""
        for first, hashes in reversed(self._runs):
            if first.offset <= position.offset < first.offset + len(hashes):
                same = first.epoch == position.epoch
                return hashes[position.offset - first.offset] if same else b""
        return None
