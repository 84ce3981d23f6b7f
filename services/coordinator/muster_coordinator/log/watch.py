"""Observers of what a shard stores, for metrics and traces. Watching never changes anything."""

from collections.abc import Callable, Sequence
from typing import Protocol

import structlog
from muster_core.events import Append
from muster_protos.muster.internal.v1 import metadata_pb2

log = structlog.get_logger()


class Watch(Protocol):
    """Is notified of what one shard stores."""

    def storing(self, append: Append) -> None:
        """The core wants records stored; they are not applied yet."""

    def stored(self, append_id: int) -> None:
        """They are on a majority, and about to be applied."""

    def sending(self, step: metadata_pb2.AppendStep, append_ids: Sequence[int]) -> None:
        """A step that carries these appends is about to be sent; the watch may set its `traceparent`."""

    def settled(self) -> None:
        """The outcome of that step is known."""

    def over(self) -> None:
        """The shard is given up."""


class Watches:
    """Passes on to several; what one of them does wrong is logged and has no effect.

    Args:
        watches: they.
    """

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = tuple(watches)

    def storing(self, append: Append) -> None:
        """See `Watch`."""
        self._notify(lambda watch: watch.storing(append))

    def stored(self, append_id: int) -> None:
        """See `Watch`."""
        self._notify(lambda watch: watch.stored(append_id))

    def sending(self, step: metadata_pb2.AppendStep, append_ids: Sequence[int]) -> None:
        """See `Watch`."""
        self._notify(lambda watch: watch.sending(step, append_ids))

    def settled(self) -> None:
        """See `Watch`."""
        self._notify(lambda watch: watch.settled())

    def over(self) -> None:
        """See `Watch`."""
        self._notify(lambda watch: watch.over())

    def _notify(self, call: Callable[[Watch], None]) -> None:
        for watch in self._watches:
            try:
                call(watch)
            except Exception:
                log.exception("telemetry_failed")
