"""Generations of groups: why each was started, who was in it, what it moved."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from muster_protos.muster.log.v1 import incremental_pb2, records_pb2
from muster_protos.muster.v1 import common_pb2

from muster_audit.lake.row import Interval, Place
from muster_audit.lake.tables.assignments import Assignments
from muster_audit.lake.tables.members import Members
from muster_audit.lake.tables.moves import aimed
from muster_audit.lake.tracker import Take, Tracker
from muster_audit.reading.timeline import cause_in_words

INCREMENTAL = "incremental"
"""Kind of groups in which the coordinator assigns."""


@dataclass(slots=True, kw_only=True)
class Generation(Interval):
    """A generation of a group, from the end of its join phase until the next one (`next generation`) or the
    end of the group (`group gone`). An epoch of an incremental group is one, from where it was raised.
    """  # noqa: D205  one sentence

    table: ClassVar[str] = "generations"

    group_id: Annotated[str, "The group."]
    generation: Annotated[int, "Its number."]
    protocol_type: Annotated[
        str, "Kind of the group; `incremental`: the coordinator assigns, and members are moved one by one."
    ]
    protocol_name: Annotated[str, "Chosen protocol; empty: there are no members."]
    leader: Annotated[str, "Member that leads; empty: there are no members."]
    server_assignor: Annotated[str, "Assignor that the coordinator runs; empty: the leader assigns."]
    members: Annotated[int, "Number of its members; 0: the group became empty."]
    joined: Annotated[int, "How many of them were not in the group before."]
    missing: Annotated[int, "How many members were in the group until now and did not join again."]
    cause: Annotated[str, "Why the rebalance was started, e.g. `session expired`."]
    cause_member_id: Annotated[str, "Member that caused it; empty: none did."]
    cause_host: Annotated[str, "Address of that member."]
    cause_reason: Annotated[str, "Reason that the member gave; empty: none."]
    cause_sentence: Annotated[str, "The cause in one sentence."]
    cause_at_ms: Annotated[int, "When the rebalance was started, wall clock; 0: not known."]
    silence_ms: Annotated[int, "How long the removed member had to be silent for it; 0: not for its silence."]
    assigned_at_ms: Annotated[int | None, "When its assignment or target was stored; null: it never was."] = (
        None
    )
    assigned_offset: Annotated[int | None, "Offset of that record; null: there is none."] = None
    partitions: Annotated[
        int | None,
        "How many partitions it gave, or the target gives; null: there is none, or an earlier version of the "
        "lake wrote the row of an incremental group.",
    ] = None
    moves: Annotated[
        int | None,
        "How many of them did not belong to the same member before; of an incremental group, how many its "
        "target gives to other members than the one before.",
    ] = None
    minimum_moves: Annotated[
        int | None,
        "The fewest moves that give shares of the same sizes, whatever members subscribe to; null: not "
        "known, as of an incremental group that an earlier version of the lake met.",
    ] = None
    claimed: Annotated[
        int | None,
        "How many partitions its members said that they still held when they joined; null: not known.",
    ] = None


class Generations(Tracker[Generation]):
    """Follows generations.

    Args:
        members: has taken each record before.
        assignments: likewise.
    """

    row = Generation

    def __init__(self, members: Members, assignments: Assignments) -> None:
        self._members, self._assignments = members, assignments
        self._groups: dict[str, Generation] = {}

    @property
    def takes(self) -> Mapping[str, Take[Generation]]:
        """What it does with which kind of record."""
        return {
            "generation_started": self._generation_started,
            "assignment_committed": self._assignment_committed,
            "group_tombstone": self._group_tombstone,
            "epoch_raised": self._epoch_raised,
            "target_assigned": self._target_assigned,
            "group_converted": self._converted,
        }

    def resume(self, row: Generation) -> None:
        """Takes back a row that was not final."""
        self._groups[row.group_id] = row

    def running(self) -> Iterator[Generation]:
        """The present generation of each group."""
        return iter(self._groups.values())

    def _generation_started(self, at: Place, message: records_pb2.GenerationStarted) -> Iterator[Generation]:
        before = self._groups.get(message.group_id)
        if before is not None:
            yield before.end(at, "next generation")
        row = self._groups[message.group_id] = self._begun(
            at, message.group_id, message.generation, message.cause, len(message.members)
        )
        row.protocol_type, row.protocol_name = message.protocol_type, message.protocol_name
        row.leader, row.server_assignor = message.leader, message.server_assignor
        row.claimed = self._assignments.claimed

    def _begun(
        self, at: Place, group_id: str, number: int, cause: common_pb2.RebalanceCause, members: int
    ) -> Generation:
        return Generation(
            shard=at.shard,
            epoch=at.position.epoch,
            offset=at.position.offset,
            from_ms=at.at_ms,
            group_id=group_id,
            generation=number,
            protocol_type=INCREMENTAL,
            protocol_name="",
            leader="",
            server_assignor="",
            members=members,
            joined=self._members.joined,
            missing=self._members.missing,
            cause=cause_in_words(cause.kind),
            cause_member_id=cause.member_id,
            cause_host=cause.host,
            cause_reason=cause.reason,
            cause_sentence=cause.sentence,
            cause_at_ms=cause.at_ms,
            silence_ms=cause.silence_ms,
        )

    def _epoch_raised(self, at: Place, message: incremental_pb2.EpochRaised) -> Iterator[Generation]:
        before = self._groups.get(message.group_id)
        if before is not None:
            yield before.end(at, "next generation")
        members = len(self._members.of(message.group_id))
        row = self._begun(at, message.group_id, message.epoch, message.cause, members)
        self._groups[message.group_id] = row

    def _target_assigned(self, at: Place, message: incremental_pb2.TargetAssigned) -> Iterator[Generation]:
        row = self._groups.get(message.group_id)
        moves = aimed(self._members.of(message.group_id), message)
        if row is not None and row.generation == message.epoch:
            row.assigned_at_ms, row.assigned_offset = at.at_ms, at.position.offset
            row.server_assignor = message.server_assignor
            row.partitions, row.moves, row.minimum_moves = moves
        yield from ()

    def _converted(self, _: Place, message: incremental_pb2.GroupConverted) -> Iterator[Generation]:
        """The target of each member is what the last assignment gave it."""
        counts = self._assignments.counts(message.group_id)
        for member_id, member in self._members.of(message.group_id).items():
            member.target = counts.get(member_id, 0)
        yield from ()

    def _assignment_committed(
        self, at: Place, message: records_pb2.AssignmentCommitted
    ) -> Iterator[Generation]:
        row = self._groups.get(message.group_id)
        if row is not None:
            row.assigned_at_ms, row.assigned_offset = at.at_ms, at.position.offset
            row.partitions, row.moves, row.minimum_moves = self._assignments.moves
        yield from ()

    def _group_tombstone(self, at: Place, message: records_pb2.GroupTombstone) -> Iterator[Generation]:
        row = self._groups.pop(message.group_id, None)
        if row is not None:
            yield row.end(at, "group gone")
