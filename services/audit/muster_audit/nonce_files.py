"""Remembers any number of nonces in a bounded piece of memory, and still tells every repeat."""

import struct
import tempfile
from collections.abc import Iterator, Sequence
from itertools import starmap
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import pyarrow as pa
import pyarrow.compute as pc
from muster_core.chain import NONCE_BYTES
from muster_core.nonces import Repeat
from muster_core.position import Position

BYTES_EACH = 64
"""Memory for a nonce: twice itself and, while repeats are looked for, four numbers of 8 bytes."""

_FILES = 64
_NONCE = struct.Struct(f"{NONCE_BYTES}s")
_PLACE = struct.Struct(">QQ")
_ROW = NONCE_BYTES + _PLACE.size


class NonceFiles:
    """Keeps nonces in columns while they fit; then files take them, split by their hash.

    Repeats are told at the end: sorting all nonces takes less than asking of each whether it is known. With
    files, that is done file by file: one has a 64th of all nonces. So nothing is missed and memory stays
    within the larger of the limit and that part. A context manager: the files go with it.

    Args:
        limit_bytes: how much memory nonces may take.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = max(limit_bytes // BYTES_EACH, 1)
        self._count = 0
        self._runs: list[tuple[Position, bytearray]] = []
        self._misshapen: set[bytes] = set()
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
        """Takes a nonce; False: it has another length than a nonce, and was taken before."""
        if len(nonce) == NONCE_BYTES:
            self._take(nonce, position)
            return True
        known = nonce in self._misshapen
        self._misshapen.add(nonce)
        return not known

    def add_all(self, nonces: Sequence[bytes], first: Position) -> bool:
        """Takes the nonces of entries that follow each other, 16 bytes each."""
        self._take(b"".join(nonces), first)
        return True

    def _take(self, nonces: bytes, first: Position) -> None:
        if self._runs and _behind(*self._runs[-1]) == first:
            self._runs[-1][1].extend(nonces)
        else:
            self._runs.append((first, bytearray(nonces)))
        self._count += len(nonces) // NONCE_BYTES
        if self._count >= self._limit:
            self._spill()

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="muster-audit-")
            self._files = [(Path(self._folder.name) / str(number)).open("w+b") for number in range(_FILES)]
        for first, nonces in self._runs:
            for index, (nonce,) in enumerate(_NONCE.iter_unpack(nonces)):
                self._files[hash(nonce) % _FILES].write(nonce + _PLACE.pack(*first.after(index)))
        self._runs.clear()
        self._count = 0

    def late(self) -> Iterator[Repeat]:
        """The repeats, each nonce's after its first place."""
        if self._folder is None:
            yield from _repeats(b"".join(nonces for _, nonces in self._runs), NONCE_BYTES, self._places())
            return
        self._spill()
        for file in self._files:
            file.seek(0)
            rows = file.read()
            places = (_PLACE.unpack_from(rows, at) for at in range(NONCE_BYTES, len(rows), _ROW))
            yield from _repeats(rows, _ROW, starmap(Position, places))

    def _places(self) -> Iterator[Position]:
        """Places of the nonces that are in memory."""
        for first, nonces in self._runs:
            yield from map(first.after, range(len(nonces) // NONCE_BYTES))


def _behind(first: Position, nonces: bytearray) -> Position:
    """The place behind a run of nonces."""
    return first.after(len(nonces) // NONCE_BYTES)


def _repeats(rows: bytes, width: int, places: Iterator[Position]) -> Iterator[Repeat]:
    """The repeats among nonces.

    Args:
        rows: joined; each begins with a nonce.
        width: of a row, bytes; a multiple of 8.
        places: of each, asked for only where there may be a repeat.
    """
    firsts = memoryview(rows).cast("Q")[:: width // 8]  # the first half of each nonce
    halves = pa.Array.from_buffers(pa.uint64(), len(firsts), [None, pa.py_buffer(firsts.tobytes())])
    in_order = halves.take(pc.array_sort_indices(halves))
    twice = set(in_order[1:].filter(pc.equal(in_order[1:], in_order[:-1])).to_pylist())
    if not twice:
        return
    seen: set[bytes] = set()
    for index, (half, place) in enumerate(zip(firsts, places, strict=True)):
        if half in twice:
            nonce = rows[index * width : index * width + NONCE_BYTES]
            if nonce in seen:
                yield Repeat(place, nonce)
            seen.add(nonce)
