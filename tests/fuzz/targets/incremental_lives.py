"""Any life of an incremental group, converted or not: it serves what its log says, and settles."""

from kit.lives.conversion_fuzz import ConversionLife
from kit.lives.incremental_fuzz import LENGTH, IncrementalShardLife

from fuzz.cuts import cut_by
from fuzz.draw import Draw

LONGEST_BYTES = 8_192


def play(data: bytes) -> None:
    with cut_by(data):
        _play(data)


def _play(data: bytes) -> None:
    source = Draw(data)
    life = ConversionLife(source) if source.random() < 0.3 else IncrementalShardLife(source)
    for _ in range(LENGTH):
        if source.over:
            break
        life.step()
        life.check()
    life.finish()
