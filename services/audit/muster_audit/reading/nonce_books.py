"""What is kept of the nonces of a log that is read: spans, or all of them in a bounded piece of memory."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from muster_core.audit.nonce_spans import NonceSpans, NoncesUnclear
from muster_core.audit.nonces import NonceBook

from muster_audit.reading.nonce_files import NonceFiles

DEFAULT_MEMORY_MB = 256

_Read = TypeVar("_Read")


def with_nonces(read: Callable[[NonceBook], _Read], memory_mb: int = DEFAULT_MEMORY_MB) -> _Read:
    """What a read of a log gives; it is read a second time where spans cannot say whether nonces repeat.

    Args:
        read: reads the log with a book for its nonces, and asks that for late repeats at the end.
        memory_mb: memory for the nonces of the second time, MiB; more go to files.
    """
    with suppress(NoncesUnclear):
        return read(NonceSpans())
    with NonceFiles(memory_mb << 20) as nonces:
        return read(nonces)
