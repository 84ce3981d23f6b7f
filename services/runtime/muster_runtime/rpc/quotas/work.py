"""Large requests that are worked on: how much memory they may take at a time."""

from collections import Counter

from muster_runtime import memory
from muster_runtime.rpc.refusals import ResourceExhausted
from muster_runtime.turns import Turns

LARGE_BYTES = 64 << 10
"""Smaller requests do not count."""

_SHARE = 16
"""Large requests may take this part of the memory: on its way to the log there are several copies of each."""
_LEAST_BYTES = 16 << 20
_MOST_BYTES = 256 << 20
_RETRY_MS = 500


class WorkInHand:
    """Counts the bytes of large requests from when they have come until they are answered.

    A log that is slow, or a rebalance that is waited for, keeps each of them for seconds; a rate of bytes
    alone bounds no memory then. One caller may have half of it, and one request alone is always taken.

    Args:
        most_bytes: how many there may be; None: as the memory of the process allows.

    Attributes:
        most_bytes: how many there may be.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        if most_bytes is None:
            share_bytes = (memory.limit_bytes() or _SHARE * _MOST_BYTES) // _SHARE
            most_bytes = min(_MOST_BYTES, max(_LEAST_BYTES, share_bytes))
        self.most_bytes = most_bytes
        self._of: Counter[str] = Counter()
        self._bytes = 0

    def begin(self, who: str, size_bytes: int) -> int:
        """Counts a request; returns the number of bytes for `end`, which is called once it is answered.

        Raises:
            ResourceExhausted: there are too many, or too many of that caller.
        """
        if size_bytes < LARGE_BYTES:
            return 0
        own_bytes = self._of[who]  # 0 where there is none, which adds nothing
        if (own_bytes and 2 * (own_bytes + size_bytes) > self.most_bytes) or (
            self._bytes and self._bytes + size_bytes > self.most_bytes
        ):
            raise ResourceExhausted(
                f"requests of {self._bytes:,} bytes are worked on, {own_bytes:,} of them of this caller; "
                f"{self.most_bytes:,} may be, half of them of one caller: try again when some are answered",
                _RETRY_MS,
            )
        self._of[who] += size_bytes
        self._bytes += size_bytes
        return size_bytes

    def end(self, who: str, size_bytes: int) -> None:
        """Counts a request no longer: it was answered, or its caller has gone. 0 bytes: it never counted."""
        if size_bytes:
            self._bytes -= size_bytes
            self._of[who] -= size_bytes
            if not self._of[who]:
                del self._of[who]


class Decoding:
    """Large messages that wait to be decoded.

    Args:
        most_bytes: how many those of streams may have.

    Attributes:
        turns: they are decoded one at a time, and callers take turns.
        waiting: those of streams, which count for nothing else until then. They have a room of their own: a
            stream whose caller has many parked calls is not refused for these.
    """

    def __init__(self, most_bytes: int) -> None:
        self.turns = Turns()
        self.waiting = WorkInHand(most_bytes)
