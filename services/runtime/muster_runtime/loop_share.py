"""Long work on the event loop: how it gives other tasks their turn."""

import asyncio

_PAUSE_MAX_S = 0.1


class LoopShare:
    """Keeps long work to a part of the loop's time.

    Attributes:
        others: how many times as long as the work others have it; with 1 the work has half of the time.
    """

    def __init__(self, others: int = 1) -> None:
        self.others = others
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()

    @property
    def taken_s(self) -> float:
        """How long the work has had the loop since it last rested, seconds."""
        return self._loop.time() - self._began_s

    async def rest(self) -> None:
        """Gives other tasks their time for what the work has had since it last rested, but at most 0.1 s."""
        await asyncio.sleep(min(self.others * self.taken_s, _PAUSE_MAX_S))
        self._began_s = self._loop.time()
