"""How large requests are: to ask a message for its size encodes it again, with all of its parts."""

from contextvars import ContextVar
from typing import Any

_decoded: ContextVar[tuple[Any, int] | None] = ContextVar("muster_decoded", default=None)


def note_size(request: Any, size_bytes: int) -> None:
    """Notes of how many bytes the request of the call was decoded that is served by the current task."""
    _decoded.set((request, size_bytes))


def size_of(request: Any) -> int:
    """The size of a request, in bytes."""
    known = _decoded.get()
    if known is not None and known[0] is request:
        return known[1]
    size_bytes: int = request.ByteSize()
    return size_bytes
