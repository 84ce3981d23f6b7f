"""Who calls, with what it has in use, and its connections."""

import asyncio
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from enum import Enum
from typing import Final

from muster_runtime.rpc.quotas.bucket import Bucket
from muster_runtime.rpc.quotas.work import Decoding, WorkInHand
from muster_runtime.rpc.refusals import ResourceExhausted

BURST_S: Final = 5
"""Calls, bytes, commits and partitions: how many seconds of them may be asked for at once."""

CREATION_BURST_S: Final = 100
"""New groups and changes of topics: how many seconds of them may be made at once."""

_KEPT_S = 60.0
"""How long a connection without calls keeps its share, in s, while its party is refused something."""

_RETRY_MS = 1_000
_LONGEST_RETRY_MS = 30_000


class Quota(Enum):
    """What is limited, by the name of its setting."""

    CONNECTIONS = "connections"
    STREAMS = "streams"
    OPEN_CALLS = "open_calls"
    CALLS = "calls_per_s"
    FRAMES = "frames_per_s"
    BYTES = "bytes_per_s"
    COMMITS = "commits_per_s"
    PARTITIONS = "partitions_per_s"
    NEW_GROUPS = "new_groups_per_s"
    TOTAL_GROUPS = "total_groups"
    TOTAL_MEMBERS = "total_members"
    TOTAL_PARTITIONS = "total_partitions"
    TOPIC_CHANGES = "topic_changes_per_s"
    RESETS = "resets_per_s"
    CONNECTION_CALLS = "connection_calls_per_s"
    CONNECTION_BYTES = "connection_bytes_per_s"
    CONNECTION_PARTITIONS = "connection_partitions_per_s"


_WORDS = {
    Quota.CONNECTIONS: "connections",
    Quota.STREAMS: "session streams",
    Quota.OPEN_CALLS: "open calls",
    Quota.CALLS: "calls a second",
    Quota.FRAMES: "frames a second that are no calls",
    Quota.BYTES: "bytes of requests a second",
    Quota.COMMITS: "commits a second",
    Quota.PARTITIONS: "partitions a second that its calls name",
    Quota.NEW_GROUPS: "new groups a second",
    Quota.TOTAL_GROUPS: "groups in all",
    Quota.TOTAL_MEMBERS: "members of its groups in all",
    Quota.TOTAL_PARTITIONS: "committed partitions of its groups in all",
    Quota.TOPIC_CHANGES: "changes of topics a second",
    Quota.RESETS: "calls a second that it gives up",
    Quota.CONNECTION_CALLS: "calls a second on one connection",
    Quota.CONNECTION_BYTES: "bytes of requests a second on one connection",
    Quota.CONNECTION_PARTITIONS: "partitions a second that calls on one connection name",
}
_CREATIONS = frozenset({Quota.NEW_GROUPS, Quota.TOPIC_CHANGES})
_RATES = (Quota.CALLS, Quota.FRAMES, Quota.BYTES, Quota.COMMITS, Quota.PARTITIONS, *_CREATIONS, Quota.RESETS)

_RESETS_OF_A_CONNECTION = 100
"""A connection that gave up fewer calls is kept: of a slow server, all workers of a host give up some."""

Refused = Callable[[Quota], None]
"""Called for each refusal."""


