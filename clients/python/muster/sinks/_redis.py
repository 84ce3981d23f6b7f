"""The fence of Redis: with each command, atomically."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from muster._config import check_at_most, check_texts
from muster._errors import SettingsError
from muster.sinks._resource import TOKEN_CHARACTERS, Owned, StaleToken, resource_of

Word: TypeAlias = str | bytes | int | float
"""A word of a command."""

_STALE = "STALETOKEN"
_PREFIX_MAX_BYTES = 1_024


class RedisFence:
    """Keeps the highest token of each partition in a key, and carries out commands of that or a higher one.

    The check and the command are one script. In a Redis Cluster the fence's key must be in the slot of the
    command's keys: give the keys of a partition one hash tag, and pass a `key` with that tag.

    Args:
        prefix: the token of `group/topic/number` is kept in the key `<prefix>group/topic/number`.

    Attributes:
        script: the Lua script. KEYS[1] is the fence's key, ARGV[1] the token, the rest of ARGV a command.
        function_code: the same as a function `muster_fenced` for `FUNCTION LOAD`, called with
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
    script: str = _BODY
    function_code: str = (
        "#!lua name=muster\nlocal function muster_fenced(KEYS, ARGV)" + _BODY + "end\n"
        "redis.register_function('muster_fenced', muster_fenced)\n"
    )

    def __init__(self, prefix: str = "muster:fence:") -> None:
        self.prefix: str = check_at_most("prefix", prefix, _PREFIX_MAX_BYTES)

    def key(self, owned: Owned) -> str:
        """The key that holds a partition's token."""
        return self.prefix + resource_of(owned)

    def call(
        self,
        client: Any,
        owned: Owned,
        *command: Word,
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
        arguments = self._arguments(client, owned, command, keys, key)
        with _refusals_of(owned):
            return client.eval(*arguments)

    async def call_async(
        self,
        client: Any,
        owned: Owned,
        *command: Word,
        keys: Sequence[str] = (),
        key: str | None = None,
    ) -> Any:
        """`call` with a client of `redis.asyncio`.

        Raises:
            StaleToken: a higher token was seen; nothing was written.
        """
        arguments = self._arguments(client, owned, command, keys, key)
        with _refusals_of(owned):
            return await client.eval(*arguments)

    def _arguments(
        self,
        client: object,
        owned: Owned,
        command: Sequence[Word],
        keys: Sequence[str],
        key: str | None,
    ) -> tuple[Word, ...]:
        if not callable(getattr(client, "eval", None)):
            raise TypeError(f"client must be one of redis-py or valkey-py, not {client!r}")
        if not command:
            raise SettingsError("command", 'must be given, such as "SET", "name", "value"')
        fenced = (self.key(owned) if key is None else key, *check_texts("keys", keys))
        return (self.script, len(fenced), *fenced, owned.token, *command)


@contextmanager
def _refusals_of(owned: Owned) -> Iterator[None]:
    """Raises `StaleToken` where the script refuses; other errors are the client's own."""
    try:
        yield
    except Exception as error:
        word, _, highest = str(error).partition(" ")
        if word != _STALE:
            raise
        raise StaleToken(resource_of(owned), owned.token, highest[:TOKEN_CHARACTERS]) from error
