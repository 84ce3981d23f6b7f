"""Which task reads what: few tasks of about the same length, since each one costs more than many entries."""

import heapq
from dataclasses import dataclass

from muster_audit.reading.sources import LogSource

_TASK_ENTRIES = 500_000  # the least: a task costs Spark a tenth of a second, whatever it reads
_TASKS_PER_CORE = 8


def task_count(entries: int, cores: int) -> int:
    """How many tasks read so many entries: one for each core at least, and more where none gets short by it.

    Progress is counted in tasks, and a core that is slower than the others takes fewer of them.
    """
    return cores * max(1, min(_TASKS_PER_CORE, entries // (cores * _TASK_ENTRIES)))


@dataclass(frozen=True, slots=True)
class Piece:
    """A log at a node, whole.

    Attributes:
        shard: number of the log.
        node: number of the node.
        entries: about how many there are.
        copy: whether it is only compared; else the log is checked, at this node while it is the best.
    """

    shard: int
    node: int
    entries: int
    copy: bool = False


def spread(pieces: list[Piece], tasks: int) -> list[tuple[Piece, ...]]:
    """Spreads pieces over at most so many tasks, the longest first, each to the task with the least."""
    heap: list[tuple[int, int]] = [(0, task) for task in range(max(1, min(tasks, len(pieces))))]
    spread_over: list[list[Piece]] = [[] for _ in heap]
    for piece in sorted(pieces, key=lambda piece: -piece.entries):
        load, task = heapq.heappop(heap)
        spread_over[task].append(piece)
        heapq.heappush(heap, (load + piece.entries + 100, task))  # a log costs something even if it is empty
    return [tuple(task) for task in spread_over if task]


def pieces_of(source: LogSource, *, all_nodes: bool) -> list[Piece]:
    """Every log to be checked, and where nodes are compared, every other copy of it."""
    pieces = []
    for shard in source.logs():
        best = source.best_node(shard)
        pieces.append(Piece(shard, best, source.length(shard, best)))
        if all_nodes:
            pieces += [
                Piece(shard, node, source.length(shard, node) // 4, copy=True)
                for node in source.node_numbers()
                if node != best
            ]
    return pieces
