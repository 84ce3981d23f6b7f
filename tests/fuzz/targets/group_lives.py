"""Any calls of any callers on one group, in any order and at any time: the core raises nothing."""

from kit.lives.core_fuzz import LENGTH, SHARES, Life, drawn_from

from fuzz.cuts import cut_by
from fuzz.draw import Draw

LONGEST_BYTES = 4_096


def play(data: bytes) -> None:
    with cut_by(data):
        _play(data)


def _play(data: bytes) -> None:
    source, life = Draw(data), Life()
    incremental = source.choice(SHARES)
    for _ in range(LENGTH):
        if source.over:
            break
        life.play(drawn_from(source, incremental))
    life.another_owner(0)
