"""The purgatory: operations that wait for an event or for their deadline, whichever comes first."""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable

from muster_core.waiting.timing_wheel import Timer, TimingWheel


class DelayedOperation(Timer):
    """Something that is completed exactly once: by an event, or by its deadline.

    Args:
        delay_ms: how long it may wait.
    """

    __slots__ = ("completed", "delay_ms", "keys", "unwatch")

    def __init__(self, delay_ms: int) -> None:
        super().__init__()
        self.delay_ms = delay_ms
        self.completed = False
        self.keys: tuple[Hashable, ...] = ()
        self.unwatch: Callable[[DelayedOperation], None] = _not_watched

    def fire(self) -> None:
        """Expires: completes, then runs what expiry adds."""
        self.finish()
        self.on_complete()
        self.on_expiration()

    def finish(self) -> None:
        """Marks it as completed and takes it out of its watch lists."""
        self.completed = True
        self.unwatch(self)

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

    An operation is watched under keys; `check_and_complete` of one of them tries it again. What is completed
    is not kept. All waiting is in virtual time: nothing happens but in a call of this class.

    Args:
        now_ms: the time to start from.
    """

    def __init__(self, now_ms: int) -> None:
        self.wheel = TimingWheel(now_ms)
        self._now_ms = now_ms
        self._watched: dict[Hashable, dict[DelayedOperation, None]] = {}

    def __len__(self) -> int:
        """Number of entries in watch lists."""
        return sum(map(len, self._watched.values()))

    def try_complete_else_watch(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> bool:
        """Completes the operation now if it can be; else watches it until its deadline.

        Returns:
            Whether it was completed.
        """
        if operation.can_complete():
            self._complete(operation)
            return True
        operation.keys, operation.unwatch = tuple(keys), self._unwatch
        for key in operation.keys:
            self._watched.setdefault(key, {})[operation] = None
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
        return completed

    def deadline_of(self, key: Hashable) -> int | None:
        """When the first operation that is watched under the key expires; None: none is."""
        return min((operation.deadline_ms for operation in self._watched.get(key, ())), default=None)

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation]:
        """Takes out what is watched under the key; it is completed without running anything.

        Returns:
            What was cancelled.
        """
        cancelled = list(self._watched.get(key, ()))
        for operation in cancelled:
            operation.finish()
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

    @staticmethod
    def _complete(operation: DelayedOperation) -> None:
        operation.finish()
        operation.on_complete()

    def _unwatch(self, operation: DelayedOperation) -> None:
        self.wheel.cancel(operation)
        keys, operation.keys = operation.keys, ()
        for key in keys:
            watched = self._watched[key]
            del watched[operation]
            if not watched:
                del self._watched[key]


def _not_watched(_: DelayedOperation) -> None:
    """It was completed before it had to wait."""
