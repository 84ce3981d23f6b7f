"""Any calls of any callers on one group, in any order and at any time: the core raises nothing."""

from kit.lives.core_fuzz import LENGTH, Life, drawn_from

from fuzz.draw import Draw

LONGEST_BYTES = 4_096


def play(data: bytes) -> None:
    source, life = Draw(data), Life()
    for _ in range(LENGTH):
        if source.over:
            break
        life.play(drawn_from(source))
    life.another_owner(0)
