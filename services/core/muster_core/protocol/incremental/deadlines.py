"""The two clocks of a member: that it lives, and that it gives back (conformance TM-01 to TM-20)."""

from collections.abc import Callable, Sequence
from functools import partial

from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

from muster_core import cause_kind
from muster_core.incremental import causes
from muster_core.incremental.decisions.decision import Decision
from muster_core.incremental.decisions.upkeep import remove
from muster_core.incremental.member import Member
from muster_core.position import NOWHERE, Position
from muster_core.protocol.context import ShardContext
from muster_core.protocol.incremental.settings import assignors_of, grace_ms_of, session_ms_of
from muster_core.protocol.incremental.targets import Targets
from muster_core.protocol.incremental.topics import topics_of
from muster_core.state.group import Group
from muster_core.waiting.timing_wheel import CallbackTimer, Timer

_Key = tuple[str, str]
"""Group and member."""
_TOGETHER = 100
"""Members that are removed by one decision."""


class Deadlines:
    """Arms, moves and ends the clocks.

    Args:
        context: the shard.
        targets: how targets come about.
    """

    def __init__(self, context: ShardContext, targets: Targets) -> None:
        self._context = context
        self._targets = targets
        self._sessions: dict[_Key, Session] = {}
        self._revocations: dict[_Key, _Revocation] = {}
        self._silent: dict[Group, list[Session]] = {}

    def touch(self, group: Group, member_id: str, *, promises: bool = False) -> None:
        """The member was heard of: its session begins again.

        Args:
            group: the group.
            member_id: who.
            promises: whether the member is told that it has a session, whatever becomes of a stream (SES-23).
        """
        timer = self.session_of(group, member_id)
        timer.length_ms = self.whole_session_ms(group, member_id)
        ends_ms = self._context.now.boot_ms + timer.length_ms
        timer.is_heard, timer.is_suspect = True, False
        if promises:
            timer.promised_until_ms = ends_ms
        self._context.purgatory.wheel.arm(timer, ends_ms)

    def whole_session_ms(self, group: Group, member_id: str) -> int:
        """How long a member may be silent; by its classic join, while it knows no other (INC-75)."""
        member = _member(group, member_id)
        classic_ms = 0 if member is None else member.told.classic_session_ms
        return max(session_ms_of(self._context.config, group.settings, member), classic_ms)

    def session_of(self, group: Group, member_id: str) -> "Session":
        """The clock of a member's session; it is the same as long as the member is one."""
        key = group.group_id, member_id
        timer = self._sessions.get(key)
        if timer is None:
            timer = self._sessions[key] = Session(self, group, member_id)
        return timer

    def newest_named(self, group: Group, member_id: str) -> Position:
        """The newest version that a request of a member has named since the load; nowhere: none did."""
        session = self._sessions.get((group.group_id, member_id))
        return NOWHERE if session is None else session.named

    def heard(self, group: Group, request: ConsumerGroupHeartbeatRequest, *, promises: bool) -> None:
        """A request of a member is answered, or waits for a target; `promises` as in `touch`."""
        self.touch(group, request.member_id, promises=promises)
        session = self.session_of(group, request.member_id)
        session.named = max(session.named, Position.from_proto(request.version))

    def beat(self, session: "Session") -> None:
        """A member is alive: nearly always its deadline only moves."""
        ends_ms = self._context.now.boot_ms + session.length_ms
        if session.armed and session.deadline_ms <= ends_ms:
            session.deadline_ms = ends_ms
            session.is_heard, session.is_suspect = True, False
        else:
            self.touch(session.group, session.member_id)

    def suspect(self, session: "Session", broke_ms: int) -> None:
        """The stream of a member broke: its session ends with the grace, if not before (SES-07, SES-08).

        Not before what a call without a stream, or an `unsure`, may have promised (SES-23, SES-25).
        """
        if not session.armed:
            return  # its session ended, and that waits in line
        member = _member(session.group, session.member_id)
        grace_ends_ms = broke_ms + grace_ms_of(self._context.config, session.group.settings, member)
        promised_ms = max(session.promised_until_ms, session.extended_until_ms)
        ends_ms = min(session.deadline_ms, max(grace_ends_ms, promised_ms))
        self._context.purgatory.wheel.arm(session, ends_ms)
        session.is_suspect = True

    def is_suspect(self, group: Group, member_id: str) -> bool:
        """Whether the stream of a member broke, or the shard was loaded, and it was not heard of since.

        After a load not before its grace is over: it may be on its way here. One without streams never is.
        """
        member = _member(group, member_id)
        session = self._sessions.get((group.group_id, member_id))
        if member is None or session is None or not member.told.on_session:
            return False
        if member.told.classic_session_ms:
            return False  # it may work for all of its classic session
        waited_ms = self._context.now.boot_ms - session.began_ms
        grace_ms = grace_ms_of(self._context.config, group.settings, member)
        missed = not session.is_heard and waited_ms >= grace_ms
        return session.is_suspect or missed

    def suspend(self, group: Group) -> None:
        """From now on members may hear `unsure`, and live for their sessions (SES-25)."""
        for member_id in group.incremental.members if group.incremental is not None else ():
            until_ms = self._context.now.boot_ms + self.whole_session_ms(group, member_id)
            self.session_of(group, member_id).extend(until_ms)

    def follow(self, group: Group, member_id: str) -> None:
        """A record changed a member: the clocks of one that is gone stop, and one that owes nothing has time.

        What was taken with another record than before begins its time anew (conformance TM-11 to TM-13).
        """
        key = group.group_id, member_id
        member = _member(group, member_id)
        if member is None:
            self._stop(self._sessions.pop(key, None))
        taken = NOWHERE if member is None else member.last_taken
        timer = self._revocations.get(key)
        if timer is not None and timer.taken != taken:
            self._stop(self._revocations.pop(key))
            timer = None
        if member is not None and taken != NOWHERE and timer is None:
            ended = partial(self._revocation_ended, group, member_id, taken)
            timer = self._revocations[key] = _Revocation(group, taken, ended)
            timeout_ms = max(member.told.rebalance_timeout_ms, self._life_ms(group, member))
            self._context.purgatory.wheel.arm(timer, self._context.now.boot_ms + timeout_ms)

    def session_ms(self, group: Group, member_id: str) -> int:
        """How long a member may still be silent; -1: its session does not run."""
        return self._remaining_ms(self._sessions.get((group.group_id, member_id)))

    def revocation_ms(self, group: Group, member_id: str) -> int:
        """How long a member has left to give back; -1: it owes nothing."""
        return self._remaining_ms(self._revocations.get((group.group_id, member_id)))

    def _remaining_ms(self, timer: Timer | None) -> int:
        if timer is None or not timer.armed:
            return -1
        return max(timer.deadline_ms - self._context.now.boot_ms, 0)

    def _life_ms(self, group: Group, member: Member) -> int:
        """How long a stream member that is told nothing works on; others have Kafka's time alone."""
        if not member.told.on_session:
            return 0
        session = self.session_of(group, member.member_id)
        now_ms = self._context.now.boot_ms
        if session.stream_id is None or session.extended_until_ms or session.promised_until_ms > now_ms:
            return self.whole_session_ms(group, member.member_id)
        return grace_ms_of(self._context.config, group.settings, member)

    def begin_anew(self, group: Group) -> None:
        """After a load or a suspension everybody has all of its time (conformance LR-01, LR-02).

        But a hold of moves ends when it would have (docs/safety.md, INC-172).
        """
        self._targets.holds.follow(group)
        for member_id in group.incremental.members if group.incremental is not None else ():
            self._stop(self._revocations.pop((group.group_id, member_id), None))
            self.touch(group, member_id)
            session = self.session_of(group, member_id)
            session.is_heard, session.began_ms = False, self._context.now.boot_ms
            session.extend(session.deadline_ms)
            self.follow(group, member_id)

    def forget(self, group: Group) -> None:
        """The group is gone."""
        for member_id in group.incremental.members if group.incremental is not None else ():
            self._stop(self._sessions.pop((group.group_id, member_id), None))
            self._stop(self._revocations.pop((group.group_id, member_id), None))

    def session_ended(self, session: "Session") -> None:
        """A member was silent; in line, since a record that says otherwise may be on its way.

        One on streams is removed by `remove_silent`, which follows, with all that are gone at the same time.
        """
        group = session.group
        member = _member(group, session.member_id)
        if member is not None and member.on_stream:
            self._silent.setdefault(group, []).append(session)
        else:
            self._context.lines.in_line(group, partial(self._expire, group, [session]), deadline=True)

    def remove_silent(self) -> None:
        """Stream members whose sessions have ended, as with their process, are removed together (INC-147)."""
        silent, self._silent = self._silent, {}
        for group, sessions in silent.items():
            self._context.working_on = group
            for first in range(0, len(sessions), _TOGETHER):
                some = sessions[first : first + _TOGETHER]
                self._context.lines.in_line(group, partial(self._expire, group, some), deadline=True)
        if silent:
            self._context.working_on = None

    def _expire(self, group: Group, sessions: Sequence["Session"]) -> None:
        gone: list[tuple[Member, causes.Cause]] = []
        for session in sessions:
            member = self._living(group, session.member_id)
            is_present = self._sessions.get((group.group_id, session.member_id)) is session
            if member is not None and is_present and not session.armed:  # not heard of again in line
                gone.append((member, self._cause_of_silence(session, member)))
        self._remove(group, gone)

    def _cause_of_silence(self, session: "Session", member: Member) -> causes.Cause:
        if session.is_suspect:
            kind = cause_kind.DISCONNECTED
            silence_ms = grace_ms_of(self._context.config, session.group.settings, member)
        else:
            kind = cause_kind.SESSION_EXPIRED
            silence_ms = session.length_ms  # what is set since counts from its next heartbeat on (INC-121)
        return causes.by_member(kind, member, self._context.now.wall_ms, silence_ms)

    def _revocation_ended(self, group: Group, member_id: str, taken: Position) -> None:
        """The member has not given back what a record took from it."""
        self._context.lines.in_line(group, partial(self._fence, group, member_id, taken), deadline=True)

    def _fence(self, group: Group, member_id: str, taken: Position) -> None:
        member = self._living(group, member_id)
        if member is not None and member.last_taken == taken:
            cause = causes.by_member(cause_kind.REBALANCE_TIMEOUT, member, self._context.now.wall_ms)
            self._remove(group, [(member, cause)])

    def _living(self, group: Group, member_id: str) -> Member | None:
        is_present = self._context.groups.get(group.group_id) is group
        return _member(group, member_id) if is_present else None

    def _remove(self, group: Group, gone: Sequence[tuple[Member, causes.Cause]]) -> None:
        if not gone or group.incremental is None:
            return
        context = self._context
        decision = Decision(group.incremental, group.group_id, context.record, context.catalog.removed)
        topics = topics_of(context.catalog)
        when = partial(self._targets.when, group)
        assignors = assignors_of(context.room.assignors, group.settings)
        remove(decision, gone, topics, assignors, when, moved=context.clock_moved)
        done = partial(self._follow_all, group, [member.member_id for member, _ in gone])
        context.append(decision.records, done, holds=group)

    def _follow_all(self, group: Group, member_ids: Sequence[str]) -> None:
        for member_id in member_ids:
            self.follow(group, member_id)

    def _stop(self, timer: Timer | None) -> None:
        if timer is not None:
            self._context.purgatory.wheel.cancel(timer)


