"""The fence of Redis: with each command, atomically."""

from collections.abc import Sequence
from typing import Any, TypeVar

from muster.sinks._resource import Owned, StaleToken, resource_of

_STALE = "STALETOKEN"
_REFUSED = -1
_HIGHEST = 1

T = TypeVar("T")


class RedisFence:
    """Keeps the highest token of each partition in a key, and carries out commands of that or a higher one.

    The check and the command are one script. In a Redis Cluster the fence's key must be in the slot of the
    command's keys: give the keys of a partition one hash tag, and pass a `key` with that tag.

    Args:
        prefix: the token of `group/topic/number` is kept in the key `<prefix>group/topic/number`.

    Attributes:
        script: the Lua script. KEYS[1] is the fence's key, ARGV[1] the token, the rest of ARGV a command.
        library: the same as a function `muster_fenced` for `FUNCTION LOAD`, called with
            `FCALL muster_fenced <keys> <fence's key> … <token> <command> …`.
    """

    _BODY = f"""
local held = redis.call('GET', KEYS[1])
if held and held > ARGV[1] then
  return redis.error_reply('{_STALE} ' .. held)
end
if held ~= ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[1])
end
return redis.call(unpack(ARGV, 2))
"""
    script = _BODY
    library = (
        "#!lua name=muster\nlocal function muster_fenced(KEYS, ARGV)" + _BODY + "end\n"
        "redis.register_function('muster_fenced', muster_fenced)\n"
    )

    def __init__(self, prefix: str = "muster:fence:") -> None:
        self.prefix = prefix

    def key(self, owned: Owned) -> str:
        """The key that holds a partition's token."""
        return self.prefix + resource_of(owned)

    def call(
        self,
        client: Any,
        owned: Owned,
        *command: str | bytes | int | float,
        keys: Sequence[str] = (),
        key: str | None = None,
    ) -> Any:
        """Carries a command out, as the owner of a partition.

        Args:
            client: of redis-py or valkey-py, synchronous.
            owned: the partition.
            command: such as `"SET", "name", "value"`; at most some thousand words.
            keys: the command's keys, which a Redis Cluster must know.
            key: the fence's key; None: `key(owned)`.

        Returns:
            The answer to the command, as the server gave it.

        Raises:
            StaleToken: a higher token was seen; nothing was written.
        """
        try:
            return client.eval(*self._arguments(owned, command, keys, key))
        except Exception as error:
            raise _refusal(error, owned) from error

    async def call_async(
        self,
        client: Any,
        owned: Owned,
        *command: str | bytes | int | float,
        keys: Sequence[str] = (),
        key: str | None = None,
    ) -> Any:
        """`call` with a client of `redis.asyncio`.

        Raises:
            StaleToken: a higher token was seen; nothing was written.
        """
        try:
            return await client.eval(*self._arguments(owned, command, keys, key))
        except Exception as error:
            raise _refusal(error, owned) from error

    def _arguments(
        self,
        owned: Owned,
        command: Sequence[str | bytes | int | float],
        keys: Sequence[str],
        key: str | None,
    ) -> tuple[str | bytes | int | float, ...]:
        fenced = (self.key(owned) if key is None else key, *keys)
        return (self.script, len(fenced), *fenced, owned.token, *command)


def _refusal(error: Exception, owned: Owned) -> Exception:
    """The error to raise in the place of another one: a refusal of the script is a stale token."""
    word, _, highest = str(error).partition(" ")
    return StaleToken(resource_of(owned), owned.token, highest[:27]) if word == _STALE else error
