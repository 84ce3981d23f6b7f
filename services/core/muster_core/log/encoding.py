"""Records as the bytes that go to the log, each encoded once where it is made (LIM-48)."""

from google.protobuf.message import Message
from muster_protos.muster.log.v1 import records_pb2

from muster_core.numbered_messages import header

_KINDS = ("generation_started", "assignment_committed")
"""Records that name all members of a group, of which each may have kilobytes."""

_FEW = 32
"""With no more members a record is encoded in one piece."""

_LARGE_BYTES = 1 << 10
"""So it is where the first member takes less, and all others probably do."""


def encoded(record: records_pb2.Record) -> bytes:
    """The bytes of a record.

    Those of many large members are encoded one by one: in one piece megabytes take three times as long, as
    the encoder copies what it has each time that it needs more room.
    """
    kind = record.WhichOneof("kind")
    if kind not in _KINDS or len(members := getattr(record, kind).members) <= _FEW:
        return record.SerializeToString()
    if members[0].ByteSize() < _LARGE_BYTES:
        return record.SerializeToString()
    head, body = records_pb2.Record(), getattr(record, kind)
    _copy_others(record, head, kind)
    rest = type(body)()
    _copy_others(body, rest, "members")
    parts = [rest.SerializeToString()]
    number = body.DESCRIPTOR.fields_by_name["members"].number
    for member in members:
        of_member = member.SerializeToString()
        parts += (header(number, len(of_member)), of_member)
    number = record.DESCRIPTOR.fields_by_name[kind].number
    return b"".join((head.SerializeToString(), header(number, sum(map(len, parts))), *parts))


def _copy_others(source: Message, target: Message, without: str) -> None:
    """Copies all fields of a message but one; none of them is a list."""
    for field, content in source.ListFields():
        if field.name == without:
            continue
        if field.message_type is None:
            setattr(target, field.name, content)
        else:
            getattr(target, field.name).CopyFrom(content)
