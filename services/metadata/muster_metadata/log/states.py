"""What nodes hold of a log, which claim on it a majority has, and how a repair of one of them ended."""

import enum
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from muster_core.position import Position

from muster_metadata.nodes.entries import LogEnd, parse_id
from muster_metadata.nodes.reply import NodeReply


class Held(NamedTuple):
    """A claim as the nodes know it."""

    shard: int
    epoch: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Inspected:
    """What one node holds of a log."""

    end: LogEnd
    acknowledged: Position
    epoch: int
    nonce: bytes
    first: Position
    entries: int
    floor: int
    run: str

    @property
    def missing(self) -> int:
        """Number of entries missing between the oldest and the last one: 0 if the log is whole."""
        return self.end.position.offset - self.first.offset + 1 - self.entries

    @classmethod
    def read(cls, reply: NodeReply) -> "Inspected":
        """Reads the answer to `inspect`."""
        _, _, acknowledged, epoch, nonce, first, entries, floor, run = reply.values
        return cls(
            reply.end, parse_id(acknowledged), int(epoch), nonce, parse_id(first), int(entries), int(floor),
            run.decode(errors="replace"),
        )  # fmt: skip


def claim_on_majority(shard: int, states: Iterable[Inspected], majority: int) -> tuple[Held, LogEnd] | None:
    """The claim that a majority has promised and has in its log; None: there is none.

    Returns:
        The claim, and the last entry that a majority has under it, so that it is acknowledged. Logs that have
        the Claim differ in how far they go alone.
    """
    ends: defaultdict[tuple[int, bytes], list[LogEnd]] = defaultdict(list)
    for state in states:
        if state.end.position.epoch == state.epoch:
            ends[state.epoch, state.nonce].append(state.end)
    for (epoch, nonce), found in ends.items():
        if len(found) >= majority:
            found.sort(key=lambda end: end.position, reverse=True)
            return Held(shard, epoch, nonce), found[majority - 1]
    return None


class Repaired(enum.Enum):
    """How a repair ended."""

    DONE = "done"
    """The node has the log now."""
    LEVEL = "level"
    """The node had all of it already."""
    LATER = "later"
    """The node or every source is away: try again."""
    FENCED = "fenced"
    """The node promised a higher epoch: only a new claim can repair it."""
    BLOCKED = "blocked"
    """The server is not the node: it is of another cluster, another node, or empty and not configured."""

    @property
    def whole(self) -> bool:
        """Whether the node has the log."""
        return self in (Repaired.DONE, Repaired.LEVEL)
