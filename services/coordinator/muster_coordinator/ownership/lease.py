"""The lease of this process: when to renew it, and until when it is good."""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog
from muster_core.features import FEATURE_NAMES, NO_FEATURES, known_of
from muster_core.position import NOWHERE, Position
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import discovery_pb2
from muster_runtime.addresses import Address
from muster_runtime.logs import alarm

from muster_coordinator.ownership.lease_line import LeaseLine, LeaseStream, Wait

log = structlog.get_logger()

_PING_POLL_MS = 20


@dataclass(frozen=True, slots=True)
class LeasePace:
    """Times of the lease, all in ms.

    Attributes:
        lease_ms: an observer waits so long from the last change of the counter that it saw.
        margin_ms: the holder stops so much earlier.
        interval_ms: between two renewals.
        limit_ms: a renewal that is not answered by then failed; the first one of a stream gets twice that, as
            the instance asks the log's nodes who holds the lease before it renews it.
        retry_ms: pause after a failed one when all instances have failed.
        gap_ms: between two renewals that are sent early because something is to be announced.
    """

    lease_ms: int = 2_000
    margin_ms: int = 400
    interval_ms: int = 400
    limit_ms: int = 300
    retry_ms: int = 100
    gap_ms: int = 50


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the lease.

    Attributes:
        node_id: name of the process.
        session: identity of this run of it, a UUID.
        address: where clients connect to.
        version: of its software.
        features: names of those that it knows.
        internal: where it answers internal calls; None: at `address`.
    """

    node_id: str
    session: str
    address: Address
    version: str
    features: tuple[str, ...] = FEATURE_NAMES
    internal: Address | None = None


@dataclass(frozen=True, slots=True)
class LeaseCallbacks:
    """What is called on the event loop, in order.

    Attributes:
        suspended: the deadline passed.
        resumed: the lease is held, for the first time or again.
        superseded: another process of this name took it; this process must stop.
    """

    suspended: Callable[[], None]
    resumed: Callable[[], None]
    superseded: Callable[[], None]


class LeaseKeeper:
    """Renews the lease and knows until when this process may answer.

    The deadline counts from when the last good renewal was *sent*, less the margin. A renewal is sent only if
    the loop answered a ping since the last one: a loop that hangs loses its lease, a loop that is merely busy
    does not (reliability 2.2, rule 5).

    Args:
        targets: addresses of the metadata instances.
        line: what it runs on and sends through, apart from the loop.
        holder: who renews.
        pace: its times.
        callbacks: called on the event loop.
        boot_ms: the boot clock.

    Attributes:
        lapses: how often the lease ran out before it was renewed.
        failed_renewals: renewals that were not confirmed in time.
        features: what the cluster has enabled, as a renewal said; complete while the lease is held.
    """

    def __init__(
        self,
        targets: Sequence[str],
        line: LeaseLine,
        holder: Holder,
        pace: LeasePace,
        callbacks: LeaseCallbacks,
        boot_ms: Callable[[], int],
    ) -> None:
        self.lapses = 0
        self.failed_renewals = 0
        self.features = NO_FEATURES
        self._targets = tuple(targets)
        self._line = line
        self._holder = holder
        self._pace = pace
        self._callbacks = callbacks
        self._boot_ms = boot_ms
        self._loop: AbstractEventLoop | None = None
        self._stream: LeaseStream | None = None
        self._current = 0
        self._number = 0
        self._run = 0
        self._sent_ms = 0
        self._answers: dict[int, metadata_pb2.LeaseResponse] = {}
        # Written on the line, read by the loop.
        self._deadline_ms = 0
        self._lapsed = True
        self._failing = False
        self._resuming = False
        # Written by the loop, read on the line.
        self._state = discovery_pb2.COORDINATOR_STATE_LIVE
        self._serving: tuple[tuple[int, int], ...] = ()
        self._catalog_place = NOWHERE
        self._kicked = False
        self._stopping = False
        self._releasing = False
        self._ponged = True

    def start(self, loop: AbstractEventLoop) -> None:
        """Begins to renew.

        Args:
            loop: without which the lease is not renewed, and where the callbacks run.
        """
        self._loop = loop
        self._line.start(self._renewals())

    def may_answer(self, now_ms: int) -> bool:
        """Whether this process may answer clients at the given boot time. Checked when an answer is built."""
        return not self._lapsed and now_ms < self._deadline_ms

    def margin_ms(self, now_ms: int) -> int:
        """How long this process may answer from a boot time on without another renewal; 0: it may not."""
        return 0 if self._lapsed else max(self._deadline_ms - now_ms, 0)

    def set_lease_ms(self, lease_ms: int) -> None:
        """Takes over the lease time that metadata says its observers use; 0: it has not said it yet.

        One that ends before the next renewal is taken over as well, and logged: a process that believes in a
        longer one would answer when it is dead for the others.
        """
        pace = self._pace
        if lease_ms in (0, pace.lease_ms):
            return
        self._pace = replace(pace, lease_ms=lease_ms)
        if lease_ms <= pace.margin_ms + pace.interval_ms:
            alarm(
                "lease_too_short",
                lease_ms=lease_ms,
                margin_ms=pace.margin_ms,
                interval_ms=pace.interval_ms,
                remedy="MUSTER_METADATA_LEASE_MS must be more than MUSTER_COORDINATOR_LEASE_MARGIN_MS and "
                "MUSTER_COORDINATOR_LEASE_INTERVAL_MS together",
            )

    def announce(self, serving: Sequence[tuple[int, int]], *, draining: bool) -> None:
        """Says with the next renewal, which comes at once, what this process serves and that it drains.

        Args:
            serving: shards and the epochs of their claims.
            draining: it hands its shards over and stops.
        """
        state = discovery_pb2.COORDINATOR_STATE_DRAINING if draining else discovery_pb2.COORDINATOR_STATE_LIVE
        with self._line.lock:
            self._serving = tuple(serving)
            self._state = state
            self._kicked = True
        self._line.wake()

    def carried_out(self, catalog_place: Position) -> None:
        """Says with the next renewal, which comes at once, how far this process has carried the catalog out.

        Args:
            catalog_place: place in the catalog's log.
        """
        with self._line.lock:
            self._catalog_place = max(self._catalog_place, catalog_place)
            self._kicked = True
        self._line.wake()

    async def stop(self, *, release: bool) -> None:
        """Stops renewing; returns when that has ended, after the limit of a renewal at most.

        Args:
            release: give the lease up, so that nobody has to wait for its end.
        """
        with self._line.lock:
            self._releasing = release and not self._lapsed
            self._stopping = True
        self._line.wake()
        await self._line.ended()
        self._lapsed = True

    # --- on the line

    def _renewals(self) -> Generator[Wait, None, None]:
        """Renews until it is stopped; what it yields is how long to wait before it goes on."""
        next_ms = self._boot_ms()
        failures = 0
        try:
            while not self._stopping:
                now_ms = self._boot_ms()
                self._check_deadline(now_ms)
                pause_ms = self._pause_ms(now_ms, next_ms)
                if pause_ms > 0:
                    yield Wait(pause_ms, partial(self._is_due_before, now_ms + pause_ms, next_ms))
                    continue
                if (yield from self._renew(now_ms)):
                    failures = 0
                    next_ms = now_ms + self._pace.interval_ms
                else:
                    failures += 1
                    all_failed = failures % len(self._targets) == 0
                    next_ms = self._boot_ms() + (self._pace.retry_ms if all_failed else 0)
            if self._releasing:
                yield from self._renew(self._boot_ms(), release=True)
        except Exception as error:
            if self._loop is not None and self._loop.is_closed():
                # Not stopped, but the loop that the lease is held for is gone.
                log.warning("lease_thread_ended", reason=str(error))
                return
            # Without its lease the process is of no use, and nobody would notice: let it end.
            log.exception("lease_thread_failed")
            self._lapsed = True
            self._on_loop(self._callbacks.suspended)
            self._on_loop(self._callbacks.superseded)
        finally:
            self._drop_stream()

    def _pause_ms(self, now_ms: int, next_ms: int) -> int:
        """Time until there is something to do; 0: renew now."""
        due_ms = min(next_ms, self._sent_ms + self._pace.gap_ms) if self._kicked else next_ms
        if not self._ponged:
            # The loop has to answer the last ping first, which wakes this thread.
            due_ms = max(due_ms, now_ms + _PING_POLL_MS)
        if not self._lapsed and due_ms > now_ms:
            due_ms = min(due_ms, max(self._deadline_ms, now_ms + 1))
        return max(0, due_ms - now_ms)

    def _is_due_before(self, due_ms: int, next_ms: int) -> bool:
        now_ms = self._boot_ms()
        return self._stopping or now_ms + self._pause_ms(now_ms, next_ms) < due_ms

    def _check_deadline(self, now_ms: int) -> None:
        if not self._lapsed and now_ms >= self._deadline_ms:
            self._lapsed = True
            self.lapses += 1
            log.warning("lease_lapsed", late_ms=now_ms - self._deadline_ms)
            self._on_loop(self._callbacks.suspended)

    def _on_loop(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(callback)

    def _renew(self, sent_ms: int, *, release: bool = False) -> Generator[Wait, None, bool]:
        with self._line.lock:
            self._kicked = False
            self._number += 1
            self._sent_ms = sent_ms
            number, serving, state = self._number, self._serving, self._state
            catalog_place = self._catalog_place
        lease_ms = self._pace.lease_ms
        request = metadata_pb2.LeaseRequest(
            node_id=self._holder.node_id,
            session=self._holder.session,
            host=self._holder.address.host,
            port=self._holder.address.port,
            version=self._holder.version,
            state=state,
            number=number,
            serving=[metadata_pb2.ServedShard(shard=shard, epoch=epoch) for shard, epoch in serving],
            release=release,
            features=self._holder.features,
            lease_ms=lease_ms,
            catalog_offset=catalog_place.offset,
            catalog_epoch=catalog_place.epoch,
            run=self._run,
        )
        if (internal := self._holder.internal) is not None:
            request.internal_host, request.internal_port = internal.host, internal.port
        if not release:
            self._ping()
        limit_ms = self._pace.limit_ms
        if self._stream is None:
            limit_ms *= 2
            self._stream = self._line.open(self._targets[self._current], self._heard)
        stream = self._stream
        stream.send(request)
        yield Wait(
            limit_ms,
            lambda: number in self._answers or stream.problem != "" or (self._stopping and not release),
        )
        with self._line.lock:
            answer = self._answers.get(number)
            self._answers.clear()
        if answer is not None and answer.superseded:
            log.error(
                "lease_superseded",
                node_id=self._holder.node_id, instance=stream.target, reason=answer.message,
                meaning="no two processes may have one name (MUSTER_COORDINATOR_NODE_ID): this one ends",
            )  # fmt: skip
            self._lapsed = True
            self._stopping = True
            self._on_loop(self._callbacks.suspended)
            self._on_loop(self._callbacks.superseded)
            return False
        if answer is None or not answer.renewed:
            if not self._stopping:
                self.failed_renewals += 1
                problem = stream.problem or (answer.message if answer is not None else "no answer in time")
                if not self._failing:
                    log.warning("lease_not_renewed", instance=stream.target, reason=problem)
                self._failing = True
            self._drop_stream()
            self._current = (self._current + 1) % len(self._targets)
            return False
        if self._failing:
            self._failing = False
            log.info("lease_renewed_again", instance=stream.target)
        self.features |= known_of(answer.features)
        self._run = answer.run or self._run
        if not release:
            self._renewed(sent_ms + lease_ms - self._pace.margin_ms)
        return True

    def _renewed(self, deadline_ms: int) -> None:
        now_ms = self._boot_ms()
        self._check_deadline(now_ms)
        self._deadline_ms = deadline_ms
        if self._lapsed and not self._resuming and now_ms < deadline_ms:
            self._resuming = True
            self._on_loop(self._resume)

    def _ping(self) -> None:
        self._ponged = False
        self._on_loop(self._pong)

    def _drop_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _heard(self, answer: metadata_pb2.LeaseResponse | None) -> None:
        """Called by the stream, wherever it reads; None: it broke."""
        if answer is not None:
            with self._line.lock:
                self._answers[answer.number] = answer
        self._line.wake()

    # --- on the loop

    def _pong(self) -> None:
        self._ponged = True
        self._line.wake()

    def _resume(self) -> None:
        self._resuming = False
        if self._stopping:
            return
        self._lapsed = False
        self._callbacks.resumed()
