"""Any life of an incremental group: it serves what its log says, settles, and the log breaks no promise."""

from kit.lives.incremental_fuzz import LENGTH, IncrementalShardLife

from fuzz.draw import Draw

LONGEST_BYTES = 8_192


def play(data: bytes) -> None:
    source = Draw(data)
    life = IncrementalShardLife(source)
    for _ in range(LENGTH):
        if source.over:
            break
        life.step()
        life.check()
    life.finish()
