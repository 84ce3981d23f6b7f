"""What a classic member goes on with when its group becomes an incremental one."""

from collections.abc import Mapping
from dataclasses import dataclass

from muster._incremental.requests import Place
from muster._values import TopicPartition


@dataclass(frozen=True, slots=True)
class ClassicSeat:
    """A classic member at the moment in which it hears that its group is an incremental one.

    Attributes:
        member_id: its id; empty: it has none.
        generation: the last one that it is in, which is the epoch of its first request; -1: in none, so it
            joins.
        member_seq: number of its last JoinGroup, answered or not.
        process_id: what that said.
        version: place of its assignment; nowhere: it has given everything up, and is to be told its list.
        runs: what it works on, with tokens.
        acknowledged_ms: boot time at which its last acknowledged beat was sent; 0: none was.
        life_ends_at_ms: boot time until which it may work, unless a request is answered before.
    """

    member_id: str
    generation: int
    member_seq: int
    process_id: bytes
    version: Place
    runs: Mapping[TopicPartition, str]
    acknowledged_ms: int
    life_ends_at_ms: int
