"""How long moves are held back because members that join say that a deployment runs (INC-170 to INC-174).

A hold begins with a join, ends by itself, and is made longer by later joins, but never beyond an hour from
its beginning. The next one begins after the target that follows the end of the one before, so that joins
without end do not hold back for ever. A group that was empty starts: what its members share then is not held
back.
"""

from typing import NamedTuple

LONGEST_MS = 3_600_000
"""How long one hold lasts at most, however many joins make it longer."""


class Hold(NamedTuple):
    """What the last join that asked for it, or its end, has made of a group's hold. Times are wall clock.

    Attributes:
        member_id: whose join; empty: it is over.
        began_ms: when it began.
        until_ms: when it ends; 0: it is over.
        is_start: the group had no members: nothing is held back, and no hold begins, before it ends.
        freed_epoch: over: the epoch whose target moves what was held back.
    """

    member_id: str = ""
    began_ms: int = 0
    until_ms: int = 0
    is_start: bool = False
    freed_epoch: int = 0

    @property
    def is_on(self) -> bool:
        """Whether moves are held back."""
        return self.until_ms > 0 and not self.is_start

    def remaining_ms(self, wall_ms: int) -> int:
        """How long it still lasts; never longer than in all, wherever the clock was set."""
        return min(max(self.until_ms - wall_ms, 0), self.until_ms - self.began_ms)


def held_by_join(
    before: Hold | None, member_id: str, wish_ms: int, wall_ms: int, target_epoch: int, *, is_first: bool
) -> Hold | None:
    """The hold after a join that asks for one; None: it is as before.

    Args:
        before: the hold before; None: there was none since the group had members.
        member_id: who joins.
        wish_ms: for how long it asks.
        wall_ms: the time.
        target_epoch: of the group.
        is_first: whether the group had no members before.
    """
    new = Hold(member_id, wall_ms, wall_ms + wish_ms, is_first)
    if is_first or before is None:
        return new
    if before.is_start:
        return None if before.remaining_ms(wall_ms) else new
    if not before.is_on:
        return new if target_epoch >= before.freed_epoch else None
    until_ms = min(wall_ms + wish_ms, before.began_ms + LONGEST_MS)
    longer = before._replace(member_id=member_id, until_ms=until_ms)
    return longer if until_ms > before.until_ms else None
