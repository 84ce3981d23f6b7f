"""How a member waits for a call, a callback or news, and is interrupted when it must be."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

from muster._alarms import Alarms
from muster._backoff import Backoff
from muster._clock import boot_ms
from muster._cluster.link import Outcome
from muster._errors import GroupError
from muster._reactions import CONNECTION_LOST
from muster._standing.standing import Standing

CANCEL_GRACE_MS = 100
"""How long a cancelled task may take to end before it is left alone."""

_T = TypeVar("_T")


class Closing(Exception):
    """The member is to be closed. Never leaves this package."""


class OtherKind(Exception):
    """The group may be of the other kind: the member takes part in that one. Never leaves this package.

    Attributes:
        refusal: what the group answered, for a member that neither kind takes.
        is_final: whether the other kind is the only one that there can be.
    """

    def __init__(self, refusal: GroupError, *, is_final: bool = False) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal
        self.is_final = is_final


class Converted(Exception):
    """The group is an incremental one now: the member goes on in it. Never leaves this package."""


class Reverted(Exception):
    """The group is a classic one now: the member goes on in it. Never leaves this package."""


class Waits:
    """Waits on behalf of one member. Only the member's main task may use it.

    Args:
        standing: state of the member.
        alarms: of the process.
        lose: gives up what the member keeps while it joins; called when its life ends.
    """

    def __init__(self, standing: Standing, alarms: Alarms, lose: Callable[[], Awaitable[None]]) -> None:
        self._standing = standing
        self._alarms = alarms
        self._lose = lose

    async def unless_closing(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Runs a coroutine and returns its result.

        Raises:
            Closing: the member is to be closed; the coroutine was cancelled.
        """
        task = asyncio.get_running_loop().create_task(coroutine)
        if await self._attend(task, lambda: self._standing.closing is not None):
            return task.result()
        raise Closing

    async def unless_ordered(self, coroutine: Coroutine[Any, Any, _T]) -> _T | None:
        """Runs a coroutine and returns its result; None: it was cancelled because an order came.

        Raises:
            Closing: the member is to be closed; the coroutine was cancelled.
        """
        task = asyncio.get_running_loop().create_task(coroutine)
        standing = self._standing
        if await self._attend(task, lambda: standing.closing is not None or standing.order is not None):
            return task.result()
        self.check_closing()
        return None

    async def _attend(self, task: "asyncio.Task[Any]", interrupted: Callable[[], bool]) -> bool:
        """Waits for a task of a member that joins; returns False if the condition cancelled it."""
        standing = self._standing
        try:
            while not task.done():
                standing.news.clear()
                if interrupted():
                    return False
                if standing.holding and not standing.alive:
                    await self._lose()
                else:
                    await self.news(None, task)
            return True
        finally:
            await _cancel(task)

    def check_closing(self) -> None:
        """Raises `Closing` if the member is to be closed."""
        if self._standing.closing is not None:
            raise Closing

    async def watch_over(
        self, task: "asyncio.Future[Any]", interrupted: Callable[[], bool], limit_ms: int | None
    ) -> bool:
        """Waits for a task; returns False if the condition or the limit cancelled it.

        Args:
            task: what to wait for.
            interrupted: whether the task is to be cancelled; asked after all news.
            limit_ms: boot time at which it is cancelled; None: never.
        """
        try:
            while not task.done():
                self._standing.news.clear()
                if interrupted() or (limit_ms is not None and boot_ms() >= limit_ms):
                    return False
                await self.news(limit_ms, task)
            return True
        finally:
            await _cancel(task)

    async def news(self, limit_ms: int | None, *others: "asyncio.Future[Any]") -> None:
        """Waits for news, the end of the member's life, `limit_ms`, or another future, whichever comes first.

        Args:
            limit_ms: boot time; None: no limit.
            others: futures that end the wait too.
        """
        if others:
            await asyncio.sleep(0)
            if self._standing.news.is_set() or any(other.done() for other in others):
                return  # a plain callback, say: what ends at once needs no alarm
        limits = [] if limit_ms is None else [limit_ms]
        if self._standing.holding:
            # A life that is over is about to be noticed; a loop that waits for that must not spin.
            limits.append(self._standing.life.ends_at_ms if self._standing.alive else boot_ms() + 1_000)
        rang: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waits: tuple[asyncio.Future[Any], ...] = (self._standing.news.arrival(), rang, *others)
        try:
            with self._alarms.at(min(limits), partial(_set, rang)) if limits else nullcontext():
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            rang.cancel()

    async def pause(self, backoff: Backoff, outcome: Outcome[Any]) -> None:
        """Waits before the next attempt, unless the answer named a coordinator to call at once."""
        if outcome.hurry and outcome.code != CONNECTION_LOST:
            return
        await self.unless_closing(backoff.pause(connection_broken=outcome.code == CONNECTION_LOST))


async def _cancel(task: "asyncio.Future[Any]") -> None:
    if not task.done():
        task.cancel()
        # A callback that resists must not hold up what has to happen now.
        await asyncio.wait((task,), timeout=CANCEL_GRACE_MS / 1_000)


def _set(rang: "asyncio.Future[None]") -> None:
    if not rang.done():
        rang.set_result(None)
