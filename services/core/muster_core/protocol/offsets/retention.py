"""When expired offsets are looked for."""

from collections.abc import Iterator

from muster_core.protocol.context import ShardContext
from muster_core.protocol.offsets.offsets import Offsets
from muster_core.waiting.timing_wheel import Timer

_PAUSE_MS = 10  # between two portions of a search for expired offsets
_SEARCHES = 64
"""The searches of the shards begin at so many different times, spread over half of the interval."""


class Retention(Timer):
    """The regular search for expired offsets. Pauses while the wall clock is not trusted (`TIM-03`).

    Args:
        number: the shard.
        context: of the shard.
        offsets: what is searched.
    """

    __slots__ = ("_context", "_number", "_offsets", "_search")

    def __init__(self, number: int, context: ShardContext, offsets: Offsets) -> None:
        super().__init__()
        self._number = number
        self._context = context
        self._offsets = offsets
        self._search: Iterator[None] | None = None

    def start(self) -> None:
        """Begins; shards that were loaded together do not search together."""
        self._arm(self._interval_ms(self._number % _SEARCHES / (2 * _SEARCHES)))

    def fire(self) -> None:
        """Searches a portion, or begins a search."""
        self._context.working_on = None
        search, self._search = self._search, None
        # First, so that a search that fails is not the last one (conformance EX-15).
        self._arm(self._interval_ms())
        if not self._context.now.wall_trusted:
            return
        search = self._offsets.expire() if search is None else search
        for _ in search:
            self._search = search
            self._arm(_PAUSE_MS)
            return

    def _interval_ms(self, earlier: float = 0) -> int:
        """Time from one search to the next, less a part of it."""
        return round(self._context.config.retention_check_interval_ms * (1 - earlier))

    def _arm(self, delay_ms: int) -> None:
        self._context.purgatory.wheel.arm(self, self._context.now.boot_ms + delay_ms)
