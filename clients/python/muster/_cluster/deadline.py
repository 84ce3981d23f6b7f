"""A limit of time whose error says what was not available."""

import asyncio
from collections.abc import Callable
from types import TracebackType

from muster._errors import ClusterUnavailable


class Deadline:
    """`asyncio.timeout` that raises `ClusterUnavailable`."""

    def __init__(self, seconds: float, error: Callable[[], ClusterUnavailable]) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._error = error

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as late:
            raise self._error() from late
