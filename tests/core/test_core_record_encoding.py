"""A record is encoded once, where it is made, and is the same record when it is read back."""

import pytest
from kit.lives.virtual_shard import VirtualShard
from muster_core.log import encoding
from muster_core.log.encoding import encoded
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

MANY = encoding._FEW + 1


def started(members: int, size_bytes: int) -> records_pb2.Record:
    record = records_pb2.Record(written_at_ms=5, critical=True)
    record.generation_started.group_id = "billing"
    record.generation_started.generation = 3
    record.generation_started.cause.CopyFrom(common_pb2.RebalanceCause(member_id="m1"))
    for number in range(members):
        member = record.generation_started.members.add(member_id=f"m{number}")
        member.protocols.add(name="range", metadata=bytes(size_bytes + number))
    return record


def assigned(members: int, size_bytes: int) -> records_pb2.Record:
    record = records_pb2.Record(written_at_ms=5)
    record.assignment_committed.group_id = "billing"
    for number in range(members):
        member = record.assignment_committed.members.add(
            member_id=f"m{number}", assignment=bytes(size_bytes + number)
        )
        member.kept_tokens.add(topic="orders", partition=number)
    return record


@pytest.mark.parametrize("members", [0, 1, MANY - 1, MANY, 300])
@pytest.mark.parametrize("size_bytes", [0, encoding._LARGE_BYTES])
def test_it_is_the_same_record_however_many_members_it_names(members: int, size_bytes: int) -> None:
    for record in (started(members, size_bytes), assigned(members, size_bytes)):
        data = encoded(record)
        assert records_pb2.Record.FromString(data) == record
        assert len(data) == record.ByteSize(), "each field is there once"


@pytest.mark.parametrize("kind", encoding._KINDS)
def test_no_other_field_is_a_list(kind: str) -> None:
    """Such a field would have to be copied otherwise than the others."""
    body = records_pb2.Record.DESCRIPTOR.fields_by_name[kind].message_type
    assert body is not None
    lists = [
        field.name
        for message in (records_pb2.Record.DESCRIPTOR, body)
        for field in message.fields
        if field.is_repeated
    ]
    assert lists == ["members"]


def test_a_shard_counts_and_sends_what_it_encoded() -> None:
    cluster = VirtualShard()
    cluster.auto_ack = False
    before = cluster.shard.held_bytes
    request = coordinator_pb2.OffsetCommitRequest(group_id="g", generation=-1)
    request.topics.add(name="orders").partitions.add(partition=1, offset=7)
    cluster.send(request)
    (append,) = cluster.waiting
    assert [records_pb2.Record.FromString(data) for data in append.encoded] == [*append.records]
    assert cluster.shard.held_bytes - before == sum(map(len, append.encoded))
