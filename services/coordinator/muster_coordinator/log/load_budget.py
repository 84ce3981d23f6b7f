"""How much memory loads may take: a shard that is too large is refused, and does not end the process."""

from collections.abc import Callable, Collection
from weakref import WeakKeyDictionary

from muster_core.shard import Shard

from muster_coordinator.log.log_image import LoadFailed, LogImage

_FIRST_LOOK_BYTES = 1 << 20
_GROWTH = 1.25
"""All groups of an image are looked at when so many times as much was read of it as the last time."""
_SMALL_PART = 256
"""A shard is not refused for what others hold while it has come to no more than this part of the limit."""


class LoadBudget:
    """What the shards of a process may come to hold in memory by being loaded.

    Args:
        limit_bytes: how much, as it is counted; None: any.
        cores: the shards that are served.
    """

    def __init__(
        self, limit_bytes: int | None = None, cores: Callable[[], Collection[Shard]] = lambda: ()
    ) -> None:
        self._limit_bytes = limit_bytes
        self._cores = cores
        self._read_bytes: WeakKeyDictionary[LogImage, int] = WeakKeyDictionary()
        self._look_at_bytes: WeakKeyDictionary[LogImage, float] = WeakKeyDictionary()

    def took(self, image: LogImage, size_bytes: int) -> None:
        """Counts what an image has taken in, and looks now and then whether it may be read further.

        Raises:
            LoadFailed: it would take more memory than is left.
        """
        if self._limit_bytes is None:
            return
        read_bytes = self._read_bytes[image] = self._read_bytes.get(image, 0) + size_bytes
        if read_bytes < self._look_at_bytes.get(image, _FIRST_LOOK_BYTES):
            return
        self._look_at_bytes[image] = _GROWTH * read_bytes
        own_bytes = image.core.weigh()
        cores = {id(core): core for core in (*self._cores(), *(other.core for other in self._read_bytes))}
        held_bytes = sum(core.weigh() for core in cores.values())
        if held_bytes > self._limit_bytes and own_bytes > self._limit_bytes // _SMALL_PART:
            raise LoadFailed(
                f"the shard has come to {own_bytes:,} bytes while it was read, and all shards here to "
                f"{held_bytes:,}, above the {self._limit_bytes:,} that loads may bring them to "
                "(MUSTER_COORDINATOR_MAX_LOAD_BYTES): give this coordinator more memory, or add others"
            )
