"""Records of a log as the plain computations of the lake look at them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from muster_core.position import Position
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2

TopicPartition = tuple[str, int]


@dataclass(frozen=True, eq=False)
class Read:
    """An entry of a log, decoded."""

    position: Position
    kind: str
    record: records_pb2.Record

    @property
    def at_ms(self) -> int:
        return self.record.written_at_ms

    @cached_property
    def message(self) -> Any:
        return getattr(self.record, self.kind)

    @cached_property
    def given(self) -> dict[TopicPartition, tuple[str, Position]]:
        """Of an assignment: who was given each partition, and with which token."""
        given = {}
        for row in self.message.members:
            assignment = parsed(common_pb2.Assignment, row.assignment)
            if assignment is None:
                continue
            kept = {(one.topic, one.partition): Position.from_proto(one.position) for one in row.kept_tokens}
            for one in assignment.partitions:
                for number in one.partitions:
                    token = kept.get((one.topic, number), self.position)
                    given[one.topic, number] = row.member_id, token
        return given


def group_id_of(read: Read) -> str:
    """The group that a record is about; empty: none."""
    return str(getattr(read.message, "group_id", "")) if read.kind else ""


def cause_of(cause: common_pb2.RebalanceCause) -> str:
    """A cause in words."""
    name = common_pb2.RebalanceCauseKind.Name(cause.kind)
    return name.removeprefix("REBALANCE_CAUSE_KIND_").lower().replace("_", " ")


def begun(read: Read, **values: Any) -> dict[str, Any]:
    """A row that begins with a record."""
    place = {"epoch": read.position.epoch, "offset": read.position.offset, "from_ms": read.at_ms}
    return {**place, "begun_before": False, **values}


def parsed(kind: Any, data: bytes) -> Any:
    """What a worker published; None: nothing that this version reads."""
    try:
        message = kind.FromString(data)
    except Exception:
        return None
    return message if message.version == 1 else None


def held_on(read: Read, member_id: str) -> set[TopicPartition] | None:
    """What a member says that it still holds; None: it is no part of the generation."""
    for one in read.message.members:
        if one.member_id == member_id:
            metadata = {each.name: each.metadata for each in one.protocols}.get(read.message.protocol_name)
            said = parsed(common_pb2.Subscription, metadata) if metadata is not None else None
            if said is None or not said.keeps_owned:
                return set()
            return {(each.topic, number) for each in said.owned_partitions for number in each.partitions}
    return None
