"""A shard that this process owns, or is about to: carries out what its core decides."""

import asyncio
import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog
from muster_core import error_code
from muster_core.clock import Now
from muster_core.error_code import ErrorCode
from muster_core.events import (
    AppendDone,
    Attach,
    Beat,
    Cancelled,
    Effects,
    Event,
    GroupRequest,
    GroupResponse,
    Push,
    Request,
    Resume,
    Suspend,
    Tick,
    Unload,
)
from muster_core.position import Position
from muster_core.responses import refusal
from muster_core.shard import Shard
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1 import coordinator_pb2 as pb

from muster_coordinator.loader import Loader, LoadFailed, LogImage
from muster_coordinator.log_client import Log, Nonces
from muster_coordinator.shard_log import LogStopped, ShardLog

log = structlog.get_logger()

_HANDOFF_APPEND = -1
_LOADING = "the coordinator is loading the group's shard; try again"
_NOT_SURE = "the coordinator is not sure that it still owns the group; try again"
_NO_BARRIER = "the log does not answer, so it is not certain what was committed last; try again"
_FAILED = "the log of the group's shard cannot be served; its operator was told"
_MOVED = "another coordinator owns the group now"
_UNFORESEEN = "the server failed in a way it did not foresee"


Sink = Callable[[GroupResponse], None]
"""Takes the one answer to a call."""


class Phase(enum.Enum):
    """Where a shard stands in this process."""

    ELSEWHERE = "elsewhere"  # somebody else owns it; this process reads its log to take it over
    CLAIMING = "claiming"
    LOADING = "loading"
    SERVING = "serving"
    HANDING_OVER = "handing over"
    FAILED = "failed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims, as it stands in the log.

    Attributes:
        node_id: name of the process.
        session: identity of this run of it.
        version: of its software.
    """

    node_id: str
    session: str
    version: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all shards of a process share.

    Attributes:
        claimant: this process.
        log: the log client.
        nonces: source of nonces.
        loader: reads logs.
        now: both clocks.
        may_answer: whether the lease is held at a boot time.
        changed: told when a shard began or ceased to be served.
        pushed: takes the core's news for session streams.
        load_wait_ms: how long a call waits for a load to end before it is answered
            COORDINATOR_LOAD_IN_PROGRESS.
        barrier_wait_ms: how long an OffsetFetch waits for its barrier.
        handoff_wait_ms: how long a hand-over waits for open appends before it goes on without them.
    """

    claimant: Claimant
    log: Log
    nonces: Nonces
    loader: Loader
    now: Callable[[], Now]
    may_answer: Callable[[int], bool]
    changed: Callable[["OwnedShard"], None]
    pushed: Callable[["OwnedShard", Push], None] = lambda _shard, _push: None
    load_wait_ms: int = 100
    barrier_wait_ms: int = 5_000
    handoff_wait_ms: int = 1_000


