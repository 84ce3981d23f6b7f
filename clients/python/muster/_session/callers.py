"""The members of incremental groups on a session stream: their own calls put them there."""

from collections.abc import Callable, Iterator
from typing import Protocol

from muster_protos.muster.v1 import common_pb2, session_pb2

from muster._session.end import StreamEnd
from muster._session.session_members import Key


class CallingMember(Protocol):
    """A member of an incremental group, as a stream calls it. None of these raises or waits."""

    @property
    def beat_interval_ms(self) -> int:
        """Longest time between two beats, ms."""

    def began(self) -> None:
        """Called when the stream was opened anew: the member is not on it until it calls again."""

    def on_stream(self) -> None:
        """Called when a call of its own has put it onto the stream: beats count for it."""

    def alive(self, sent_ms: int) -> None:
        """Called when a beat sent at `sent_ms` counts for it."""

    def unheard(self, missed: session_pb2.UnheardMember) -> None:
        """Called when a beat did not count for it."""

    def told(self, news: session_pb2.MemberNews) -> None:
        """Called with what it did not ask for."""

    def fenced(self, news: session_pb2.Fenced) -> None:
        """Called when its join has ended."""

    def changed(self, news: session_pb2.GroupChanged) -> None:
        """Called when its group is a classic one now; it is off the stream."""

    def moved(self, coordinator: common_pb2.Coordinator) -> None:
        """Called when another coordinator serves its group."""

    def stream_ended(self, end: StreamEnd) -> None:
        """Called when the stream has ended for good."""


class Callers:
    """The members of incremental groups on one stream.

    Args:
        due: called when there is something to send.
    """

    def __init__(self, due: Callable[[], None]) -> None:
        self._on_due = due
        self._gone: dict[Key, None] = {}
        self._members: dict[Key, CallingMember] = {}
        self._attached: set[Key] = set()

    def __len__(self) -> int:
        """Members on the stream, or on their way there."""
        return len(self._members)

    @property
    def beat_interval_ms(self) -> int | None:
        """The shortest interval that a member asks for, ms; None: there is no member."""
        return min((one.beat_interval_ms for one in self._members.values()), default=None)

    def add(self, key: Key, member: CallingMember) -> None:
        """A member is about to make its calls on the stream."""
        self._members[key] = member
        self._attached.discard(key)
        self._on_due()

    def remove(self, key: Key, member: CallingMember) -> None:
        """A member makes its calls elsewhere; nothing is said to it any more."""
        if self._members.get(key) is member:
            del self._members[key]
            self._attached.discard(key)
            self._gone[key] = None
            self._on_due()

    def carries(self, key: Key, member: CallingMember) -> bool:
        """Whether a member makes its calls here."""
        return self._members.get(key) is member

    def begin(self) -> None:
        """A new stream was opened."""
        self._attached.clear()
        self._gone.clear()
        for member in tuple(self._members.values()):
            member.began()

    def frames(self) -> Iterator[session_pb2.ClientFrame]:
        """The Detach frames to send, for a stream that a member left suspects nobody; they count as sent."""
        gone, self._gone = self._gone, {}
        for group_id, member_id in gone:
            yield session_pb2.ClientFrame(detach=session_pb2.Detach(group_id=group_id, member_id=member_id))

    def abandon(self, end: StreamEnd) -> None:
        """Notifies every member that the stream has ended for good."""
        members, self._members = list(self._members.values()), {}
        self._attached.clear()
        for member in members:
            member.stream_ended(end)

    # What the server says

    def attach_result(self, result: session_pb2.AttachResult) -> bool:
        """Takes the news that a call has put its member onto the stream; False: it answers an `Attach`.

        An error does that always: the member may have sent one before its group was an incremental one.
        """
        key = (result.group_id, result.member_id)
        member = self._members.get(key)
        if member is None or result.error_code != common_pb2.ERROR_CODE_NONE:
            return False
        self._attached.add(key)
        member.on_stream()
        return True

    def beat_ack(self, ack: session_pb2.BeatAck, sent_ms: int) -> None:
        """A beat sent at `sent_ms` counts for everybody but those that the answer names."""
        unheard = {(member.group_id, member.member_id): member for member in ack.unheard}
        for key in tuple(self._attached):
            member, missed = self._members[key], unheard.get(key)
            if missed is None:
                member.alive(sent_ms)
            else:
                member.unheard(missed)

    def member_news(self, news: session_pb2.MemberNews) -> None:
        """Passes on what a member did not ask for."""
        if (member := self._members.get((news.group_id, news.response.member_id))) is not None:
            member.told(news)

    def fenced(self, news: session_pb2.Fenced) -> bool:
        """Passes on that a join has ended; False: it is of no member here."""
        if (member := self._members.get((news.group_id, news.member_id))) is None:
            return False
        self._attached.discard((news.group_id, news.member_id))
        member.fenced(news)
        return True

    def became_classic(self, news: session_pb2.GroupChanged) -> None:
        """Passes on that a group is a classic one now.

        The server has taken the member off the stream: no Detach is needed.
        """
        key = (news.group_id, news.member_id)
        if (member := self._members.pop(key, None)) is not None:
            self._attached.discard(key)
            member.changed(news)

    def coordinator_moved(self, news: session_pb2.CoordinatorMoved) -> bool:
        """Passes on that a group has moved; False: it is of no member here."""
        key = (news.group_id, news.member_id)
        if (member := self._members.get(key)) is None:
            return False
        self._attached.discard(key)
        member.moved(news.coordinator)
        return True
