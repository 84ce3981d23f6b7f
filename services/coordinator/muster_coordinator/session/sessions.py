"""All session streams of a process."""

import asyncio
import itertools
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import structlog
from muster_core.events import Push
from muster_protos.muster.v1 import session_pb2
from muster_runtime.rpc.quotas import current_connection
from muster_runtime.rpc.refusals import ResourceExhausted, Unavailable

from muster_coordinator.api.admission import Admit, admit_all
from muster_coordinator.api.calls import Calls
from muster_coordinator.session.breaks import Breaks
from muster_coordinator.session.calls import UNWATCHED, CallWatch
from muster_coordinator.session.dependencies import OpenStream, StreamDependencies
from muster_coordinator.session.outbox import Queued
from muster_coordinator.session.stream import SessionStream
from muster_coordinator.settings import SessionSettings
from muster_coordinator.shard.owned_shard import OwnedShard, ShardListener

log = structlog.get_logger()

_CHECK_S = 0.25
_STOP_WAIT_S = 2.0
_RETRY_MS = 1_000

MAX_STREAMS = "session_max_streams"
"""The limit of streams, by the name of its setting."""


class Sessions(ShardListener):
    """Opens streams, routes news to them, watches their limits, and ends them.

    Args:
        settings: limits and times.
        calls: answers the calls of the group protocol, finds shards.
        may_answer: whether the lease is held at a boot time.
        boot_ms: the boot clock.
        watch: gives what watches the calls of a stream.
        says_unsure: whether the cluster has the feature `unsure-beats`.
        refused: called for each refusal because of a limit, with the name of its setting.
        admit: counts a call, and raises what it is refused with.
    """

    def __init__(
        self,
        settings: SessionSettings,
        calls: Calls,
        may_answer: Callable[[int], bool],
        boot_ms: Callable[[], int],
        watch: Callable[[], CallWatch] = lambda: UNWATCHED,
        says_unsure: Callable[[], bool] = lambda: False,
        refused: Callable[[str], None] = lambda _: None,
        admit: Admit = admit_all,
    ) -> None:
        self._settings = settings
        self._refused = refused
        self._boot_ms = boot_ms
        self._streams: dict[int, SessionStream] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ids = itertools.count(1)
        self._breaks = Breaks(
            self._streams.values(), settings.break_window_ms, settings.break_hold_ms, boot_ms
        )
        self._queued = Queued()
        self._relieving = False
        self._around = StreamDependencies(
            settings,
            calls,
            {},
            self._broke,
            may_answer,
            boot_ms,
            watch,
            says_unsure,
            self._queued,
            self._crowded,
            refused=refused,
            admit=admit,
        )
        self._checker: asyncio.TimerHandle | None = None
        self._stopping = False

    def __len__(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    @property
    def members(self) -> int:
        """Number of attached members."""
        return len(self._around.places)

    @property
    def queued_bytes(self) -> int:
        """What waits for the clients of all streams."""
        return self._queued.bytes

    async def serve(self, context: Any, host: str) -> None:
        """Serves a stream until it ends.

        Args:
            context: the call, as grpc gives it to a servicer.
            host: address of the client.

        Raises:
            ResourceExhausted: there are as many streams as there may be.
            Unavailable: the process stops.
        """
        if self._stopping:
            raise Unavailable("the coordinator stops", _RETRY_MS)
        if len(self._tasks) >= self._settings.max_streams:  # one that broke is served until it has ended
            self._refused(MAX_STREAMS)
            raise ResourceExhausted(
                f"this coordinator has {self._settings.max_streams:,} session streams; use unary calls, or "
                "try again",
                _RETRY_MS,
            )
        stream = SessionStream(next(self._ids), host, self._around)
        task = asyncio.current_task()
        assert task is not None
        connection = current_connection()
        if connection is not None:
            connection.open_stream()
        self._streams[stream.stream_id] = stream
        self._tasks.add(task)
        if self._checker is None:
            self._checker = asyncio.get_running_loop().call_later(_CHECK_S, self._check)
        try:
            await stream.run(context)
        finally:
            self._streams.pop(stream.stream_id, None)
            self._tasks.discard(task)
            if connection is not None:
                connection.close_stream()

    def pushed(self, shard: OwnedShard, push: Push) -> None:
        """Passes news of a shard's core on to the stream that it is for, if that is still open."""
        stream = self._streams.get(push.stream_id)
        if stream is not None:
            stream.pushed(shard, push)

    async def stop(self) -> None:
        """Says goodbye on all streams and ends them; nobody becomes suspect."""
        self.abandon()
        for stream in tuple(self._streams.values()):
            stream.end(session_pb2.GOODBYE_REASON_DRAINING, "the coordinator stops")
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=_STOP_WAIT_S)

    def abandon(self) -> None:
        """Opens no more streams; members on streams that break from now on are not suspect."""
        self._stopping = True
        self._breaks.stop()
        if self._checker is not None:
            self._checker.cancel()
            self._checker = None

    def _broke(self, stream: OpenStream) -> None:
        self._streams.pop(stream.stream_id, None)
        if not self._stopping:
            self._breaks.broke(stream)

    def _crowded(self) -> None:
        if not self._relieving:
            # Not now: this may be inside a turn of a shard.
            self._relieving = True
            asyncio.get_running_loop().call_soon(self._relieve)

    def _relieve(self) -> None:
        """Cuts off those who left most unread, until what the others left may wait."""
        self._relieving = False
        limit = self._settings.max_total_queued_bytes
        excess = self._queued.bytes - limit
        for stream in sorted(self._streams.values(), key=attrgetter("unread_bytes"), reverse=True):
            if excess <= 0:
                return
            excess -= stream.unread_bytes
            stream.cut_off(
                f"clients of this coordinator left {limit:,} bytes unread, and this one most of them"
            )

    def _check(self) -> None:
        self._checker = None
        now_ms = self._boot_ms()
        for stream in tuple(self._streams.values()):
            stream.check(now_ms)
        if self._streams and not self._stopping:
            self._checker = asyncio.get_running_loop().call_later(_CHECK_S, self._check)
