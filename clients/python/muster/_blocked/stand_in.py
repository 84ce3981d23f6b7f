"""Keeps memberships alive by Heartbeat calls from a thread while their event loop is blocked."""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import grpc
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, coordinator_pb2_grpc, incremental_pb2

from muster._blocked.watch import LOOK_MS, begin_watching, end_watching, stack_of
from muster._clock import boot_ms, current
from muster._reactions import Call, Reaction, reaction_to
from muster._session.channels import ChannelPool
from muster._session.transport import Vitals
from muster._standing.life import Life

log = logging.getLogger("muster")

LOOKS_PER_BEAT = 4
LOOK_MIN_MS = 20
CALL_TIMEOUT_MS = 1_000
"""How long a call may take, or two intervals if longer, before the next one is made."""

_LIVES_ON = (common_pb2.ERROR_CODE_NONE, common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS)
_OF_OTHER_KIND = (common_pb2.ERROR_CODE_GROUP_CONVERTED, common_pb2.ERROR_CODE_GROUP_CLASSIC)
_ASKED_AGAIN = (Reaction.DONE, Reaction.REJOIN, Reaction.RETRY, Reaction.REDISCOVER)


class Whereabouts(Protocol):
    """What a thread reads of the way to a coordinator (`muster._cluster.link.GroupLink`)."""

    @property
    def address(self) -> str | None:
        """Address of the coordinator; None if unknown."""

    @property
    def shard_epoch(self) -> int:
        """Highest shard epoch that was seen."""


class Ward:
    """A membership that is kept alive while its loop is blocked.

    Only its Heartbeats are made: it acknowledges nothing and gives nothing up, so a rebalance waits for it as
    for any member that is slow. A life that is over is not brought back.

    Args:
        vitals: the membership.
        route: knows the coordinator.
        life: what an acknowledged Heartbeat counts for.
        limit_ms: how long a block may last; then the calls end.
    """

    def __init__(self, vitals: Vitals, route: Whereabouts, life: Life, limit_ms: int) -> None:
        self.vitals = vitals
        self.limit_ms = limit_ms
        self._route = route
        self._life = life
        self._spare = life.spare
        self._next_ms = 0
        self._refused = False
        self._gave_up = False

    @property
    def address(self) -> str | None:
        """Address of its coordinator; None if unknown."""
        return self._route.address

    @property
    def request(self) -> coordinator_pb2.HeartbeatRequest:
        """The Heartbeat."""
        return coordinator_pb2.HeartbeatRequest(**self.vitals.fields)

    def make_call(self, stub: Any, metadata: Any) -> Any:
        """Makes the call; returns its future."""
        return stub.Heartbeat.future(self.request, timeout=self.timeout_ms / 1_000, metadata=metadata)

    @property
    def lives(self) -> bool:
        """Whether its life has not ended, and it has the seat still."""
        return self._life.spare is self._spare and self._life.remaining_ms(boot_ms()) > 0

    @property
    def remaining_ms(self) -> int:
        """What is left of its life."""
        return self._life.remaining_ms(boot_ms())

    @property
    def timeout_ms(self) -> int:
        """How long a call may take."""
        return max(CALL_TIMEOUT_MS, 2 * self.vitals.beat_interval_ms)

    def is_due(self, blocked_ms: float) -> bool:
        """Whether a call is to be made now."""
        late = blocked_ms >= self.vitals.beat_interval_ms and boot_ms() >= self._next_ms
        return late and not self._refused and not self._gave_up and self.lives

    def gives_up(self, blocked_ms: float) -> bool:
        """Whether the block has just become too long; no call is made any more while it lasts."""
        if blocked_ms < self.limit_ms or self._gave_up or not self.lives:
            return False
        self._gave_up = True
        self._spare.gave_up_ms = boot_ms()
        return True

    def called(self, sent_ms: int) -> None:
        """A call was made at `sent_ms`: the next one comes after its answer, or its time."""
        self._next_ms = sent_ms + self.timeout_ms

    def answered(
        self,
        sent_ms: int,
        response: coordinator_pb2.HeartbeatResponse | incremental_pb2.ConsumerGroupHeartbeatResponse | None,
    ) -> None:
        """Counts the answer to the call made at `sent_ms`; None: there is none."""
        self._next_ms = sent_ms + self.vitals.beat_interval_ms
        if response is None or 0 < response.shard_epoch < self._route.shard_epoch:
            return
        code = int(response.error_code)
        if code in _LIVES_ON and self.lives:
            self._spare.hear(sent_ms, rebalancing=code == common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS)
        if code in _OF_OTHER_KIND and self.lives:
            self._spare.changed = True
        # What else there is to be said the loop hears on its stream when it is back.
        self._refused = reaction_to(Call.HEARTBEAT, code) not in _ASKED_AGAIN

    def is_back(self) -> None:
        """The loop beats by itself again."""
        self._gave_up = False


