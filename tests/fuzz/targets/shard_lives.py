"""Any life of a shard: it serves what its log says, snapshots lose nothing, and the log breaks no promise."""

from kit.lives.shard_fuzz import LENGTH, ShardLife

from fuzz.cuts import cut_by
from fuzz.draw import Draw

LONGEST_BYTES = 4_096


def play(data: bytes) -> None:
    with cut_by(data):
        _play(data)


def _play(data: bytes) -> None:
    source = Draw(data)
    life = ShardLife(source)
    for _ in range(LENGTH):
        if source.over:
            break
        life.step()
        life.check()
    life.finish()
