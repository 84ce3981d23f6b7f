"""Where a member stands: its seat, what it owns, until when, and what it has to do next."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from muster_protos.muster.v1 import common_pb2

from muster._clock import boot_ms
from muster._reactions import Call, Reaction, reaction_to
from muster._values import TopicPartition


class MemberState(Enum):
    """State of a member."""

    UNJOINED = "unjoined"
    """Not in the group."""
    REBALANCING = "rebalancing"
    """Entering the group or its next generation; it owns nothing, or is giving it up."""
    STABLE = "stable"
    """It has its assignment."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A place in the group. Answers to calls made from another seat are dropped (KAFKA-9823).

    Attributes:
        member_id: empty until the coordinator gave one.
        generation: -1 until a join was answered.
    """

    member_id: str = ""
    generation: int = -1


@dataclass(frozen=True, slots=True)
class Pulse:
    """What was heard about a membership: the answer to a beat, or news that the server pushed.

    Attributes:
        seat: the membership.
        code: NONE, or what has to be done about it, as error codes say it.
        sent_ms: boot time at which the beat that this answers was sent; 0: it answers none.
        cause: why the group rebalances, where the server said so.
        message: explanation for people.
        repeat: the beat did not count and is to be repeated.
        hurry: it may be repeated at once.
        on_stream: the membership hangs on a session stream; False: on calls of its own.
        unsure: the coordinator is not sure of its lease; nobody has the partitions while the session lasts.
    """

    seat: Seat
    code: int
    sent_ms: int
    cause: common_pb2.RebalanceCause | None = None
    message: str = ""
    repeat: bool = False
    hurry: bool = False
    on_stream: bool = False
    unsure: bool = False


_RATES = 1_000
"""The clocks of two machines differ by less than one part in so many."""


class Life:
    """A member's own deadline, counted from when its last acknowledged beat was *sent*.

    It is a session time-out away; on a stream it is the disconnect grace, where that is set and shorter. The
    server counts the session from when it received that beat and the grace from when the stream broke, and
    both are later: so the member always stops first. Where its coordinator said that it is not sure of its
    lease, the session counts until a beat is acknowledged again.

    A join phase goes on without the member when it has lasted for a rebalance time-out, whether the member
    has heard of it or not. So a life ends that long after the last beat, or SyncGroup, was sent that was
    answered before any join phase had begun. Only a member with a grace that heard `unsure` is waited for.

    Clocks run at rates that differ: a thousandth is taken off, for a machine whose clock is the slower one.

    Args:
        session_timeout_ms: how long the member may be silent.
        disconnect_grace_ms: the same after its stream broke; 0: its session.
        rebalance_timeout_ms: how long a join phase waits for it; 0: its session.

    Attributes:
        on_stream: whether the grace counts. At first it does: a server may know of a stream before the
            member knows that it does.
        rebalancing: the member has heard of a join phase.
    """

    def __init__(
        self, session_timeout_ms: int, disconnect_grace_ms: int = 0, rebalance_timeout_ms: int = 0
    ) -> None:
        rebalance_ms = rebalance_timeout_ms or session_timeout_ms
        grace_ms = disconnect_grace_ms or session_timeout_ms
        self.on_stream = True
        self.rebalancing = False
        self._rebalance_ms = _on_any_clock(rebalance_ms)
        self._session_ms = _on_any_clock(min(session_timeout_ms, rebalance_ms))
        self._on_stream_ms = _on_any_clock(min(session_timeout_ms, rebalance_ms, grace_ms))
        self._is_waited_for = disconnect_grace_ms > 0
        self._extended_ms = _on_any_clock(session_timeout_ms) if self._is_waited_for else self._session_ms
        self._acknowledged_ms: int | None = None
        self._settled_ms: int | None = None
        self._extended = False

    @property
    def span_ms(self) -> int:
        """How long a beat counts."""
        if self._extended:
            return self._extended_ms
        return self._on_stream_ms if self.on_stream else self._session_ms

    @property
    def ends_at_ms(self) -> int:
        """Boot time at which the member must have stopped; 0: it was never acknowledged."""
        if self._acknowledged_ms is None:
            return 0
        ends_ms = self._acknowledged_ms + self.span_ms
        if not self.rebalancing or (self._extended and self._is_waited_for):
            return ends_ms
        return 0 if self._settled_ms is None else min(ends_ms, self._settled_ms + self._rebalance_ms)

    def renew(self, sent_ms: int) -> None:
        """A beat that was sent then was acknowledged."""
        self._extended = False
        self._acknowledged_ms = max(self._acknowledged_ms or sent_ms, sent_ms)
        if not self.rebalancing:
            self.settle(sent_ms)

    def settle(self, sent_ms: int) -> None:
        """What was sent then was answered while no join phase ran."""
        self._settled_ms = max(self._settled_ms or sent_ms, sent_ms)

    def restart(self) -> None:
        """A new seat: it lives from its own first acknowledged beat on. Nothing else counts.

        Not the answer to JoinGroup, which may have been on its way for long, nor that to SyncGroup: the
        server does not prolong the session for it (conformance SG-18).
        """
        self._extended = self.rebalancing = False
        self._acknowledged_ms = self._settled_ms = None

    def extend(self, now_ms: int) -> None:
        """The coordinator is not sure: the session counts, unless the life is over."""
        if self.remaining_ms(now_ms):
            self._extended = True

    def remaining_ms(self, now_ms: int) -> int:
        """Time left, 0 or more."""
        return max(0, self.ends_at_ms - now_ms)


def _on_any_clock(time_ms: int) -> int:
    """What of a time has passed on any machine before all of it has passed on another one."""
    return time_ms - time_ms // _RATES


_SEVERITY = (Reaction.REJOIN, Reaction.REJOIN_KEEP_ID, Reaction.REJOIN_RESET_ID, Reaction.FATAL)


@dataclass(frozen=True, slots=True)
class Order:
    """What the member has to do with its membership.

    Attributes:
        reaction: REJOIN, REJOIN_KEEP_ID, REJOIN_RESET_ID or FATAL.
        code: the error code that asked for it; 0: the member itself.
        why: words, also sent as the reason of the next join.
    """

    reaction: Reaction
    code: int
    why: str

    @property
    def loses(self) -> bool:
        """Whether the partitions are gone already."""
        return self.reaction is not Reaction.REJOIN


@dataclass(slots=True)
class Standing:
    """Shared by the parts of a member; all of them run in one event loop.

    Attributes:
        life: the member's own deadline.
        seat: its place in the group.
        state: see `MemberState`.
        owned: partitions and their tokens, as the coordinator gave them.
        holding: the callbacks know that `owned` is ours: assigned, and not revoked or lost since. Whether it
            still is, `alive` says too: a member that was asleep may not have been told yet.
        joining: a JoinGroup is under way; its answer decides, not what else is heard.
        order: what has to be done next, None: nothing.
        cause: why the last rebalance took place, where the server said so.
        closing: why the owner wants it closed, None: it does not.
        news: set whenever something of the above changed.
    """

    life: Life
    seat: Seat = field(default_factory=Seat)
    state: MemberState = MemberState.UNJOINED
    owned: dict[TopicPartition, str] = field(default_factory=dict)
    holding: bool = False
    joining: bool = False
    order: Order | None = None
    cause: common_pb2.RebalanceCause | None = None
    closing: str | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def alive(self) -> bool:
        """Whether the member's life lasts, at this moment."""
        return self.life.remaining_ms(boot_ms()) > 0

    @property
    def holds(self) -> bool:
        """Whether what is `owned` is the member's, at this moment."""
        return self.holding and self.alive

    def owns(self, partition: TopicPartition, token: str) -> bool:
        """Whether the partition is owned under that token, at this moment."""
        return self.owned.get(partition) == token and self.holds

    def hear(self, pulse: Pulse) -> None:
        """Takes in what a beat brought.

        An acknowledged beat of a member that holds its partitions is no news: whoever waits for the end of
        the life looks again when that would have come. So a thousand beats wake nobody, but for the one that
        makes the end come earlier: the first after `unsure`.
        """
        if pulse.seat != self.seat:
            return
        ended_ms = self.life.ends_at_ms
        counts = pulse.code in (common_pb2.ERROR_CODE_NONE, common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS)
        if (counts or pulse.on_stream) and self.life.on_stream is not pulse.on_stream:
            self.life.on_stream = pulse.on_stream
            self.news.set()
        if pulse.code == common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS:
            self.life.rebalancing = True
        if pulse.unsure:
            self.life.extend(boot_ms())
        if counts and pulse.sent_ms:
            self.life.renew(pulse.sent_ms)
        if pulse.cause is not None:
            self.cause = pulse.cause
        if pulse.code or not self.holding:
            self.react(Call.HEARTBEAT, pulse.code, pulse.seat, pulse.message)
            self.news.set()
        elif self.life.ends_at_ms < ended_ms:
            self.news.set()

    def react(self, call: Call, code: int, seat: Seat, why: str) -> Reaction:
        """Notes what an outcome asks for and gives the reaction.

        Nothing is noted for another seat than the present one, or while a join is under way.
        """
        reaction = reaction_to(call, code)
        if reaction in _SEVERITY and seat == self.seat and not self.joining:
            self.demand(Order(reaction, code, why))
        return reaction

    def demand(self, order: Order) -> None:
        """Notes an order unless a more severe one is there already."""
        if self.order is None or _SEVERITY.index(order.reaction) > _SEVERITY.index(self.order.reaction):
            self.order = order
            self.news.set()

    def take_order(self) -> Order | None:
        """The order, which is then no longer noted."""
        order, self.order = self.order, None
        return order

    def leave_seat(self, order: Order) -> None:
        """Changes the seat as the order says."""
        self.owned = {}
        self.holding = False
        if order.reaction is Reaction.REJOIN_RESET_ID:
            self.seat = Seat()
        elif order.reaction is Reaction.REJOIN_KEEP_ID:
            self.seat = Seat(self.seat.member_id)
