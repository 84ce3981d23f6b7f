"""The pause between the assignments of a group (docs/safety.md, INC-35, INC-106, LIM-69)."""

from collections.abc import Callable
from weakref import WeakKeyDictionary

from muster_core.config import GroupConfig
from muster_core.protocol.context import ShardContext
from muster_core.protocol.incremental.group_timer import GroupTimer
from muster_core.state.group import Group

ADAPTIVE = -1
"""An interval that follows how fast changes come, in a group with members on streams; others have none."""
SHORTEST_MS = 20
LONGEST_MS = 500
TURN_KEPT_MS = 1_000
"""How long a group that has waited for its turn has it where nothing is due any more."""


def interval_of(config: GroupConfig, group: Group) -> int:
    """What is set for the pause between assignments of a group, in ms; 0: there is none; or `ADAPTIVE`."""
    if group.settings.HasField("assignment_interval_ms"):
        return group.settings.assignment_interval_ms
    return config.incremental_assignment_interval_ms


def is_due(group: Group) -> bool:
    """Whether an assignment of a group is out of date."""
    incremental = group.incremental
    return (
        incremental is not None and bool(incremental.members) and incremental.epoch > incremental.target_epoch
    )


class Pauses:
    """Keeps the groups that must not have another assignment yet.

    A group whose interval is adaptive has the first one at once. The pause after it doubles as long as the
    next change comes in the pause or before that time has passed once more, and is short again after that.

    Args:
        context: the shard.
        over: called with a group whose pause is over.
    """

    def __init__(self, context: ShardContext, over: Callable[[Group], None]) -> None:
        self._context = context
        self._over = over
        self._pauses: dict[str, _Pause] = {}
        self._counted = WeakKeyDictionary[Group, int]()

    def is_running(self, group: Group) -> bool:
        """Whether a group must not have an assignment yet."""
        pause = self._of(group)
        return pause is not None and pause.is_running

    def waits_for_turn(self, group: Group, size: int) -> bool:
        """Whether an assignment that is due waits, since those for the same caller take the time now.

        Args:
            group: the group, which does not pause otherwise.
            size: members and partitions that the assignment looks at.
        """
        pause, room = self._of(group), self._context.room
        if pause is not None and pause.for_turn:
            counted = self._counted.get(group, 0)
            if not pause.is_running and size > counted:  # it has grown meanwhile: later ones wait for that
                room.turn_ms(group.group_id, size - counted)
                self._counted[group] = size
            return pause.is_running
        wait_ms = room.turn_ms(group.group_id, size)
        self._counted[group] = size
        if wait_ms:
            self._set(group, wait_ms, is_adaptive=False, least_ms=wait_ms, for_turn=True)
        return wait_ms > 0

    def begin(self, group: Group, moved: int) -> None:
        """A group has an assignment.

        Args:
            group: the group.
            moved: how many partitions it gives and takes: others were counted in vain.
        """
        self._context.room.left_alone(group.group_id, max(0, self._counted.pop(group, 0) - moved))
        interval_ms = interval_of(self._context.config, group)
        if interval_ms != ADAPTIVE:
            self._set(group, interval_ms, is_adaptive=False)
        elif group.incremental is not None and group.incremental.has_stream_members:
            last = self._of(group)
            length_ms = SHORTEST_MS if last is None or not last.is_adaptive else 2 * last.length_ms
            self._set(group, min(length_ms, LONGEST_MS), is_adaptive=True)
        else:
            self._set(group, 0, is_adaptive=False)

    def begin_after_failure(self, group: Group, pause_ms: int) -> None:
        """An assignment could not be computed: the next attempt waits for so long, at least."""
        interval_ms = interval_of(self._context.config, group)
        self._set(group, max(pause_ms, interval_ms), is_adaptive=False, least_ms=pause_ms)

    def shorten(self, group: Group) -> None:
        """What is set for a group has changed: a pause that runs is not longer than that says (INC-126)."""
        pause = self._of(group)
        if pause is None or not pause.is_running:
            return
        interval_ms, is_adaptive = interval_of(self._context.config, group), False
        if interval_ms == ADAPTIVE:  # one of no length would begin again and again, in one turn
            is_adaptive = group.incremental is not None and group.incremental.has_stream_members
            interval_ms = SHORTEST_MS if is_adaptive else 0
        length_ms = max(interval_ms, pause.least_ms)
        if length_ms < pause.length_ms:
            pause.length_ms, pause.is_adaptive = length_ms, is_adaptive
            ends_ms = max(pause.began_ms + length_ms, self._context.now.boot_ms)
            self._context.purgatory.wheel.arm(pause, ends_ms)

    def ended(self, pause: "_Pause") -> None:
        """A pause is over, or has been for as long again."""
        group, was_running, pause.is_running = pause.group, pause.is_running, False
        is_present = group is not None and self._context.groups.get(group.group_id) is group
        goes_on = group is not None and is_present and (was_running or is_due(group))
        if goes_on and pause.is_adaptive:
            self._arm(pause)  # what changes now makes the next one longer
        elif goes_on and pause.for_turn:  # what is due may wait in its line for longer
            pause.length_ms = TURN_KEPT_MS
            self._arm(pause)
        else:
            del self._pauses[pause.group_id]
        if group is not None and was_running and is_present:
            self._over(group)

    def _of(self, group: Group) -> "_Pause | None":
        """The pause of a group: its own, not of one that had its name before."""
        pause = self._pauses.get(group.group_id)
        return pause if pause is not None and pause.group is group else None

    def _set(
        self, group: Group, length_ms: int, *, is_adaptive: bool, least_ms: int = 0, for_turn: bool = False
    ) -> None:
        last = self._pauses.pop(group.group_id, None)
        if last is not None:
            self._context.purgatory.wheel.cancel(last)
        if length_ms > 0:
            pause = self._pauses[group.group_id] = _Pause(
                self, group, length_ms, is_adaptive=is_adaptive, least_ms=least_ms, for_turn=for_turn
            )
            self._arm(pause)

    def _arm(self, pause: "_Pause") -> None:
        pause.began_ms = self._context.now.boot_ms
        self._context.purgatory.wheel.arm(pause, pause.began_ms + pause.length_ms)


class _Pause(GroupTimer):
    """A pause, and after an adaptive one the time in which a change makes the next one longer.

    After a failure, and where the group waits for its turn, nothing that is set makes it shorter than
    `least_ms`. After a wait `for_turn` the group may begin for a while.
    """

    __slots__ = ("began_ms", "for_turn", "is_adaptive", "is_running", "least_ms", "length_ms")

    def __init__(
        self,
        pauses: Pauses,
        group: Group,
        length_ms: int,
        *,
        is_adaptive: bool,
        least_ms: int,
        for_turn: bool,
    ) -> None:
        super().__init__(pauses.ended, group)
        self.length_ms = length_ms
        self.least_ms = least_ms
        self.began_ms = 0
        self.is_adaptive = is_adaptive
        self.for_turn = for_turn
        self.is_running = True
