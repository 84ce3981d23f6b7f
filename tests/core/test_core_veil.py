"""What is kept of a fault has no secret in it, and is repeated as it was."""

from core.test_core_member_secrets import OTHER, SECRET, member_with, stranger_to
from kit.lives.virtual_shard import VirtualShard
from muster_core import error_code
from muster_core.audit.difference import first_difference
from muster_core.clock import Now
from muster_core.events import Attach, GroupRequest, Request
from muster_core.fault import event_of, message_of, snapshot_of
from muster_core.shard import Shard
from muster_core.state.members.member_secret import hash_of
from muster_core.veil import veiled_record
from muster_protos.muster.log.v1 import records_pb2, snapshot_pb2
from muster_protos.muster.v1 import coordinator_pb2, session_pb2

NOW = Now(20_000, 30_000)


def test_a_kept_call_proves_what_it_proved_and_nothing_in_the_cluster() -> None:
    cluster = VirtualShard()
    member = member_with(cluster)
    kept = snapshot_of(cluster.shard, {"g"})
    again = Shard(0, cluster.config)
    reader = again.restore()
    for part in kept:
        reader.take(part)
    again.loaded(9, NOW, cluster.features)

    def heartbeat_of(secret: bytes) -> coordinator_pb2.HeartbeatRequest:
        return coordinator_pb2.HeartbeatRequest(
            group_id="g", member_id=member.member_id, generation=member.generation, member_secret=secret
        )

    answers = []
    for call_id, secret in enumerate((SECRET, OTHER, b""), 1):
        message = message_of(Request(call_id, heartbeat_of(secret)), NOW)
        assert not secret or secret not in message.SerializeToString()
        (reply,) = again.handle(event_of(message), NOW).replies
        assert isinstance(reply.message, coordinator_pb2.HeartbeatResponse)
        answers.append(reply.message.error_code)
    assert answers == [error_code.NONE, error_code.UNKNOWN_MEMBER_ID, error_code.UNKNOWN_MEMBER_ID]

    shown = b"".join(kept)
    assert hash_of(SECRET) not in shown
    for found in (hash_of(SECRET), hash_of(hash_of(SECRET))):
        assert stranger_to(member, found).heartbeat() == error_code.UNKNOWN_MEMBER_ID


def test_every_message_that_brings_a_secret_is_kept_without_it() -> None:
    calls: list[GroupRequest] = [
        coordinator_pb2.JoinGroupRequest(member_secret=SECRET),
        coordinator_pb2.SyncGroupRequest(member_secret=SECRET),
        coordinator_pb2.HeartbeatRequest(member_secret=SECRET),
        coordinator_pb2.OffsetCommitRequest(member_secret=SECRET),
        coordinator_pb2.LeaveGroupRequest(
            members=[coordinator_pb2.LeaveGroupRequest.Member(member_secret=SECRET)] * 2
        ),
    ]
    with_secrets = {
        message.containing_type.name if message.containing_type else message.name
        for file in (coordinator_pb2.DESCRIPTOR, session_pb2.DESCRIPTOR)
        for top in file.message_types_by_name.values()
        for message in (top, *top.nested_types)
        if "member_secret" in message.fields_by_name
    }
    assert with_secrets == {call.DESCRIPTOR.name for call in calls} | {"Attach"}
    attach = Attach(1, session_pb2.Attach(member_secret=SECRET))
    for kept in (*(message_of(Request(1, call), NOW) for call in calls), message_of(attach, NOW)):
        assert SECRET not in kept.SerializeToString()
        assert hash_of(SECRET) in kept.SerializeToString()
    assert all(SECRET in call.SerializeToString() for call in calls), "the event itself is left as it is"


def test_a_kept_record_has_no_hash_of_the_log() -> None:
    member = records_pb2.Member(member_id="m", secret_hash=hash_of(SECRET))
    for record in (
        records_pb2.Record(generation_started=records_pb2.GenerationStarted(members=[member])),
        records_pb2.Record(member_replaced=records_pb2.MemberReplaced(member=member)),
    ):
        shown = veiled_record(record).SerializeToString()
        assert hash_of(SECRET) not in shown
        assert hash_of(hash_of(SECRET)) in shown


def test_what_is_wrong_with_a_hash_is_told_without_it() -> None:
    """By an audit that compares the snapshots of nodes, and logs what it finds."""

    def part(secret_hash: bytes) -> bytes:
        item = snapshot_pb2.SnapshotItem()
        item.member.member.member_id = "m"
        item.member.member.secret_hash = secret_hash
        return snapshot_pb2.SnapshotPart(items=[item]).SerializeToString()

    stored, made = hash_of(b"s" * 16), hash_of(b"t" * 16)
    told = first_difference([part(stored)], [part(made)])
    assert "member.member.secret_hash" in told
    assert repr(stored) not in told
    assert repr(made) not in told
