"""The members that hang on a session stream: on their way onto it, or aboard."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from muster_protos.muster.v1 import common_pb2, session_pb2

from muster._clock import boot_ms
from muster._session.end import StreamEnd

DEFAULT_BEAT_MS = 500
"""How often a stream beats that has calls, but no members yet."""

Key: TypeAlias = tuple[str, str]
"""A member as a stream knows it: group and member id."""


class Passenger(Protocol):
    """A membership that hangs on a session stream. Nothing of this raises or waits."""

    @property
    def attach(self) -> session_pb2.Attach:
        """What puts it on the stream."""

    @property
    def beat_interval_ms(self) -> int:
        """How often a beat is needed."""

    def attached(self, result: session_pb2.AttachResult, sent_ms: int) -> None:
        """Its `Attach`, which was sent then, was answered."""

    def alive(self, sent_ms: int) -> None:
        """A beat that was sent then counts for it."""

    def unheard(self, code: int) -> None:
        """A beat did not count for it."""

    def unsure(self, shard_epoch: int) -> None:
        """A beat did not count for it, since the coordinator is not sure of its lease; it stays aboard."""

    def rebalance(self, news: session_pb2.RebalanceStarted) -> None:
        """It has to rejoin."""

    def fenced(self, news: session_pb2.Fenced) -> None:
        """It is no member any more, and off the stream."""

    def moved(self, coordinator: common_pb2.Coordinator) -> None:
        """Its group is served elsewhere, and it is off the stream."""

    def adrift(self, end: StreamEnd) -> None:
        """The stream is gone for good."""


class Passengers:
    """Who hangs on a stream, whose Attach or Detach is due, whose answer is awaited, and who is aboard.

    Args:
        due: told when there is something to send.
        fewer: told when there is one member less.
    """

    def __init__(self, due: Callable[[], None], fewer: Callable[[], None]) -> None:
        self._tell_due = due
        self._tell_fewer = fewer
        self._passengers: dict[Key, Passenger] = {}
        self._due: dict[Key, None] = {}
        self._boarding: dict[Key, deque[tuple[Passenger, int]]] = {}
        self._aboard: dict[Key, Passenger] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._passengers)

    @property
    def beat_interval_ms(self) -> int:
        """How often a beat is needed."""
        return min((p.beat_interval_ms for p in self._passengers.values()), default=DEFAULT_BEAT_MS)

    def attach(self, key: Key, passenger: Passenger) -> None:
        """Puts a member on the stream, in place of any that has the key."""
        self._passengers[key] = passenger
        self._aboard.pop(key, None)
        self._due[key] = None
        self._tell_due()

    def detach(self, key: Key, passenger: Passenger) -> None:
        """Takes a member off, unless another membership took its place."""
        if self._passengers.get(key) is passenger:
            del self._passengers[key]
            self._aboard.pop(key, None)
            self._due[key] = None
            self._tell_due()

    def carries(self, key: Key, passenger: Passenger) -> bool:
        """Whether a member is on the stream, or on its way there."""
        return self._passengers.get(key) is passenger

    def is_aboard(self, key: Key, passenger: Passenger) -> bool:
        """Whether beats count for a member."""
        return self._aboard.get(key) is passenger

    def begin(self) -> None:
        """A new stream stands at its beginning: everybody has to come aboard again."""
        self._boarding.clear()
        self._aboard.clear()
        self._due = dict.fromkeys(self._passengers)

    def frames(self) -> Iterator[session_pb2.ClientFrame]:
        """What has to be sent."""
        due, self._due = self._due, {}
        now_ms = boot_ms()
        for key in due:
            passenger = self._passengers.get(key)
            if passenger is None:
                detach = session_pb2.Detach(group_id=key[0], member_id=key[1])
                yield session_pb2.ClientFrame(detach=detach)
            else:
                self._boarding.setdefault(key, deque()).append((passenger, now_ms))
                yield session_pb2.ClientFrame(attach=passenger.attach)

    def abandon(self, end: StreamEnd) -> None:
        """The stream is gone for good: everybody is told."""
        passengers, self._passengers = list(self._passengers.values()), {}
        for passenger in passengers:
            passenger.adrift(end)

    # What the server says

    def attach_result(self, result: session_pb2.AttachResult) -> None:
        """An Attach was answered."""
        key = (result.group_id, result.member_id)
        awaited = self._boarding.get(key)
        if not awaited:
            return
        passenger, sent_ms = awaited.popleft()
        if not awaited:
            del self._boarding[key]
        if self._passengers.get(key) is not passenger:
            return
        if result.error_code in (common_pb2.ERROR_CODE_NONE, common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS):
            self._aboard[key] = passenger
        else:
            self._put_off(key)
        passenger.attached(result, sent_ms)

    def beat_ack(self, ack: session_pb2.BeatAck, sent_ms: int) -> None:
        """A beat that was sent then counts for everybody aboard, but for those that it names."""
        unheard = {(member.group_id, member.member_id): member for member in ack.unheard}
        for key, passenger in tuple(self._aboard.items()):
            missed = unheard.get(key)
            if missed is None:
                passenger.alive(sent_ms)
            elif missed.unsure:
                passenger.unsure(missed.shard_epoch)
            else:
                passenger.unheard(int(missed.error_code))

    def rebalance_started(self, news: session_pb2.RebalanceStarted) -> None:
        """A member has to rejoin."""
        if (passenger := self._passengers.get((news.group_id, news.member_id))) is not None:
            passenger.rebalance(news)

    def fenced(self, news: session_pb2.Fenced) -> None:
        """A member is none any more."""
        key = (news.group_id, news.member_id)
        # While an Attach is on its way its answer decides: the news may be of the generation before.
        if key in self._aboard:
            self._put_off(key).fenced(news)

    def coordinator_moved(self, news: session_pb2.CoordinatorMoved) -> None:
        """A member's group is served elsewhere."""
        key = (news.group_id, news.member_id)
        if key in self._passengers:
            self._put_off(key).moved(news.coordinator)

    def _put_off(self, key: Key) -> Passenger:
        """The server has taken the member off the stream: no Detach is needed."""
        self._aboard.pop(key, None)
        self._due.pop(key, None)
        passenger = self._passengers.pop(key)
        self._tell_fewer()
        return passenger
