"""An explicit-state model of a member's life, also while its coordinator is not sure of its lease.

A member on a stream lives for its grace; one that hears `unsure` lives for its session. The coordinator that
has the group counts what may be longer, until a beat says that the member heard an acknowledgement later. The
coordinator loses its lease and has it again, hands the group over or loses it to another one, and one that
lost it may go on saying `unsure`; connections break, answers are lost and late, the member's clock runs slow.
Another member starts join phases, which go on without a member that does not come back in time. So does the
member itself, which keeps what it has: nobody tells it of that phase, and its call goes with its connection.
The event loop of the member may be blocked; then a thread makes Heartbeat calls in its place.

It is a model of docs/safety.md, "Session and disconnect grace", and shares no code with what it models:
`explore.py` walks it, `session_cases.py` names the spaces.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from model.quick_replace import quick_replace

ACK: Final = "ack"
UNSURE: Final = "unsure"
_CONFIRMED = -1


@dataclass(frozen=True)
class SessionRules:
    """The rules; each may be dropped.

    Attributes:
        extend: a member that hears `unsure` lives for a session, from its last acknowledged beat on.
        server_too: the coordinator counts a session, from when it may have begun to say `unsure`.
        confirmed: ... until a beat of it names an acknowledgement that was sent after that.
        after_load: a coordinator that loads the group begins like that with every member.
        only_live: what was heard on an older connection is dropped.
        epochs: so is an `unsure` of an epoch below the highest that was heard of.
        margin: the member takes what its clock may lose off its life.
        phase: its life ends a rebalance time-out after it sent the last beat that was acknowledged before a
            join phase began.
        phase_waits: a join phase waits for a member that may have heard `unsure`.
        own_join: a join phase that the member began itself has begun for it when it sent its call.
        spare_phase: what the thread hears within a join phase does not outlast the end of that phase.
        spare_apart: an `unsure` extends only what the loop has heard, not what the thread has.
        promised: the grace of a broken stream does not cut short what a Heartbeat promised.
        spare_living: the thread brings no life back that is over.
        looks_first: the loop that is back looks at its life before it hears anything.
    """

    extend: bool = True
    server_too: bool = True
    confirmed: bool = True
    after_load: bool = True
    only_live: bool = True
    epochs: bool = True
    margin: bool = True
    phase: bool = True
    phase_waits: bool = True
    own_join: bool = True
    spare_phase: bool = True
    spare_apart: bool = True
    promised: bool = True
    spare_living: bool = True
    looks_first: bool = True


@dataclass(frozen=True)
class SessionBounds:
    """How long things last, in ticks, and how often they happen.

    Attributes:
        grace: of the member; as long as the session for a static one.
        session: of the member.
        end: when time stops.
        loads: how often another coordinator loads the group.
        handed: it is handed over in order, too.
        stale: one that lost the group goes on, and the member may come back to it.
        drift: ticks that the member's clock may lose.
        connections: of the member.
        acks: how many acknowledgements are sent before a lease ends.
        rebalance: how long a join phase waits for the member; 0: there are none.
        joins: the member begins join phases itself, too.
        blocks: how often the member's loop is blocked.
    """

    grace: int = 1
    session: int = 3
    end: int = 5
    loads: int = 1
    handed: bool = False
    stale: bool = False
    drift: int = 0
    connections: int = 3
    acks: int = 4
    rebalance: int = 0
    joins: bool = False
    blocks: int = 0


@quick_replace
class Beat(NamedTuple):
    """A beat on its way, or the Attach that begins a connection."""

    connection: int
    epoch: int  # of the coordinator that the connection leads to
    sent: int  # by the member's clock
    seen: int  # number of the newest acknowledgement that the member has heard


@quick_replace
class Answer(NamedTuple):
    """An answer on its way."""

    connection: int
    epoch: int
    kind: Literal["ack", "unsure"]
    sent: int  # of the beat that it acknowledges
    number: int
    phase: bool  # whether the group was in a join phase that the member knows of


@quick_replace
class SpareCall(NamedTuple):
    """A Heartbeat call of the thread on its way, or its answer."""

    epoch: int
    sent: int
    answered: bool = False
    phase: bool = False


@quick_replace
class Spare(NamedTuple):
    """The loop that may be blocked, and the thread that beats in its place."""

    blocked: bool = False
    left: int = 0  # how often it may still be blocked
    call: SpareCall | None = None
    until: int = 0  # what the thread has heard counts to this, by the member's clock
    acked_sent: int = 0
    settled_sent: int = 0
    phase: bool = False  # it has heard of a join phase
    promised_at: int = -1  # when the coordinator last answered it
    untold: bool = False  # the life ended, and the loop has not looked yet
    revived: bool = False  # ... and it goes on


@quick_replace
class SessionState(NamedTuple):
    """Everything there is."""

    now: int
    lost: int  # ticks that the member's clock has lost
    connection: int
    leads_to: int  # epoch of the coordinator at its end
    until: int  # the member runs before this, by its clock
    acked_sent: int
    settled_sent: int  # of the last beat that was acknowledged outside of a join phase
    seen: int
    heard_of: int  # highest epoch
    beat_at: int
    up: tuple[Beat, ...]
    down: tuple[Answer, ...]
    # the coordinator that has the group
    epoch: int
    sure: bool
    attached: int  # connection; 0: it broke, -1: nobody was since the load
    touched: int  # when the session was prolonged last
    broken_at: int
    acks: int  # their numbers go on over coordinators
    told: int  # acknowledgements sent before it last may have said `unsure`; -1: confirmed
    told_at: int  # when that began
    given: bool
    outage: int  # ticks since somebody was sure
    stale: bool  # the one before is still there
    phase_at: int  # when a join phase began; -1: there is none
    own: bool = False  # the member began it, on the connection that it is on
    parked: bool = False  # ... and its call waits there
    spare: Spare = Spare()


_Step = tuple[str, SessionState]


class SessionModel:
    """The rules, as steps from state to state.

    Args:
        rules: which hold.
        bounds: how often things happen.
        riding: look for a history in which an outage longer than the grace stops no work, instead of two
            owners.
    """

    def __init__(self, rules: SessionRules, bounds: SessionBounds, *, riding: bool = False) -> None:
        self.rules = rules
        self.bounds = bounds
        self._riding = riding
        margin = bounds.drift if rules.margin else 0
        self._grace = bounds.grace - margin
        self._session = bounds.session - margin
        self._rebalance = bounds.rebalance - margin
        self._is_waited_for = bounds.grace < bounds.session
        self._longest = max(bounds.grace, bounds.session, bounds.rebalance)

    def initial(self) -> SessionState:
        """A confirmed member on its first connection, which has just been acknowledged."""
        until = self._until(0, 0, self._grace)
        return SessionState(
            *(0, 0, 1, 1, until, 0, 0, 0, 1, -1, (), ()),
            *(1, True, 1, 0, -1, 0, _CONFIRMED, 0, False, 0, False, -1),
            spare=Spare(left=self.bounds.blocks),
        )

    def _until(self, acked_sent: int, settled_sent: int, span: int) -> int:
        """When the member stops, by its clock."""
        until = acked_sent + span
        if not self.bounds.rebalance or not self.rules.phase:
            return until
        return min(until, settled_sent + self._rebalance)

    def canonical(self, state: SessionState) -> SessionState:
        """States that differ in nothing that can still matter are one.

        Times: what is over stays over, however long. Numbers of acknowledgements: all that matters is
        whether one was sent after the coordinator may have begun to say `unsure`; what it may say from now
        on comes after all that were sent.
        """
        s, bounds = state, self.bounds
        now, told, sure = s.now, s.told, s.sure
        clock = now - s.lost
        oldest = clock - self._longest
        acks = min(s.acks, bounds.acks)
        seen, up, down = s.seen, s.up, s.down
        if told == _CONFIRMED:  # no number matters
            seen = 0
            up = up and tuple([beat if not beat.seen else beat._replace(seen=0) for beat in up])
            down = down and tuple([one if not one.number else one._replace(number=0) for one in down])
        else:
            seen = acks if seen > told else 0
            up = up and tuple([beat._replace(seen=acks if beat.seen > told else 0) for beat in up])
            down = down and tuple([one._replace(number=acks if one.number > told else 0) for one in down])
        # All fields in their order: `_replace` takes three times as long, and most of a walk is here.
        return SessionState(
            now,
            s.lost,
            s.connection,
            s.leads_to,
            max(s.until, clock),
            max(s.acked_sent, oldest),
            max(s.settled_sent, oldest),
            seen,
            s.heard_of,
            s.beat_at if s.beat_at == now else -1,
            up,
            down,
            s.epoch,
            sure,
            s.attached,
            max(s.touched, now - bounds.session) if sure else 0,
            max(s.broken_at, now - bounds.grace) if s.attached == 0 else -1,
            acks,
            min(told, 0),
            max(s.told_at, now - bounds.session),
            s.given,
            min(s.outage, bounds.grace + 1) if self._riding else 0,
            s.stale,
            s.phase_at if sure else min(s.phase_at, 0),
            s.own,
            s.parked,
            s.spare
            if not bounds.blocks
            else s.spare._replace(
                until=max(s.spare.until, clock),
                acked_sent=max(s.spare.acked_sent, oldest),
                settled_sent=max(s.spare.settled_sent, oldest),
                promised_at=max(s.spare.promised_at, now - bounds.session),
            ),
        )

    def broken(self, state: SessionState) -> str:
        """What must not be."""
        runs = self._runs(state)
        if state.spare.revived:
            return "a life that is over is brought back without a word"
        if self._riding:
            rides = not state.sure and runs and state.outage > self.bounds.grace
            return "an outage longer than the grace is ridden out" if rides else ""
        return "two owners" if state.given and runs else ""

    def _runs(self, s: SessionState) -> bool:
        """Whether the member works, by its clock."""
        return s.now - s.lost < max(s.until, s.spare.until)

    def steps(self, state: SessionState) -> Iterator[_Step]:
        """Everything that can happen next."""
        if state.given:
            return
        for label, after in self._all_steps(state):
            if len(after.up) <= 1 and len(after.down) <= 2:
                yield label, self._looked_at(after)

    def _looked_at(self, s: SessionState) -> SessionState:
        """Notes that a life ended while nobody looked, and that it goes on all the same."""
        if not s.spare.blocked and not s.spare.untold:
            return s
        runs = self._runs(s)
        return s._replace(
            spare=s.spare._replace(
                untold=s.spare.untold or not runs, revived=s.spare.revived or (s.spare.untold and runs)
            )
        )

    def _all_steps(self, s: SessionState) -> Iterator[_Step]:
        yield from self._time(s)
        yield from self._lease(s)
        yield from self._connection(s)
        yield from self._beat_arrives(s)
        yield from self._answer_arrives(s)
        yield from self._blocked(s)
        if s.sure and s.now >= self._deadline(s):
            yield "given away", s._replace(given=True)
        if s.sure and s.phase_at >= 0 and not s.parked and s.now >= self._phase_ends(s):
            yield "a join phase goes on without it", s._replace(given=True)
        if s.sure and s.phase_at < 0 and self.bounds.rebalance:
            yield "a join phase begins", s._replace(phase_at=s.now)
            if self.bounds.joins and s.attached == s.connection and not s.spare.blocked:
                yield "it joins", s._replace(phase_at=s.now, own=True, parked=True)

    def _phase_ends(self, s: SessionState) -> int:
        ends = s.phase_at + self.bounds.rebalance
        if s.told != _CONFIRMED and self._is_waited_for and self.rules.phase_waits:
            ends = max(ends, s.told_at + self.bounds.session)
        return ends

    def _deadline(self, s: SessionState) -> int:
        session = s.touched + self.bounds.session
        if s.attached:
            return session
        grace = s.broken_at + self.bounds.grace
        if s.told != _CONFIRMED and self.rules.server_too:
            grace = max(grace, s.told_at + self.bounds.session)
        if s.spare.promised_at >= 0 and self.rules.promised:
            grace = max(grace, s.spare.promised_at + self.bounds.session)
        return min(session, grace)

    def _time(self, s: SessionState) -> Iterator[_Step]:
        if s.now >= self.bounds.end:
            return
        later = s._replace(now=s.now + 1, outage=s.outage + (not s.sure))
        yield "tick", later
        if s.lost < self.bounds.drift:
            yield "a tick that the member's clock loses", later._replace(lost=s.lost + 1)
        if s.now > s.beat_at and not s.spare.blocked:
            beat = Beat(s.connection, s.leads_to, s.now - s.lost, s.seen)
            yield "a beat is sent", s._replace(beat_at=s.now, up=(*s.up, beat))

    def _lease(self, s: SessionState) -> Iterator[_Step]:
        more = s.epoch <= self.bounds.loads
        loaded = s._replace(
            epoch=s.epoch + 1,
            sure=True,
            attached=-1,
            broken_at=-1,
            touched=s.now,
            outage=0,
            told=s.acks if self.rules.after_load else _CONFIRMED,
            told_at=s.now if self.rules.after_load else 0,
            up=(),
            phase_at=-1,
            own=False,
            parked=False,
            spare=s.spare._replace(promised_at=-1),
        )
        if s.sure:
            if more and s.acks < self.bounds.acks:
                # From here on it may say `unsure`: what it counts does not depend on whether it did.
                yield "the lease ends", s._replace(sure=False, told=s.acks, told_at=s.now, parked=False)
            if more and self.bounds.handed:
                yield "it is handed over", loaded
        else:
            phase_at = s.now if s.phase_at >= 0 else -1  # it has its full time again
            yield "the lease is renewed", s._replace(sure=True, outage=0, touched=s.now, phase_at=phase_at)
            if more:
                yield "another one loads", loaded._replace(stale=self.bounds.stale)

    def _connection(self, s: SessionState) -> Iterator[_Step]:
        if s.attached > 0:
            kept = tuple(beat for beat in s.up if beat.connection != s.attached)
            yield "it breaks", s._replace(attached=0, broken_at=s.now, up=kept, own=False, parked=False)
        elif s.connection < self.bounds.connections and not s.spare.blocked:
            for epoch in (s.epoch, s.epoch - 1) if s.stale else (s.epoch,):
                new = s.connection + 1
                attach = Beat(new, epoch, s.now - s.lost, s.seen)
                where = "" if epoch == s.epoch else " to the one before"
                yield (
                    f"it connects{where}",
                    s._replace(connection=new, leads_to=epoch, up=(attach,), beat_at=s.now),
                )

    def _beat_arrives(self, s: SessionState) -> Iterator[_Step]:
        if not s.up:
            return
        beat, rest = s.up[0], s.up[1:]
        if beat.epoch != s.epoch:
            if s.stale:
                answer = Answer(beat.connection, beat.epoch, UNSURE, 0, 0, False)
                yield "the one before is unsure", s._replace(up=rest, down=(*s.down, answer))
            return
        got = s._replace(up=rest, attached=beat.connection)
        if not s.sure:
            answer = Answer(beat.connection, s.epoch, UNSURE, 0, 0, False)
            yield "unsure", got._replace(down=(*s.down, answer))
            return
        told = s.told
        if told != _CONFIRMED and (beat.seen > told or not self.rules.confirmed):
            told = _CONFIRMED
        knows = s.phase_at >= 0 and (self.rules.own_join or not s.own)
        answer = Answer(beat.connection, s.epoch, ACK, beat.sent, s.acks + 1, knows)
        told_at = s.told_at if told != _CONFIRMED else 0
        after = got._replace(
            touched=s.now, acks=s.acks + 1, told=told, told_at=told_at, down=(*s.down, answer)
        )
        yield "acknowledged", after

    def _answer_arrives(self, s: SessionState) -> Iterator[_Step]:
        """An answer arrives or is lost with its connection; those of one connection stay in order."""
        for place, answer in enumerate(s.down):
            if any(other.connection == answer.connection for other in s.down[:place]):
                continue
            got = s._replace(down=s.down[:place] + s.down[place + 1 :])
            yield "an answer is lost", got
            if s.spare.blocked:
                continue
            if answer.connection != s.connection and self.rules.only_live:
                continue
            if answer.kind == ACK:
                sent = max(answer.sent, s.acked_sent)
                settled = s.settled_sent if answer.phase else max(answer.sent, s.settled_sent)
                yield (
                    "it hears an acknowledgement",
                    got._replace(
                        acked_sent=sent,
                        settled_sent=settled,
                        seen=max(answer.number, s.seen),
                        until=self._until(sent, settled, self._grace),
                        heard_of=max(answer.epoch, s.heard_of),
                    ),
                )
            elif (
                self.rules.extend and self._runs(s) and (answer.epoch >= s.heard_of or not self.rules.epochs)
            ):
                acked_sent = s.acked_sent
                if not self.rules.spare_apart:
                    acked_sent = max(acked_sent, s.spare.acked_sent)
                until = acked_sent + self._session
                if not self._is_waited_for:
                    until = self._until(s.acked_sent, s.settled_sent, self._session)
                yield "it hears unsure", got._replace(until=until)

    def _blocked(self, s: SessionState) -> Iterator[_Step]:
        """The loop is blocked and comes back; meanwhile the thread makes one call after the other."""
        spare = s.spare
        if not self.bounds.blocks:
            return
        if not spare.blocked and spare.left and self._runs(s):
            yield "the loop is blocked", s._replace(spare=spare._replace(blocked=True, left=spare.left - 1))
        if spare.blocked:
            untold = spare.untold and not self.rules.looks_first
            back = spare._replace(blocked=False, call=None, untold=untold)
            yield "the loop is back", s._replace(spare=back)
            if spare.call is None and (self._runs(s) or not self.rules.spare_living):
                call = SpareCall(s.epoch, s.now - s.lost)
                yield "the thread calls", s._replace(spare=spare._replace(call=call))
        if spare.call is None:
            return
        yield "its call is lost", s._replace(spare=spare._replace(call=None))
        if not spare.call.answered:
            if s.sure and spare.call.epoch == s.epoch:
                knows = s.phase_at >= 0 and (self.rules.own_join or not s.own)
                call = spare.call._replace(answered=True, phase=knows)
                after = spare._replace(call=call, promised_at=s.now)
                yield "its call is answered", s._replace(touched=s.now, spare=after)
        elif self._runs(s) or not self.rules.spare_living:
            yield "the thread hears", s._replace(spare=self._heard(s, spare.call))

    def _heard(self, s: SessionState, call: SpareCall) -> Spare:
        """What the thread knows after an answer."""
        spare = s.spare
        phase = (spare.phase or call.phase) and self.rules.spare_phase
        settled = spare.settled_sent if phase else max(spare.settled_sent, call.sent)
        acked = max(spare.acked_sent, call.sent)
        until = self._until(acked, max(settled, s.settled_sent), self._grace)
        return spare._replace(call=None, acked_sent=acked, settled_sent=settled, phase=phase, until=until)
