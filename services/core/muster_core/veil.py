"""What is kept of a fault says no secret of a member, and can be repeated all the same.

Each secret is replaced by its hash, and each hash by the hash of that: so a call proves what it proved
before, and nothing that is kept opens anything in the cluster.
"""

from typing import Any, TypeVar

from google.protobuf.message import Message
from muster_protos.muster.log.v1 import records_pb2, snapshot_pb2
from muster_protos.muster.v1 import coordinator_pb2

from muster_core.state.members.member_secret import hash_of

T = TypeVar("T", bound=Message)


def veiled_call(call: T) -> T:
    """A call, or an Attach, without the secrets in it."""
    veiled = type(call)()
    veiled.CopyFrom(call)
    parts: Any = veiled.members if isinstance(veiled, coordinator_pb2.LeaveGroupRequest) else [veiled]
    for part in parts:
        if secret := getattr(part, "member_secret", b""):
            part.member_secret = hash_of(secret)
    return veiled


def veiled_record(record: records_pb2.Record) -> records_pb2.Record:
    """A record of a group without the hashes in it."""
    veiled = records_pb2.Record()
    veiled.CopyFrom(record)
    for member in veiled.generation_started.members if record.HasField("generation_started") else ():
        _veil(member)
    if record.HasField("member_replaced"):
        _veil(veiled.member_replaced.member)
    return veiled


def veiled_part(part: bytes) -> bytes:
    """A part of a snapshot without the hashes in it."""
    veiled = snapshot_pb2.SnapshotPart.FromString(part)
    for item in veiled.items:
        if item.HasField("member"):
            _veil(item.member.member)
    return veiled.SerializeToString(deterministic=True)


def _veil(member: records_pb2.Member) -> None:
    if member.secret_hash:
        member.secret_hash = hash_of(member.secret_hash)
