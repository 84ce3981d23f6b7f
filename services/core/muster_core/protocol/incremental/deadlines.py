"""The two clocks of a member: that it lives, and that it gives back (conformance TM-01 to TM-20)."""

from functools import partial

from muster_core.incremental import causes
from muster_core.incremental.decision import Decision
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.heartbeat import remove
from muster_core.incremental.member import Member
from muster_core.position import NOWHERE, Position
from muster_core.protocol.context import ShardContext
from muster_core.protocol.incremental.topics import topics_of
from muster_core.state.group import Group
from muster_core.waiting.timing_wheel import Timer

_Key = tuple[str, str]
"""Group and member."""


class Deadlines:
    """Arms, moves and ends the clocks.

    Args:
        context: the shard.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._sessions: dict[_Key, _Session] = {}
        self._revocations: dict[_Key, _Revocation] = {}

    def touch(self, group: Group, member_id: str) -> None:
        """The member was heard of: its session begins again."""
        key = group.group_id, member_id
        timer = self._sessions.get(key)
        if timer is None:
            timer = self._sessions[key] = _Session(self, group, member_id)
        timeout_ms = self._context.config.incremental_session_timeout_ms
        self._context.purgatory.wheel.arm(timer, self._context.now.boot_ms + timeout_ms)

    def follow(self, group: Group, member_id: str) -> None:
        """A record changed a member: the clocks of one that is gone stop, and one that owes nothing has time.

        What was taken with another record than before begins its time anew (conformance TM-11 to TM-13).
        """
        key = group.group_id, member_id
        member = group.incremental.members.get(member_id) if group.incremental is not None else None
        if member is None:
            self._stop(self._sessions.pop(key, None))
        taken = NOWHERE if member is None else member.last_taken
        timer = self._revocations.get(key)
        if timer is not None and timer.taken != taken:
            self._stop(self._revocations.pop(key))
            timer = None
        if member is not None and taken != NOWHERE and timer is None:
            timer = self._revocations[key] = _Revocation(self, group, member_id, taken)
            timeout_ms = member.told.rebalance_timeout_ms
            self._context.purgatory.wheel.arm(timer, self._context.now.boot_ms + timeout_ms)

    def begin_anew(self, group: Group) -> None:
        """After a load or a suspension everybody has all of its time (conformance LR-01, LR-02)."""
        for member_id in group.incremental.members if group.incremental is not None else ():
            self._stop(self._revocations.pop((group.group_id, member_id), None))
            self.touch(group, member_id)
            self.follow(group, member_id)

    def forget(self, group: Group) -> None:
        """The group is gone."""
        for member_id in group.incremental.members if group.incremental is not None else ():
            self._stop(self._sessions.pop((group.group_id, member_id), None))
            self._stop(self._revocations.pop((group.group_id, member_id), None))

    def session_ended(self, group: Group, member_id: str, session: Timer) -> None:
        """The member was silent; in line, since a record that says otherwise may be on its way."""
        self._context.in_line(group, partial(self._expire, group, member_id, session), deadline=True)

    def _expire(self, group: Group, member_id: str, session: Timer) -> None:
        if session.armed or self._sessions.get((group.group_id, member_id)) is not session:
            return  # heard of again while this waited in line
        found = self._living(group, member_id)
        if found is not None:
            silence_ms = self._context.config.incremental_session_timeout_ms
            self._remove(group, *found, causes.SESSION_EXPIRED, silence_ms)

    def revocation_ended(self, group: Group, member_id: str, taken: Position) -> None:
        """The member has not given back what a record took from it."""
        self._context.in_line(group, partial(self._fence, group, member_id, taken), deadline=True)

    def _fence(self, group: Group, member_id: str, taken: Position) -> None:
        found = self._living(group, member_id)
        if found is not None and found[1].last_taken == taken:
            self._remove(group, *found, causes.REBALANCE_TIMEOUT)

    def _living(self, group: Group, member_id: str) -> tuple[IncrementalGroup, Member] | None:
        incremental = group.incremental
        if incremental is None or self._context.groups.get(group.group_id) is not group:
            return None
        member = incremental.members.get(member_id)
        return None if member is None else (incremental, member)

    def _remove(
        self,
        group: Group,
        incremental: IncrementalGroup,
        member: Member,
        kind: causes.Kind,
        silence_ms: int = 0,
    ) -> None:
        context = self._context
        decision = Decision(incremental, group.group_id, context.record)
        cause = causes.by_member(kind, member, context.now.wall_ms, silence_ms)
        topics = topics_of(context.catalog)
        remove(decision, member, cause, topics, moved=context.clock_moved)
        done = partial(self.follow, group, member.member_id)
        context.append(decision.records, done, holds=group)

    def _stop(self, timer: Timer | None) -> None:
        if timer is not None:
            self._context.purgatory.wheel.cancel(timer)


class _Session(Timer):
    """A member's session; each heartbeat moves it."""

    __slots__ = ("_deadlines", "_group", "_member_id")

    def __init__(self, deadlines: Deadlines, group: Group, member_id: str) -> None:
        super().__init__()
        self._deadlines = deadlines
        self._group = group
        self._member_id = member_id

    @property
    def group_id(self) -> str:
        """The member's group."""
        return self._group.group_id

    def fire(self) -> None:
        """The member was silent for its session."""
        self._deadlines.session_ended(self._group, self._member_id, self)


class _Revocation(Timer):
    """How long a member has to give back what one record took."""

    __slots__ = ("_deadlines", "_group", "_member_id", "taken")

    def __init__(self, deadlines: Deadlines, group: Group, member_id: str, taken: Position) -> None:
        super().__init__()
        self._deadlines = deadlines
        self._group = group
        self._member_id = member_id
        self.taken = taken

    @property
    def group_id(self) -> str:
        """The member's group."""
        return self._group.group_id

    def fire(self) -> None:
        """The time is over."""
        self._deadlines.revocation_ended(self._group, self._member_id, self.taken)
