"""What the shards of a process have in common, as far as their limits ask for it."""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from muster_core.incremental.targets.target import Expressions, ServerAssignor
from muster_core.protocol.room import Limit, Room
from muster_core.shard import Shard
from muster_core.state.group import Group

from muster_coordinator.shard.assignment_pace import AssignmentPace
from muster_coordinator.shard.ended_groups import EndedGroups

AT_ONCE_MAX = 300
"""Members and partitions of a group whose assignment takes about a millisecond; those of larger ones take
longer and
are computed aside."""

ALIKE_FACTOR = 12
"""The default assignor shares out so many times as much in that time where all want the same; to hand that
to another process would take longer."""

_OLD_MS = 50

_LARGE_BYTES = 1 << 18
"""Less takes milliseconds."""

_BYTES_PER_MS = 1 << 14
"""What is worked on, sent to the log and carried out in half of the loop's time."""


class ProcessRoom:
    """Adds up what the shards of a process hold.

    Args:
        cores: those that are loaded.
        boot_ms: the boot clock.
        refused: called for each call that is refused because of a limit.
        unproven: called for each call in the name of a member without its secret; see `Room`.
        foreign: called for each call for a member of another identity; see `Room`.
        assignors: what assigns in incremental groups, by name, the default first.
        log_trouble: why the log takes no records now; see `Room`.
        expressions: what judges subscriptions by expressions; None: there are none.
        sees: whether an identity may see a topic; see `Room`.
        ended: called with each group that the log has removed.
        resized: called with each group whose members or offsets are others in number; see `Room`.
        whose: whom a group, by id, counts for; empty: nobody in particular.
    """

    def __init__(
        self,
        cores: Callable[[], Collection[Shard]],
        boot_ms: Callable[[], int],
        refused: Callable[[Limit], None],
        unproven: Callable[[str, str, str, str], None] = lambda _, __, ___, ____: None,
        foreign: Callable[[str, str, str, str], None] = lambda _, __, ___, ____: None,
        assignors: Mapping[str, ServerAssignor] = MappingProxyType({}),
        log_trouble: Callable[[], str] = str,
        expressions: Expressions | None = None,
        sees: Callable[[str, str], bool] = lambda _, __: True,
        ended: Callable[[Group], None] = lambda _: None,
        resized: Callable[[str, int, int], None] = lambda _, __, ___: None,
        whose: Callable[[str], str] = lambda _: "",
    ) -> None:
        pace = AssignmentPace(whose, boot_ms)
        self._cores = cores
        self._boot_ms = boot_ms
        self._held_bytes = 0
        self._added_up_ms = -_OLD_MS
        self._free_at_ms = 0
        self._tell_ended = ended
        self._left = EndedGroups()
        self.room = Room(
            self._groups,
            self._held,
            refused,
            self._wait_ms,
            unproven,
            foreign,
            assignors,
            log_trouble,
            AT_ONCE_MAX,
            ALIKE_FACTOR,
            expressions,
            sees,
            turn_ms=pace.turn_ms,
            left_alone=pace.left_alone,
            ended=self._ended,
            resized=resized,
        )

    def _ended(self, group: Group) -> None:
        self._left.take(group)
        self._tell_ended(group)

    def _groups(self) -> int:
        return sum([len(core.groups) for core in self._cores()])

    def _held(self) -> int:
        """Bytes held by all shards; some milliseconds old, since each commit asks for it."""
        now_ms = self._boot_ms()
        if now_ms - self._added_up_ms >= _OLD_MS:
            self._added_up_ms = now_ms
            self._held_bytes = sum([core.held_bytes for core in self._cores()])
        return self._held_bytes

    def _wait_ms(self, size_bytes: int) -> int:
        """Leaves the loop to others for about as long as such work takes it."""
        if size_bytes < _LARGE_BYTES:
            return 0
        now_ms = self._boot_ms()
        if now_ms < self._free_at_ms:
            return self._free_at_ms - now_ms
        self._free_at_ms = now_ms + size_bytes // _BYTES_PER_MS
        return 0
