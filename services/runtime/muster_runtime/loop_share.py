"""Long work on the event loop: how it gives other tasks their turn."""

import asyncio
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field

_PAUSE_MAX_S = 0.1


@dataclass(slots=True)
class _OfOne:
    """Work for one, in the present turn of the loop.

    Attributes:
        taken_s: how long it took, seconds.
        pieces: how many pieces it was.
        rests_until_s: up to when others have the loop for work before, by the monotonic clock.
        waiting: pieces that wait for another turn, by line, the oldest first; the lines as they have it next.
    """

    taken_s: float = 0.0
    pieces: int = 0
    rests_until_s: float = 0.0
    waiting: OrderedDict[str, deque[asyncio.Future[None]]] = field(default_factory=OrderedDict)

    async def wait(self, line: str, *, ahead: bool) -> None:
        """Waits in a line for another turn, or ahead of all."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        places = self.waiting.setdefault(line, deque())
        if ahead:
            places.appendleft(future)
            self.waiting.move_to_end(line, last=False)
        else:
            places.append(future)
        await future

    def next(self) -> asyncio.Future[None]:
        """Takes out whoever has waited longest in the line that has it next."""
        line, places = self.waiting.popitem(last=False)
        future = places.popleft()
        if places:
            self.waiting[line] = places
        return future


class LoopTurn:
    """How long short pieces of work have taken of the present turn of the loop, by whom they are for.

    Each of them may be short, but a hundred that are ready together hold up all others for as long as all of
    them take.

    Args:
        most_s: how long those for one may take in one turn, seconds.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._of: dict[str, _OfOne] = {}

    def is_over(self, who: str) -> bool:
        """Whether what is for somebody is to wait for another turn of the loop."""
        of = self._of.get(who)
        if of is None:
            return False
        return bool(of.waiting) or of.taken_s >= self._most_s or self._rest_s(of) >= self._most_s

    async def another(self, who: str, line: str = "") -> None:
        """Waits for another turn of the loop, where that of somebody is over.

        Args:
            who: whom the work is for.
            line: of theirs that it waits in: lines have it in turn, and in each who waits longest.
        """
        of = self._of[who]
        await of.wait(line, ahead=False)
        while of.taken_s >= self._most_s:  # those before it took longer than pieces did until then
            await of.wait(line, ahead=True)

    def took(self, who: str, taken_s: float, rest_s: float = 0.0) -> None:
        """Counts a piece of work.

        Args:
            who: whom it was for.
            taken_s: how long it took, seconds.
            rest_s: for how long nothing is done for them after such work, seconds, once that is as much as
                they may take in a turn: with as long as it took, such work has half of the loop at most.
        """
        now_s = self.now_s()
        of = self._of.get(who)
        if of is None:
            of = self._of[who] = _OfOne()
            asyncio.get_running_loop().call_soon(self._look, who)  # in the next turn
        of.taken_s += taken_s
        of.pieces += 1
        if rest_s:
            of.rests_until_s = max(of.rests_until_s, now_s - taken_s) + taken_s + rest_s

    async def rest(self, who: str) -> None:
        """Waits for as long as nothing is to be done for somebody, or for another turn of the loop."""
        of = self._of.get(who)
        await asyncio.sleep(0.0 if of is None else self._rest_s(of))

    def _rest_s(self, of: _OfOne) -> float:
        return min(of.rests_until_s - self.now_s(), _PAUSE_MAX_S)

    def _look(self, who: str) -> None:
        rest_s = self._rest_s(self._of[who])
        if rest_s >= self._most_s:
            asyncio.get_running_loop().call_later(rest_s, self._begin, who)
        else:
            self._begin(who)

    def _begin(self, who: str) -> None:
        of = self._of[who]
        # To wake a thousand of which twenty have time to go on would take longer than the work of the twenty.
        number = max(1, int(of.pieces * self._most_s / of.taken_s)) if of.taken_s else max(1, of.pieces)
        of.taken_s, of.pieces, woken = 0.0, 0, 0
        while of.waiting and woken < number:
            future = of.next()
            if not future.done():  # else its task has ended
                future.set_result(None)
                woken += 1
        if woken:
            asyncio.get_running_loop().call_soon(self._look, who)  # after them
        elif (rest_s := self._rest_s(of)) > 0:
            asyncio.get_running_loop().call_later(rest_s, self._begin, who)
        else:
            del self._of[who]

    @staticmethod
    def now_s() -> float:
        """The monotonic clock, seconds; that of the loop may count milliseconds only."""
        return time.monotonic()


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
