"""Members of incremental groups on session streams: which connection each is on, and what it is told."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from muster_protos.muster.v1 import common_pb2, incremental_pb2, session_pb2

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.events import Beat, Push, Request, StreamBroken
from muster_core.incremental.decisions.request import Refused
from muster_core.incremental.member import Member
from muster_core.position import Position
from muster_core.protocol.context import ShardContext
from muster_core.protocol.incremental.answers import answer_of
from muster_core.protocol.incremental.deadlines import Deadlines, Session
from muster_core.protocol.responses import Owner
from muster_core.state.group import Group

_Key = tuple[str, str]
"""Group and member."""

_Join = tuple[int, bytes]
"""Its number and its process."""


class _End(NamedTuple):
    """Why a join is over, should it be: what the member is told, and the cause where it was removed."""

    code: ErrorCode
    cause: common_pb2.RebalanceCause | None = None


_GONE = _End(error_code.UNKNOWN_MEMBER_ID)
_REPLACED = _End(error_code.FENCED_INSTANCE_ID)


@dataclass(slots=True)
class _Connected:
    """A member that has come by a stream under its present join.

    Attributes:
        join: the join.
        connection: the newest of its connections.
        session: its session, which knows the stream that it is on.
        told: newest version that was said to it there.
    """

    join: _Join
    connection: int
    session: Session
    told: Position


class StreamMembers:
    """Follows what changes for members on streams and tells them at the end of the turn.

    Args:
        context: the shard.
        deadlines: the members' clocks.
    """

    def __init__(self, context: ShardContext, deadlines: Deadlines) -> None:
        self._context = context
        self._deadlines = deadlines
        self._connected: dict[_Key, _Connected] = {}
        self._streams: dict[int, dict[_Key, _Connected]] = {}
        self._changed: dict[_Key, tuple[Group, _End]] = {}

    @property
    def streams(self) -> frozenset[int]:
        """The streams that have members here."""
        return frozenset(self._streams)

    # --- where they are

    def check(self, call: Request, request: incremental_pb2.ConsumerGroupHeartbeatRequest) -> None:
        """Looks whether a call comes by the newest connection of its join (docs/safety.md, INC-22).

        Raises:
            Refused: it comes by an older one.
        """
        connected = self._connected.get((request.group_id, request.member_id))
        join = request.member_seq, request.process_id
        if call.place is None or connected is None or connected.join != join:
            return
        if call.place.connection < connected.connection:
            text = f"the member has come by connection {connected.connection} since"
            raise Refused(error_code.INVALID_REQUEST, text)

    def attach(self, call: Request, group: Group, member: Member) -> None:
        """A call is about to be answered with all that its member is to know: it is on that call's stream.

        What one changed that came without a stream, or that nobody hears any more, is told as news (INC-20).
        """
        if call.place is None or call.call_id not in self._context.calls:
            return
        key, join = (group.group_id, member.member_id), (member.told.member_seq, member.told.process_id)
        connected = self._connected.get(key)
        stream_id, connection, knows_unsure = call.place
        session = self._deadlines.session_of(group, member.member_id)
        is_there = connected is not None and connected.join == join and session.stream_id == stream_id
        self._leave_stream(key)
        self._connected[key] = connected = _Connected(join, connection, session, member.version)
        self._streams.setdefault(stream_id, {})[key] = connected
        if not is_there:
            session.on_stream(stream_id, knows_unsure=knows_unsure)
            result = session_pb2.AttachResult(
                group_id=group.group_id, member_id=member.member_id, shard_epoch=self._context.epoch
            )
            self._push(stream_id, result)
        session.stream_id = stream_id

    def detach(self, stream_id: int, group_id: str, member_id: str) -> None:
        """Takes a member off its stream, if it is on this one; it hears nothing of it."""
        key = group_id, member_id
        if key in self._streams.get(stream_id, {}):
            self._leave_stream(key)

    def _leave_stream(self, key: _Key) -> int | None:
        connected = self._connected.get(key)
        stream_id = None if connected is None else connected.session.stream_id
        if connected is None or stream_id is None:
            return None
        connected.session.stream_id = None
        members = self._streams.get(stream_id, {})
        members.pop(key, None)
        if not members:
            self._streams.pop(stream_id, None)
        return stream_id

    # --- that they live

    def beat(self, event: Beat) -> None:
        """Everybody on the stream is alive."""
        for connected in tuple(self._streams.get(event.stream_id, {}).values()):
            session = connected.session
            if session.extended_until_ms:
                session.confirm(event.number, event.acknowledged)
            self._context.working_on = session.group
            self._deadlines.beat(session)

    def broken(self, event: StreamBroken) -> None:
        """The stream is gone: its members are suspect until they are heard of again."""
        for connected in self._streams.pop(event.stream_id, {}).values():
            session = connected.session
            self._context.working_on = session.group
            session.stream_id = None
            if event.suspect:
                self._deadlines.suspect(session, self._context.now.boot_ms - event.ago_ms)

    # --- what they are told

    def changed(self, group: Group, kind: str, record: Any) -> None:
        """A record of a group was carried out; at the end of the turn its members are told."""
        if kind == "instance_moved":
            self._changed[group.group_id, record.old_member_id] = group, _REPLACED
            self._changed[group.group_id, record.member.member_id] = group, _REPLACED
        elif kind == "member_subscribed":
            self._changed[group.group_id, record.member.member_id] = group, _GONE
        elif kind == "member_removed":
            self._changed[group.group_id, record.member_id] = group, _End(_GONE.code, record.cause)
        elif kind in {"member_stepped", "member_went_away"}:
            self._changed[group.group_id, record.member_id] = group, _GONE

    def tell(self) -> None:
        """Tells members on streams what the turn changed for them, each once and whole (INC-20)."""
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        for key, (group, end) in changed.items():
            self._context.working_on = group
            self._deadlines.follow(group, key[1])
            if key in self._connected:
                self._tell(key, group, end)

    def _tell(self, key: _Key, group: Group, end: _End) -> None:
        connected, incremental = self._connected[key], group.incremental
        member = None if incremental is None else incremental.members.get(key[1])
        if (
            incremental is None
            or member is None
            or connected.join != (member.told.member_seq, member.told.process_id)
        ):
            self._end(key, end)
        elif connected.session.stream_id is not None and member.version != connected.told:
            connected.told = member.version
            news = session_pb2.MemberNews(
                group_id=group.group_id,
                member_seq=member.told.member_seq,
                response=answer_of(self._context, group, member, whole_list=True),
            )
            self._push(connected.session.stream_id, news)

    def _end(self, key: _Key, end: _End) -> None:
        stream_id = self._leave_stream(key)
        connected = self._connected.pop(key)
        if stream_id is not None:
            fenced = session_pb2.Fenced(
                group_id=key[0],
                member_id=key[1],
                error_code=end.code,
                cause=end.cause,
                shard_epoch=self._context.epoch,
                member_seq=connected.join[0],
            )
            self._push(stream_id, fenced)

    def end(self, group: Group, code: ErrorCode) -> None:
        """A group is of the other kind: its members hear it, and are on no stream (INC-152)."""
        for member_id in group.incremental.members if group.incremental is not None else ():
            key = group.group_id, member_id
            stream_id = self._leave_stream(key)
            self._connected.pop(key, None)
            self._changed.pop(key, None)
            if stream_id is not None:
                news = session_pb2.GroupChanged(
                    group_id=group.group_id,
                    member_id=member_id,
                    error_code=code,
                    shard_epoch=self._context.epoch,
                )
                self._context.news.append(Push(stream_id, news))

    def unload(self, successor: Owner) -> None:
        """The shard is given up: everybody is told who serves the group next."""
        for stream_id, members in self._streams.items():
            for group_id, member_id in members:
                moved = session_pb2.CoordinatorMoved(
                    group_id=group_id, member_id=member_id, coordinator=successor
                )
                self._push(stream_id, moved)
        self._streams.clear()
        self._connected.clear()

    def _push(self, stream_id: int, message: Any) -> None:
        self._context.effects.pushes.append(Push(stream_id, message))
