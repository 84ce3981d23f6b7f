"""A loaded shard: events go into its core, and its decisions are carried out and stored."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import structlog
from muster_core import error_code
from muster_core.clock import Now
from muster_core.error_code import ErrorCode
from muster_core.events import (
    AppendDone,
    Cancelled,
    Effects,
    Event,
    GroupRequest,
    GroupResponse,
    MemberRange,
    Push,
    Request,
    Resume,
    StreamPlace,
    Suspend,
    Tick,
)
from muster_core.fault import Journal
from muster_core.features import Feature
from muster_core.position import Position
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import coordinator_pb2
from muster_runtime.rpc.identity import current_identity

from muster_coordinator.failstop.failures import Failure, of_turn
from muster_coordinator.log.kept_snapshots import KeptSnapshots
from muster_coordinator.log.log_image import LogImage
from muster_coordinator.log.shard_log import LogStopped, ShardLog
from muster_coordinator.shard.dependencies import Dependencies
from muster_coordinator.shard.phase import NOT_SURE

_FREEING = frozenset({"group_tombstone", "offset_tombstone"})
"""Records that make room in the log: what they delete is in no later snapshot."""

log = structlog.get_logger()

Sink = Callable[[GroupResponse], None]
"""Takes the one answer to a call."""

Refuse = Callable[[GroupRequest, ErrorCode, str], GroupResponse]
"""Makes the answer that says no, with the epoch and the successor known."""


@dataclass(frozen=True, slots=True)
class Outlets:
    """What a loaded shard leaves to its owner.

    Attributes:
        push: takes news for session streams.
        refuse: makes answers that say no.
        failed: called once, when the core or its log raised; it gets no event after that.
        log_stopped: called once, when nothing can be stored any more.
    """

    push: Callable[[Push], None]
    refuse: Refuse
    failed: Callable[[Failure], None]
    log_stopped: Callable[[LogStopped], None]


class ServedShard:
    """A loaded core with its open calls and its one timer, and the log after the claim.

    Every answer of the core passes the lease's deadline when it is built; if that has passed, the caller gets
    COORDINATOR_NOT_AVAILABLE instead (docs/safety.md, "Ownership").

    A core that raised is in a state that nobody foresaw: nothing of that turn is carried out, nothing is
    asked of it again, and whoever made this must `drop` it (docs/safety.md, "Fail-stop").

    Args:
        number: the shard.
        epoch: of the claim.
        nonce: of the claim.
        end: end of the log; at first the Claim record.
        image: what was loaded.
        shared: what all shards share.
        outlets: who takes what is not stored.

    Attributes:
        core: its state.
        kept: the snapshots of its log.
        suspended: whether nobody is answered, because the lease is not held.
    """

    def __init__(
        self,
        number: int,
        epoch: int,
        nonce: bytes,
        end: metadata_pb2.LogEnd,
        image: LogImage,
        shared: Dependencies,
        outlets: Outlets,
    ) -> None:
        self.core = image.core
        self.suspended = False
        self._number = number
        self._epoch = epoch
        self._out = outlets
        self._now = shared.now
        self._may_answer = shared.may_answer
        self._is_operator = shared.is_operator
        self._aside = shared.aside
        self._features: frozenset[Feature] = frozenset()
        self._watch = shared.watch(image.core)
        self._log = ShardLog(
            number,
            epoch,
            nonce,
            end,
            shared.log,
            shared.nonces,
            self._appended,
            outlets.log_stopped,
            self._log_failed,
            self._watch,
        )
        self.kept = KeptSnapshots(self._log, image)
        image.core.live_in(shared.room)
        suspects = shared.faults.suspects(number)
        limit_bytes = shared.faults.folder.max_events_bytes
        self._journal = Journal(image.core, suspects, limit_bytes) if suspects else None
        self._over = False
        self._calls: dict[int, tuple[Sink, GroupRequest]] = {}
        self._call_ids = 0
        self._own_appends: dict[int, asyncio.Future[metadata_pb2.LogEnd | None]] = {}
        self._resuming: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._timeless = False
        self._confirmed_before = -1

    @property
    def open_calls(self) -> int:
        """Number of calls that wait for their answer."""
        return len(self._calls)

    def open_requests(self) -> Iterator[GroupRequest]:
        """The calls that wait for their answer."""
        return (message for _, message in self._calls.values())

    def begin(self, features: frozenset[Feature]) -> None:
        """The load has ended: the core finishes what the last owner had begun, by the enabled features."""
        now = self._now()
        self._features = features
        if self._journal is not None:
            self._journal.loaded(self._epoch, now)
        self._turn(None, now)
        if not self._may_answer(now.boot_ms):
            self.suspend()

    def end(self, last_event: Event) -> Failure | None:
        """Plays the last event and drops the rest; appends of it would come too late and are not made.

        Returns:
            What the core raised, of which nothing is carried out: whoever waits is told to try again.
        """
        self._stop()
        now = self._now()
        failure: Failure | None = None
        try:
            effects = self.core.handle(last_event, now)
        except MemoryError:
            raise
        except Exception as error:
            failure = self._failure(last_event, now, error, self.core.blamed)
            effects = Effects()
        for reply in effects.replies:
            answered, _ = self._calls.pop(reply.call_id, (None, None))
            if answered is not None:
                answered(reply.message)
        for push in effects.pushes:
            self._out.push(push)
        self._close(NOT_SURE)
        return failure

    def drop(self, text: str) -> None:
        """Asks nothing of the core any more; whoever waits for an answer is told to try again.

        Args:
            text: why, for people.
        """
        self._stop()
        self._close(text)

    def _stop(self) -> None:
        self._over = True
        self.stop_time()
        if self._resuming is not None:
            self._resuming.cancel()
        if self._watch is not None:
            self._watch.over()

    def _close(self, text: str) -> None:
        calls, self._calls = self._calls, {}
        for answered, message in calls.values():
            answered(self._out.refuse(message, error_code.COORDINATOR_NOT_AVAILABLE, text))
        self._log.close()
        for stored in self._own_appends.values():
            stored.set_result(None)
        self._own_appends.clear()

    # --- events

    def start(
        self,
        message: GroupRequest,
        host: str,
        now: Now,
        answered: Sink,
        place: StreamPlace | None = None,
        shown: MemberRange | None = None,
    ) -> int | None:
        """Starts a call. The lease must be held.

        Args:
            message: the call, within the limits of the public API.
            host: address of the caller, whose identity is that of the task which calls this.
            now: the time.
            answered: called with the answer, now or later, before the news of that turn.
            place: as in `Request`.
            shown: as in `Request`.

        Returns:
            What `abandon` takes; None: it was answered.
        """
        self._call_ids += 1
        call_id = self._call_ids
        self._calls[call_id] = (answered, message)
        draw, is_operator = "", None
        if isinstance(message, coordinator_pb2.JoinGroupRequest):
            draw = str(uuid.uuid4())
        elif isinstance(message, coordinator_pb2.LeaveGroupRequest):
            is_operator = self._is_operator(message.group_id)
        identity = current_identity().name
        self._turn(Request(call_id, message, host, draw, identity, is_operator, place, shown), now)
        return call_id if call_id in self._calls else None

    def abandon(self, call_id: int) -> None:
        """The caller of an open call is gone: the call is not answered any more."""
        if self._calls.pop(call_id, None) is not None:
            self.handle(Cancelled(call_id))

    def handle(self, event: Event) -> None:
        """Hands an event to the core."""
        now = self._now()
        self.sure(now.boot_ms)
        self._turn(event, now)

    def _worked(self, event: Event) -> None:
        """Work was done aside that the core had asked for; it may be given up, or suspended, since."""
        if not self._over:
            self.handle(event)

    def handle_of_stream(self, event: Event) -> ErrorCode:
        """Hands an event of a session stream to the core.

        Returns:
            NONE; or why the core was not asked, or failed.
        """
        now = self._now()
        if not self.sure(now.boot_ms) or not self._turn(event, now):
            return error_code.COORDINATOR_NOT_AVAILABLE
        return error_code.NONE

    # --- log

    async def confirmed(self, limit_ms: int) -> bool:
        """Whether a majority confirmed, after now and in time, that the claim is still the last one."""
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._log.barrier()
        except (TimeoutError, LogStopped):
            return False
        except asyncio.CancelledError:
            if not self._over:
                raise
            return False
        return True

    def was_quiet(self) -> bool:
        """Whether the log has confirmed nothing since this was asked last."""
        before, self._confirmed_before = self._confirmed_before, self._log.confirmed
        return before == self._confirmed_before

    async def until_idle(self) -> None:
        """Waits until no records wait or are on their way."""
        await self._log.until_idle()

    async def store(
        self, record: records_pb2.Record, *, ends_log: bool = False
    ) -> metadata_pb2.LogEnd | None:
        """Stores a record that the core does not know of.

        Args:
            record: the record.
            ends_log: nothing is stored after it.

        Returns:
            Its place and hash; None: the shard was given up meanwhile.
        """
        if self._over:
            return None
        append_id = min(self._own_appends, default=0) - 1
        stored: asyncio.Future[metadata_pb2.LogEnd | None] = asyncio.get_running_loop().create_future()
        self._own_appends[append_id] = stored
        self._log.append(
            append_id, [record.SerializeToString()], ends_step=True, ends_log=ends_log, frees=True
        )
        return await asyncio.shield(stored)

    def _appended(self, append_id: int, position: Position) -> None:
        """The records of an append are on a majority."""
        own = self._own_appends.pop(append_id, None)
        if own is not None:
            own.set_result(self._log.end)
        elif not self._over:
            if self._watch is not None:
                self._watch.stored(append_id)
            self.handle(AppendDone(append_id, position))

    def _log_failed(self, error: Exception) -> None:
        """What writes to the log raised; who waits for it would wait for ever."""
        if not self._over:
            self._over = True
            self._out.failed(replace(self._failure(None, self._now(), error, ""), event="ShardLog"))

    # --- lease

    def sure(self, now_ms: int) -> bool:
        """Whether the lease is held; suspends if its deadline passed unnoticed."""
        if not self.suspended and not self._may_answer(now_ms):
            self.suspend()
        return not self.suspended and not self._over

    def suspend(self) -> None:
        """Ends the parked calls and answers no others; the state is kept."""
        if self._resuming is not None:
            # What it hears may have been true before this lapse only.
            self._resuming.cancel()
            self._resuming = None
        if not self.suspended:
            self.suspended = True
            self._disarm()
            self._turn(Suspend(), self._now())

    def resume(self) -> None:
        """The lease is held again: goes on if a majority confirms that the claim is still the last one."""
        if not self.suspended or self._timeless:
            return
        if self._resuming is None or self._resuming.done():
            self._resuming = asyncio.get_running_loop().create_task(self._resume())

    async def _resume(self) -> None:
        try:
            await self._log.barrier()
        except LogStopped:
            return
        now = self._now()
        if not self.suspended or self._timeless or not self._may_answer(now.boot_ms):
            return
        self.suspended = False
        if self._turn(Resume(), now):
            log.info("shard_resumed", shard=self._number, epoch=self._epoch)

    # --- turns

    def _turn(self, event: Event | None, now: Now) -> bool:
        """Plays an event, the end of the load if None, and carries out what follows; False: it raised."""
        if self._over:
            return False
        played = False
        try:
            if self._journal is not None and event is not None:
                self._journal.note(event, now)
            effects = self._played(event, now)
            played = True
            if self._journal is not None:
                self._journal.appended(effects.appends)
            self._apply(effects, now)
        except MemoryError:
            raise  # no group is to blame: whoever logs it ends the process
        except Exception as error:
            self._over = True
            self._out.failed(self._failure(event, now, error, "" if played else self.core.blamed))
        return not self._over

    def _failure(self, event: Event | None, now: Now, error: Exception, group_id: str) -> Failure:
        return of_turn(
            self.core,
            self._epoch,
            event,
            now,
            error,
            group_id=group_id,
            journal=self._journal,
            open_calls=((call_id, message) for call_id, (_, message) in self._calls.items()),
        )

    def _played(self, event: Event | None, now: Now) -> Effects:
        if event is None:
            return self.core.loaded(self._epoch, now, self._features)
        return self.core.handle(event, now)

    def _apply(self, effects: Effects, now: Now) -> None:
        if effects.replies:
            self._reply(effects, now)
        for push in effects.pushes:
            self._out.push(push)
        for append in effects.appends:
            if self._watch is not None:
                self._watch.storing(append)
            self._log.append(
                append.append_id,
                append.encoded,
                joined=append.joined,
                frees=any(record.WhichOneof("kind") in _FREEING for record in append.records),
            )
        for work in effects.work:
            self._aside(work, self._worked)
        self._arm(effects.next_deadline_ms, now)

    def _reply(self, effects: Effects, now: Now) -> None:
        may_answer = not self.suspended and self._may_answer(now.boot_ms)
        for reply in effects.replies:
            answered, message = self._calls.pop(reply.call_id, (None, None))
            if answered is None or message is None:
                continue
            if may_answer:
                answered(reply.message)
            else:
                answered(self._out.refuse(message, error_code.COORDINATOR_NOT_AVAILABLE, NOT_SURE))

    # --- time

    def stop_time(self) -> None:
        """Plays no deadline of the core any more: the shard is being given up."""
        self._timeless = True
        self._disarm()

    def _arm(self, deadline_ms: int | None, now: Now) -> None:
        if self.suspended or self._timeless or deadline_ms is None:
            self._disarm()
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return  # firing early for nothing is cheaper than moving it with each heartbeat
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_s = max(0, deadline_ms - now.boot_ms) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        if self._timeless or self.suspended:
            return
        self.handle(Tick())
