"""What a member tells its owner, by functions that may be plain or async."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from muster._values import TopicPartition

PartitionsCallback: TypeAlias = Callable[[tuple[TopicPartition, ...]], Awaitable[None] | None]
"""Gets the partitions it is about, in order. An async one is awaited."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The callbacks of a member; each may be missing."""

    on_partitions_assigned: PartitionsCallback | None = None
    on_partitions_revoked: PartitionsCallback | None = None
    on_partitions_lost: PartitionsCallback | None = None


async def invoke(callback: PartitionsCallback, partitions: tuple[TopicPartition, ...]) -> None:
    """Calls it, and awaits what it gives."""
    result = callback(partitions)
    if inspect.isawaitable(result):
        await result
