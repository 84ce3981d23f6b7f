"""Calls whose request has not come yet."""

import asyncio
from typing import Any

from muster_runtime.rpc.refusals import ResourceExhausted

_RETRY_MS = 500


class AwaitedRequests:
    """Reads the requests of calls, and bounds how many are waited for.

    A request comes with its headers or soon after: of those that do not, the oldest gives way to a new call.
    So callers who send headers and nothing else take no place that others need.

    Args:
        most: how many calls of the process may wait for their request.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[asyncio.Task[Any], None] = {}
        self._displaced: set[asyncio.Task[Any]] = set()

    async def read(self, context: Any) -> Any:
        """Reads the request of a call, in the task of the call; `grpc.aio.EOF`: none comes.

        Raises:
            ResourceExhausted: too many other calls wait, and this is the oldest one.
        """
        task = asyncio.current_task()
        assert task is not None
        self._waiting[task] = None
        if len(self._waiting) > self._most:
            self._displace(next(iter(self._waiting)))
        try:
            return await context.read()
        except asyncio.CancelledError:
            if task not in self._displaced or task.uncancel():
                raise  # its caller is gone, or its time is over
        finally:
            self._waiting.pop(task, None)
            self._displaced.discard(task)
        raise ResourceExhausted(f"{self._most:,} newer calls wait for their request; try again", _RETRY_MS)

    def _displace(self, task: asyncio.Task[Any]) -> None:
        del self._waiting[task]
        self._displaced.add(task)
        task.cancel()
