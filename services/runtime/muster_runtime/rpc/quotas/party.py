"""Who calls, with what it has in use."""

import math
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Final

from muster_runtime.rpc.quotas.bucket import Bucket
from muster_runtime.rpc.refusals import ResourceExhausted

BURST_S: Final = 5
"""Calls, bytes, commits and partitions: how many seconds of them may be asked for at once."""

CREATION_BURST_S: Final = 100
"""New groups and changes of topics: how many seconds of them may be made at once."""

KEPT_S = 60.0
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

Refused = Callable[[Quota], None]
"""Called for each refusal."""

ShareOf = Callable[[Quota, float, float], Bucket]
"""What a connection may take of a rate: see `Connection.share_of`."""


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
            bucket = changed(self._buckets.pop(quota, None), limits, quota, self.now_s())
            if bucket is not None:
                self._buckets[quota] = bucket

    def take(self, quota: Quota, amount: int, now_s: float, share_of: ShareOf | None = None) -> None:
        """Takes from a rate; where that is used up from the share that the connection has of it.

        Raises:
            ResourceExhausted: both are used up.
        """
        bucket = self._buckets.get(quota)
        if bucket is not None and (wait_s := bucket.take(amount, now_s)):
            if share_of is not None:
                share = share_of(quota, bucket.rate_per_s / max(1, self.known), now_s)
                wait_s = min(wait_s, share.take(amount, now_s))
            if wait_s:
                raise self.refusal(quota, now_s, wait_s)
            bucket.owe(amount)
        self.taken[quota] += amount

    def wait_s(self, quota: Quota, amount: int, now_s: float, share_of: ShareOf) -> float:
        """Takes from a rate what was used already; what is above it, and above the connection's share, waits.

        Returns:
            After how many seconds it is paid back.
        """
        self.taken[quota] += amount
        bucket = self._buckets.get(quota)
        if bucket is None or not bucket.take(amount, now_s):
            return 0
        bucket.owe(amount)
        share = share_of(quota, bucket.rate_per_s / max(1, self.known), now_s)
        if share.take(amount, now_s):
            share.owe(amount)
        wait_s = min(bucket.take(0, now_s), share.take(0, now_s))
        if wait_s:
            self._count(quota, now_s)
        return wait_s

    def pay(self, quota: Quota, amount: int, now_s: float, share_of: ShareOf) -> None:
        """Takes from a rate what was used already; what is above it also from the connection's share."""
        self.taken[quota] += amount
        bucket = self._buckets.get(quota)
        if bucket is not None and bucket.pay(amount, now_s):
            share_of(quota, bucket.rate_per_s / max(1, self.known), now_s).pay(amount, now_s)

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
        return self.refused_at_s is not None and now_s - self.refused_at_s < KEPT_S

    def is_at_rest(self, now_s: float) -> bool:
        """Whether it uses nothing and has nothing to remember."""
        in_use = self.open_calls or self.connections
        return not in_use and all(bucket.is_full(now_s) for bucket in self._buckets.values())


def bucket_of(limits: Mapping[str, int], quota: Quota, now_s: float) -> Bucket | None:
    """The bucket of a rate; None: it has no limit."""
    rate_per_s = limits.get(quota.value, 0)
    if not rate_per_s:
        return None
    return Bucket(rate_per_s, rate_per_s * burst_s(quota), now_s)


def changed(before: Bucket | None, limits: Mapping[str, int], quota: Quota, now_s: float) -> Bucket | None:
    """The bucket of a rate that had another one, or none."""
    after = bucket_of(limits, quota, now_s)
    if before is None or after is None:
        return after
    before.change(after.rate_per_s, after.burst)
    return before


def burst_s(quota: Quota) -> int:
    """How many seconds of a rate may be asked for at once."""
    return CREATION_BURST_S if quota in _CREATIONS else BURST_S
