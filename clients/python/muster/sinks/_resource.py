"""What a fence protects, and the error of who may not write there any more."""

import re
from typing import Protocol

from muster._errors import MusterError

TOKEN_CHARACTERS = 27
"""Length of a token."""

_TOKEN = re.compile(r"[0-9]{10}-[0-9]{16}")


class Owned(Protocol):
    """What a fence needs of an ownership: `Partition` and `BlockingPartition` have it.

    Attributes:
        group: the group.
        topic: name of the topic.
        number: number of the partition.
        token: fencing token.
    """

    @property
    def group(self) -> str: ...

    @property
    def topic(self) -> str: ...

    @property
    def number(self) -> int: ...

    @property
    def token(self) -> str: ...


class StaleToken(MusterError):
    """Another worker owns the partition by now; nothing was written. Stop working on it.

    Attributes:
        resource: `group/topic/number`.
        token: token of who tried.
        highest: the highest token that the sink has seen; empty: the sink does not say.
    """

    def __init__(self, resource: str, token: str, highest: str = "") -> None:
        self.resource = resource
        self.token = token
        self.highest = highest
        seen = f"; {highest} was seen" if highest else ""
        super().__init__(f"{resource}: token {token} is not the owner's any more{seen}")


def resource_of(owned: Owned) -> str:
    """What the tokens of an ownership are compared for: `group/topic/number`.

    Groups are apart: tokens of different groups cannot be compared.

    Raises:
        TypeError: it is no owned partition.
    """
    if not all(isinstance(getattr(owned, name, None), str) for name in ("group", "topic", "token")):
        raise TypeError(f"{owned!r} is no owned partition: pass the one that the work was called with")
    return f"{owned.group}/{owned.topic}/{owned.number}"


def is_token(text: str) -> bool:
    """Whether this is a fencing token; tokens have one width, so they compare as text."""
    return _TOKEN.fullmatch(text) is not None