def _member(group: Group, member_id: str) -> Member | None:
    return None if group.incremental is None else group.incremental.members.get(member_id)


class Session(Timer):
    """A member's session; each heartbeat moves it, and each beat of its stream.

    Attributes:
        group: the member's group.
        member_id: the member.
        stream_id: the session stream that it is on; None: it is on none.
        length_ms: how long the member may be silent.
        is_heard: whether it was heard of since `began_ms`.
        is_suspect: whether its stream broke and it was not heard of since.
        began_ms: boot time of the load, or of the end of a suspension; 0: the member came later.
        promised_until_ms: boot time until which it may work by its last call without a stream; 0: it made
            none.
        extended_until_ms: boot time until which it may work because it heard `unsure`; 0: it cannot have, or
            a beat of it named a later acknowledgement.
        named: the newest version that a request of the member has named.
    """

    __slots__ = (
        "_deadlines",
        "_sure_beat",
        "began_ms",
        "extended_until_ms",
        "group",
        "is_heard",
        "is_suspect",
        "length_ms",
        "member_id",
        "named",
        "promised_until_ms",
        "stream_id",
    )

    def __init__(self, deadlines: Deadlines, group: Group, member_id: str) -> None:
        super().__init__()
        self._deadlines = deadlines
        self.group = group
        self.member_id = member_id
        self.stream_id: int | None = None
        self.length_ms = 0
        self.is_heard = True
        self.is_suspect = False
        self.began_ms = 0
        self.promised_until_ms = 0
        self.extended_until_ms = 0
        self.named: Position = NOWHERE
        self._sure_beat = 0

    @property
    def group_id(self) -> str:
        """The member's group."""
        return self.group.group_id

    def extend(self, until_ms: int) -> None:
        """It may hear `unsure` from now on, or may have heard it from an owner before."""
        self.extended_until_ms = until_ms
        self._sure_beat = 0

    def on_stream(self, stream_id: int, *, knows_unsure: bool) -> None:
        """The member is on a stream, whose beats are numbered from 1."""
        self.stream_id = stream_id
        self._sure_beat = 0
        if not knows_unsure:
            self.extended_until_ms = 0

    def confirm(self, beat: int, acknowledged: int) -> None:
        """Notes a beat. The extension ends when the client has acknowledged one without `unsure`."""
        if not self._sure_beat:
            self._sure_beat = beat
        elif acknowledged >= self._sure_beat:
            self.extended_until_ms = 0

    def fire(self) -> None:
        """The member was silent for its session."""
        self._deadlines.session_ended(self)


class _Revocation(CallbackTimer):
    """How long a member has to give back what one record took."""

    __slots__ = ("taken",)

    def __init__(self, group: Group, taken: Position, ended: Callable[[], None]) -> None:
        super().__init__(group.group_id, ended)
        self.taken = taken
