"""What the parts of a shard share: groups, open calls, open appends, the purgatory and the present turn."""

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Protocol

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2

from muster_core import error_code
from muster_core.catalog import NOTHING_KNOWN
from muster_core.clock import Now
from muster_core.config import GroupConfig
from muster_core.error_code import ErrorCode
from muster_core.events import Append, Attach, Effects, GroupResponse, Push, Reply, Request
from muster_core.features import NO_FEATURES, Feature
from muster_core.log.application import Application
from muster_core.log.encoding import encoded
from muster_core.position import Position
from muster_core.protocol.bounds import Bounds
from muster_core.protocol.lines import Lines
from muster_core.protocol.open_append import BeforePart, OpenAppend, nothing_follows
from muster_core.protocol.responses import Owner, refusal, text_of
from muster_core.protocol.room import ALONE, Limit, Room
from muster_core.record_bounds import APPEND_MAX_BYTES, runs
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
from muster_core.state.group_table import GroupTable
from muster_core.state.holdings import Holdings
from muster_core.state.members.member import Member
from muster_core.state.offsets.offset_store import CommittedValues
from muster_core.state.published import TopicPartition
from muster_core.state.quarantine import NOBODY
from muster_core.waiting.purgatory import Purgatory

_TROUBLED_WAIT_MS = 1_000
"""For how long calls wait for a log that takes nothing."""

LOG_SLOW = "the log did not acknowledge the records in time; they may still be stored"
_CLOCK_STEP_MS = 50
"""A wall clock that moves by more against the boot clock was set, or replaced by another one."""

_REMOVED = "the member was removed from the group"

_new = tuple.__new__


NO_MEMBER = "\0"
"""An id that no member has: none has a control character."""


class OfAMember(Protocol):
    """A call in the name of a member."""

    @property
    def member_id(self) -> str:
        """The member."""

    @property
    def member_secret(self) -> bytes:
        """What proves that the caller is the member; empty: nothing does."""


class OfAGroup(Protocol):
    """Something that belongs to one group."""

    @property
    def group_id(self) -> str:
        """The group; empty: none after all."""


