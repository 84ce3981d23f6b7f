"""The state that the parts of a member share: its seat, what it owns, its deadline, its next step."""

import asyncio
import secrets
from dataclasses import dataclass, field
from enum import Enum
from typing import TypedDict

from muster_protos.limits import MEMBER_SECRET_MIN_BYTES
from muster_protos.muster.v1 import common_pb2

from muster._clock import boot_ms
from muster._metrics.member import MemberMetrics
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
    """A member id and a generation. Answers to calls made from another seat are dropped (KAFKA-9823).

    Attributes:
        member_id: empty until the coordinator has assigned one.
        generation: -1 until a join has been answered; of a member of an incremental group its epoch.
        join: number of the join of such a member; 0: it is no such member.
    """

    member_id: str = ""
    generation: int = -1
    join: int = 0


class CallerFields(TypedDict):
    """The fields by which a member's JoinGroup says who calls."""

    group_id: str
    group_instance_id: str
    member_secret: bytes


class MemberFields(CallerFields):
    """The fields by which a call, or an Attach, from a seat says who calls."""

    generation: int
    member_id: str


def _drawn() -> bytes:
    return secrets.token_bytes(MEMBER_SECRET_MIN_BYTES)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a member is, whatever its seat. Its requests take these fields from here, all of them.

    Attributes:
        group_id: the group.
        group_instance_id: static id of the member; empty: dynamic.
        secret: what the member proves with that a call is its own, drawn when the member is made (SES-39).
    """

    group_id: str
    group_instance_id: str = ""
    secret: bytes = field(default_factory=_drawn, repr=False)

    @property
    def fields(self) -> CallerFields:
        """What a JoinGroup carries."""
        return {
            "group_id": self.group_id,
            "group_instance_id": self.group_instance_id,
            "member_secret": self.secret,
        }

    def fields_at(self, seat: Seat) -> MemberFields:
        """What a call from a seat carries."""
        return {**self.fields, "generation": seat.generation, "member_id": seat.member_id}


@dataclass(frozen=True, slots=True)
class Pulse:
    """News of a membership: the answer to a beat, or what the server pushed.

    Attributes:
        seat: the membership.
        code: an error code; NONE: all is well.
        sent_ms: boot time at which the answered beat was sent; 0: no beat was answered.
        cause: why the group rebalances, if the server said so.
        message: explanation for people.
        repeat: the beat did not count and is to be repeated.
        hurry: it may be repeated at once.
        on_stream: the membership is kept alive on a session stream; False: by calls of its own.
        unsure: the coordinator is unsure of its lease; nobody else gets the partitions while the session
            lasts.
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
"""The rates of two machines' clocks differ by less than one part in this many."""


class SpareBeats:
    """What a thread has heard of one seat while the event loop was blocked.

    One thread writes, every thread reads: a write replaces one tuple.

    Attributes:
        heard: boot time at which the last acknowledged Heartbeat was sent, or 0; that of the last one that
            was answered before a join phase, or 0; whether a join phase was heard of.
        gave_up_ms: boot time at which the thread stopped, as the block was too long; 0: it did not.
        changed: whether it heard that the group is of the other kind now.
    """

    __slots__ = ("changed", "gave_up_ms", "heard")

    def __init__(self) -> None:
        self.heard: tuple[int, int, bool] = (0, 0, False)
        self.gave_up_ms: int = 0
        self.changed: bool = False

    def hear(self, sent_ms: int, *, rebalancing: bool) -> None:
        """Counts a Heartbeat that was sent at `sent_ms` and has been acknowledged."""
        acknowledged_ms, settled_ms, phase = self.heard
        phase = phase or rebalancing
        settled_ms = settled_ms if phase else max(settled_ms, sent_ms)
        self.heard = (max(acknowledged_ms, sent_ms), settled_ms, phase)


