"""Lives in which the core does little at a time, as often as not."""

from contextlib import AbstractContextManager

from kit.lives.cuts import small_cuts


def cut_by(data: bytes) -> AbstractContextManager[None]:
    """By the last byte of an input: an odd one has the core do little at a time."""
    last = data[-1] if data else 0
    return small_cuts(last >> 1 if last & 1 else None)
