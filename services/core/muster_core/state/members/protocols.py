"""What members support, and which protocols all members of a group support."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Self

from muster_protos.muster.v1 import coordinator_pb2

from muster_core.record_bounds import utf8_bytes

KINDS = 16
"""Of so many lists of protocols is remembered what was made of them: members of a group are mostly alike."""

_OVERHEAD_BYTES = 12
_NO_NAMES = frozenset[str]()

Pairs = tuple[tuple[str, bytes], ...]
"""Names and metadata of protocols."""


class Protocols(Pairs):
    """Names and metadata of the protocols that a member supports, in the order of its preference.

    Attributes:
        names: the names alone; equal lists that are in use at a time are mostly one object.
        size_bytes: about what they take in a record.
    """

    names: tuple[str, ...]
    size_bytes: int

    def __new__(cls, protocols: Iterable[tuple[str, bytes]] = ()) -> Self:
        """Makes the names and the size, once."""
        made = super().__new__(cls, protocols)
        made.names = _alike_names(tuple([name for name, _ in made]))
        made.size_bytes = sum([_OVERHEAD_BYTES + utf8_bytes(name) + len(metadata) for name, metadata in made])
        return made


def pairs_of(messages: Sequence[coordinator_pb2.GroupProtocol]) -> Pairs:
    """Name and metadata of each protocol of a call or a record."""
    return tuple([(protocol.name, protocol.metadata) for protocol in messages[:]])


@lru_cache(maxsize=KINDS)
def protocols_of(pairs: Pairs) -> Protocols:
    """The protocols of a member; members with equal ones share one object."""
    return Protocols(pairs)


@lru_cache(maxsize=KINDS)
def _alike_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return names


NO_PROTOCOLS = Protocols()


class Supporters:
    """Which protocols all members of a group support (conformance ST-16).

    One that has not said yet which it supports does not count (docs/safety.md, INC-153). Counted are not
    members but kinds of members, which list the same names: so another one of a kind that is there costs one
    step.

    Attributes:
        by_all: names that every member supports; empty without members that said any.
    """

    __slots__ = ("_kinds", "_kinds_with", "by_all")

    def __init__(self) -> None:
        self.by_all = _NO_NAMES
        self._kinds: dict[tuple[str, ...], int] = {}
        self._kinds_with: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Whether any member said what it supports."""
        return bool(self._kinds)

    def add(self, protocols: Protocols) -> None:
        """A member with these protocols is added."""
        names = protocols.names
        if not names:
            return
        members = self._kinds.get(names, 0)
        self._kinds[names] = members + 1
        if not members:
            for name in frozenset(names):
                self._kinds_with[name] = self._kinds_with.get(name, 0) + 1
            self._note_by_all()

    def remove(self, protocols: Protocols) -> None:
        """A member with these protocols is removed."""
        names = protocols.names
        if not names:
            return
        self._kinds[names] -= 1
        if not self._kinds[names]:
            del self._kinds[names]
            for name in frozenset(names):  # what others alone list is not looked at
                self._kinds_with[name] -= 1
                if not self._kinds_with[name]:
                    del self._kinds_with[name]
            self._note_by_all()

    def _note_by_all(self) -> None:
        some_kind = next(iter(self._kinds), ())
        self.by_all = frozenset([name for name in some_kind if self._kinds_with[name] == len(self._kinds)])
