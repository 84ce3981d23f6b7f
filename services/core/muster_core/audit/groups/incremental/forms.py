"""G16: what the records of incremental groups say by themselves."""

from collections.abc import Callable, Iterable, Iterator

from muster_protos.muster.log.v1 import incremental_pb2, records_pb2
from muster_protos.muster.v1 import common_pb2

from muster_core.audit.groups.form_parts import (
    KINDS,
    OF_A_REMOVAL,
    PROCESS_BYTES,
    wrong_in_cause,
    wrong_in_names,
    wrong_in_partitions,
    wrong_in_record,
    wrong_in_weight,
)
from muster_core.incremental.rollout import LONGEST_MS


def _record(record: records_pb2.Record, group_id: str) -> Iterator[str]:
    yield from wrong_in_record(record, group_id)
    if not record.critical:
        yield "it is not critical"


def _subscribed(record: records_pb2.Record) -> Iterator[str]:
    message = record.member_subscribed
    yield from _record(record, message.group_id)
    yield from _member(message.member)


def _member(member: incremental_pb2.IncrementalMember) -> Iterator[str]:
    name = member.member_id
    if member.rebalance_timeout_ms < 1:
        yield f"{name} has a rebalance time-out of {member.rebalance_timeout_ms} ms"
    if len(member.process_id) != (PROCESS_BYTES if member.member_seq else 0):
        yield f"{name} has join {member.member_seq} and {len(member.process_id)} bytes as its process"
    yield from wrong_in_names("topics", member.topics)
    yield from wrong_in_names("classic_protocols", member.classic_protocols)
    yield from wrong_in_weight(name, member.weight)


def _epoch_raised(record: records_pb2.Record) -> Iterator[str]:
    message = record.epoch_raised
    yield from _record(record, message.group_id)
    yield from wrong_in_cause(message.cause, KINDS)


def _target_assigned(record: records_pb2.Record) -> Iterator[str]:
    message = record.target_assigned
    yield from _record(record, message.group_id)
    if not message.server_assignor:
        yield "a target that no assignor made"
    yield from wrong_in_names("members", [change.member_id for change in message.changes])
    for change in message.changes:
        yield from _named(change.gets, change.loses)


def _stepped(record: records_pb2.Record) -> Iterator[str]:
    message = record.member_stepped
    yield from _record(record, message.group_id)
    yield from _named(message.taken, message.given)
    yield from _named(message.released, message.taken)


def _named(*lists: Iterable[common_pb2.TopicPartitions]) -> Iterator[str]:
    """What is wrong with lists of which none names a partition that another one names."""
    if together := [entry for topics in lists for entry in topics]:
        yield from wrong_in_partitions(together)


def _went_away(record: records_pb2.Record) -> Iterator[str]:
    yield from _record(record, record.member_went_away.group_id)


def _instance_moved(record: records_pb2.Record) -> Iterator[str]:
    yield from _record(record, record.instance_moved.group_id)
    yield from _member(record.instance_moved.member)


def _removed(record: records_pb2.Record) -> Iterator[str]:
    yield from _record(record, record.member_removed.group_id)
    yield from wrong_in_cause(record.member_removed.cause, OF_A_REMOVAL)


def _resolved(record: records_pb2.Record) -> Iterator[str]:
    message = record.expression_resolved
    yield from _record(record, message.group_id)
    if not message.expression:
        yield "topics of no expression"
    yield from wrong_in_names("topics", list(message.topics))


def _held(record: records_pb2.Record) -> Iterator[str]:
    message = record.moves_held
    yield from _record(record, message.group_id)
    if bool(message.member_id) is not bool(message.until_ms):
        yield f"a hold until {message.until_ms} by {message.member_id!r}"
    if message.until_ms and not 0 < message.until_ms - message.began_ms <= LONGEST_MS:
        yield f"a hold from {message.began_ms} to {message.until_ms}"
    if not message.until_ms and (message.began_ms or message.is_start):
        yield "a hold that is over and begins"


def _converted(record: records_pb2.Record) -> Iterator[str]:
    message = record.group_converted
    yield from _record(record, message.group_id)
    yield from wrong_in_cause(message.cause, KINDS)
    yield from wrong_in_names("members", [member.member_id for member in message.members])
    if message.generation < 1 or not message.members:
        yield f"a conversion of generation {message.generation} with {len(message.members)} members"
    for member in message.members:
        yield from _member(member)


CHECKS: dict[str, Callable[[records_pb2.Record], Iterator[str]]] = {
    "member_subscribed": _subscribed,
    "epoch_raised": _epoch_raised,
    "target_assigned": _target_assigned,
    "member_stepped": _stepped,
    "member_went_away": _went_away,
    "instance_moved": _instance_moved,
    "member_removed": _removed,
    "expression_resolved": _resolved,
    "moves_held": _held,
    "group_converted": _converted,
}
"""What is wrong with a record, by its kind."""
