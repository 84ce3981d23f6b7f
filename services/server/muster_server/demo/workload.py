"""The demo's own data: lines in Redis streams, counts in a store that is guarded by the token."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

_APPLY = Path(__file__).with_name("apply.lua").read_text()
_LOAD_BATCH = 2_000
_EVENTS = "demo:events"
_ALLOWED = "demo:allowed"
FULL = 1_000_000
"""Value of the gate that lets workers go to the end of their partitions."""


class StaleTokenError(Exception):
    """The store has seen a higher token: somebody else owns the partition now."""


def _lines_key(partition: int) -> str:
    return f"demo:lines:{partition}"


def _guard_key(partition: int) -> str:
    return f"demo:guard:{partition}"


def _counts_key(partition: int) -> str:
    return f"demo:counts:{partition}"


def spread_lines(url: str, lines: Sequence[str], partitions: int) -> list[int]:
    """Spreads lines over partitions, one stream each, entry ids `0-1`, `0-2` and so on.

    Returns:
        Number of lines of each partition.
    """
    sizes = [0] * partitions
    with redis.Redis.from_url(url) as store:
        pipeline = store.pipeline(transaction=False)
        for number, line in enumerate(lines):
            partition = number % partitions
            sizes[partition] += 1
            pipeline.xadd(_lines_key(partition), {"line": line}, id=f"0-{sizes[partition]}")
            if number % _LOAD_BATCH == _LOAD_BATCH - 1:
                pipeline.execute()
        pipeline.set(_ALLOWED, 0)
        pipeline.execute()
    return sizes


def collect(url: str, partitions: int) -> Counter[str]:
    """The fleet's counts."""
    total: Counter[str] = Counter()
    with redis.Redis.from_url(url) as store:
        for partition in range(partitions):
            counts: dict[bytes, bytes] = store.hgetall(_counts_key(partition))
            for word, number in counts.items():
                total[word.decode()] += int(number)
    return total


class Store:
    """The workload's server as workers and the demo use it.

    Args:
        url: its address.
    """

    def __init__(self, url: str) -> None:
        self._redis: Any = redis.asyncio.Redis.from_url(url)
        self._apply: Any = self._redis.register_script(_APPLY)

    async def close(self) -> None:
        """Closes the connections."""
        await self._redis.aclose()

    async def size(self, partition: int) -> int:
        """Number of lines of a partition."""
        return int(await self._redis.xlen(_lines_key(partition)))

    async def read(self, partition: int, position: int, limit: int) -> list[str]:
        """Lines after a position."""
        found = await self._redis.xrange(_lines_key(partition), f"0-{position + 1}", "+", count=limit)
        return [fields[b"line"].decode() for _, fields in found]

    async def allow(self, millionths: int) -> None:
        """Opens the gate: how much of each partition may be worked on."""
        await self._redis.set(_ALLOWED, millionths)

    async def allowed(self, size: int) -> int:
        """The position up to which a partition of this size may be worked on."""
        return size * int(await self._redis.get(_ALLOWED) or 0) // FULL

    async def apply(
        self, partition: int, token: str, before: int, after: int, counts: Mapping[str, int]
    ) -> int:
        """Adds counts and moves the position, atomically, once.

        Args:
            partition: its number.
            token: proves the ownership; raises the guard.
            before: position after which the counts begin.
            after: position up to which they go.
            counts: how often each word occurs between the two.

        Returns:
            The position of the store: `after`, or another one if the counts were not for it; go on there.

        Raises:
            StaleTokenError: a higher token was seen; nothing was written.
        """
        flat = [part for pair in counts.items() for part in pair]
        keys = [_guard_key(partition), _counts_key(partition)]
        outcome, value = await self._apply(keys=keys, args=[token, before, after, *flat])
        if outcome == b"STALE":
            raise StaleTokenError(f"partition {partition} has seen {value.decode()}; {token} is older")
        return int(value)

    async def guard(self, partition: int) -> tuple[str, int, int]:
        """Highest token, position, and number of refused writes of a partition."""
        token, position, refused = await self._redis.hmget(
            _guard_key(partition), "token", "position", "refused"
        )
        return (token or b"").decode(), int(position or 0), int(refused or 0)

    async def report(self, **fields: str | int) -> None:
        """Reports to the demo what a worker did."""
        await self._redis.xadd(_EVENTS, fields)

    async def events(self, after: str, wait_ms: int) -> list[tuple[str, dict[str, str]]]:
        """What workers reported after an id, waiting for the first for a while."""
        found = await self._redis.xread({_EVENTS: after}, count=1_000, block=wait_ms)
        return [
            (entry_id.decode(), {key.decode(): value.decode() for key, value in fields.items()})
            for _, entries in found
            for entry_id, fields in entries
        ]
