"""The timeline of a group: its last generations, with cause and what moved."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain

from muster_protos.muster.v1 import common_pb2, coordinator_pb2

from muster_core.participant import Participant
from muster_core.position import Position
from muster_core.record_bounds import utf8_bytes
from muster_core.state.holdings import GENERATION_BYTES, MOVE_BYTES, PARTICIPANT_BYTES


@dataclass(slots=True)
class GenerationEntry:
    """One generation.

    Attributes:
        generation: its number.
        cause: why it was started.
        started_at_ms: when its join phase ended, wall clock.
        leader: its leader; empty: the group was empty.
        protocol_name: its protocol; empty: the group was empty.
        members: who was in it.
        position: place of its record.
        assigned_at_ms: when its assignment was stored, wall clock; 0: never.
        moves: what changed hands, as far as it is kept.
        moves_truncated: whether more did.
        own_bytes: about what those participants take in memory that it does not share.
        held_bytes: about what it takes in memory.
    """

    generation: int
    cause: common_pb2.RebalanceCause
    started_at_ms: int
    leader: str
    protocol_name: str
    members: tuple[Participant, ...]
    position: Position
    assigned_at_ms: int = 0
    moves: list[coordinator_pb2.GroupHistoryResponse.Move] = field(default_factory=list)
    moves_truncated: bool = False
    own_bytes: int = 0
    held_bytes: int = GENERATION_BYTES

    def follow(self, before: "GenerationEntry | None") -> None:
        """Shares participants with the generation before, and counts those that it has alone.

        Args:
            before: that generation; None: it is not remembered.
        """
        if before is not None and before.members == self.members:
            self.members, self.own_bytes = before.members, 0
        else:
            own: Sequence[Participant] = self.members
            if before is not None:
                own = self._share(before.members)
            self.own_bytes = PARTICIPANT_BYTES * len(own) + utf8_bytes("".join(chain.from_iterable(own)))
        self.held_bytes = GENERATION_BYTES + self.own_bytes
        if self.moves:
            self.held_bytes += sum(map(_weight_of, self.moves))

    def _share(self, known: Sequence[Participant]) -> list[Participant]:
        """Takes those who are known in the place of their equals; returns the others.

        Most are the very ones that are known, which is quicker to find out than whether they are equal.
        """
        same = set(map(id, known))
        others = [one for one in self.members if id(one) not in same]
        ids = {one.member_id for one in others}
        equal = {one: one for one in known if one.member_id in ids}
        if not equal.keys().isdisjoint(others):
            self.members = tuple([equal.get(one, one) for one in self.members])
        return [one for one in others if one not in equal]

    def inherit(self, before: "GenerationEntry") -> None:
        """Takes over what it shares with the generation before, the oldest one, which is forgotten."""
        if before.members is self.members:
            self.held_bytes += before.own_bytes - self.own_bytes
            self.own_bytes = before.own_bytes
        else:
            self.follow(None)

    def add_move(self, move: coordinator_pb2.GroupHistoryResponse.Move, names_bytes: int) -> None:
        """Notes what changed hands; its names take so many bytes."""
        self.moves.append(move)
        self.held_bytes += MOVE_BYTES + names_bytes

    def to_proto(self) -> coordinator_pb2.GroupHistoryResponse.Generation:
        """The generation as it is sent."""
        message = coordinator_pb2.GroupHistoryResponse.Generation(
            generation=self.generation,
            cause=self.cause,
            started_at_ms=self.started_at_ms,
            assigned_at_ms=self.assigned_at_ms,
            leader=self.leader,
            protocol_name=self.protocol_name,
            moves=self.moves,
            moves_truncated=self.moves_truncated,
            position=self.position.to_proto(),
        )
        message.MergeFromString(_encoded(self.members))
        return message

    @classmethod
    def from_proto(cls, message: coordinator_pb2.GroupHistoryResponse.Generation) -> "GenerationEntry":
        """The generation that `to_proto` made the message of; keeps parts of the message."""
        return cls(
            generation=message.generation,
            cause=message.cause,
            started_at_ms=message.started_at_ms,
            leader=message.leader,
            protocol_name=message.protocol_name,
            members=tuple(map(Participant.of, message.members)),
            position=Position.from_proto(message.position),
            assigned_at_ms=message.assigned_at_ms,
            moves=list(message.moves),
            moves_truncated=message.moves_truncated,
        )


class History(list[GenerationEntry]):
    """The last generations of a group, the oldest first.

    Args:
        length: how many are remembered; 0: none.

    Attributes:
        length: how many are remembered.
        held_bytes: about what they take in memory.
    """

    __slots__ = ("held_bytes", "length")

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.held_bytes = 0

    def remember(self, entry: GenerationEntry) -> None:
        """Adds a generation that has begun; forgets the oldest one when there are too many."""
        if not self.length:
            return
        before = self[-1] if self else None
        if before is not None and before.members == entry.members and not entry.moves:  # as `follow` does
            entry.members = before.members
        else:
            entry.follow(before)
        self.append(entry)
        self.held_bytes += entry.held_bytes
        if len(self) > self.length:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        gone = self.pop(0)
        oldest = self[0]
        if gone.members is oldest.members:  # as `inherit` does
            more = gone.own_bytes - oldest.own_bytes
            oldest.own_bytes = gone.own_bytes
            oldest.held_bytes += more
            self.held_bytes += more - gone.held_bytes
            return
        self.held_bytes -= gone.held_bytes + oldest.held_bytes
        oldest.inherit(gone)
        self.held_bytes += oldest.held_bytes

    @contextmanager
    def adding(self, generation: int | None = None) -> Iterator[GenerationEntry]:
        """A generation, or the latest where it is not remembered, for something to be added to it."""
        entry = next((one for one in reversed(self) if one.generation == generation), self[-1])
        self.held_bytes -= entry.held_bytes
        yield entry
        self.held_bytes += entry.held_bytes

    def keep_latest(self) -> None:
        """Remembers no generation but the latest."""
        if self:
            latest = self[-1]
            self.clear()
            latest.follow(None)
            self.append(latest)
            self.held_bytes = latest.held_bytes


@lru_cache(maxsize=1)
def _encoded(members: tuple[Participant, ...]) -> bytes:
    """The participants as part of a generation; most generations have the very ones of that before."""
    message = coordinator_pb2.GroupHistoryResponse.Generation()
    add = message.members.add
    for member_id, group_instance_id, client_id, host in members:
        add(member_id=member_id, group_instance_id=group_instance_id, client_id=client_id, host=host)
    return message.SerializeToString()


def _weight_of(move: coordinator_pb2.GroupHistoryResponse.Move) -> int:
    """About what a move takes in memory."""
    return MOVE_BYTES + utf8_bytes(move.topic + move.from_member_id + move.to_member_id)
