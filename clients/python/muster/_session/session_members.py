"""The members on a session stream: those whose Attach is under way, and those that are attached."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from muster_protos.muster.v1 import common_pb2, session_pb2

from muster._clock import boot_ms
from muster._session.end import StreamEnd

DEFAULT_BEAT_MS = 500
"""How often a stream with calls but no members beats."""

Key: TypeAlias = tuple[str, str]
"""A member as a stream knows it: group and member id."""


class SessionMember(Protocol):
    """A membership on a session stream, as the stream calls it. None of these raises or waits."""

    @property
    def attach(self) -> session_pb2.Attach:
        """The message that attaches it to the stream."""

    @property
    def beat_interval_ms(self) -> int:
        """Longest time between two beats, ms."""

    def attached(self, result: session_pb2.AttachResult, sent_ms: int) -> None:
        """Called with the answer to its `Attach`, which was sent at `sent_ms`."""

    def alive(self, sent_ms: int) -> None:
        """Called when a beat sent at `sent_ms` counts for it."""

    def unheard(self, code: int) -> None:
        """Called when a beat did not count for it; `code` says why."""

    def unsure(self, shard_epoch: int) -> None:
        """Called when a beat did not count as the coordinator is unsure of its lease; it stays attached."""

    def rebalance(self, news: session_pb2.RebalanceStarted) -> None:
        """Called when it has to rejoin."""

    def fenced(self, news: session_pb2.Fenced) -> None:
        """Called when it is no longer a member; it is off the stream."""

    def changed(self, news: session_pb2.GroupChanged) -> None:
        """Called when its group is an incremental one now; it is off the stream."""

    def moved(self, coordinator: common_pb2.Coordinator) -> None:
        """Called when another coordinator serves its group; it is off the stream."""

    def stream_ended(self, end: StreamEnd) -> None:
        """Called when the stream has ended for good."""


class SessionMembers:
    """The members of one stream: whose Attach or Detach is to be sent, who awaits an answer, who is attached.

    Args:
        due: called when there is something to send.
        fewer: called when a member has left.
    """

    def __init__(self, due: Callable[[], None], fewer: Callable[[], None]) -> None:
        self._on_due = due
        self._on_fewer = fewer
        self._members: dict[Key, SessionMember] = {}
        self._due: dict[Key, None] = {}
        self._attaching: dict[Key, deque[tuple[SessionMember, int]]] = {}
        self._attached: dict[Key, SessionMember] = {}

    def __len__(self) -> int:
        """Members on the stream or on their way onto it."""
        return len(self._members)

    @property
    def beat_interval_ms(self) -> int:
        """The shortest interval that a member asks for, ms."""
        return min((p.beat_interval_ms for p in self._members.values()), default=DEFAULT_BEAT_MS)

    def attach(self, key: Key, member: SessionMember) -> None:
        """Puts a member on the stream, in place of any that has the key."""
        self._members[key] = member
        self._attached.pop(key, None)
        self._due[key] = None
        self._on_due()

    def detach(self, key: Key, member: SessionMember) -> None:
        """Takes a member off, unless another membership took its place."""
        if self._members.get(key) is member:
            del self._members[key]
            self._attached.pop(key, None)
            self._due[key] = None
            self._on_due()

    def carries(self, key: Key, member: SessionMember) -> bool:
        """Whether a member is on the stream, or on its way there."""
        return self._members.get(key) is member

    def is_attached(self, key: Key, member: SessionMember) -> bool:
        """Whether beats count for a member."""
        return self._attached.get(key) is member

    def begin(self) -> None:
        """A new stream was opened: every member has to be attached again."""
        self._attaching.clear()
        self._attached.clear()
        self._due = dict.fromkeys(self._members)

    def frames(self) -> Iterator[session_pb2.ClientFrame]:
        """The Attach and Detach frames to send; they count as sent then."""
        due, self._due = self._due, {}
        now_ms = boot_ms()
        for key in due:
            member = self._members.get(key)
            if member is None:
                detach = session_pb2.Detach(group_id=key[0], member_id=key[1])
                yield session_pb2.ClientFrame(detach=detach)
            else:
                self._attaching.setdefault(key, deque()).append((member, now_ms))
                yield session_pb2.ClientFrame(attach=member.attach)

    def abandon(self, end: StreamEnd) -> None:
        """Notifies every member that the stream has ended for good."""
        members, self._members = list(self._members.values()), {}
        for member in members:
            member.stream_ended(end)

    # What the server says

    def attach_result(self, result: session_pb2.AttachResult) -> None:
        """Passes on the answer to an Attach."""
        key = (result.group_id, result.member_id)
        awaited = self._attaching.get(key)
        if not awaited:
            return
        member, sent_ms = awaited.popleft()
        if not awaited:
            del self._attaching[key]
        if self._members.get(key) is not member:
            return
        if result.error_code in (common_pb2.ERROR_CODE_NONE, common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS):
            self._attached[key] = member
        else:
            self._drop(key)
        member.attached(result, sent_ms)

    def beat_ack(self, ack: session_pb2.BeatAck, sent_ms: int) -> None:
        """A beat sent at `sent_ms` counts for every attached member except those that the answer names."""
        unheard = {(member.group_id, member.member_id): member for member in ack.unheard}
        for key, member in tuple(self._attached.items()):
            missed = unheard.get(key)
            if missed is None:
                member.alive(sent_ms)
            elif missed.unsure:
                member.unsure(missed.shard_epoch)
            else:
                member.unheard(int(missed.error_code))

    def rebalance_started(self, news: session_pb2.RebalanceStarted) -> None:
        """Passes on that a member has to rejoin."""
        if (member := self._members.get((news.group_id, news.member_id))) is not None:
            member.rebalance(news)

    def fenced(self, news: session_pb2.Fenced) -> None:
        """Takes a fenced member off the stream and notifies it."""
        key = (news.group_id, news.member_id)
        # While an Attach is on its way its answer decides: the news may be about the generation before.
        if key in self._attached:
            self._drop(key).fenced(news)

    def became_incremental(self, news: session_pb2.GroupChanged) -> None:
        """Takes a member whose group is an incremental one now off the stream and notifies it."""
        key = (news.group_id, news.member_id)
        if key in self._members:
            self._drop(key).changed(news)

    def coordinator_moved(self, news: session_pb2.CoordinatorMoved) -> None:
        """Takes a member whose group has moved off the stream and notifies it."""
        key = (news.group_id, news.member_id)
        if key in self._members:
            self._drop(key).moved(news.coordinator)

    def _drop(self, key: Key) -> SessionMember:
        """Forgets a member that the server has taken off the stream: no Detach is needed."""
        self._attached.pop(key, None)
        self._due.pop(key, None)
        member = self._members.pop(key)
        self._on_fewer()
        return member
