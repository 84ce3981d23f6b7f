"""What a member owns: it is assigned partitions, gives them up and loses them, and calls back each time."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar

from muster._clock import boot_ms
from muster._errors import CallbackFailed
from muster._member.callbacks import Callbacks, PartitionsCallback, invoke
from muster._member.commits import Committer
from muster._member.waits import Waits
from muster._standing.standing import Standing
from muster._values import TopicPartition

log = logging.getLogger("muster")

_callback: ContextVar["asyncio.Task[None] | None"] = ContextVar("muster-callback", default=None)
"""The callback in which a task was begun; tasks of tasks inherit it."""


class Ownership:
    """Takes, gives up and loses the partitions of one member. Only the member's main task may use it.

    Args:
        callbacks: what is called.
        standing: state of the member.
        committer: finishes the commits of what is given up, and abandons those of what is lost.
        waits: interrupts callbacks.
        group_id: for the log.
        rebalance_timeout_ms: how long the group waits for partitions to be given up.
    """

    def __init__(
        self,
        callbacks: Callbacks,
        standing: Standing,
        committer: Committer,
        waits: Waits,
        *,
        group_id: str,
        rebalance_timeout_ms: int,
    ) -> None:
        self._callbacks = callbacks
        self._standing = standing
        self._committer = committer
        self._waits = waits
        self._group_id = group_id
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._called: asyncio.Task[None] | None = None

    @property
    def is_within_callback(self) -> bool:
        """Whether the caller is a callback that runs, or a task begun in it, which it may await."""
        called = self._called
        return called is not None and _callback.get() is called and not called.done()

    async def assign(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Calls `on_partitions_assigned` with what is new.

        Raises:
            CallbackFailed: it raised.
        """
        self._standing.holding = True
        await self._call(
            "on_partitions_assigned",
            self._callbacks.on_partitions_assigned,
            partitions,
            self._has_lost,
            None,
        )

    async def release_all_but(self, owned: Mapping[TopicPartition, str]) -> Mapping[TopicPartition, str]:
        """Gives up what was kept and has not been given again; returns what is still held.

        Args:
            owned: what the member was given, with its tokens: another token is another ownership.

        Raises:
            CallbackFailed: a callback raised.
        """
        standing = self._standing
        if not standing.holding:
            return {}
        gone = tuple(
            partition for partition, token in standing.owned.items() if owned.get(partition) != token
        )
        if gone and not await self.revoke(gone):
            return {}
        return {partition: token for partition, token in standing.owned.items() if partition not in gone}

    async def revoke(self, some: tuple[TopicPartition, ...] | None = None) -> bool:
        """Calls `on_partitions_revoked` to its end; returns False if it was too late for that.

        Args:
            some: what is given up; None: everything.

        Raises:
            CallbackFailed: a callback raised.
        """
        standing = self._standing
        if not standing.holding:
            return False
        limit_ms = boot_ms() + self._rebalance_timeout_ms
        partitions = tuple(standing.owned) if some is None else some
        if partitions:
            finished = await self._call(
                "on_partitions_revoked",
                self._callbacks.on_partitions_revoked,
                partitions,
                self._has_lost,
                limit_ms,
            )
            if finished:
                finished = await self._waits.watch_over(
                    asyncio.ensure_future(self._committer.flush(some)), self._has_lost, limit_ms
                )
            if not finished and self._has_lost():
                await self.lose()
                return False
            if not finished:
                log.warning(
                    "group %r: partitions were not given up within rebalance_timeout_ms (%d); joining anyway",
                    self._group_id,
                    self._rebalance_timeout_ms,
                )
        if some is not None:
            return True
        standing.holding = False
        self._committer.abandon()
        return True

    async def give_back(self, some: tuple[TopicPartition, ...], until_ms: int) -> bool:
        """Calls `on_partitions_revoked` with a part of what is held; returns False if it was too late.

        Args:
            some: what is given back.
            until_ms: boot time until which there is time for it.

        Raises:
            CallbackFailed: the callback raised.
        """
        callback = self._callbacks.on_partitions_revoked
        if not await self._call("on_partitions_revoked", callback, some, self._has_lost, until_ms):
            return False
        flushing = asyncio.ensure_future(self._committer.flush(some))
        return await self._waits.watch_over(flushing, self._has_lost, until_ms)

    async def lose_some(self, some: tuple[TopicPartition, ...]) -> None:
        """Calls `on_partitions_lost` with a part of what was held.

        Raises:
            CallbackFailed: it raised.
        """
        limit_ms = boot_ms() + self._rebalance_timeout_ms
        await self._call("on_partitions_lost", self._callbacks.on_partitions_lost, some, _never, limit_ms)

    async def lose(self) -> None:
        """Calls `on_partitions_lost` if anything is held.

        Raises:
            CallbackFailed: it raised.
        """
        standing = self._standing
        if not standing.holding:
            return
        standing.holding = False
        self._committer.abandon()
        if standing.owned:
            limit_ms = boot_ms() + self._rebalance_timeout_ms
            await self._call(
                "on_partitions_lost",
                self._callbacks.on_partitions_lost,
                tuple(standing.owned),
                _never,
                limit_ms,
            )

    def _has_lost(self) -> bool:
        """Whether the owned partitions are lost, whatever a callback is still doing."""
        order = self._standing.order
        return not self._standing.alive or (order is not None and order.loses)

    async def _call(
        self,
        name: str,
        callback: PartitionsCallback | None,
        partitions: tuple[TopicPartition, ...],
        interrupted: Callable[[], bool],
        limit_ms: int | None,
    ) -> bool:
        """Runs a callback; returns False if it was interrupted or out of time, and so cancelled."""
        if callback is None:
            return True
        task = asyncio.get_running_loop().create_task(
            self._invoke(callback, partitions), name=f"muster-{name}"
        )
        self._called = task
        if not await self._waits.watch_over(task, interrupted, limit_ms):
            return False
        if task.cancelled():
            raise CallbackFailed(name)
        if (error := task.exception()) is not None:
            raise CallbackFailed(name) from error
        return True

    @staticmethod
    async def _invoke(callback: PartitionsCallback, partitions: tuple[TopicPartition, ...]) -> None:
        _callback.set(asyncio.current_task())
        await invoke(callback, partitions)


def _never() -> bool:
    return False
