"""What groups remember of their generations, in a snapshot and by the records: how much is a setting."""

from dataclasses import replace

from muster_core.state.history import GenerationEntry, History


def is_part_of(stored: History, made: History) -> bool:
    """Whether a group remembers its last generations, one at least, as the records make them.

    How many of them, and how many moves of each, its coordinators decide (`MUSTER_GROUP_HISTORY_LENGTH`,
    `MUSTER_GROUP_HISTORY_MOVES`); an audit does not know by which setting each snapshot was made.

    Args:
        stored: of a snapshot.
        made: by the records, or by an earlier snapshot and the records after it.
    """
    if len(stored) > len(made) or bool(stored) is not bool(made):
        return False
    return all(map(_is_same, reversed(stored), reversed(made)))


def _is_same(one: GenerationEntry, other: GenerationEntry) -> bool:
    if _without_moves(one) != _without_moves(other):
        return False
    shorter, longer = sorted((one, other), key=lambda entry: len(entry.moves))
    listed = len(shorter.moves)
    if listed == len(longer.moves):
        return one.moves == other.moves and one.moves_truncated == other.moves_truncated
    return shorter.moves_truncated and shorter.moves == longer.moves[:listed]


def _without_moves(entry: GenerationEntry) -> GenerationEntry:
    return replace(entry, moves=[], moves_truncated=False, own_bytes=0, held_bytes=0)
