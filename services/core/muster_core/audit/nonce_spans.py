"""Shows that no nonce of a log repeats by the spans they come in, in memory that does not grow with it."""

from collections.abc import Sequence
from itertools import islice, pairwise
from operator import lt

from muster_core.audit.nonces import NONE_LATE, Late
from muster_core.position import Position

_PREFIX_BYTES = 8  # the same in all nonces of a process, which counts in the rest
_MAX_SPANS = 16_384


class NoncesUnclear(Exception):
    """The spans do not show whether a nonce repeats: take the log again with a book that knows each nonce."""


class NonceSpans:
    """Keeps of nonces that ascend only the first and the last one.

    A process numbers its nonces upwards, so those of a log are as many spans as it had owners, whatever its
    length, and no two of them overlap. Then none repeats. Where two do, or the spans become too many, nothing
    is said of the nonces: `NoncesUnclear`.
    """

    def __init__(self) -> None:
        self._spans: list[tuple[bytes, bytes]] = []

    def add(self, nonce: bytes, position: Position) -> bool:
        """Takes a nonce.

        Raises:
            NoncesUnclear: there are too many spans.
        """
        self._take(nonce, nonce)
        return True

    def add_all(self, nonces: Sequence[bytes], first: Position) -> bool:
        """Takes the nonces of entries that follow each other.

        Raises:
            NoncesUnclear: there are too many spans.
        """
        if nonces[0][:_PREFIX_BYTES] == nonces[-1][:_PREFIX_BYTES] and _ascend(nonces):
            self._take(nonces[0], nonces[-1])
        else:
            for nonce in nonces:
                self._take(nonce, nonce)
        return True

    def late(self, limit: int) -> Late:
        """No repeats.

        Raises:
            NoncesUnclear: two spans overlap.
        """
        if any(before[1] >= after[0] for before, after in pairwise(sorted(self._spans))):
            raise NoncesUnclear
        return NONE_LATE

    def _take(self, first: bytes, last: bytes) -> None:
        """Takes nonces that ascend and begin with the same bytes."""
        spans = self._spans
        if spans:
            begin, end = spans[-1]
            if end < first and end[:_PREFIX_BYTES] == first[:_PREFIX_BYTES]:
                spans[-1] = (begin, last)
                return
        if len(spans) == _MAX_SPANS:
            raise NoncesUnclear
        spans.append((first, last))


def _ascend(nonces: Sequence[bytes]) -> bool:
    return all(map(lt, nonces, islice(nonces, 1, None)))
