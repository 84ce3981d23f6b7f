"""Who is worked for next, where one call at a time is."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """A lock whose waiters get it host by host in turn: many calls of one host delay another's by one."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def held(self) -> bool:
        """Whether somebody has a turn."""
        return self._held

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncIterator[None]:
        """Waits for a turn of the host, and holds it for the block."""
        if self._held:
            await self._wait(host)
        self._held = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, host: str) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Gives the turn to the host that has waited longest for one; it stays held meanwhile."""
        while self._waiting:
            host = next(iter(self._waiting))
            line = self._waiting.pop(host)
            while line and line[0].done():  # its caller went away
                line.popleft()
            if line:
                line.popleft().set_result(None)
                if line:
                    self._waiting[host] = line
                return
        self._held = False
