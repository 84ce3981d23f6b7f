"""A member of an incremental group as a state machine: requests out, answers and pushes in, and what to do.

It has no clock and no I/O: methods get the boot time, in ms. `ask` makes requests, `hear` and `push` take
what comes back, in any order and any number of times, and `next_move` says what to do with the
work; `begun` and `ended` note that it was done.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

from muster._incremental.classic_seat import ClassicSeat
from muster._incremental.requests import (
    AWAY,
    JOIN,
    LEAVE,
    NOWHERE,
    Identity,
    Place,
    add_list,
    list_of,
    process_id,
)
from muster._reactions import Call, Reaction, reaction_to
from muster._standing.life import Life
from muster._values import TopicPartition

MARGIN_MS = 100
"""The member gives up so much before the coordinator's deadline, beside what clocks may differ in."""

_RATES = 1_000
"""The rates of two machines' clocks differ by less than one part in this many."""


_OF_OTHER_KIND = (
    common_pb2.ERROR_CODE_GROUP_ID_NOT_FOUND,  # a classic group with members has the name
    common_pb2.ERROR_CODE_UNSUPPORTED_VERSION,  # the cluster has not enabled the feature
)


class Phase(Enum):
    """Where a member is."""

    OUT = "it is in no group; the next request joins"
    JOINING = "a join was sent and has not been answered"
    IN = "it is a member"
    CLASSIC = "its group is a classic one now, in which it goes on; nothing is sent any more"
    OVER = "the group does not take it, or has given its place to another process; nothing is sent any more"


class Way(Enum):
    """How partitions begin or end."""

    BEGIN = "work on them begins"
    GIVE_BACK = "work on them is to end, within a time; then the coordinator is told"
    LOSE = "another member may have them"


