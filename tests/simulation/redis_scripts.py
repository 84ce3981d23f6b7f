"""Runs the Lua scripts that the metadata service sends, in a Lua of version 5.1 as Redis has it."""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from lupa import lua51
from redis.exceptions import NoScriptError, ResponseError

Call = Callable[[bytes, Sequence[bytes]], Any]


class Scripts:
    """A Lua and the scripts that were loaded into it, shared by all nodes of a world: it has no state."""

    def __init__(self) -> None:
        self._lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=False)
        self._known: dict[bytes, Any] = {}
        self._call: Call | None = None
        libraries = self._lua.globals()
        libraries[b"redis"] = self._lua.table_from(
            {b"call": self._from_lua, b"pcall": self._from_lua, b"sha1hex": _sha1hex}
        )
        libraries[b"cjson"] = self._lua.table_from({b"decode": self._decode, b"encode": self._encode})

    def load(self, source: bytes) -> bytes:
        """Keeps a script; gives its name."""
        sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        if sha not in self._known:
            self._known[sha] = self._lua.compile(source)
        return sha

    def run(self, sha: bytes, keys: Sequence[bytes], arguments: Sequence[bytes], call: Call) -> Any:
        """Runs a script; `call` carries out its commands.

        Raises:
            NoScriptError: there is none of this name.
            ResponseError: a command failed, or the script.
        """
        script = self._known.get(sha)
        if script is None:
            raise NoScriptError("No matching script. Please use EVAL.")
        values = self._lua.globals()
        values[b"KEYS"] = self._lua.table_from(keys)
        values[b"ARGV"] = self._lua.table_from(arguments)
        self._call = call
        try:
            return self._answer(script())
        except lua51.LuaError as error:
            raise ResponseError(f"{error} script: {sha.decode()}") from None
        finally:
            self._call = None

    def _from_lua(self, name: bytes, *arguments: Any) -> Any:
        assert self._call is not None
        return self._to_lua(self._call(name, [_text(argument) for argument in arguments]))

    def _to_lua(self, value: Any) -> Any:
        """What a command answered, as Lua sees it (Redis: nil is false)."""
        if value is None:
            return False
        if isinstance(value, list):
            if None in value:
                value = [False if part is None else part for part in value]
            return self._lua.table_from(value, recursive=True)
        return bytes(value) if isinstance(value, bytes) else value

    def _answer(self, value: Any) -> Any:
        """What a script returned, as a client gets it: lists end at a nil, numbers lose fractions."""
        if isinstance(value, bytes) or value is None:
            return value
        if isinstance(value, bool):
            return 1 if value else None
        if isinstance(value, int | float):
            return int(value)
        answer = []
        place = 1
        while (part := value[place]) is not None:
            answer.append(self._answer(part))
            place += 1
        return answer

    def _decode(self, text: bytes) -> Any:
        return self._json_to_lua(json.loads(text))

    def _json_to_lua(self, value: Any) -> Any:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, list):
            return self._lua.table_from([self._json_to_lua(part) for part in value])
        if isinstance(value, dict):
            return self._lua.table_from(
                {name.encode(): self._json_to_lua(part) for name, part in value.items()}
            )
        return value

    def _encode(self, value: Any) -> bytes:
        return json.dumps(self._lua_to_json(value), sort_keys=True, separators=(",", ":")).encode()

    def _lua_to_json(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if lua51.lua_type(value) != "table":
            return value
        items = dict(value.items())
        if items and all(isinstance(name, int) for name in items):
            return [self._lua_to_json(items[place]) for place in sorted(items)]
        return {name.decode(): self._lua_to_json(part) for name, part in items.items()}


def _text(value: Any) -> bytes:
    """An argument of a command: Lua's numbers become text."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ResponseError("Lua redis lib command arguments must be strings or integers")
    return b"%d" % value if float(value).is_integer() else b"%.17g" % value


def _sha1hex(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
