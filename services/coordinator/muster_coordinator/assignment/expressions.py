"""Subscriptions by expressions: the syntax of RE2, which matches in linear time, never Python's `re`."""

import re
from collections.abc import Collection, Iterable
from typing import Any

import re2

MAX_BYTES = 255
"""Length of an expression."""

_MEMORY_BYTES = 1 << 18
"""Of a compiled expression, its automata included."""

_UNICODE_CLASS = re.compile(r"\\[pP]")
"""Names are ASCII, so such a class says nothing that a short one does not; to compile one may take
seconds."""


class Re2Expressions:
    """Judges expressions, each in a few milliseconds at most: that much is bounded by what is refused."""

    def fault_of(self, expression: str) -> str:
        """Why an expression cannot be subscribed to, for people; empty: it can."""
        if len(expression.encode()) > MAX_BYTES:
            return f"the expression is longer than {MAX_BYTES} bytes"
        if not expression.isascii():
            return "the expression has characters that no name of a topic has"
        if _UNICODE_CLASS.search(expression):
            return "the expression has a class of Unicode characters; names of topics are ASCII"
        try:
            _compiled(expression)
        except re2.error as error:
            said = error.args[0]
            return f"the expression is not one of RE2: {said.decode() if isinstance(said, bytes) else said}"
        return ""


def matched(expressions: Iterable[str], names: Collection[str]) -> dict[str, frozenset[str]]:
    """The names that each expression matches as a whole.

    Raises:
        re2.error: an expression is none.
    """
    encoded = {name: name.encode() for name in names}
    found: dict[str, frozenset[str]] = {}
    for expression in expressions:
        matches = _compiled(expression).fullmatch
        found[expression] = frozenset(name for name, text in encoded.items() if matches(text) is not None)
    return found


def _compiled(expression: str) -> Any:
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    options.never_capture = True
    options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(expression.encode("latin-1"), options)
