"""Work that takes long on the event loop, and how it leaves the loop to others."""

import asyncio

_PAUSE_MAX_S = 0.1


class LoopShare:
    """Takes at most half of the loop's time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()

    @property
    def taken_s(self) -> float:
        """How long the loop was taken since the last rest."""
        return self._loop.time() - self._began_s

    async def rest(self) -> None:
        """Leaves the loop to others for as long as it was taken since the last time."""
        await asyncio.sleep(min(self.taken_s, _PAUSE_MAX_S))
        self._began_s = self._loop.time()