class Life:
    """A member's own deadline, counted from when its last acknowledged beat was *sent*.

    The deadline is a session time-out away; on a stream it is the disconnect grace, if set and shorter. The
    server counts the session from when it received that beat and the grace from when the stream broke. Both
    are later, so the member always stops first. After the coordinator said that it is unsure of its lease,
    the session counts until a beat is acknowledged again.

    A join phase that has lasted for a rebalance time-out goes on without the member, even if the member does
    not know of it. So a life also ends a rebalance time-out after the sending of the last beat or SyncGroup
    that was answered before any join phase had begun. Only a member with a grace that got `unsure` is waited
    for.

    While the event loop is blocked a thread beats. What it hears counts by itself, for the grace and no
    longer: an `unsure` that the loop reads later may be older, and extends only what the loop has heard.

    A member whose group becomes one of the other kind counts its session, whatever it was on, until the first
    beat of that kind is acknowledged.

    Clocks run at different rates: a thousandth is subtracted, in case this machine's clock is the slower one.

    Args:
        session_timeout_ms: how long the member may be silent.
        disconnect_grace_ms: how long it may be silent after its stream broke; 0: the session time-out.
        rebalance_timeout_ms: how long a join phase waits for it; 0: the session time-out.
        back_within_ms: how long it is waited for when its group becomes a classic one; 0: its is one.

    Attributes:
        on_stream: whether the grace counts. At first it does: the server may know of a stream before the
            member does.
        rebalancing: whether the member knows of a join phase.
        spare: what a thread hears of the present seat while the loop is blocked.
    """

    def __init__(
        self,
        session_timeout_ms: int,
        disconnect_grace_ms: int = 0,
        rebalance_timeout_ms: int = 0,
        back_within_ms: int = 0,
    ) -> None:
        rebalance_ms = rebalance_timeout_ms or session_timeout_ms
        grace_ms = disconnect_grace_ms or session_timeout_ms
        self.on_stream: bool = True
        self.rebalancing: bool = False
        self.spare: SpareBeats = SpareBeats()
        self._rebalance_ms = _on_any_clock(rebalance_ms)
        self._session_ms = _on_any_clock(min(session_timeout_ms, rebalance_ms))
        self._changed_ms = _on_any_clock(min(session_timeout_ms, back_within_ms or session_timeout_ms))
        self._on_stream_ms = _on_any_clock(min(session_timeout_ms, rebalance_ms, grace_ms))
        self._is_waited_for = disconnect_grace_ms > 0
        self._extended_ms = _on_any_clock(session_timeout_ms) if self._is_waited_for else self._session_ms
        self._acknowledged_ms: int | None = None
        self._settled_ms: int | None = None
        self._extended = False
        self._awaited = False
        self._changed_end_ms: int | None = None

    @property
    def span_ms(self) -> int:
        """How long a beat counts, ms."""
        if self._extended:
            return self._extended_ms
        return self._on_stream_ms if self.on_stream else self._session_ms

    @property
    def ends_at_ms(self) -> int:
        """Boot time at which the member must have stopped; 0: it was never acknowledged."""
        return max(self._own_end_ms, self._spare_end_ms)

    @property
    def blocked_too_long(self) -> bool:
        """Whether a thread that beat in place of the loop gave up, and nothing was acknowledged since."""
        return self.spare.gave_up_ms > (self._acknowledged_ms or 0)

    @property
    def _own_end_ms(self) -> int:
        if self._changed_end_ms is not None:
            return self._changed_end_ms
        if self._acknowledged_ms is None:
            return 0
        ends_ms = self._acknowledged_ms + self.span_ms
        if self._awaited and self._settled_ms is not None:
            ends_ms = min(ends_ms, self._settled_ms + self._rebalance_ms)
        if not self.rebalancing or (self._extended and self._is_waited_for):
            return ends_ms
        return 0 if self._settled_ms is None else min(ends_ms, self._settled_ms + self._rebalance_ms)

    @property
    def _spare_end_ms(self) -> int:
        acknowledged_ms, settled_ms, phase = self.spare.heard
        if self.spare.changed:
            return self.changed_end_ms
        if not acknowledged_ms:
            return 0
        ends_ms = acknowledged_ms + (self._on_stream_ms if self.on_stream else self._session_ms)
        if self._awaited:
            settled_ms = self._settled_ms or 0
        elif phase or self.rebalancing:
            settled_ms = max(settled_ms, self._settled_ms or 0)
        else:
            return ends_ms
        return min(ends_ms, settled_ms + self._rebalance_ms) if settled_ms else 0

    @property
    def acknowledged_ms(self) -> int:
        """Boot time at which the last acknowledged beat was sent; 0: none was."""
        return max(self._acknowledged_ms or 0, self.spare.heard[0])

    @property
    def changed_end_ms(self) -> int:
        """When the life ends of a member that has heard that its group is of the other kind now; 0: it has.

        The coordinator counts the session from the change, which is later than any beat that it acknowledged
        (docs/safety.md, INC-75). A join phase has ended with a conversion, and begins with one back.
        """
        return self.acknowledged_ms + self._changed_ms if self.acknowledged_ms else 0

    def allow(self, session_timeout_ms: int, disconnect_grace_ms: int) -> None:
        """Counts no more time than the coordinator gives; 0: it did not say, or the grace is the session."""
        if session_timeout_ms:
            self._session_ms = min(self._session_ms, _on_any_clock(session_timeout_ms))
            self._changed_ms = min(self._changed_ms, self._session_ms)
        grace_ms = _on_any_clock(disconnect_grace_ms) or self._session_ms
        self._on_stream_ms = min(self._on_stream_ms, self._session_ms, grace_ms)
        self._extended_ms = min(self._extended_ms, self._session_ms)

    def renew(self, sent_ms: int) -> None:
        """Counts a beat that was sent at `sent_ms` and has been acknowledged."""
        self._changed_end_ms = None
        self._extended = False
        self._acknowledged_ms = max(self._acknowledged_ms or sent_ms, sent_ms)
        if not self.rebalancing and not self._awaited:
            self.settle(sent_ms)

    def settle(self, sent_ms: int) -> None:
        """Counts a call that was sent at `sent_ms` and answered while no join phase ran."""
        self._settled_ms = max(self._settled_ms or sent_ms, sent_ms)

    def restart(self) -> None:
        """Begins the life of a new seat, which counts from its own first acknowledged beat.

        The answer to JoinGroup does not count, since it may have been on its way for long, nor that to
        SyncGroup: the server does not prolong the session for it (conformance SG-18).
        """
        self._extended = self.rebalancing = self._awaited = False
        self._changed_end_ms = None
        self._acknowledged_ms = self._settled_ms = None
        self.spare = SpareBeats()

    def last_until(self, changed_end_ms: int) -> None:
        """Lasts until then, or until the first beat is acknowledged, which counts from there."""
        self._changed_end_ms = changed_end_ms

    def go_on(self, joined_ms: int) -> None:
        """Goes on in the next generation, with what the member kept; the JoinGroup was sent at `joined_ms`.

        That generation began later, and later than any beat counted for the seat before. From then on the
        coordinator waits a rebalance time-out for the SyncGroup, and for the release of what the member keeps
        and is not given. Until it has `settle_in`, the life ends no later than that, whatever is heard.
        """
        self._settled_ms = max(self._acknowledged_ms or joined_ms, joined_ms)
        self._awaited = True
        self.rebalancing = False
        self.spare = SpareBeats()

    def settle_in(self, sent_ms: int) -> None:
        """Counts a SyncGroup, sent at `sent_ms`, after which nothing is left to be released."""
        self._awaited = False
        if not self.rebalancing:
            self.settle(sent_ms)

    def end(self) -> None:
        """Ends it now. Whether that comes from a blocked loop is known on."""
        self._acknowledged_ms = self._changed_end_ms = None
        gave_up_ms, self.spare = self.spare.gave_up_ms, SpareBeats()
        self.spare.gave_up_ms = gave_up_ms

    def extend(self, now_ms: int) -> None:
        """Lets the whole session count, unless the life is over: the coordinator is unsure of its lease."""
        if self.remaining_ms(now_ms):
            self._extended = True

    def remaining_ms(self, now_ms: int) -> int:
        """Time left, 0 or more, ms."""
        return max(0, self.ends_at_ms - now_ms)


def _on_any_clock(time_ms: int) -> int:
    """The part of a time that has passed on every machine before all of it has passed on any."""
    return time_ms - time_ms // _RATES


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
    news: asyncio.Event = field(default_factory=asyncio.Event)
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
