"""What a damage is done to."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from muster_core.position import Position

Entry = tuple[bytes, dict[bytes, bytes]]


@dataclass(slots=True)
class Target:
    """A key on some nodes.

    Attributes:
        nodes: connections to the nodes that are damaged: one of them, some, or all.
        key: the key.
        draw: draws what is left open.
        others: keys of the same type on the first of the nodes.
        every: connections to all nodes.
        bases: what the keys of each log begin with.
    """

    nodes: Sequence[Any]
    key: bytes
    draw: random.Random
    others: Sequence[bytes] = ()
    every: Sequence[Any] = ()
    bases: Sequence[bytes] = ()

    @property
    def base(self) -> bytes:
        """What the keys of its log begin with."""
        return self.key[: self.key.index(b"}") + 1] if b"}" in self.key else self.key

    @property
    def entries(self) -> list[Entry]:
        """The entries of the stream, as the first of the nodes has them."""
        return list(self.nodes[0].xrange(self.key))

    def rewrite(self, entries: Sequence[Entry]) -> None:
        """Puts other entries in the place of those of the stream, on each of the nodes."""
        for node in self.nodes:
            pipeline = node.pipeline(transaction=False)
            pipeline.delete(self.key)
            for id_, fields in entries:
                pipeline.xadd(self.key, fields, id=id_)
            pipeline.execute()


Damage = Callable[[Target], str]
"""Does a damage and says what it did."""


def place(text: bytes) -> Position:
    """The place that an id of a stream names."""
    return Position.parse(text.decode())


def flipped(draw: random.Random, data: bytes) -> bytes:
    """Bytes with one bit turned; one byte where there are none."""
    if not data:
        return b"\x01"
    changed = bytearray(data)
    changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)
