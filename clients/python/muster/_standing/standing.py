"""The state that the parts of a member share: its seat, what it owns, its deadline, its next step."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from muster_protos.muster.v1 import common_pb2

from muster._clock import boot_ms
from muster._metrics.member import MemberMetrics
from muster._reactions import Call, Reaction, reaction_to
from muster._standing.life import Life
from muster._standing.seat import Caller, MemberFields, Pulse, Seat
from muster._values import TopicPartition


class MemberState(Enum):
    """How far a member has come with its group."""

    UNJOINED = "unjoined"
    """Not in the group."""
    REBALANCING = "rebalancing"
    """Entering the group or its next generation; it owns nothing, or is giving it up."""
    STABLE = "stable"
    """It has its assignment."""


_SEVERITY = (
    Reaction.REJOIN,
    Reaction.CONVERT,
    Reaction.REVERT,
    Reaction.REJOIN_KEEP_ID,
    Reaction.REJOIN_RESET_ID,
    Reaction.FATAL,
)


_KEEPS = (Reaction.REJOIN, Reaction.CONVERT, Reaction.REVERT)


@dataclass(frozen=True, slots=True)
class Order:
    """What the member has to do about its membership.

    Attributes:
        reaction: REJOIN, CONVERT, REVERT, REJOIN_KEEP_ID, REJOIN_RESET_ID or FATAL.
        code: the error code that asked for it; 0: the member asked itself.
        why: for people; also sent as the reason of the next join.
    """

    reaction: Reaction
    code: int
    why: str

    @property
    def loses(self) -> bool:
        """Whether the partitions are gone already."""
        return self.reaction not in _KEEPS


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


_LIVES_ON = (common_pb2.ERROR_CODE_NONE, common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS)


_GONE = (common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID, common_pb2.ERROR_CODE_FENCED_INSTANCE_ID)


class News:
    """A flag that can be waited for by a future; `asyncio.Event` would need a task for that."""

    def __init__(self) -> None:
        self._is_set = False
        self._arrival: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        """Whether there are news."""
        return self._is_set

    def set(self) -> None:
        """There are news."""
        self._is_set = True
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        self._arrival = None

    def clear(self) -> None:
        """What there was is known; the next news have not come yet."""
        self._is_set = False

    def arrival(self) -> "asyncio.Future[None]":
        """Done when there are news. Several may wait for it, so that nobody may cancel it."""
        arrival = self._arrival or asyncio.get_running_loop().create_future()
        if self._is_set:
            arrival.set_result(None)
        else:
            self._arrival = arrival
        return arrival


@dataclass(slots=True)
class Standing:
    """The state that the parts of a member share; all of them run in one event loop.

    Attributes:
        caller: who the member is.
        life: its own deadline.
        seat: its current member id and generation.
        state: see `MemberState`.
        owned: partitions and their tokens, as the coordinator assigned them.
        holding: `on_partitions_assigned` was called for `owned`, and neither `revoked` nor `lost` since. A
            member that was asleep may hold partitions and not be `alive`; one that joins may keep some.
        joining: a JoinGroup is under way; its answer decides, and other news is ignored.
        order: what has to be done next; None: nothing.
        cause: why the last rebalance took place, if the server said so.
        closing: why the member is to be closed; None: it is not.
        seated: set unless the member is in a generation whose assignment it does not have yet: then no commit
            is taken.
        news: set whenever one of the above changed.
        metrics: of the member; None: nobody counts.
        behind: set when a member of an incremental group has to ask, at once, to which epoch it was brought.
    """

    caller: Caller
    life: Life
    seat: Seat = field(default_factory=Seat)
    state: MemberState = MemberState.UNJOINED
    owned: dict[TopicPartition, str] = field(default_factory=dict)
    holding: bool = False
    joining: bool = False
    order: Order | None = None
    cause: common_pb2.RebalanceCause | None = None
    closing: str | None = None
    seated: asyncio.Event = field(default_factory=_set_event)
    news: News = field(default_factory=News)
    metrics: MemberMetrics | None = None
    behind: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def alive(self) -> bool:
        """Whether the member's life has not ended."""
        return self.life.remaining_ms(boot_ms()) > 0

    @property
    def fields(self) -> MemberFields:
        """What a call from the current seat carries."""
        return self.caller.fields_at(self.seat)

    @property
    def holds(self) -> bool:
        """Whether the member has what is `owned`, at this moment."""
        return self.holding and self.alive

    def owns(self, partition: TopicPartition, token: str) -> bool:
        """Whether the partition is owned under that token, at this moment."""
        return self.owned.get(partition) == token and self.holds

    def hear(self, pulse: Pulse) -> None:
        """Updates the state with the news of a beat.

        An acknowledged beat of a member that holds its partitions does not set `news`: whoever waits for the
        end of the life checks again when it would have come. Only a beat that makes the end come earlier
        does, which is the first one after `unsure`.
        """
        if pulse.seat != self.seat:
            return
        if self.metrics is not None and pulse.on_stream:
            served = reaction_to(Call.HEARTBEAT, pulse.code) not in (Reaction.RETRY, Reaction.REDISCOVER)
            self.metrics.contact(reached=served and not pulse.unsure)
        ended_ms = self.life.ends_at_ms
        over = self.holding and not self.alive
        counts = not over and pulse.code in _LIVES_ON
        if (counts or pulse.on_stream) and self.life.on_stream is not pulse.on_stream:
            self.life.on_stream = pulse.on_stream
            self.news.set()
        if pulse.code == common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS:
            self.life.rebalancing = True
        if pulse.unsure:
            self.life.extend(boot_ms())
        if counts and pulse.sent_ms:
            self.life.renew(pulse.sent_ms)
        if self.joining and pulse.code in _GONE:
            self.life.end()  # what it keeps while it joins; the rest is for the answer to its join
        if pulse.cause is not None:
            self.cause = pulse.cause
        if pulse.code or not self.holding:
            self.react(Call.HEARTBEAT, pulse.code, pulse.seat, pulse.message)
            self.news.set()
        elif over or self.life.ends_at_ms < ended_ms:
            self.news.set()

    def react(self, call: Call, code: int, seat: Seat, why: str) -> Reaction:
        """Stores the order that an outcome of a call asks for, and returns the reaction.

        Nothing is stored for a seat other than the current one, or while a join is under way.
        """
        reaction = reaction_to(call, code)
        if code == common_pb2.ERROR_CODE_STALE_MEMBER_EPOCH:
            self.behind.set()
        if reaction is Reaction.CONVERT and seat == self.seat and self.alive:
            self.life.last_until(self.life.changed_end_ms)
        if reaction in _SEVERITY and seat == self.seat and not self.joining:
            self.demand(Order(reaction, code, why))
        return reaction

    def demand(self, order: Order) -> None:
        """Stores an order, unless one that is at least as severe is stored."""
        if self.order is None or _SEVERITY.index(order.reaction) > _SEVERITY.index(self.order.reaction):
            self.order = order
            self.news.set()

    def take_order(self) -> Order | None:
        """Returns the stored order, if any, and clears it."""
        order, self.order = self.order, None
        return order

    def leave_seat(self, order: Order) -> None:
        """Changes the seat as the order says; nothing is owned any more but what the member still holds."""
        if not self.holding:
            self.owned = {}
        if order.reaction is Reaction.REJOIN_RESET_ID:
            self.seat = Seat()
        elif order.reaction is Reaction.REJOIN_KEEP_ID:
            self.seat = Seat(self.seat.member_id)
