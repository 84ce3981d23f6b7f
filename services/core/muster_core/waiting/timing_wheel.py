"""A hierarchical timing wheel: timers in O(1), without a clock of its own.

Level 0 has slots of 1 ms, each level above slots 64 times as wide. A timer sits in the lowest level at
which its deadline falls into the present round of 64 slots; when the wheel comes to a slot of a higher
level, the timers in it move down. Only slots that hold timers exist, and a heap of them lets the wheel
jump from one to the next, so an idle wheel costs nothing.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable

_BITS_PER_LEVEL = 6
_LEVELS = 8  # 8,900 years


class Timer(ABC):
    """A deadline that can be moved.

    Moving it later costs two comparisons and allocates nothing: the timer stays in its slot and is put
    back when the old deadline comes up and finds that it has moved.

    Attributes:
        deadline_ms: when it fires.
        armed: whether it is in the wheel.
    """

    __slots__ = ("_filed_at_ms", "_slot", "armed", "deadline_ms")

    def __init__(self) -> None:
        self.deadline_ms = 0
        self.armed = False
        self._filed_at_ms = 0
        self._slot: dict[Timer, None] | None = None

    @property
    def group_id(self) -> str:
        """The group that it belongs to; empty: none."""
        return ""

    @abstractmethod
    def fire(self) -> None:
        """Runs when the deadline has come; the timer is not armed any more then."""


class CallbackTimer(Timer):
    """Calls a function.

    Args:
        group_id: the group that is blamed where that raises.
        callback: what is called.
    """

    __slots__ = ("_callback", "_group_id")

    def __init__(self, group_id: str, callback: Callable[[], None]) -> None:
        super().__init__()
        self._group_id = group_id
        self._callback = callback

    @property
    def group_id(self) -> str:
        """The group that it belongs to."""
        return self._group_id

    def fire(self) -> None:
        """Calls it."""
        self._callback()


class TimingWheel:
    """Timers by deadline.

    Args:
        now_ms: the time to start from.

    Attributes:
        failed: the timer whose `fire` raised last; None: none did.
    """

    def __init__(self, now_ms: int) -> None:
        self.failed: Timer | None = None
        self._now_ms = now_ms
        self._levels: tuple[dict[int, dict[Timer, None]], ...] = tuple({} for _ in range(_LEVELS))
        self._slots: list[tuple[int, int, int]] = []  # heap of (start of the slot, level, number)
        self._armed = 0

    def __len__(self) -> int:
        """Number of armed timers."""
        return self._armed

    def arm(self, timer: Timer, deadline_ms: int) -> None:
        """Sets or moves the deadline of a timer. One that has passed fires at the next `advance`."""
        timer.deadline_ms = deadline_ms
        if timer.armed:
            if deadline_ms >= timer._filed_at_ms:
                return
            self._remove(timer)
        else:
            timer.armed = True
            self._armed += 1
        self._file(timer)

    def cancel(self, timer: Timer) -> None:
        """Takes a timer out; one that is not armed stays so."""
        if timer.armed:
            self._remove(timer)
            timer.armed = False
            self._armed -= 1

    def advance(self, now_ms: int) -> None:
        """Fires what is due at `now_ms`, in the order of deadlines, also what firing adds to it.

        Time never runs backwards: an earlier `now` counts as the last one.
        """
        target_ms = now_ms if now_ms > self._now_ms else self._now_ms
        while self._slots and self._slots[0][0] <= target_ms:
            start_ms, level, number = heapq.heappop(self._slots)
            self._now_ms = max(self._now_ms, start_ms)
            slot = self._levels[level].pop(number, {})
            for timer in tuple(slot):
                if timer._slot is not slot:
                    continue  # cancelled or moved by one that fired before it
                timer._slot = None
                if timer.deadline_ms > self._now_ms:
                    self._file(timer)
                else:
                    timer.armed = False
                    self._armed -= 1
                    try:
                        timer.fire()
                    except BaseException:
                        self.failed = timer
                        self._file_again(slot)
                        raise
        self._now_ms = target_ms

    def next_deadline_ms(self) -> int | None:
        """When `advance` has something to do at the earliest; None: nothing is armed."""
        while self._slots:
            start_ms, level, number = self._slots[0]
            if self._levels[level].get(number):
                return start_ms
            heapq.heappop(self._slots)
            self._levels[level].pop(number, None)
        return None

    def _file_again(self, slot: dict[Timer, None]) -> None:
        """Puts back what has not fired yet: one timer that raises must not cost the others theirs."""
        for timer in slot:
            if timer._slot is slot:
                self._file(timer)

    def _file(self, timer: Timer) -> None:
        now_ms = self._now_ms
        deadline_ms = timer.deadline_ms if timer.deadline_ms > now_ms else now_ms
        # The highest bit in which deadline and present differ says on which level they part.
        level = ((deadline_ms ^ now_ms) >> 1).bit_length() // _BITS_PER_LEVEL
        number = deadline_ms >> _BITS_PER_LEVEL * level
        slot = self._levels[level].get(number)
        if slot is None:
            slot = self._levels[level][number] = {}
            heapq.heappush(self._slots, (number << _BITS_PER_LEVEL * level, level, number))
        slot[timer] = None
        timer._slot = slot
        timer._filed_at_ms = deadline_ms

    def _remove(self, timer: Timer) -> None:
        if timer._slot is not None:
            del timer._slot[timer]
            timer._slot = None