class OwnedShard:
    """One shard: its core, its log, its open calls and its one timer.

    Every answer of the core passes the lease's deadline when it is built; if that has passed, the caller gets
    COORDINATOR_NOT_AVAILABLE instead (docs/safety.md, "Ownership").

    Args:
        number: the shard.
        surroundings: what all shards share.
        phase: ELSEWHERE while another owner still serves it, CLAIMING if there is none.
        known_epoch: highest epoch that was heard of.
    """

    def __init__(self, number: int, surroundings: Surroundings, phase: Phase, known_epoch: int = 0) -> None:
        self.number = number
        self.phase = phase
        self.epoch = known_epoch
        self.suspended = False
        self.successor: common_pb2.Coordinator | None = None
        self._around = surroundings
        self._core: Shard | None = None
        self._log: ShardLog | None = None
        self._calls: dict[int, tuple[Sink, GroupRequest]] = {}
        self._call_ids = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._phase_ended: asyncio.Event = asyncio.Event()
        self._handoff_stored: asyncio.Future[None] | None = None
        self._resuming: asyncio.Task[None] | None = None

    @property
    def serving(self) -> bool:
        """Whether it is loaded here."""
        return self.phase in (Phase.SERVING, Phase.HANDING_OVER)

    @property
    def elsewhere(self) -> bool:
        """Whether calls belong to another owner still, or again."""
        return self.phase in (Phase.ELSEWHERE, Phase.GONE)

    @property
    def open_calls(self) -> int:
        """Number of calls that wait for their answer."""
        return len(self._calls)

    # --- taking it

    async def claim(self, above_epoch: int, image: LogImage) -> None:
        """Claims the shard, reads what its image lacks, and serves.

        Raises:
            LogStopped: somebody else claimed it with a higher epoch, or its log is gone or cut.
            LoadFailed: its log must not be served; the shard stays here as FAILED and says so.
        """
        around = self._around
        self._become(Phase.CLAIMING)
        nonce = around.nonces.next()
        who = around.claimant
        step = metadata_pb2.ClaimStep(
            node_id=who.node_id,
            session=who.session,
            version=who.version,
            nonce=nonce,
            above_epoch=above_epoch,
        )
        try:
            result = await around.log.submit(self.number, step)
            self.epoch = _claimed(result)
            self._become(Phase.LOADING)
            began_ms = around.now().boot_ms
            await around.loader.load(image, result.epoch, nonce, result.end)
        except LogStopped as error:
            if not error.fenced:
                self._fail(str(error))
            raise
        except LoadFailed as error:
            self._fail(str(error))
            raise
        self._serve(image, nonce, result.end, began_ms)

    def _serve(self, image: LogImage, nonce: bytes, end: metadata_pb2.LogEnd, began_ms: int) -> None:
        around = self._around
        self._core = image.core
        self._log = ShardLog(
            self.number, self.epoch, nonce, end, around.log, around.nonces, self._appended, self._log_stopped
        )
        now = around.now()
        self._become(Phase.SERVING)
        self._apply(self._core.loaded(self.epoch, now), now)
        if not around.may_answer(now.boot_ms):
            self.suspend()
        log.info(
            "shard_loaded",
            shard=self.number,
            epoch=self.epoch,
            records=image.records,
            load_ms=now.boot_ms - began_ms,
        )
        around.changed(self)

    # --- calls

    async def call(self, message: GroupRequest, host: str) -> GroupResponse:
        """Answers a call, now or when the group protocol says so. Cancel it when its caller goes away."""
        if self.phase in (Phase.CLAIMING, Phase.LOADING):
            await self._wait_phase(self._around.load_wait_ms)
        if self.phase is Phase.HANDING_OVER:
            await self._wait_phase(self._around.handoff_wait_ms)
        refused = self._refused(message)
        if refused is not None:
            return refused
        if isinstance(message, pb.OffsetFetchRequest) and not await self._barrier():
            return self._refused(message) or self.refuse(
                message, error_code.COORDINATOR_NOT_AVAILABLE, _NO_BARRIER
            )
        return await self._ask(message, host)

    def start(self, message: GroupRequest, host: str, answered: Sink) -> int | None:
        """Starts a call that needs no barrier, without waiting for a load or a hand-over to end.

        Args:
            message: the call, within the limits of the public API.
            host: address of the caller.
            answered: takes the answer, now or later, before the news of the same turn.

        Returns:
            What `abandon` takes; None: it was answered.
        """
        now = self._around.now()
        core = self._core
        if core is None or self.phase is not Phase.SERVING or not self._sure(now.boot_ms):
            refused = self._refused(message)
            answered(refused or self.refuse(message, error_code.COORDINATOR_NOT_AVAILABLE, _NOT_SURE))
            return None
        self._call_ids += 1
        call_id = self._call_ids
        self._calls[call_id] = (answered, message)
        draw = str(uuid.uuid4()) if isinstance(message, pb.JoinGroupRequest) else ""
        try:
            self._apply(core.handle(Request(call_id, message, host, draw), now), now)
        except Exception:
            # One call must not take the shard down (conformance GV-20).
            log.exception("call_failed", shard=self.number, call=type(message).__name__)
            if self._calls.pop(call_id, None) is not None:
                answered(self.refuse(message, error_code.UNKNOWN_SERVER_ERROR, _UNFORESEEN))
        return call_id if call_id in self._calls else None

    def abandon(self, call_id: int) -> None:
        """The caller of an open call went away: it is not answered any more."""
        if self._calls.pop(call_id, None) is not None and self._core is not None:
            self._handle(Cancelled(call_id))

    def refuse(self, message: GroupRequest, code: ErrorCode, text: str) -> GroupResponse:
        """The answer that says no, with the epoch known here."""
        return refusal(message, code, self.epoch, text, self.successor)

    def _refused(self, message: GroupRequest) -> GroupResponse | None:
        """The answer to a call that the core must not see."""
        match self.phase:
            case Phase.SERVING:
                if self.suspended or not self._around.may_answer(self._around.now().boot_ms):
                    return self.refuse(message, error_code.COORDINATOR_NOT_AVAILABLE, _NOT_SURE)
                return None
            case Phase.CLAIMING | Phase.LOADING | Phase.ELSEWHERE:
                # Clients do not expect 14 as an answer to SyncGroup (conformance GV-11).
                sync = isinstance(message, pb.SyncGroupRequest)
                code = error_code.REBALANCE_IN_PROGRESS if sync else error_code.COORDINATOR_LOAD_IN_PROGRESS
                return self.refuse(message, code, _LOADING)
            case Phase.FAILED:
                return self.refuse(message, error_code.COORDINATOR_NOT_AVAILABLE, _FAILED)
            case _:
                code = error_code.COORDINATOR_NOT_AVAILABLE
                if self.successor is not None:
                    code = error_code.NOT_COORDINATOR
                return self.refuse(message, code, _MOVED)

    async def _barrier(self) -> bool:
        """Whether a majority confirmed that the claim still stands."""
        assert self._log is not None
        try:
            await asyncio.wait_for(self._log.barrier(), self._around.barrier_wait_ms / 1000)
        except (TimeoutError, LogStopped):
            return False
        except asyncio.CancelledError:
            if self.phase is Phase.SERVING:
                raise
            return False
        return True

    async def _ask(self, message: GroupRequest, host: str) -> GroupResponse:
        future: asyncio.Future[GroupResponse] = asyncio.get_running_loop().create_future()
        call_id = self.start(message, host, partial(_settle, future))
        if call_id is None:
            return future.result()
        try:
            return await future
        except asyncio.CancelledError:
            self.abandon(call_id)
            raise

    async def _wait_phase(self, limit_ms: int) -> None:
        event = self._phase_ended
        try:
            async with asyncio.timeout(limit_ms / 1000):
                while self.phase in (Phase.CLAIMING, Phase.LOADING, Phase.HANDING_OVER):
                    event = self._phase_ended
                    await event.wait()
        except TimeoutError:
            return

    # --- session streams

    def attach(self, event: Attach) -> ErrorCode:
        """Puts a member on a stream; the core pushes the answer.

        Returns:
            NONE; or why the core was not asked.
        """
        if self.phase in (Phase.CLAIMING, Phase.LOADING):
            return error_code.COORDINATOR_LOAD_IN_PROGRESS
        return self._stream_event(event)

    def beat(self, event: Beat) -> ErrorCode:
        """Prolongs the sessions of a stream's members.

        Returns:
            NONE; or why nobody's was prolonged.
        """
        return self._stream_event(event)

    def _stream_event(self, event: Event) -> ErrorCode:
        now = self._around.now()
        if self._core is not None and self._sure(now.boot_ms):
            try:
                self._apply(self._core.handle(event, now), now)
            except Exception:
                log.exception("stream_event_failed", shard=self.number, stream_event=type(event).__name__)
                return error_code.UNKNOWN_SERVER_ERROR
            return error_code.NONE
        moved = self.phase is Phase.GONE and self.successor is not None
        return error_code.NOT_COORDINATOR if moved else error_code.COORDINATOR_NOT_AVAILABLE

    # --- the core and its effects

    def tell(self, event: Event) -> None:
        """Hands an event from outside to the core; a shard that is not loaded has none."""
        if self._core is not None:
            self._handle(event)

    def _handle(self, event: Event) -> None:
        assert self._core is not None
        now = self._around.now()
        self._sure(now.boot_ms)
        self._apply(self._core.handle(event, now), now)

    def _apply(self, effects: Effects, now: Now) -> None:
        if effects.replies:
            self._reply(effects, now)
        for push in effects.pushes:
            self._around.pushed(self, push)
        for append in effects.appends:
            if self._log is not None:
                self._log.append(append.append_id, [record.SerializeToString() for record in append.records])
        self._arm(effects.next_deadline_ms, now)

    def _reply(self, effects: Effects, now: Now) -> None:
        may_answer = self.phase is Phase.GONE or (not self.suspended and self._around.may_answer(now.boot_ms))
        for reply in effects.replies:
            answered, message = self._calls.pop(reply.call_id, (None, None))
            if answered is None or message is None:
                continue
            if may_answer:
                answered(reply.message)
            else:
                answered(self.refuse(message, error_code.COORDINATOR_NOT_AVAILABLE, _NOT_SURE))

    def _arm(self, deadline_ms: int | None, now: Now) -> None:
        if self.suspended or self.phase is not Phase.SERVING or deadline_ms is None:
            self._disarm()
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return  # it fires early and finds nothing due; cheaper than moving it with each heartbeat
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
        if self.phase is not Phase.SERVING or self.suspended:
            return
        try:
            self._handle(Tick())
        except Exception:
            log.exception("tick_failed", shard=self.number)
            now = self._around.now()
            self._arm(now.boot_ms + 1_000, now)

    def _appended(self, append_id: int, position: Position) -> None:
        if append_id == _HANDOFF_APPEND:
            if self._handoff_stored is not None and not self._handoff_stored.done():
                self._handoff_stored.set_result(None)
            return
        try:
            self._handle(AppendDone(append_id, position))
        except Exception:
            log.exception("append_done_failed", shard=self.number, append_id=append_id)

    def _log_stopped(self, reason: LogStopped) -> None:
        if reason.fenced:
            log.warning("shard_fenced", shard=self.number, epoch=self.epoch, promised_epoch=reason.epoch)
            self.epoch = max(self.epoch, reason.epoch)
            self.unload(self.successor)
        else:
            self._fail(str(reason))

    # --- lease

    def _sure(self, now_ms: int) -> bool:
        """Whether the lease is held; if its deadline passed and nobody told us yet, suspends."""
        if not self.suspended and not self._around.may_answer(now_ms):
            self.suspend()
        return not self.suspended

    def suspend(self) -> None:
        """Ends the parked calls and answers nobody; the state stays."""
        if self.suspended or not self.serving:
            return
        self.suspended = True
        self._disarm()
        if self._core is not None:
            now = self._around.now()
            self._apply(self._core.handle(Suspend(), now), now)

    def resume(self) -> None:
        """The lease is held again: asks a majority whether the claim still stands, and goes on if so."""
        if (
            self.suspended
            and self.phase is Phase.SERVING
            and (self._resuming is None or self._resuming.done())
        ):
            self._resuming = asyncio.get_running_loop().create_task(self._resume())

    async def verify(self) -> bool:
        """Asks a majority whether the claim still stands; if it does not, the shard is unloaded."""
        return self._log is not None and await self._barrier()

    async def _resume(self) -> None:
        assert self._log is not None
        try:
            await self._log.barrier()
        except LogStopped:
            return
        if self.phase is Phase.SERVING and self.suspended and self._core is not None:
            now = self._around.now()
            if self._around.may_answer(now.boot_ms):
                self.suspended = False
                self._apply(self._core.handle(Resume(), now), now)
                log.info("shard_resumed", shard=self.number, epoch=self.epoch)

    # --- giving it up

    async def hand_over(self, successor: common_pb2.Coordinator | None) -> None:
        """Finishes appends, stores the Handoff record, and sends the callers to the successor.

        Args:
            successor: who claims it next; None: anybody.
        """
        if self.phase is not Phase.SERVING or self._log is None:
            self.unload(successor)
            return
        self._become(Phase.HANDING_OVER)
        self.successor = successor
        self._disarm()
        try:
            async with asyncio.timeout(self._around.handoff_wait_ms / 1000):
                await self._log.until_idle()
                await self._store_handoff()
        except TimeoutError:
            # Not needed for safety: the successor's claim fences whatever is still on its way.
            log.warning("handoff_not_stored", shard=self.number, epoch=self.epoch)
        finally:
            self.unload(successor)

    async def _store_handoff(self) -> None:
        shard_log = self._log
        if shard_log is None:
            return  # fenced meanwhile
        record = records_pb2.Record(
            written_at_ms=self._around.now().wall_ms,
            handoff=records_pb2.Handoff(
                node_id=self._around.claimant.node_id,
                successor=self.successor.node_id if self.successor is not None else "",
            ),
        )
        self._handoff_stored = asyncio.get_running_loop().create_future()
        shard_log.append(_HANDOFF_APPEND, [record.SerializeToString()])
        idle = asyncio.ensure_future(shard_log.until_idle())
        try:
            await asyncio.wait({self._handoff_stored, idle}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()

    def unload(self, successor: common_pb2.Coordinator | None) -> None:
        """Gives the shard up: parked calls are answered NOT_COORDINATOR, all else is dropped."""
        if self.phase is Phase.GONE:
            return
        self.successor = successor
        self._become(Phase.GONE)
        self._drop(Unload(successor))
        self._around.changed(self)

    def _fail(self, reason: str) -> None:
        log.error("shard_failed", shard=self.number, epoch=self.epoch, reason=reason, alarm=True)
        self._drop(Suspend())
        self._become(Phase.FAILED)
        self._around.changed(self)

    def _drop(self, last_event: Event) -> None:
        core, self._core = self._core, None
        shard_log, self._log = self._log, None
        self._disarm()
        if self._resuming is not None:
            self._resuming.cancel()
        if core is not None:
            now = self._around.now()
            effects = core.handle(last_event, now)
            self._reply(effects, now)
            for push in effects.pushes:
                self._around.pushed(self, push)
        if shard_log is not None:
            shard_log.close()
        calls, self._calls = self._calls, {}
        for answered, message in calls.values():
            answered(self.refuse(message, error_code.COORDINATOR_NOT_AVAILABLE, _NOT_SURE))

    def _become(self, phase: Phase) -> None:
        self.phase = phase
        self._phase_ended.set()
        self._phase_ended = asyncio.Event()


def _settle(future: asyncio.Future[GroupResponse], response: GroupResponse) -> None:
    if not future.done():
        future.set_result(response)


def _claimed(result: metadata_pb2.LogResult) -> int:
    """The epoch of a claim that was won."""
    if result.outcome != metadata_pb2.LOG_OUTCOME_OK:
        raise LogStopped(result.outcome, result.message, result.epoch)
    return result.epoch