class IncrementalWard(Ward):
    """A member of an incremental group that is kept alive while its loop is blocked.

    The answers to its Heartbeats are not read: the loop asks again when it is back.

    Args:
        vitals: the membership.
        route: knows the coordinator.
        life: what an acknowledged Heartbeat counts for.
        limit_ms: how long a block may last; then the calls end.
        request: the Heartbeat, without a list; called in a thread.
        back: called in a thread when the loop is back.
    """

    def __init__(
        self,
        vitals: Vitals,
        route: Whereabouts,
        life: Life,
        limit_ms: int,
        *,
        request: Callable[[], incremental_pb2.ConsumerGroupHeartbeatRequest],
        back: Callable[[], None],
    ) -> None:
        super().__init__(vitals, route, life, limit_ms)
        self._request = request
        self._back = back

    def make_call(self, stub: Any, metadata: Any) -> Any:
        """See `Ward`."""
        return stub.ConsumerGroupHeartbeat.future(
            self._request(), timeout=self.timeout_ms / 1_000, metadata=metadata
        )

    def is_back(self) -> None:
        """See `Ward`."""
        super().is_back()
        self._back()


class StandIn:
    """Keeps the memberships of one event loop alive while that is blocked.

    Args:
        channels: opens connections.
    """

    def __init__(self, channels: ChannelPool) -> None:
        self.look_ms: int = LOOK_MS
        self._pool = channels
        self._lock = threading.Lock()
        self._wards: tuple[Ward, ...] = ()
        self._open: dict[str, grpc.Channel] = {}

    def add(self, ward: Ward) -> None:
        """Stands in for a member from now on."""
        if ward.limit_ms == 0 or current().virtual:
            return  # virtual time stands still while the loop is blocked
        self._change((*self._wards, ward))
        if len(self._wards) == 1:
            begin_watching(self)

    def remove(self, ward: Ward) -> None:
        """Leaves a member to itself."""
        if ward not in self._wards:
            return
        self._change(tuple(other for other in self._wards if other is not ward))
        if not self._wards:
            end_watching(self)
            self._close()

    def _change(self, wards: tuple[Ward, ...]) -> None:
        self._wards = wards
        beat_ms = min((ward.vitals.beat_interval_ms for ward in wards), default=LOOK_MS * LOOKS_PER_BEAT)
        self.look_ms = max(LOOK_MIN_MS, min(LOOK_MS, beat_ms // LOOKS_PER_BEAT))

    # In the thread

    def blocked(self, blocked_ms: float, loop_thread: int) -> None:
        """See `BlockObserver`."""
        for ward in self._wards:
            if ward.gives_up(blocked_ms):
                log.warning(
                    "group %r: the event loop has been blocked for longer than %d ms (loop_block_limit_ms): "
                    "no beats are sent any more, and in %d ms it loses its partitions; it stands at\n%s",
                    ward.vitals.caller.group_id,
                    ward.limit_ms,
                    ward.remaining_ms,
                    stack_of(loop_thread),
                )
            elif ward.is_due(blocked_ms):
                self._call(ward)

    def over(self, blocked_ms: float) -> None:
        """See `BlockObserver`."""
        for ward in self._wards:
            ward.is_back()
        self._close()

    def _call(self, ward: Ward) -> None:
        with self._lock:  # or its channel would be closed meanwhile
            channel = self._channel(ward.address) if ward in self._wards else None
            if channel is None:
                return
            sent_ms = boot_ms()
            ward.called(sent_ms)
            stub = coordinator_pb2_grpc.GroupCoordinatorServiceStub(channel)
            call = ward.make_call(stub, self._pool.proof())
        call.add_done_callback(partial(_take, ward, sent_ms))

    def _channel(self, address: str | None) -> grpc.Channel | None:
        if address is not None and address not in self._open:
            channel = self._pool.open_blocking(address)
            if channel is not None:
                self._open[address] = channel
        return self._open.get(address or "")

    def _close(self) -> None:
        with self._lock:
            channels, self._open = self._open, {}
        for channel in channels.values():
            channel.close()


def _take(ward: Ward, sent_ms: int, call: Any) -> None:
    ward.answered(sent_ms, None if call.code() is not grpc.StatusCode.OK else call.result())
