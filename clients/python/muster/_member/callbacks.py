"""The callbacks of a member: plain or async functions."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import TypeAlias

from muster._errors import SettingsError
from muster._values import TopicPartition

PartitionsCallback: TypeAlias = Callable[[tuple[TopicPartition, ...]], Awaitable[None] | None]
"""Gets the partitions that it is about, in order. An async one is awaited."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The callbacks of a member; each may be missing."""

    on_partitions_assigned: PartitionsCallback | None = None
    on_partitions_revoked: PartitionsCallback | None = None
    on_partitions_lost: PartitionsCallback | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            callback = getattr(self, field.name)
            if callback is not None and not callable(callback):
                raise SettingsError(field.name, f"must be a function that gets partitions, not {callback!r}")


async def invoke(callback: PartitionsCallback, partitions: tuple[TopicPartition, ...]) -> None:
    """Calls a callback, and awaits the result if it is awaitable."""
    result = callback(partitions)
    if inspect.isawaitable(result):
        await result
