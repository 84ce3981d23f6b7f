"""The purgatory: operations that wait for an event or for their deadline, whichever comes first."""

from abc import abstractmethod
from collections.abc import Hashable, Iterable

from muster_core.waiting.timing_wheel import Timer, TimingWheel

_PURGE_INTERVAL = 1_000


class DelayedOperation(Timer):
    """Something that is completed exactly once: by an event, or by its deadline.

    Args:
        delay_ms: how long it may wait.
    """

    __slots__ = ("completed", "delay_ms")

    def __init__(self, delay_ms: int) -> None:
        super().__init__()
        self.delay_ms = delay_ms
        self.completed = False

    def fire(self) -> None:
        """Expires: completes, then runs what expiry adds."""
        self.completed = True
        self.on_complete()
        self.on_expiration()

    @abstractmethod
    def can_complete(self) -> bool:
        """Whether what it waits for has come."""

    @abstractmethod
    def on_complete(self) -> None:
        """Runs once, whatever completed it."""

    def on_expiration(self) -> None:
        """Runs after `on_complete` when the deadline completed it."""


class Purgatory:
    """Where delayed operations wait (conformance PT-01 to PT-09).

    An operation is watched under keys; `check_and_complete` of one of them tries it again. All
    waiting is in virtual time: nothing happens but in a call of this class.

    Args:
        now_ms: the time to start from.
    """

    def __init__(self, now_ms: int) -> None:
        self.wheel = TimingWheel(now_ms)
        self._now_ms = now_ms
        self._watched: dict[Hashable, list[DelayedOperation]] = {}
        self._stale = 0

    def __len__(self) -> int:
        """Number of entries in watch lists, completed ones that were not purged yet included."""
        return sum(len(operations) for operations in self._watched.values())

    def try_complete_else_watch(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> bool:
        """Completes the operation now if it can be; else watches it until its deadline.

        Returns:
            Whether it was completed.
        """
        if operation.can_complete():
            self._complete(operation)
            return True
        for key in keys:
            self._watched.setdefault(key, []).append(operation)
        self.wheel.arm(operation, self._now_ms + operation.delay_ms)
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Tries what is watched under the key.

        Returns:
            How many operations this completed.
        """
        completed = 0
        for operation in tuple(self._watched.get(key, ())):
            if not operation.completed and operation.can_complete():
                self._complete(operation)
                completed += 1
        if completed:
            self._drop_completed(key)
        return completed

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation]:
        """Takes out what is watched under the key; it is completed without running anything.

        Returns:
            What was cancelled.
        """
        cancelled = [operation for operation in self._watched.pop(key, ()) if not operation.completed]
        for operation in cancelled:
            self._finish(operation)
        return cancelled

    def advance(self, now_ms: int) -> None:
        """Lets time pass: operations whose deadline has come expire, in order."""
        if now_ms > self._now_ms:
            self._now_ms = now_ms
        self.wheel.advance(self._now_ms)

    def move_clock(self, now_ms: int) -> None:
        """Sets the time from which delays count, without expiring anything."""
        if now_ms > self._now_ms:
            self._now_ms = now_ms

    def _complete(self, operation: DelayedOperation) -> None:
        self._finish(operation)
        operation.on_complete()

    def _finish(self, operation: DelayedOperation) -> None:
        operation.completed = True
        if operation.armed:
            self.wheel.cancel(operation)
            self._stale += 1
        if self._stale > _PURGE_INTERVAL:
            for key in tuple(self._watched):
                self._drop_completed(key)
            self._stale = 0

    def _drop_completed(self, key: Hashable) -> None:
        if left := [operation for operation in self._watched.get(key, ()) if not operation.completed]:
            self._watched[key] = left
        else:
            self._watched.pop(key, None)
