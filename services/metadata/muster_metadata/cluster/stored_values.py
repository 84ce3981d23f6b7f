"""Values in rows of tables. A node may have anything there: what is no value of its kind makes no row."""

from typing import Any

_NUMBER_MAX = 2**63 - 1


def stored_number(value: Any, *, least: int = 0, most: int = _NUMBER_MAX) -> int:
    """A whole number within bounds; a script in Lua may have made a float of it.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError("not a number of a row")
    return int(value)


def stored_text(value: Any) -> str:
    """A text that a message can carry.

    Raises:
        TypeError, ValueError: it is none.
    """
    if not isinstance(value, str):
        raise TypeError("not a text of a row")
    value.encode()  # JSON can spell halves of characters
    return value
