"""A shard that this process owns, or is about to: how it is taken, served and given up."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import structlog
from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.events import (
    Attach,
    Beat,
    Event,
    GroupRequest,
    GroupResponse,
    MemberRange,
    Push,
    StreamPlace,
    Suspend,
    TopicsChanged,
    Unload,
)
from muster_core.position import NOWHERE, Position
from muster_core.protocol.responses import refusal
from muster_core.shard import Shard
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2
from muster_runtime.logs import alarm

from muster_coordinator.failstop.failures import Failure
from muster_coordinator.failstop.faults import Consequence, log_failure
from muster_coordinator.log.kept_snapshots import KeptSnapshots
from muster_coordinator.log.log_image import LoadFailed, LogImage
from muster_coordinator.log.shard_log import LogStopped
from muster_coordinator.shard.dependencies import Dependencies
from muster_coordinator.shard.phase import NOT_SURE, Phase
from muster_coordinator.shard.served_shard import Outlets, ServedShard, Sink

log = structlog.get_logger()

_RELOADING = "the coordinator loads the group's shard again; try again"
_NOT_QUARANTINED = "the group is not in quarantine"
_SUSPEND = Suspend()


class ShardListener:
    """Is notified of what happens to the shards of a process; each method does nothing unless overridden."""

    def changed(self, shard: "OwnedShard") -> None:
        """It began or ceased to be served."""

    def pushed(self, shard: "OwnedShard", push: Push) -> None:
        """Its core has news for a session stream."""


class OwnedShard:
    """One shard: in which phase it is here and, while it is loaded, its core and its log.

    Args:
        number: the shard.
        shared: what all shards share.
        listener: notified of it.
        phase: ELSEWHERE while another owner still serves it, CLAIMING if there is none.
        known_epoch: highest epoch that was heard of.

    Attributes:
        reloads: whether it is gone because its state was dropped, to be claimed and loaded here again.
        log_missing: whether it failed because a majority of the nodes has no such log.
        known_end: up to where its log was acknowledged when it failed; nowhere: not known here.
        load_ms: how long its load took, to its end or to where it failed.
        loaded_records: how many records the load replayed.
    """

    def __init__(
        self,
        number: int,
        shared: Dependencies,
        listener: ShardListener,
        phase: Phase,
        known_epoch: int = 0,
    ) -> None:
        self.number = number
        self.phase = phase
        self.epoch = known_epoch
        self.successor: common_pb2.Coordinator | None = None
        self.reloads = False
        self.log_missing = False
        self.known_end = NOWHERE
        self.load_ms = 0
        self.loaded_records = 0
        self._shared = shared
        self._listener = listener
        self._served: ServedShard | None = None
        self._phase_ended: asyncio.Event = asyncio.Event()

    @property
    def serving(self) -> bool:
        """Whether it is loaded here."""
        return self.phase in (Phase.SERVING, Phase.HANDING_OVER)

    @property
    def elsewhere(self) -> bool:
        """Whether calls belong to another owner still, or again."""
        return self.phase in (Phase.ELSEWHERE, Phase.GONE)

    @property
    def suspended(self) -> bool:
        """Whether it is loaded and answers nobody, because the lease is not held."""
        return self._served is not None and self._served.suspended

    @property
    def core(self) -> Shard | None:
        """Its state, to be read only; None: it is not loaded."""
        return None if self._served is None else self._served.core

    @property
    def kept(self) -> KeptSnapshots | None:
        """Its log's snapshots; None: it is not served now."""
        return self._served.kept if self._served is not None and self.phase is Phase.SERVING else None

    @property
    def open_calls(self) -> int:
        """Number of calls that wait for their answer."""
        return 0 if self._served is None else self._served.open_calls

    def open_requests(self) -> Iterator[GroupRequest]:
        """The calls that wait for their answer."""
        return iter(()) if self._served is None else self._served.open_requests()

    # --- taking it

    async def claim(self, above_epoch: int, image: LogImage) -> None:
        """Claims the shard, reads what its image lacks, and serves.

        Raises:
            LogStopped: somebody else claimed it with a higher epoch, or its log is gone or cut.
            LoadFailed: its log must not be served; the shard stays here as FAILED and says so.
        """
        shared = self._shared
        self._become(Phase.CLAIMING)
        # What is deleted from now on may not have been carried out by the owner before.
        heard = shared.catalog()
        known = 0 if heard is None else heard.offset
        nonce = shared.nonces.next()
        who = shared.claimant
        step = metadata_pb2.ClaimStep(
            node_id=who.node_id,
            session=who.session,
            version=who.version,
            nonce=nonce,
            above_epoch=above_epoch,
        )
        try:
            result = await shared.log.submit(self.number, step)
            self.epoch = _claimed(result)
            self._become(Phase.LOADING)
            began_ms = shared.now().boot_ms
            await shared.loader.load(image, result.epoch, nonce, result.end)
        except LogStopped as error:
            if not error.fenced:
                self._fail(str(error), log_missing=error.missing)
            raise
        except LoadFailed as error:
            self.load_ms = shared.now().boot_ms - began_ms
            if error.failure is not None:
                self._core_failed(error.failure)
            else:
                self._fail(str(error))
            raise
        self._serve(image, nonce, result.end, began_ms, known)

    def _serve(
        self, image: LogImage, nonce: bytes, end: metadata_pb2.LogEnd, began_ms: int, catalog_offset: int
    ) -> None:
        shared = self._shared
        pushed = partial(self._listener.pushed, self)
        outlets = Outlets(pushed, self.refuse, self._core_failed, self._log_stopped)
        self._served = ServedShard(self.number, self.epoch, nonce, end, image, shared, outlets)
        self.load_ms = shared.now().boot_ms - began_ms
        self._become(Phase.SERVING)
        self._served.begin(shared.features())
        if not self.serving:
            return  # its core failed at once
        catalog = shared.catalog()
        if catalog is not None:
            self.notify(TopicsChanged(frozenset(), catalog=catalog, carried_out=catalog_offset))
        self.loaded_records = image.records
        log.info(
            "shard_loaded",
            shard=self.number,
            epoch=self.epoch,
            records=image.records,
            snapshot=image.base.upto.stream_id,
            load_ms=self.load_ms,
        )
        self._listener.changed(self)

    # --- calls

    async def settled(self) -> None:
        """Waits for the end of a load or a hand-over, but not for long."""
        if self.phase in (Phase.CLAIMING, Phase.LOADING):
            await self._wait_phase(self._shared.load_wait_ms)
        if self.phase is Phase.HANDING_OVER:
            await self._wait_phase(self._shared.handoff_wait_ms)

    def start(
        self,
        message: GroupRequest,
        host: str,
        answered: Sink,
        place: StreamPlace | None = None,
        shown: MemberRange | None = None,
    ) -> int | None:
        """Starts a call that needs no barrier, without waiting for a load or a hand-over to end.

        Args:
            message: the call, within the limits of the public API.
            host: address of the caller.
            answered: called with the answer, now or later, before the news of that turn.
            place: as in `Request`.
            shown: as in `Request`.

        Returns:
            What `abandon` takes; None: it was answered.
        """
        served, now = self._served, self._shared.now()
        if served is None or self.phase is not Phase.SERVING or not served.sure(now.boot_ms):
            refused = self.refused(message)
            answered(refused or self.refuse(message, error_code.COORDINATOR_NOT_AVAILABLE, NOT_SURE))
            return None
        return served.start(message, host, now, answered, place, shown)

    def abandon(self, call_id: int) -> None:
        """The caller of an open call is gone: the call is not answered any more."""
        if self._served is not None:
            self._served.abandon(call_id)

    def refuse(self, message: GroupRequest, code: ErrorCode, text: str) -> GroupResponse:
        """The answer that says no, with the epoch known here."""
        return refusal(message, code, self.epoch, text, self.successor)

    @property
    def may_answer(self) -> bool:
        """Whether it is served here, and the lease is held."""
        held = not self.suspended and self._shared.may_answer(self._shared.now().boot_ms)
        return self.phase is Phase.SERVING and held

    def refused(self, message: GroupRequest) -> GroupResponse | None:
        """The answer to a call that the core must not see."""
        if self.may_answer:
            return None
        known = self.successor is not None
        return self.refuse(message, *self.phase.refusal_of(message, successor_known=known))

    async def _wait_phase(self, limit_ms: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_ms / 1000):
                while self.phase.passes:
                    await self._phase_ended.wait()

    # --- events

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
        if self._served is not None:
            return self._served.handle_of_stream(event)
        moved = self.phase is Phase.GONE and self.successor is not None
        return error_code.NOT_COORDINATOR if moved else error_code.COORDINATOR_NOT_AVAILABLE

    def notify(self, event: Event) -> None:
        """Hands an event from outside to the core, if the shard is loaded."""
        if self._served is not None:
            self._served.handle(event)

    def _log_stopped(self, reason: LogStopped) -> None:
        if reason.fenced:
            log.warning("shard_fenced", shard=self.number, epoch=self.epoch, promised_epoch=reason.epoch)
            self.epoch = max(self.epoch, reason.epoch)
            self.unload(self.successor)
        else:
            self._fail(str(reason), log_missing=reason.missing)

    # --- lease

    def suspend(self) -> None:
        """Ends the parked calls and answers no others; the state is kept."""
        if self._served is not None:
            self._served.suspend()

    def resume(self) -> None:
        """The lease is held again: goes on if a majority confirms that the claim is still the last one."""
        if self._served is not None:
            self._served.resume()

    async def verify(self) -> bool:
        """Asks a majority whether the claim is still the last one; if it is not, the shard is unloaded."""
        return self._served is not None and await self._served.confirmed(self._shared.barrier_wait_ms)

    def was_quiet(self) -> bool:
        """Whether its log has confirmed nothing since this was asked last."""
        return self._served is not None and self._served.was_quiet()

    # --- giving it up

    async def hand_over(self, successor: common_pb2.Coordinator | None) -> None:
        """Finishes appends, stores the Handoff record, and sends the callers to the successor.

        One that is under way already is waited for: it has a successor, and its record may be on its way.

        Args:
            successor: who claims it next; None: anybody.
        """
        if self.phase is Phase.HANDING_OVER:
            await self._wait_phase(self._shared.handoff_wait_ms)
        served = self._served
        if served is None or self.phase is not Phase.SERVING:
            self.unload(successor)
            return
        self._become(Phase.HANDING_OVER)
        self.successor = successor
        served.stop_time()
        try:
            async with asyncio.timeout(self._shared.handoff_wait_ms / 1000):
                await served.until_idle()
                await served.store(self._handoff(), ends_log=True)
        except TimeoutError:
            # Not needed for safety: the successor's claim fences whatever is still on its way.
            log.warning("handoff_not_stored", shard=self.number, epoch=self.epoch)
        finally:
            self.unload(successor)

    def _handoff(self) -> records_pb2.Record:
        handoff = records_pb2.Handoff(
            node_id=self._shared.claimant.node_id,
            successor=self.successor.node_id if self.successor is not None else "",
        )
        return records_pb2.Record(written_at_ms=self._shared.now().wall_ms, handoff=handoff)

    async def store_marker(self, snapshot: records_pb2.Snapshot) -> metadata_pb2.LogEnd | None:
        """Stores a Snapshot record; gives its place and hash, or None if the shard is given up meanwhile."""
        if self._served is None or self.phase is not Phase.SERVING:
            return None
        record = records_pb2.Record(written_at_ms=self._shared.now().wall_ms, snapshot=snapshot)
        return await self._served.store(record)

    def unload(self, successor: common_pb2.Coordinator | None) -> None:
        """Gives the shard up: parked calls are answered NOT_COORDINATOR, all else is dropped."""
        if self.phase is Phase.GONE:
            return
        self.successor = successor
        self._become(Phase.GONE)
        self._drop(Unload(successor))
        self._listener.changed(self)

    def _core_failed(self, failure: Failure) -> None:
        """The core raised: its state is dropped, and loaded again (docs/safety.md, "Fail-stop")."""
        shared = self._shared
        verdict, fault = shared.faults.judge(self.number, failure, shared.now().boot_ms, self.load_ms)
        fields = log_failure(self.epoch, failure, fault, verdict)
        match verdict:
            case Consequence.RELOAD:
                self._reload()
            case Consequence.QUARANTINE:
                alarm("group_quarantined", **fields)
                self._reload()
            case Consequence.FAIL:
                self._fail(f"its core failed three times within a minute: {failure.error}", None)

    def _reload(self) -> None:
        """Drops the state without an event for the core; the shard is claimed and loaded again, here."""
        if self.phase is Phase.GONE:
            return
        # One that is being handed over is loaded by its successor.
        self.reloads = self.phase is not Phase.HANDING_OVER
        self._become(Phase.GONE)
        self._drop(None)
        self._listener.changed(self)

    def release(self, group_id: str) -> coordinator_pb2.ReleaseGroupResponse:
        """Takes a group out of quarantine; what was left out of it is loaded."""
        if not self._shared.faults.release(self.number, group_id):
            code = error_code.GROUP_ID_NOT_FOUND
            return coordinator_pb2.ReleaseGroupResponse(
                error_code=code, shard_epoch=self.epoch, error_message=_NOT_QUARANTINED
            )
        log.warning("group_released", shard=self.number, group_id=group_id)
        self._reload()
        return coordinator_pb2.ReleaseGroupResponse(error_code=error_code.NONE, shard_epoch=self.epoch)

    def _fail(self, reason: str, last_event: Event | None = _SUSPEND, *, log_missing: bool = False) -> None:
        alarm("shard_failed", shard=self.number, epoch=self.epoch, reason=reason)
        self.log_missing = log_missing
        if self._served is not None:
            self.known_end = Position.from_proto(self._served.kept.log.end.position)
        self._drop(last_event)
        self._become(Phase.FAILED)
        self._listener.changed(self)

    def _drop(self, last_event: Event | None) -> None:
        """Ends what is loaded; the core gets a last event, or none where it must not be asked any more."""
        served, self._served = self._served, None
        if served is None:
            return
        if last_event is None:
            served.drop(_RELOADING)
        elif failure := served.end(last_event):
            fault = self._shared.faults.note(self.number, failure)
            log_failure(self.epoch, failure, fault, Consequence.GIVEN_UP)

    def _become(self, phase: Phase) -> None:
        self.phase = phase
        self._phase_ended.set()
        self._phase_ended = asyncio.Event()


def _claimed(result: metadata_pb2.LogResult) -> int:
    """The epoch of a claim that was won."""
    if result.outcome != metadata_pb2.LOG_OUTCOME_OK:
        raise LogStopped(result.outcome, result.message, result.epoch)
    return result.epoch
