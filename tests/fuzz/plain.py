"""Inputs without guidance: those of the corpus, changed at random by a seed."""

import random
from collections.abc import Iterator

from fuzz import corpus
from fuzz.target import Target


def inputs(target: Target, seed: int) -> Iterator[bytes]:
    """The corpus of a target, then changes of it without end; the same for a seed."""
    source = random.Random(f"{target.name} {seed}")
    known = corpus.read(target.name)
    yield from known
    while True:
        if not known or source.random() < 0.2:
            yield source.randbytes(source.randrange(1, target.longest_bytes + 1))
        else:
            yield _changed(source, known)[: target.longest_bytes]


def _changed(source: random.Random, known: list[bytes]) -> bytes:
    made = bytearray(source.choice(known))
    for _ in range(source.choice((1, 1, 2, 4, 16))):
        at = source.randrange(len(made) + 1)
        length = source.choice((1, 1, 2, 8, 64))
        match source.randrange(5):
            case 0:
                made[at:at] = source.randbytes(length)
            case 1:
                made[at : at + length] = source.randbytes(length)
            case 2:
                del made[at : at + length]
            case 3:
                other = source.choice(known)
                begin = source.randrange(len(other) + 1)
                made[at:at] = other[begin : begin + 4 * length]
            case _:
                made += source.randbytes(4 * length)
    return bytes(made)
