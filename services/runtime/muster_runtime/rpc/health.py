"""Health: whether a process serves. Nobody has to prove anything to ask, so whoever asks costs little."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from muster_runtime.rpc.quotas.quotas import host_of
from muster_runtime.rpc.refusals import ResourceExhausted
from muster_runtime.rpc.unread import TimedWrites

State = health_pb2.HealthCheckResponse

MOST_WATCHES = 1_000
"""Watches of a process; for another one the oldest of the host that has most is ended."""
MOST_BYTES = 1_024
"""What a request may hold: the name of a service."""

_RETRY_MS = 1_000


class _Watch:
    """An open Watch.

    Attributes:
        task: of the call.
        peer: who watches, as grpc names it.
        changed: set when there may be something to tell.
        writes: whether the caller has not taken yet what is being told.
        displaced: whether it is ended for another one.
    """

    __slots__ = ("changed", "displaced", "peer", "task", "writes")

    def __init__(self, task: "asyncio.Task[Any]", peer: str) -> None:
        self.task = task
        self.peer = peer
        self.changed = asyncio.Event()
        self.writes = False
        self.displaced = False


class Health:
    """Serves `grpc.health.v1.Health`.

    The servicer of the library keeps a lock while it tells a watcher something, so one that does not read
    would hold up all others and the process that changes its state; and it has no bound.

    Args:
        writes: tell watchers what they watch.
    """

    def __init__(self, writes: TimedWrites) -> None:
        self._states: dict[str, int] = {}
        self._ended = False
        self._watches: dict[str, dict[_Watch, None]] = defaultdict(dict)
        self._number = 0
        self._writes = writes

    @property
    def watches(self) -> int:
        """How many are open."""
        return self._number

    def set(self, services: Iterable[str], state: int) -> None:
        """Says from now on how services are; after `end` nothing changes any more."""
        if not self._ended:
            self._states.update(dict.fromkeys(services, state))
            self._tell()

    def end(self) -> None:
        """Says from now on that nothing is served."""
        self.set([*self._states], State.NOT_SERVING)
        self._ended = True

    async def Check(self, request: Any, context: Any) -> Any:
        """How a service is now."""
        state = self._states.get(request.service)
        if state is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "this process does not have the service")
        return State(status=state)

    async def Watch(self, request: Any, context: Any) -> None:
        """How a service is now and after each change, until the caller leaves."""
        task = asyncio.current_task()
        assert task is not None
        watch = self._enter(_Watch(task, context.peer()))
        told: int | None = None
        try:
            while True:
                watch.changed.clear()
                state = self._states.get(request.service, State.SERVICE_UNKNOWN)
                if state != told:
                    await self._write(watch, state, context)
                    told = state
                await watch.changed.wait()
        except asyncio.CancelledError:
            if not watch.displaced or task.uncancel():
                raise
        finally:
            self._leave(watch)
        raise ResourceExhausted(f"there are {MOST_WATCHES:,} newer watches; try again", _RETRY_MS)

    async def _write(self, watch: _Watch, state: int, context: Any) -> None:
        watch.writes = True
        await self._writes.write(State(status=state), context)
        watch.writes = False

    def _enter(self, watch: _Watch) -> _Watch:
        if self._number >= MOST_WATCHES:
            self._displace()
        self._watches[host_of(watch.peer)][watch] = None
        self._number += 1
        return watch

    def _leave(self, watch: _Watch) -> None:
        host = host_of(watch.peer)
        if watch in self._watches[host]:
            del self._watches[host][watch]
            self._number -= 1
        if not self._watches[host]:
            del self._watches[host]

    def _displace(self) -> None:
        """Ends a watch; with its connection where its caller has not read, for gRPC holds it until then."""
        most = max(self._watches.values(), key=lambda watches: len(watches))
        watch = next(iter(most))
        self._leave(watch)
        if watch.writes:
            self._writes.cut_off(watch.peer)
        else:
            watch.displaced = True
            watch.task.cancel()

    def _tell(self) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.changed.set()
