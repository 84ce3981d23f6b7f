"""Draws that bytes decide."""

import random


class Draw(random.Random):
    """A source of draws like `random.Random`: bytes decide, and a small change of them changes little.

    After their end every draw is the lowest one; `over` says so, and who draws in a loop ends it then.
    """

    def __new__(cls, data: bytes) -> "Draw":
        """Not seeded by the bytes."""
        return super().__new__(cls)

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = data
        self._at = 0

    @property
    def over(self) -> bool:
        """Whether all bytes are used."""
        return self._at >= len(self._data)

    def take(self, count: int) -> bytes:
        """The next bytes as they are; fewer at the end."""
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def rest(self) -> bytes:
        """All bytes that are left."""
        return self.take(max(0, len(self._data) - self._at))

    def random(self) -> float:
        """A number from 0 to below 1, of two bytes."""
        return int.from_bytes(self.take(2), "big") / 65_536

    def getrandbits(self, k: int, /) -> int:
        """So many bits."""
        count = (k + 7) // 8
        return int.from_bytes(self.take(count), "big") >> (8 * count - k) if k else 0

    def randbytes(self, n: int) -> bytes:
        """So many bytes, the last ones 0 after the end."""
        return self.take(n).ljust(n, b"\0")
