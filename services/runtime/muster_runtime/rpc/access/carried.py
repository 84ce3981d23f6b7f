"""Calls of consequence that are carried to their end, so that the trail has them."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_running: set["asyncio.Task[Any]"] = set()
"""The loop itself keeps no task alive."""


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """What work returns or raises; it goes on when the caller of this is cancelled.

    A caller who leaves before the answer would else have done what nobody tells (ACC-08): the log has it, but
    what tells of it runs with the answer. The work must have limits of its own.

    Args:
        work: makes the change, and tells of it.
    """
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_ended)
    return await asyncio.shield(task)


def _ended(task: "asyncio.Task[Any]") -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # looked at: of a caller who left nobody else does