class ShardContext:
    """The shard's memory and the effects of the turn that is being played.

    Attributes:
        config: limits and times.
        groups: groups by id.
        application: what records do to them.
        purgatory: everything that waits for time.
        epoch: epoch of the ownership; 0 before the load has ended.
        features: what the cluster has enabled: nothing of another one may be written. Only grows; empty
            before the load has ended.
        now: time of the turn.
        clock_moved: whether the wall clock jumped since the load: then the stamps of this owner's records do
            not say how long anything took.
        effects: effects of the turn.
        calls: open calls by id.
        lines: what waits in line.
        streams: session streams by id → members on them, with their groups.
        quarantine: the groups that no turn may touch.
        held: those of them that the log knows: nothing of them changes but that a deleted topic's offsets go,
            and their offsets are read.
        holdings: what the groups hold in memory, with the records that are on their way to the log.
        room: the process around the shard.
        bounds: what shard and process may hold.
        working_on: what of a group is being worked on where the event does not say it; None: nothing.
        arrived: the call that the turn has brought; None: it is about something else.
        news: that groups are of the other kind, before all else that is told when the lease is held (INC-90).
        catalog: the topics as last heard.
        deletions: of topics, oldest first: what the log is about to say that was carried out.
        leaving: of groups, by id: numbers of partitions by topic whose offsets the log has as removed, and
            which are removed some at a time.
        arriving: of groups, by id: what partitions had before a commit that is carried out some at a time.
    """

    def __init__(self, config: GroupConfig) -> None:
        self.config = config
        self.groups = GroupTable()
        self.purgatory = Purgatory(0)
        self.holdings = Holdings()
        self.application = Application(self.groups, config, self.release)
        self.epoch = 0
        self.features = NO_FEATURES
        self.now = Now(0, 0)
        self.clock_moved = False
        self._wall_ahead_ms: int | None = None
        self.effects = Effects()
        self.calls: dict[int, Request] = {}
        self.lines = Lines(self, self.calls, self.purgatory.wheel)
        self.streams: dict[int, dict[Member, Group]] = {}
        self.quarantine = NOBODY
        self.held = self.application.held
        self._unstored: dict[str, Group] = {}
        self.room = ALONE
        self.bounds = Bounds(config, self.groups, self.held, self.holdings)
        self.application.on_ended = lambda group: self.room.ended(group)
        self.working_on: OfAGroup | None = None
        self.arrived: Request | None = None
        self.news: list[Push] = []
        self.catalog = NOTHING_KNOWN
        self.deletions: deque[frozenset[str]] = deque()
        self.leaving: dict[str, Mapping[str, Container[int]]] = {}
        self.arriving: dict[str, dict[TopicPartition, CommittedValues | None]] = {}
        self._appends: dict[int, OpenAppend] = {}
        self._last_append_id = 0

    def live_in(self, room: Room) -> None:
        """Sets the process around the shard, whose limits count from now on."""
        self.room = self.bounds.room = room
        self.holdings.resized = room.resized

    def begin_turn(self, now: Now) -> None:
        """Begins a turn at this time: no effects yet, and no group is worked on."""
        self.effects = Effects()
        self.working_on = self.arrived = None
        self.now = now
        wall_ahead_ms = now.wall_ms - now.boot_ms
        if wall_ahead_ms != self._wall_ahead_ms:
            self._note_clocks(wall_ahead_ms)

    def _note_clocks(self, wall_ahead_ms: int) -> None:
        """Notes whether the wall clock has jumped against the boot clock since the turn before."""
        before_ms, self._wall_ahead_ms = self._wall_ahead_ms, wall_ahead_ms
        if before_ms is not None and abs(wall_ahead_ms - before_ms) > _CLOCK_STEP_MS:
            self.clock_moved = True

    def tell_news(self) -> None:
        """Notifies members on streams that their groups are of the other kind."""
        self.effects.pushes[:0] = self.news
        self.news.clear()

    # --- calls

    def reply(self, call_id: int, message: GroupResponse) -> None:
        """Answers a call, unless it was answered already or its caller is gone."""
        if self.calls.pop(call_id, None) is not None:
            self.effects.replies.append(_new(Reply, (call_id, message)))  # half the time: each call has one

    def refuse(self, call_id: int, code: ErrorCode, message: str = "", owner: Owner = None) -> None:
        """Answers a call with an error."""
        call = self.calls.get(call_id)
        if call is not None:
            self.reply(call_id, refusal(call.message, code, self.epoch, message or text_of(code), owner))

    # --- the log

    def record(self) -> records_pb2.Record:
        """A new record, stamped with the wall clock."""
        return records_pb2.Record(written_at_ms=self.now.wall_ms)

    def append(
        self,
        records: Iterable[records_pb2.Record],
        done: Callable[[], None],
        *,
        holds: Group | None = None,
        calls: Iterable[int] = (),
        overdue: Callable[[], None] | None = None,
        step_bytes: int = APPEND_MAX_BYTES,
        before: BeforePart | None = None,
        more_bytes: int = 0,
    ) -> None:
        """Sends records to the log; they are applied, and `done` is run, when they are acknowledged.

        What is more than the log takes at a time is stored in several steps; a crash between them leaves the
        first ones.

        Args:
            records: what to store, in this order; all or nothing where the log takes it at a time.
            done: what follows.
            holds: the group whose further events wait in line until then (docs/safety.md, "Groups").
            calls: calls that wait for it; they are refused when it takes longer than the limit.
            overdue: runs when it takes longer than the limit, and each time that the limit passes again.
            step_bytes: how much is carried out at a time, where that takes longer than to store it.
            before: called with each of several parts but the last before it is carried out; then all of them
                are stored together, as far as the log takes them at a time. None: each may be stored alone.
            more_bytes: what is held in memory for them besides, and counts until they are stored.
        """
        some = tuple(records)
        encodings = tuple(map(encoded, some))
        if len(some) > 1:
            *first, last = runs(list(map(len, encodings)), step_bytes)
            for run in first:
                part = OpenAppend(
                    some[run], encodings[run], nothing_follows, self._lose_patience, before=before
                )
                self._send(part, joined=before is not None)
            some, encodings = some[last], encodings[last]
        if holds is not None:
            holds.line.in_flight = True
        waiting = tuple(calls)
        self._send(
            OpenAppend(
                some, encodings, done, self._lose_patience, holds, waiting, overdue, more_bytes=more_bytes
            )
        )

    def _send(self, append: OpenAppend, *, joined: bool = False) -> None:
        self._last_append_id += 1
        self._appends[self._last_append_id] = append
        self.holdings.bytes += append.bytes
        self.effects.appends.append(Append(self._last_append_id, append.records, append.encoded, joined))
        self.purgatory.wheel.arm(append, self._patience_ends_ms())

    def _patience_ends_ms(self) -> int:
        """Until when calls that come now wait for the log, boot time; not for long where it takes nothing."""
        wait_ms = self.config.append_timeout_ms
        if self.room.log_trouble():
            wait_ms = min(wait_ms, _TROUBLED_WAIT_MS)
        return self.now.boot_ms + wait_ms

    def _lose_patience(self, append: OpenAppend) -> None:
        """Refuses what waits; the records may still land, then their effects are carried out."""
        for call_id in append.calls:
            self.refuse(call_id, error_code.COORDINATOR_NOT_AVAILABLE, self.log_slow)
        if append.overdue is not None:
            append.overdue()
        if append.holds is not None:
            self.lines.refuse_line(append.holds)
        # calls that come now, in line or as retries, must not wait for ever either
        self.purgatory.wheel.arm(append, self._patience_ends_ms())

    @property
    def log_slow(self) -> str:
        """What a call is refused with whose records were not stored in time."""
        trouble = self.room.log_trouble()
        return f"{LOG_SLOW} ({trouble})" if trouble else LOG_SLOW

    def on_their_way(self) -> Iterator[records_pb2.Record]:
        """The records that were sent to the log and are not acknowledged yet, in order."""
        for append in self._appends.values():
            yield from append.records

    def append_done(self, append_id: int, position: Position) -> None:
        """Applies the records of an append and continues what waited for it."""
        append = self._appends.pop(append_id)
        self.holdings.bytes -= append.bytes
        self.working_on = append
        self.purgatory.wheel.cancel(append)
        if self._unstored:
            self._unstored.pop(append.group_id, None)
        if append.before is not None:
            append.before(append.records)
        for index, record in enumerate(append.records):
            self.application.apply(position.after(index), record)
        group = append.holds
        if group is not None:
            group.line.in_flight = False
        append.done()
        if group is not None:
            self.lines.move_up(group)

    # --- groups

    def too_many_new_groups(self) -> str:
        """Why no group can be added whose first member joins, for people; empty: one can.

        Makes room if it must: the oldest group without members that the log does not know is dropped. An id
        that it has given out is then refused as unknown, and its owner joins anew.
        """
        limit = self.config.max_new_groups_per_shard
        if len(self._unstored) >= limit and not self._make_room():
            text = f"the shard has its limit of {limit:,} groups that gather their first members"
            return self.bounds.over(Limit.NEW_GROUPS_PER_SHARD, text)
        return self.bounds.too_many_groups()

    def _make_room(self) -> bool:
        for group_id, group in self._unstored.items():
            if group.stored or self.groups.get(group_id) is not group:
                del self._unstored[group_id]
                return True
            if self._is_idle(group):
                self.forget(group)
                return True
        return False

    def add_unstored(self, group: Group) -> None:
        """Adds a group that the log does not know yet."""
        group.stored = False
        group.count_in(self.holdings)
        self.groups[group.group_id] = self._unstored[group.group_id] = group

    def forget_unstored(self, group: Group) -> bool:
        """Drops a group of which the log knows nothing if nobody is in it, and no id of it is given out."""
        forgotten = not group.stored and not group.pending_members and self._is_idle(group)
        if forgotten:
            self.forget(group)
        return forgotten

    def forget(self, group: Group) -> None:
        """Drops a group of which the log knows nothing, with the ids that it has given out."""
        for timer in group.pending_members.values():
            self.purgatory.wheel.cancel(timer)
        group.pending_members.clear()
        del self.groups[group.group_id]
        self._unstored.pop(group.group_id, None)
        group.become(GroupState.DEAD, self.now.wall_ms)
        group.count_out()

    def end_gathering(self) -> None:
        """Goes on with what was gathered."""
        for group in self.lines.gathered():
            self.working_on = group
            self.lines.move_up(group)
            if self.groups.get(group.group_id) is group:  # all who called may have given up meanwhile
                self.forget_unstored(group)

    @staticmethod
    def _is_idle(group: Group) -> bool:
        line = group.line
        return group.is_vacant and not (group.members or line.in_flight or line.in_turns or not line.is_empty)

    # --- members

    def proven_id(self, group: Group, named: OfAMember, call: Request | Attach) -> str:
        """The member id that a call names, or `NO_MEMBER` where it does not bring that member's secret.

        So such a call is answered as one with an id that nobody has, and the member is not touched (SES-39).
        """
        member_id = named.member_id
        if group.lock_of(member_id).is_opened_by(named.member_secret):
            return member_id
        self.room.unproven(group.group_id, member_id, call.identity, call.host)
        return NO_MEMBER

    @property
    def keeps_secrets(self) -> bool:
        """Whether the secrets of members that join count, and hashes of them may be written."""
        return Feature.MEMBER_SECRETS in self.features

    def refuse_join(
        self, group: Group, member: Member, code: ErrorCode, message: str, owner: Owner = None
    ) -> bool:
        """Answers the parked JoinGroup of a member with an error and its own id."""
        call_id = group.unpark_join(member)
        call = None if call_id is None else self.calls.get(call_id)
        if call_id is not None and call is not None:
            answer = refusal(call.message, code, self.epoch, message, owner)
            if isinstance(answer, coordinator_pb2.JoinGroupResponse):
                answer.member_id = member.member_id
            self.reply(call_id, answer)
        return call_id is not None

    def detach(self, member: Member) -> None:
        """Takes a member off its session stream."""
        if member.stream_id is not None:
            members = self.streams.get(member.stream_id, {})
            members.pop(member, None)
            if not members:  # a stream without members here leaves nothing here
                self.streams.pop(member.stream_id, None)
            member.stream_id = None

    def fence(
        self, group: Group, member: Member, code: ErrorCode, cause: common_pb2.RebalanceCause | None = None
    ) -> None:
        """Pushes to a member on a stream that its membership is gone, and takes it off the stream."""
        if member.stream_id is not None:
            news = session_pb2.Fenced(
                group_id=group.group_id, member_id=member.member_id, error_code=code, shard_epoch=self.epoch
            )
            if cause is not None and cause.member_id == member.member_id:
                news.cause.CopyFrom(cause)
            self.effects.pushes.append(Push(member.stream_id, news))
            self.detach(member)

    def release(self, group: Group, member: Member) -> None:
        """Ends what a member waits for, because it is about to be removed (conformance LG-18, LG-19)."""
        if member.heartbeat is not None:
            self.purgatory.wheel.cancel(member.heartbeat)
        self.fence(group, member, error_code.UNKNOWN_MEMBER_ID)
        call_id = group.unpark_join(member)
        if call_id is not None and call_id in self.calls:
            answer = coordinator_pb2.JoinGroupResponse(
                error_code=error_code.UNKNOWN_MEMBER_ID,
                generation=-1,
                shard_epoch=self.epoch,
                error_message=_REMOVED,
            )
            self.reply(call_id, answer)
        if member.sync_call is not None:
            self.refuse(member.sync_call, error_code.UNKNOWN_MEMBER_ID, _REMOVED)
            member.sync_call = None
