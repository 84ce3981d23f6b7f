"""A connection of a party, as far as it has open calls."""

import asyncio
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar

from muster_runtime.rpc.quotas.bucket import Bucket
from muster_runtime.rpc.quotas.party import KEPT_S, Party, Quota, bucket_of, burst_s, changed
from muster_runtime.rpc.quotas.work import Decoding, WorkInHand
from muster_runtime.rpc.refusals import ResourceExhausted

_RESETS_OF_A_CONNECTION = 100
"""A connection that gave up fewer calls is kept: of a slow server, all workers of a host give up some."""
_ENDING_S = 5.0
"""Within so long a connection is ended, and what waits on it was dropped."""


class Connection:
    """A connection of a party, as far as it has open calls.

    It has a share of what its party may ask for: where other connections have used all of that up, one that
    asks for less than its share is served still.

    Args:
        party: who made it.
        work: the large requests of the process.
        decoding: its large messages that are not decoded yet.

    Attributes:
        open_calls: calls that have not ended.
        resets: calls that were given up.
    """

    __slots__ = (
        "_began_s",
        "_bytes",
        "_calls",
        "_decoding",
        "_ends_s",
        "_frames",
        "_left_s",
        "_partitions",
        "_shares",
        "_work",
        "open_calls",
        "party",
        "resets",
    )

    def __init__(
        self, party: Party, work: WorkInHand | None = None, decoding: Decoding | None = None
    ) -> None:
        now_s = party.now_s()
        self.party = party
        self._work = WorkInHand() if work is None else work
        self._decoding = Decoding(self._work.most_bytes) if decoding is None else decoding
        self.open_calls = 0
        self._began_s = self._left_s = now_s
        self._shares: dict[Quota, Bucket] = {}
        self.resets = 0
        self._ends_s: float | None = None
        self._calls = bucket_of(party.limits, Quota.CONNECTION_CALLS, now_s)
        self._bytes = bucket_of(party.limits, Quota.CONNECTION_BYTES, now_s)
        self._frames = bucket_of(party.limits, Quota.CONNECTION_CALLS, now_s)
        self._partitions = bucket_of(party.limits, Quota.CONNECTION_PARTITIONS, now_s)
        party.known += 1

    def change(self) -> None:
        """Takes over its party's new limits."""
        limits, now_s = self.party.limits, self.party.now_s()
        self._calls = changed(self._calls, limits, Quota.CONNECTION_CALLS, now_s)
        self._bytes = changed(self._bytes, limits, Quota.CONNECTION_BYTES, now_s)
        self._frames = changed(self._frames, limits, Quota.CONNECTION_CALLS, now_s)
        self._partitions = changed(self._partitions, limits, Quota.CONNECTION_PARTITIONS, now_s)

    def forget(self) -> None:
        """Leaves the known connections of its party."""
        self.party.known -= 1

    def share_of(self, quota: Quota, rate_per_s: float, now_s: float) -> Bucket:
        """What it may take of a rate of its party, whatever the others take.

        Args:
            quota: the rate.
            rate_per_s: its share of that, as of now.
            now_s: the clock.
        """
        burst = max(1.0, rate_per_s * burst_s(quota))
        share = self._shares.get(quota)
        if share is None:
            left = min(max(1.0, rate_per_s), (now_s - self._began_s) * rate_per_s)
            share = self._shares[quota] = Bucket(rate_per_s, burst, now_s, left)
        share.change(rate_per_s, burst)
        return share

    def takes_frames(self, number: int) -> bool:
        """Whether so many frames that are no calls are within its rate of calls, which they have besides."""
        return self._frames is None or not self._frames.take(number, self.party.now_s())

    def wait_for_frames_s(self, number: int) -> float:
        """Counts so many frames that are no calls for its party; they are not refused.

        Returns:
            How long whoever sent them is not to be read, seconds: until the party, or this connection of its
            share, has paid back what was too much.
        """
        return self.party.wait_s(Quota.FRAMES, number, self.party.now_s(), self.share_of)

    def enter(self, task: "asyncio.Task[object]") -> None:
        """Counts a call that begins: it is open until the current task, which serves it, has ended.

        Raises:
            ResourceExhausted: it is one too many.
        """
        party = self.party
        limits = party.limits
        now_s = party.now_s()
        if not self.open_calls and 0 < limits["connections"] <= party.connections:
            raise party.refusal(Quota.CONNECTIONS, now_s)
        if 0 < limits["open_calls"] <= party.open_calls and self._has_its_share_of_calls():
            raise party.refusal(Quota.OPEN_CALLS, now_s)
        self._take_call(now_s)
        if not self.open_calls:
            party.connections += 1
        self.open_calls += 1
        party.open_calls += 1
        task.add_done_callback(self._leave)

    def _has_its_share_of_calls(self) -> bool:
        """Whether it has as many open calls as each connection may have where the others have too many."""
        party = self.party
        limit = party.limits["open_calls"]
        return self.open_calls * party.connections >= limit or party.open_calls >= 2 * limit

    def _leave(self, _: object) -> None:
        party = self.party
        self.open_calls -= 1
        party.open_calls -= 1
        if not self.open_calls:
            party.connections -= 1
            self._left_s = party.now_s()

    @property
    def ended(self) -> bool:
        """Whether it is being ended: what it still has waiting is not looked at.

        After some seconds it is another one with the same port, or could not be ended.
        """
        if self._ends_s is not None and self.party.now_s() >= self._ends_s:
            self._ends_s, self.resets = None, 0
        return self._ends_s is not None

    def end(self) -> None:
        """It is going to be ended."""
        self._ends_s = self.party.now_s() + _ENDING_S

    def reset(self) -> bool:
        """Counts a call that its caller gave up before it was answered.

        Returns:
            Whether to end the connection: its caller gives up too many calls, and many of them on this one.
            Of one that is being ended it is said again with each hundred, should it go on.
        """
        ended = self.ended
        self.resets += 1
        if ended:
            return self.resets % _RESETS_OF_A_CONNECTION == 0
        try:
            self.party.take(Quota.RESETS, 1, self.party.now_s(), self.share_of)
        except ResourceExhausted:
            return self.resets >= _RESETS_OF_A_CONNECTION
        return False

    def take_request(self, size_bytes: int) -> None:
        """Counts a call that begins on a stream.

        Raises:
            ResourceExhausted: it is one too many, or too large with those before.
        """
        now_s = self.party.now_s()
        self._take_call(now_s)
        self._take_bytes(size_bytes, now_s)

    def _take_call(self, now_s: float) -> None:
        calls = self._calls
        if calls is not None and (wait_s := calls.take(1, now_s)):
            raise self.party.refusal(Quota.CONNECTION_CALLS, now_s, wait_s)
        self.party.take(Quota.CALLS, 1, now_s, self.share_of)

    def take_bytes(self, size_bytes: int) -> None:
        """Counts the request of a unary call.

        Raises:
            ResourceExhausted: it is too much, with those before.
        """
        self._take_bytes(size_bytes, self.party.now_s())

    def _take_bytes(self, size_bytes: int, now_s: float) -> None:
        room = self._bytes
        if room is not None and (wait_s := room.take(size_bytes, now_s)):
            raise self.party.refusal(Quota.CONNECTION_BYTES, now_s, wait_s)
        self.party.take(Quota.BYTES, size_bytes, now_s, self.share_of)

    def take_partitions(self, number: int) -> None:
        """Counts the partitions that a call names.

        Raises:
            ResourceExhausted: they are too many, with those before.
        """
        now_s = self.party.now_s()
        room = self._partitions
        if room is not None and (wait_s := room.take(number, now_s)):
            raise self.party.refusal(Quota.CONNECTION_PARTITIONS, now_s, wait_s)
        self.party.take(Quota.PARTITIONS, number, now_s, self.share_of)

    def owe_partitions(self, number: int) -> None:
        """Counts partitions of a call that is refused because it names more than any may.

        To decode it took long, whether there was room for them or not: see `check_decoding`.
        """
        now_s = self.party.now_s()
        if self._partitions is not None:
            self._partitions.take(0, now_s)
            self._partitions.owe(number)
        self.party.owe(Quota.PARTITIONS, number, now_s)

    def pay_partitions(self, number: int) -> None:
        """Counts partitions that an answer has and its call did not name: the next such calls wait for that.

        No more is owed than may be asked for at once, so large messages are read all the same.
        """
        now_s = self.party.now_s()
        if self._partitions is not None:
            self._partitions.pay(number, now_s)
        self.party.pay(Quota.PARTITIONS, number, now_s, self.share_of)

    def check_decoding(self) -> None:
        """Whether a large message may be decoded, which takes long where it has a million parts.

        Raises:
            ResourceExhausted: the calls of this connection, or of its caller, named so many that it owes more
                than it may ask for at once; nobody does whose calls are in order.
        """
        now_s = self.party.now_s()
        if self._partitions is not None and (wait_s := self._partitions.deep_debt_s(now_s)):
            raise self.party.refusal(Quota.CONNECTION_PARTITIONS, now_s, wait_s)
        self.party.check_debt(Quota.PARTITIONS, now_s)

    def turn_to_decode(self) -> AbstractAsyncContextManager[None]:
        """Waits until nobody decodes a large message, callers in turn, and holds that for the block."""
        return self._decoding.turns.turn(self.party.name)

    def begin_waiting(self, size_bytes: int) -> int:
        """Counts a message of a stream until it is decoded; returns the argument for `end_waiting`.

        Raises:
            ResourceExhausted: it is too large beside those that wait.
        """
        return self._decoding.waiting.begin(self.party.name, size_bytes)

    def end_waiting(self, counted_bytes: int) -> None:
        """Counts a message no longer: it is decoded, or nobody reads it."""
        self._decoding.waiting.end(self.party.name, counted_bytes)

    def begin_work(self, size_bytes: int) -> int:
        """Counts a request that is worked on from now on; returns the argument for `end_work`.

        Raises:
            ResourceExhausted: it is too large beside those that are worked on.
        """
        return self._work.begin(self.party.name, size_bytes)

    def end_work(self, counted_bytes: int) -> None:
        """Counts a request no longer: it was answered, or given up."""
        self._work.end(self.party.name, counted_bytes)

    def take(self, quota: Quota, amount: int = 1) -> None:
        """Takes from a rate of its party.

        Raises:
            ResourceExhausted: it is used up.
        """
        self.party.take(quota, amount, self.party.now_s(), self.share_of)

    def open_stream(self) -> None:
        """Counts a session stream that begins; `close_stream` ends it.

        Raises:
            ResourceExhausted: it is one too many.
        """
        if 0 < self.party.limits["streams"] <= self.party.streams:
            raise self.party.refusal(Quota.STREAMS, self.party.now_s())
        self.party.streams += 1

    def close_stream(self) -> None:
        """Counts a session stream no longer."""
        self.party.streams -= 1

    def is_at_rest(self, now_s: float) -> bool:
        """Whether it has no open call and nothing to remember, and its share is of no use now."""
        if self.party.is_short(now_s) and now_s - self._left_s < KEPT_S:
            return False
        buckets = (self._calls, self._bytes, self._frames, self._partitions)
        return not self.open_calls and all(one is None or one.is_full(now_s) for one in buckets)


_current: ContextVar[Connection | None] = ContextVar("muster_connection", default=None)


def current_connection() -> Connection | None:
    """The connection of the call that this code serves; None: it has no quotas."""
    return _current.get()


def serve_on(connection: Connection) -> None:
    """Makes a connection that of the call whose task this is."""
    _current.set(connection)
