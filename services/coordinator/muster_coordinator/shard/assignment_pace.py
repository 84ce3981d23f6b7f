"""How much of the loop assignments and generations of large groups take (docs/safety.md, LIM-69)."""

from collections.abc import Callable

_OTHERS = 4
"""How many times as long as assignments for one caller others have the loop, once these have taken much."""
_BURST_MS = 100
"""So much of it they take before any waits."""
_LOOKED_AT_MS = 0.005
"""What an assignment takes for each member and partition, wherever it is computed."""
_MOVED_MS = 0.012
"""What it takes more for each partition that is given or taken: it is stored, carried out and told."""
_CALLERS_MAX = 1_000


class AssignmentPace:
    """Keeps the assignments of one caller's groups to a fifth of the loop's time.

    A change of subscription is a small call, and its assignment may look at a hundred thousand partitions.
    So is a join of one member of a classic group, whose generation names thousands that do not come.
    Groups have their turns in the order in which they asked.

    Args:
        whose: whom a group, by id, counts for; empty: nobody in particular.
        boot_ms: the boot clock.
    """

    def __init__(self, whose: Callable[[str], str], boot_ms: Callable[[], int]) -> None:
        self._whose = whose
        self._boot_ms = boot_ms
        self._paid_at_ms: dict[str, float] = {}

    @property
    def known(self) -> int:
        """How many callers it knows."""
        return len(self._paid_at_ms)

    def turn_ms(self, group_id: str, size: int) -> int:
        """Counts an assignment that is due as one that moves all, and says how long it waits for its turn.

        Args:
            group_id: the group.
            size: the members and partitions that it looks at.
        """
        before_ms = self._count(group_id, size * (_LOOKED_AT_MS + _MOVED_MS))
        return max(0, round(before_ms - _BURST_MS * (1 + _OTHERS)))

    def left_alone(self, group_id: str, number: int) -> None:
        """Counts so many less that an assignment of a group moved."""
        self._count(group_id, -number * _MOVED_MS)

    def _count(self, group_id: str, took_ms: float) -> float:
        """Counts time for a caller; returns after how long what it had before is paid back, ms."""
        who, now_ms = self._whose(group_id), self._boot_ms()
        paid_at_ms = max(now_ms, self._paid_at_ms.get(who, now_ms))
        if len(self._paid_at_ms) >= _CALLERS_MAX and who not in self._paid_at_ms:
            self._paid_at_ms = {one: at_ms for one, at_ms in self._paid_at_ms.items() if at_ms > now_ms}
        self._paid_at_ms[who] = paid_at_ms + took_ms * (1 + _OTHERS)
        return paid_at_ms - now_ms