class Party:
    """Who calls, or the groups of a prefix: buckets, and what is in use.

    Args:
        name: of the identity, the host, or the prefix.
        limits: by the names of the settings; 0: none.
        now_s: the clock.
        refused: called for each refusal.
        ruled: limits that a rule of the file of exceptions sets, by the names of the settings.

    Attributes:
        is_groups: whether it is a prefix of groups.
        connections: those with open calls.
        known: these, and those that had some lately.
        streams: session streams.
        open_calls: calls that have not ended.
        taken: of each rate, what was granted so far.
        rates: of each rate, how much was granted a second between the last two looks.
        refusals: how many there were, by quota.
        refused_at_s: when the last one was, by that clock.
        now_s: the clock.
    """

    def __init__(
        self,
        name: str,
        limits: Mapping[str, int],
        now_s: Callable[[], float],
        refused: Refused,
        *,
        is_groups: bool = False,
        ruled: Collection[str] = (),
    ) -> None:
        self._ruled = ruled
        self.name = name
        self.now_s = now_s
        self.limits = limits
        self.is_groups = is_groups
        self.connections = 0
        self.known = 0
        self.streams = 0
        self.open_calls = 0
        self.taken: dict[Quota, int] = dict.fromkeys(_RATES, 0)
        self.rates: dict[Quota, int] = {}
        self._before = dict(self.taken)
        self._looked_s = now_s()
        self.refusals: dict[Quota, int] = {}
        self.refused_at_s: float | None = None
        self._refused = refused
        self._buckets = {
            quota: bucket for quota in _RATES if (bucket := bucket_of(limits, quota, now_s())) is not None
        }

    def change(self, limits: Mapping[str, int], ruled: Collection[str]) -> None:
        """Gives it other limits from now on."""
        self.limits, self._ruled = limits, ruled
        for quota in _RATES:
            bucket = _changed(self._buckets.pop(quota, None), limits, quota, self.now_s())
            if bucket is not None:
                self._buckets[quota] = bucket

    def take(self, quota: Quota, amount: int, now_s: float, connection: "Connection | None" = None) -> None:
        """Takes from a rate; where that is used up from the share that the connection has of it.

        Raises:
            ResourceExhausted: both are used up.
        """
        bucket = self._buckets.get(quota)
        if bucket is not None and (wait_s := bucket.take(amount, now_s)):
            if connection is not None:
                share = connection.share_of(quota, bucket.rate_per_s / max(1, self.known), now_s)
                wait_s = min(wait_s, share.take(amount, now_s))
            if wait_s:
                raise self.refusal(quota, now_s, wait_s)
            bucket.owe(amount)
        self.taken[quota] += amount

    def wait_s(self, quota: Quota, amount: int, now_s: float, connection: "Connection") -> float:
        """Takes from a rate what was used already; what is above it, and above the connection's share, waits.

        Returns:
            After how many seconds it is paid back.
        """
        self.taken[quota] += amount
        bucket = self._buckets.get(quota)
        if bucket is None or not bucket.take(amount, now_s):
            return 0
        bucket.owe(amount)
        share = connection.share_of(quota, bucket.rate_per_s / max(1, self.known), now_s)
        if share.take(amount, now_s):
            share.owe(amount)
        wait_s = min(bucket.take(0, now_s), share.take(0, now_s))
        if wait_s:
            self._count(quota, now_s)
        return wait_s

    def owe(self, quota: Quota, amount: int, now_s: float) -> None:
        """Takes from a rate what was used already, whether it was there or not."""
        if (bucket := self._buckets.get(quota)) is not None:
            bucket.take(0, now_s)
            bucket.owe(amount)

    def check_debt(self, quota: Quota, now_s: float) -> None:
        """Whether it owes no more of a rate than it may ask for at once.

        Raises:
            ResourceExhausted: it does.
        """
        bucket = self._buckets.get(quota)
        if bucket is not None and (wait_s := bucket.deep_debt_s(now_s)):
            raise self.refusal(quota, now_s, wait_s)

    def refusal(self, quota: Quota, now_s: float, wait_s: float | None = None) -> ResourceExhausted:
        """Counts a refusal and returns the error to raise."""
        self._count(quota, now_s)
        retry_ms = _RETRY_MS if wait_s is None else min(math.ceil(wait_s * 1_000), _LONGEST_RETRY_MS)
        whose = f"groups {self.name}… have" if self.is_groups else f"{self.name or 'this caller'} has"
        limit = self.limits[quota.value]
        if quota.value in self._ruled:
            place = f"{quota.value} in the file of MUSTER_QUOTA_FILE"
        else:
            place = f"MUSTER_QUOTA_{quota.value.upper()}"
        text = f"{whose} the quota of {limit:,} {_WORDS[quota]} ({place}); try again in {retry_ms:,} ms"
        return ResourceExhausted(text, retry_ms)

    def _count(self, quota: Quota, now_s: float) -> None:
        self.refusals[quota] = self.refusals.get(quota, 0) + 1
        self.refused_at_s = now_s
        self._refused(quota)

    def look(self, now_s: float) -> None:
        """Sets `rates` to what was granted a second since the last look."""
        if now_s > self._looked_s:
            since_s = now_s - self._looked_s
            self.rates = {
                quota: round((n - self._before[quota]) / since_s) for quota, n in self.taken.items()
            }
            self._before = dict(self.taken)
            self._looked_s = now_s

    def is_short(self, now_s: float) -> bool:
        """Whether it was refused something lately."""
        return self.refused_at_s is not None and now_s - self.refused_at_s < _KEPT_S

    def is_at_rest(self, now_s: float) -> bool:
        """Whether it uses nothing and has nothing to remember."""
        in_use = self.open_calls or self.connections
        return not in_use and all(bucket.is_full(now_s) for bucket in self._buckets.values())


