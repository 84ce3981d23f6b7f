"""Waiting until something is so, by asking again and again: for what has no event of its own.

The client's tests use it, also where only the client is installed: it imports nothing of ours.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

PATIENCE_S = 60.0
PAUSE_S = 0.01


@overload
async def until(
    condition: Callable[[], Awaitable[T | None]], what: str = "", patience_s: float = PATIENCE_S
) -> T: ...


@overload
async def until(condition: Callable[[], T | None], what: str = "", patience_s: float = PATIENCE_S) -> T: ...


async def until(condition: Callable[[], Any], what: str = "", patience_s: float = PATIENCE_S) -> Any:
    """Waits until a condition gives something true, and gives that.

    Raises:
        AssertionError: it did not in time; says what was waited for, and what the condition gave last.
    """
    return await _until(condition, bool, what or "the condition", patience_s)


async def until_equal(
    read: Callable[[], object], wanted: object, what: str = "", patience_s: float = PATIENCE_S
) -> None:
    """Waits until what is read equals what is wanted.

    Raises:
        AssertionError: it did not in time; says what was wanted, and what was read last.
    """
    wish = f"{what}: {wanted!r}" if what else repr(wanted)
    await _until(read, lambda value: bool(value == wanted), wish, patience_s)


def stand_still(seconds: float) -> None:
    """Keeps the loop from turning, as in a process that is stopped."""
    time.sleep(seconds)


async def _until(read: Callable[[], Any], good: Callable[[Any], bool], wish: str, patience_s: float) -> Any:
    deadline_s = time.monotonic() + patience_s
    while True:
        value = read()
        if isinstance(value, Awaitable):
            value = await value
        if good(value):
            return value
        if time.monotonic() > deadline_s:
            last = "" if value is False else f"; at last {value!r}"
            raise AssertionError(f"not within {patience_s:g} s: {wish}{last}")
        await asyncio.sleep(PAUSE_S)
