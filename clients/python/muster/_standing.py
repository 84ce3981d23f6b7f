"""Where a member stands: its seat, what it owns, until when, and what it has to do next."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from muster_protos.muster.v1 import common_pb2

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
    """

    seat: Seat
    code: int
    sent_ms: int
    cause: common_pb2.RebalanceCause | None = None
    message: str = ""
    repeat: bool = False
    hurry: bool = False


class Life:
    """A member's own deadline: a session time-out after its last acknowledged beat was *sent*.

    The server counts from when it received that beat, which is later: so the member always stops first.
    """

    def __init__(self, session_timeout_ms: int) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.ends_at_ms = 0

    def renew(self, sent_ms: int) -> None:
        """A beat that was sent then was acknowledged."""
        self.ends_at_ms = max(self.ends_at_ms, sent_ms + self.session_timeout_ms)

    def restart(self, sent_ms: int) -> None:
        """A new seat: what was acknowledged to the old one does not count."""
        self.ends_at_ms = sent_ms + self.session_timeout_ms

    def remaining_ms(self, now_ms: int) -> int:
        """Time left, 0 or more."""
        return max(0, self.ends_at_ms - now_ms)


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
        holding: the callbacks know that `owned` is ours: assigned, and not revoked or lost since.
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

    def hear(self, pulse: Pulse) -> None:
        """Takes in what a beat brought."""
        if pulse.seat != self.seat:
            return
        if pulse.sent_ms and pulse.code in (
            common_pb2.ERROR_CODE_NONE,
            common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS,
        ):
            self.life.renew(pulse.sent_ms)
        if pulse.cause is not None:
            self.cause = pulse.cause
        self.react(Call.HEARTBEAT, pulse.code, pulse.seat, pulse.message)
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