@dataclass(frozen=True, slots=True)
class Move:
    """What is to be done with the work.

    Attributes:
        way: how.
        partitions: which, in order.
        until_ms: boot time until which they have to be given back; 0: there is no limit.
        still_run: the time to give them back is over: whatever happens, nobody is told that they ended.
    """

    way: Way
    partitions: tuple[TopicPartition, ...]
    until_ms: int = 0
    still_run: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was sent, as far as its answer is concerned.

    Attributes:
        request: the request.
        era: of the membership when it was sent.
        sent_ms: when.
    """

    request: ConsumerGroupHeartbeatRequest
    era: int
    sent_ms: int

    @property
    def joins(self) -> bool:
        """Whether it is a join."""
        return self.request.member_epoch == JOIN


class Membership:
    """One member.

    Args:
        identity: who it is.
        life: its own deadline.
        patience_ms: how long a place that another process has is asked for.

    Attributes:
        phase: where it is.
        seq: number of its join.
        epoch: as it was told last.
        version: newest record that it has heard of since it last gave everything up.
        runs: what is worked on, with tokens: from before work begins until after it has ended.
        told: the complete list that it was told and has not carried out; None: there is none.
        beat_within_ms: when the next request is due, after the last one was sent.
        code: why it is `OUT` or `OVER`, or was refused last; 0: nothing was.
        why: the same, for people.
        is_unknown_kind: its join was refused since the group, or the cluster, has no incremental members.
        changes: how many lists it was told that differ from what it works on.
        cause: why the group has the target of the last one; None: nobody said.
    """

    def __init__(self, identity: Identity, life: Life, patience_ms: int) -> None:
        self.identity = identity
        self.life = life
        self.phase = Phase.OUT
        self.seq = 0
        self.epoch = JOIN
        self.version = NOWHERE
        self.runs: dict[TopicPartition, str] = {}
        self.told: dict[TopicPartition, str] | None = None
        self.beat_within_ms = 0
        self.code = 0
        self.why = ""
        self.is_unknown_kind = False
        self.changes = 0
        self.cause: common_pb2.RebalanceCause | None = None
        self._patience_ms = patience_ms
        self._refused_ms: int | None = None
        self._holder = NOWHERE
        self._era = 0
        self._over = False
        self._doomed = False
        self._process_id = b""
        self._acknowledged_ms = 0
        self._takes: dict[TopicPartition, int] = {}
        self._left_running: set[TopicPartition] = set()
        self._confirmed: Place | None = None
        self._owes = False

    def adopt(self, seat: ClassicSeat) -> None:
        """Begins as the classic member that it was until now (docs/safety.md, INC-140).

        Its first request is that of a member which resumes. Who was in no generation joins, under the next
        number.
        """
        self.seq, self._process_id = seat.member_seq, seat.process_id
        if seat.generation < 0:
            return
        self.phase = Phase.IN
        self.epoch, self.version = seat.generation, seat.version
        self.runs = dict(sorted(seat.runs.items()))
        self.life.last_until(seat.life_ends_at_ms)
        self._acknowledged_ms = seat.acknowledged_ms

    # What it says

    def owes_list(self) -> bool:
        """Whether the coordinator waits for its list, and nothing has to end before that is sent (INC-48)."""
        return self.phase is Phase.IN and self._owes and not self._is_to_end_work

    def may_ask(self) -> bool:
        """Whether a request may be made: not a new join while work of the one before still runs."""
        return self.is_active and not (self.phase is Phase.OUT and self.runs)

    @property
    def is_active(self) -> bool:
        """Whether it has, or looks for, a place in an incremental group."""
        return self.phase not in (Phase.CLASSIC, Phase.OVER)

    @property
    def _is_to_end_work(self) -> bool:
        told = self.told
        return self._doomed or (told is not None and any(told.get(p) != at for p, at in self.runs.items()))

    def ask(self, now_ms: int) -> Asked:
        """The next request: a join, or a heartbeat of the present one."""
        self.look(now_ms)
        assert self.may_ask()
        if self.phase is Phase.OUT:
            self._begin_join()
        if self.phase is Phase.JOINING:
            request = self._request(JOIN)
            self.identity.describe(request)
            if self._holder != NOWHERE:
                request.replaces.CopyFrom(self._holder.to_proto())
        else:
            request = self._request(self.epoch)
            request.version.CopyFrom(self.version.to_proto())
            if self._confirmed is None or self._confirmed != self.version:
                add_list(request, {*self.runs, *self._left_running})
                self._owes = False
        return Asked(request, self._era, now_ms)

    def sign_of_life(self) -> ConsumerGroupHeartbeatRequest:
        """A heartbeat that says nothing of the work; any thread may ask for it."""
        request = self._request(self.epoch)
        request.version.CopyFrom(self.version.to_proto())
        return request

    def is_present(self, asked: Asked) -> bool:
        """Whether an answer to the request counts: it is of the present join and of a life that goes on."""
        return asked.era == self._era

    def leave(self, *, for_a_while: bool, reason: str = "") -> ConsumerGroupHeartbeatRequest | None:
        """Leaves. What answers is not heard any more; None: it is in no group.

        All work must have ended before.

        Args:
            for_a_while: whether its place is kept for it.
            reason: why it leaves for good, for people.
        """
        assert not self.runs
        was, self.phase = self.phase, Phase.OVER
        self._era += 1
        if was in (Phase.OUT, Phase.OVER):
            return None
        request = self._request(AWAY if for_a_while else LEAVE)
        request.leave_reason = "" if for_a_while else reason
        return request

    def _request(self, epoch: int) -> ConsumerGroupHeartbeatRequest:
        return self.identity.request(epoch, self.seq, self._process_id)

    def _begin_join(self) -> None:
        self._process_id = process_id()
        self.phase = Phase.JOINING
        self.seq += 1
        self._era += 1
        self.epoch, self.version, self.told = JOIN, NOWHERE, None
        self.code, self.why = 0, ""
        self._over = self._owes = False
        self._holder, self._refused_ms, self._confirmed = NOWHERE, None, None
        self._left_running.clear()
        self.life.restart()

    # What it hears

    def hear(self, asked: Asked, answer: ConsumerGroupHeartbeatResponse, now_ms: int) -> Reaction:
        """Takes the answer to a request; returns `DONE`, or `RETRY` or `REDISCOVER` to send it again.

        An answer to what was asked in an earlier join, or before the end of a life, changes nothing.
        """
        self.look(now_ms)
        code = int(answer.error_code)
        reaction = reaction_to(Call.CONSUMER_HEARTBEAT, code)
        if reaction in (Reaction.RETRY, Reaction.REDISCOVER):
            return reaction
        if asked.era != self._era or self.phase not in (Phase.JOINING, Phase.IN):
            return Reaction.DONE
        if reaction is Reaction.REVERT:
            self.revert(now_ms)
            return Reaction.DONE
        if code:
            return self._refused(asked, answer, reaction, now_ms)
        before_ms, self._acknowledged_ms = self._acknowledged_ms, max(self._acknowledged_ms, asked.sent_ms)
        self.life.allow(answer.session_timeout_ms, answer.disconnect_grace_ms)
        self.life.renew(asked.sent_ms)
        self._refused_ms = None
        self.phase = Phase.IN
        self.beat_within_ms = answer.heartbeat_interval_ms
        self._take(answer, before_ms)
        if asked.request.HasField("owned") and not asked.joins:
            self._confirm(asked.request, answer)
        return Reaction.DONE

    def push(self, seq: int, news: ConsumerGroupHeartbeatResponse, now_ms: int) -> None:
        """Takes what the coordinator pushes: what it might have answered to a request of that join."""
        self.look(now_ms)
        if self.phase is not Phase.IN or seq != self.seq:
            return
        if news.error_code:
            reaction = reaction_to(Call.CONSUMER_HEARTBEAT, int(news.error_code))
            if reaction is Reaction.REVERT:
                self.revert(now_ms)
            elif reaction not in (Reaction.RETRY, Reaction.REDISCOVER):
                self._fenced(int(news.error_code), news.error_message, reaction)
        elif not self._over:
            self._take(news, self._acknowledged_ms)

    def beat_counted(self, sent_ms: int, now_ms: int) -> None:
        """A beat of its stream, sent at `sent_ms`, was acknowledged."""
        self.look(now_ms)
        if self.phase is Phase.IN and not self._over:
            self._acknowledged_ms = max(self._acknowledged_ms, sent_ms)
            self.life.renew(sent_ms)

    def resume(self) -> None:
        """Puts the list into the next request, which goes to a coordinator that may know less, or more."""
        self._confirmed = None

    def revert(self, now_ms: int) -> None:
        """Its group is a classic one: what it was told to do and what still comes count no more (INC-180).

        It has its session, counted from the last beat that was acknowledged, to take part in the rebalance
        that has begun. Who is in no group hears it as the answer to its join.
        """
        self.look(now_ms)
        if self.phase not in (Phase.JOINING, Phase.IN):
            return
        self.phase = Phase.CLASSIC
        self._era += 1
        self.told = None
        if not self._over and self.life.remaining_ms(now_ms):
            self.life.last_until(self.life.changed_end_ms)

    def fence(self, code: int, why: str) -> None:
        """Ends the membership, as something other than an answer said, such as a refused commit."""
        if self.phase is Phase.IN:
            self._fenced(code, why, Reaction.REJOIN_KEEP_ID)

    def _refused(
        self, asked: Asked, answer: ConsumerGroupHeartbeatResponse, reaction: Reaction, now_ms: int
    ) -> Reaction:
        code, why = int(answer.error_code), answer.error_message
        if code == common_pb2.ERROR_CODE_UNRELEASED_INSTANCE_ID and asked.joins:
            self.code, self.why = code, why
            self._holder = Place.of(answer.holder)
            self._refused_ms = now_ms if self._refused_ms is None else self._refused_ms
            if now_ms < self._refused_ms + self._patience_ms:
                return Reaction.RETRY
            self.phase = Phase.OVER
            return Reaction.DONE
        if code in _OF_OTHER_KIND and asked.joins:
            reaction, self.is_unknown_kind = Reaction.FATAL, True
        self._fenced(code, why, reaction)
        return Reaction.DONE

    def refuse_kind(self, asked: Asked, why: str) -> None:
        """The server does not know what was asked, a join: it is older than incremental groups."""
        if self.is_present(asked):
            self.is_unknown_kind = True
            self._fenced(int(common_pb2.ERROR_CODE_UNSUPPORTED_VERSION), why, Reaction.FATAL)

    def _fenced(self, code: int, why: str, reaction: Reaction) -> None:
        """The join has ended: what runs is lost."""
        self.code, self.why = code, why
        self.phase = Phase.OVER if reaction is Reaction.FATAL else Phase.OUT
        self._era += 1
        self._doomed = bool(self.runs)
        self.told = None
        self.life.end()

    def _take(self, answer: ConsumerGroupHeartbeatResponse, acknowledged_ms: int) -> None:
        """Takes news that is not older than what was heard (docs/safety.md, INC-41)."""
        version = Place.of(answer.version)
        if version < self.version:
            return
        self.epoch = answer.member_epoch
        listed = list_of(answer)
        if listed is None:
            return
        is_news = version != self.version and not self._over and listed != self.runs
        if version != self.version or self._over:
            self.version = version
            self._confirmed = None
            self._owes = answer.awaits_owned
        if is_news:
            self.changes += 1
            self.cause = answer.cause if answer.HasField("cause") else None
        self._over = False
        if listed == self.runs and not self._doomed:
            self.told = None
        else:
            self.told = listed
            self._note_takes(listed, acknowledged_ms)

    def _note_takes(self, listed: Collection[TopicPartition], acknowledged_ms: int) -> None:
        """Counts the time to give back from the last beat that was acknowledged before the news."""
        timeout_ms = self.identity.rebalance_timeout_ms
        until_ms = acknowledged_ms + timeout_ms - timeout_ms // _RATES - min(MARGIN_MS, timeout_ms // 10)
        self._takes = {p: self._takes.get(p, until_ms) for p in self.runs if p not in listed}

    def _confirm(
        self, request: ConsumerGroupHeartbeatRequest, answer: ConsumerGroupHeartbeatResponse
    ) -> None:
        """Notes that the coordinator has a list: it is sent again only if work has ended since, or has to.

        Work that began after the list was made is not in it; nobody waits for that.
        """
        sent = {TopicPartition(e.topic, number) for e in request.owned.topics for number in e.partitions}
        is_present = Place.of(request.version) == self.version == Place.of(answer.version)
        if is_present and not self._is_to_end_work and sent <= {*self.runs, *self._left_running}:
            self._confirmed = self.version

    # What it does

    @property
    def confirmed(self) -> bool:
        """Whether the coordinator knows what is worked on, and nothing is to be done."""
        return self.phase is Phase.IN and self.told is None and self._confirmed == self.version

    def look(self, now_ms: int) -> None:
        """Ends a life whose time is over: everything stops, and what was heard counts no more (INC-43)."""
        is_in = self.phase in (Phase.IN, Phase.CLASSIC)
        if is_in and not self._over and not self.life.remaining_ms(now_ms):
            self._over = True
            self._doomed = bool(self.runs)
            self._era += 1
            self.version = NOWHERE
            self.told = None
            self._confirmed = None

    def next_move(self, now_ms: int) -> Move | None:
        """What is to be done now; None: nothing."""
        self.look(now_ms)
        told, runs = self.told, self.runs
        if self._doomed:
            return Move(Way.LOSE, tuple(runs))
        if told is None:
            return None
        if swapped := tuple(p for p, token in runs.items() if told.get(p, token) != token):
            return Move(Way.LOSE, swapped)
        if gone := tuple(p for p in runs if p not in told):
            until_ms = min(self._takes[p] for p in gone)
            late = tuple(p for p in gone if self._takes[p] <= now_ms)
            return Move(Way.LOSE, late, still_run=True) if late else Move(Way.GIVE_BACK, gone, until_ms)
        if new := tuple(p for p in told if p not in runs and p not in self._left_running):
            return Move(Way.BEGIN, new)
        self.told = None
        return None

    def begun(self, partitions: Collection[TopicPartition]) -> None:
        """Notes that work on partitions of the list begins, and may run from now on."""
        told = self.told or {}
        self.runs = dict(sorted({**self.runs, **{p: told[p] for p in partitions if p in told}}.items()))
        if self.told is not None and self.told == self.runs:
            self.told = None

    def ended(self, partitions: Collection[TopicPartition], *, still_run: bool = False) -> None:
        """Notes that work on partitions does not run any more.

        Args:
            partitions: which.
            still_run: it could not be stopped in time: the coordinator is never told that it ended.
        """
        for partition in partitions:
            self.runs.pop(partition, None)
            self._takes.pop(partition, None)
            if still_run:
                self._left_running.add(partition)
        self._doomed = self._doomed and bool(self.runs)
        self._confirmed = None
        if self.told is not None and self.told == self.runs:
            self.told = None
