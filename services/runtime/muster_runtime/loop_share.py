"""Long work on the event loop: how it gives other tasks their turn."""

import asyncio

_PAUSE_MAX_S = 0.1


class LoopTurn:
    """How long short pieces of work have taken of the present turn of the loop, by whom they are for.

    Each of them may be short, but a hundred that are ready together hold up all others for as long as all of
    them take.

    Args:
        most_s: how long those for one may take in one turn, seconds.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._taken_s: dict[str, float] = {}
        self._next = asyncio.Event()

    def is_over(self, who: str) -> bool:
        """Whether what is for somebody is to wait for another turn of the loop."""
        return self._taken_s.get(who, 0.0) >= self._most_s

    async def another(self) -> None:
        """Waits for another turn of the loop."""
        await self._next.wait()

    def took(self, who: str, taken_s: float) -> None:
        """Counts a piece of work, seconds."""
        if not self._taken_s:
            asyncio.get_running_loop().call_soon(self._begin)  # in the next turn
        self._taken_s[who] = self._taken_s.get(who, 0.0) + taken_s

    def _begin(self) -> None:
        self._taken_s.clear()
        self._next.set()
        self._next = asyncio.Event()

    @staticmethod
    def now_s() -> float:
        """The clock of the loop, seconds."""
        return asyncio.get_running_loop().time()


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
