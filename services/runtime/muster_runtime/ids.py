"""What the ids in requests may be made of."""

import re

from muster_protos.limits import ID_MAX_BYTES

UNFIT = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Control characters, line separators, what turns the direction of text, what has no width, and tags: with
one of them an id can look like another on a terminal and in a log, or change what the terminal shows."""

HAS_UNFIT = "must not contain control characters, or characters without width"


def has_unfit(text: str) -> bool:
    """Whether a text has what no id may have; for printable ASCII, which ids mostly are, without a search."""
    return not (text.isascii() and text.isprintable()) and UNFIT.search(text) is not None


def id_problem(value: str, limit: int = ID_MAX_BYTES) -> str:
    """What is wrong with an id, for people; empty: nothing.

    Args:
        value: the id.
        limit: bytes that it may have.
    """
    if len(value) > limit or (not value.isascii() and len(value.encode("utf-8", "surrogatepass")) > limit):
        return f"must be at most {limit} bytes long"
    return HAS_UNFIT if has_unfit(value) else ""
