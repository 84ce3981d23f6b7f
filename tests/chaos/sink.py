"""A sink that checks fencing tokens: where the members' work goes, on a server of its own."""

from collections.abc import Iterator
from typing import Any

import redis
import redis.asyncio

_WRITE = """
local seen = redis.call('HGET', KEYS[1], 'token') or ''
if ARGV[1] < seen then
  redis.call('HINCRBY', KEYS[1], 'refused', 1)
  return 0
end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
redis.call('RPUSH', KEYS[2], ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
return 1
"""


class Sink:
    """Takes writes of owners, and refuses those of owners that were replaced."""

    def __init__(self, url: str) -> None:
        self._redis: Any = redis.asyncio.Redis.from_url(url)
        self._write: Any = self._redis.register_script(_WRITE)

    async def write(self, group: str, partition: int, token: str, member: str, value: int) -> bool:
        """Whether the write was accepted."""
        keys = [f"guard {group} {partition}", f"writes {group} {partition}"]
        return bool(await self._write(keys=keys, args=[token, member, value]))

    async def close(self) -> None:
        """Closes the connections."""
        await self._redis.aclose()


def accepted(url: str) -> Iterator[tuple[str, int, str, str, int]]:
    """Group, partition, token, member and value of every accepted write, in the sink's order."""
    with redis.Redis.from_url(url) as store:
        for key in sorted(store.scan_iter("writes *")):
            _, group, partition = key.decode().split(" ")
            for line in store.lrange(key, 0, -1):
                token, member, value = line.decode().split(" ")
                yield group, int(partition), token, member, int(value)
