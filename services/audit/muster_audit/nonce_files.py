"""Remembers any number of nonces in a bounded piece of memory, and still tells every repeat."""

import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from muster_core.nonces import Repeat
from muster_core.position import Position

NONCE_BYTES = 16
_BYTES_EACH = 128  # of a nonce in the set, with its share of the table, and its place
_FILES = 64
_PLACE = struct.Struct(">QQ")
_ROW = NONCE_BYTES + _PLACE.size


class NonceFiles:
    """Keeps nonces in a set while they fit; then files take them, split by their hash.

    A repeat within one filling of the set is told at once, any other by `late`, which reads file by file: a
    file has a 64th of all nonces. So nothing is missed and memory stays within the larger of the limit and
    that part. A context manager: the files go with it.

    Args:
        limit_bytes: how much memory the set may take.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = max(limit_bytes // _BYTES_EACH, 1)
        self._seen: set[bytes] = set()
        self._runs: list[tuple[Position, Sequence[bytes]]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: list[BinaryIO] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for file in self._files:
            file.close()
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def spilled(self) -> bool:
        """Whether files were needed."""
        return self._folder is not None

    def add(self, nonce: bytes, position: Position) -> bool:
        """Takes a nonce; False: it is known to have been taken before."""
        if nonce in self._seen:
            return False
        self._take([nonce], position)
        return True

    def add_all(self, nonces: Sequence[bytes], first: Position) -> bool:
        """Takes the nonces of entries that follow each other, if none is known to stand twice."""
        if len(set(nonces)) < len(nonces) or not self._seen.isdisjoint(nonces):
            return False
        self._take(nonces, first)
        return True

    def _take(self, nonces: Sequence[bytes], first: Position) -> None:
        self._seen.update(nonces)
        self._runs.append((first, nonces))
        if len(self._seen) >= self._limit:
            self._spill()

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="muster-audit-")
            self._files = [(Path(self._folder.name) / str(number)).open("w+b") for number in range(_FILES)]
        for first, nonces in self._runs:
            for index, nonce in enumerate(nonces):
                row = nonce.ljust(NONCE_BYTES, b"\0")[:NONCE_BYTES] + _PLACE.pack(*first.after(index))
                self._files[hash(row[:NONCE_BYTES]) % _FILES].write(row)
        self._seen.clear()
        self._runs.clear()

    def late(self) -> Iterator[Repeat]:
        """Repeats that were not told yet."""
        if self._folder is None:
            return
        self._spill()
        for file in self._files:
            file.seek(0)
            seen: set[bytes] = set()
            while row := file.read(_ROW):
                nonce = row[:NONCE_BYTES]
                if nonce in seen:
                    yield Repeat(Position(*_PLACE.unpack(row[NONCE_BYTES:])), nonce)
                seen.add(nonce)