def bucket_of(limits: Mapping[str, int], quota: Quota, now_s: float) -> Bucket | None:
    """The bucket of a rate; None: it has no limit."""
    rate_per_s = limits.get(quota.value, 0)
    if not rate_per_s:
        return None
    return Bucket(rate_per_s, rate_per_s * _burst_s(quota), now_s)


def _changed(before: Bucket | None, limits: Mapping[str, int], quota: Quota, now_s: float) -> Bucket | None:
    """The bucket of a rate that had another one, or none."""
    after = bucket_of(limits, quota, now_s)
    if before is None or after is None:
        return after
    before.change(after.rate_per_s, after.burst)
    return before


def _burst_s(quota: Quota) -> int:
    return CREATION_BURST_S if quota in _CREATIONS else BURST_S


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
        ended: whether it is being ended: what it still has waiting is not looked at.
    """

    __slots__ = (
        "_began_s",
        "_bytes",
        "_calls",
        "_decoding",
        "_frames",
        "_left_s",
        "_partitions",
        "_shares",
        "_work",
        "ended",
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
        self.ended = False
        self._calls = bucket_of(party.limits, Quota.CONNECTION_CALLS, now_s)
        self._bytes = bucket_of(party.limits, Quota.CONNECTION_BYTES, now_s)
        self._frames = bucket_of(party.limits, Quota.CONNECTION_CALLS, now_s)
        self._partitions = bucket_of(party.limits, Quota.CONNECTION_PARTITIONS, now_s)
        party.known += 1

    def change(self) -> None:
        """Takes over its party's new limits."""
        limits, now_s = self.party.limits, self.party.now_s()
        self._calls = _changed(self._calls, limits, Quota.CONNECTION_CALLS, now_s)
        self._bytes = _changed(self._bytes, limits, Quota.CONNECTION_BYTES, now_s)
        self._frames = _changed(self._frames, limits, Quota.CONNECTION_CALLS, now_s)
        self._partitions = _changed(self._partitions, limits, Quota.CONNECTION_PARTITIONS, now_s)

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
        burst = max(1.0, rate_per_s * _burst_s(quota))
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
        return self.party.wait_s(Quota.FRAMES, number, self.party.now_s(), self)

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

    def reset(self) -> bool:
        """Counts a call that its caller gave up before it was answered.

        Returns:
            Whether to end the connection: its caller gives up too many calls, and many of them on this one.
            Of one that is being ended it is said again with each hundred, should it go on.
        """
        self.resets += 1
        if self.ended:
            return self.resets % _RESETS_OF_A_CONNECTION == 0
        try:
            self.party.take(Quota.RESETS, 1, self.party.now_s(), self)
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
        self.party.take(Quota.CALLS, 1, now_s, self)

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
        self.party.take(Quota.BYTES, size_bytes, now_s, self)

    def take_partitions(self, number: int) -> None:
        """Counts the partitions that a call names.

        Raises:
            ResourceExhausted: they are too many, with those before.
        """
        now_s = self.party.now_s()
        room = self._partitions
        if room is not None and (wait_s := room.take(number, now_s)):
            raise self.party.refusal(Quota.CONNECTION_PARTITIONS, now_s, wait_s)
        self.party.take(Quota.PARTITIONS, number, now_s, self)

    def owe_partitions(self, number: int) -> None:
        """Counts partitions of a call that is refused because it names more than any may.

        To decode it took long, whether there was room for them or not: see `check_decoding`.
        """
        now_s = self.party.now_s()
        if self._partitions is not None:
            self._partitions.take(0, now_s)
            self._partitions.owe(number)
        self.party.owe(Quota.PARTITIONS, number, now_s)

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
        self.party.take(quota, amount, self.party.now_s(), self)

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
        if self.party.is_short(now_s) and now_s - self._left_s < _KEPT_S:
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
