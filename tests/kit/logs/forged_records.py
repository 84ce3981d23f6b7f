"""Records that say what no coordinator writes, each at the end of a healthy log with a whole chain."""

from collections.abc import Callable

from kit.logs.log_builder import LogBuilder
from muster_core import cause_kind
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2

Change = Callable[[records_pb2.Record], None]


def _last(built: LogBuilder, change: Change) -> None:
    """Writes the last record anew, changed."""
    record = records_pb2.Record.FromString(built.entries.pop().record)
    change(record)
    built.add(record)


def _commit(built: LogBuilder, change: Callable[[records_pb2.OffsetCommitted], None]) -> None:
    built.commit(1, "z", 5)
    _last(built, lambda record: change(record.offset_committed))


def _a_commit_of_a_negative_offset(built: LogBuilder) -> None:
    _commit(built, lambda commit: setattr(commit.offsets[0], "offset", -5))


def _a_commit_of_an_impossible_leader_epoch(built: LogBuilder) -> None:
    _commit(built, lambda commit: setattr(commit.offsets[0], "leader_epoch", -5))


def _a_commit_of_a_topic_without_a_name(built: LogBuilder) -> None:
    _commit(built, lambda commit: setattr(commit.offsets[0], "topic", ""))


def _a_commit_of_nothing(built: LogBuilder) -> None:
    _commit(built, lambda commit: commit.ClearField("offsets"))


def _a_commit_of_a_partition_twice(built: LogBuilder) -> None:
    _commit(built, lambda commit: commit.offsets.append(commit.offsets[0]))


def _a_commit_that_expired_before_time_began(built: LogBuilder) -> None:
    _commit(built, lambda commit: setattr(commit, "expire_at_ms", -5))


def _a_generation(built: LogBuilder, change: Callable[[records_pb2.GenerationStarted], None]) -> None:
    built.generation(2, "z")
    _last(built, lambda record: change(record.generation_started))


def _a_generation_for_no_cause(built: LogBuilder) -> None:
    _a_generation(built, lambda started: started.ClearField("cause"))


def _a_generation_of_another_type(built: LogBuilder) -> None:
    _a_generation(built, lambda started: setattr(started, "protocol_type", "connect"))


def _a_generation_of_no_type(built: LogBuilder) -> None:
    built.left(1, "z")
    built.generation(2)
    built.generation(3, "y")
    _last(built, lambda record: setattr(record.generation_started, "protocol_type", ""))


def _a_generation_that_the_coordinator_assigns(built: LogBuilder) -> None:
    built.generation(2, "z")
    _last(built, lambda record: setattr(record.generation_started, "server_assignor", "range"))
    built.assignment(2, leader="", z=[0])


def _a_member_without_a_session(built: LogBuilder) -> None:
    _a_generation(built, lambda started: setattr(started.members[0], "session_timeout_ms", 0))


def _a_member_with_a_negative_time_out(built: LogBuilder) -> None:
    _a_generation(built, lambda started: setattr(started.members[0], "rebalance_timeout_ms", -5))


def _a_member_with_a_negative_grace(built: LogBuilder) -> None:
    _a_generation(built, lambda started: setattr(started.members[0], "disconnect_grace_ms", -5))


def _a_member_that_is_too_heavy(built: LogBuilder) -> None:
    _a_generation(built, lambda started: setattr(started.members[0], "weight", 101))


def _a_hash_of_another_length(built: LogBuilder) -> None:
    _a_generation(built, lambda started: setattr(started.members[0], "secret_hash", b"short"))


def _a_protocol_twice(built: LogBuilder) -> None:
    _a_generation(built, lambda s: s.members[0].protocols.append(s.members[0].protocols[0]))


def _a_protocol_of_an_empty_generation(built: LogBuilder) -> None:
    built.left(1, "z")
    built.generation(2)
    _last(built, lambda record: setattr(record.generation_started, "protocol_name", "range"))


def _a_removal_for_a_join(built: LogBuilder) -> None:
    built.left(1, "z", cause_kind.JOINED)


def _a_silence_of_who_left(built: LogBuilder) -> None:
    built.left(1, "z")
    _last(built, lambda record: setattr(record.member_left.cause, "silence_ms", -5))


def _a_take_over_for_another_cause(built: LogBuilder) -> None:
    built.generation(2, "x=s")
    built.replaced(2, "x", "y", "s")
    _last(built, lambda record: setattr(record.member_replaced.cause, "kind", cause_kind.LEFT))


def _a_partition_kept_twice(built: LogBuilder) -> None:
    built.assignment(1, leader="z", z=[0])
    given = built.end
    built.generation(2, "z")
    built.keep(2, "z", 0, given, leader="z")

    def twice(record: records_pb2.Record) -> None:
        tokens = record.assignment_committed.members[0].kept_tokens
        tokens.append(tokens[0])

    _last(built, twice)


def _an_assignment_of_a_member_twice(built: LogBuilder) -> None:
    built.assignment(1, leader="z", z=[])

    def twice(record: records_pb2.Record) -> None:
        members = record.assignment_committed.members
        members.append(members[0])

    _last(built, twice)


def _a_removal_of_a_group_that_never_was(built: LogBuilder) -> None:
    gone = records_pb2.GroupTombstone(group_id=built.named("never"), reason="deleted")
    built.add(records_pb2.Record(group_tombstone=gone))


def _removed(built: LogBuilder, *topics: common_pb2.TopicPartitions) -> None:
    gone = records_pb2.OffsetTombstone(group_id=built.group, reason="deleted", topics=topics)
    built.add(records_pb2.Record(offset_tombstone=gone))


def _a_removal_of_no_offsets(built: LogBuilder) -> None:
    _removed(built)


def _a_removal_of_no_partitions(built: LogBuilder) -> None:
    _removed(built, common_pb2.TopicPartitions(topic="t"))


def _a_removal_in_a_topic_without_a_name(built: LogBuilder) -> None:
    _removed(built, common_pb2.TopicPartitions(partitions=[0]))


def _a_removal_of_an_offset_twice(built: LogBuilder) -> None:
    _removed(built, common_pb2.TopicPartitions(topic="t", partitions=[0, 0]))


def seen_of_the_catalog(built: LogBuilder, offset: int, *topics: str, epoch: int = 1) -> None:
    """Writes how far the owner saw the catalog, and which topics it saw deleted."""
    seen = records_pb2.TopicsSeen(catalog_offset=offset, catalog_epoch=epoch, topics=topics)
    built.add(records_pb2.Record(topics_seen=seen))


def _a_catalog_that_was_seen_further_before(built: LogBuilder) -> None:
    seen_of_the_catalog(built, 2)
    seen_of_the_catalog(built, 1)


def _a_removal_of_no_partition_of_a_topic(built: LogBuilder) -> None:
    removed = records_pb2.PartitionsRemoved(topics=[common_pb2.TopicPartitions(topic="t")])
    built.add(records_pb2.Record(critical=True, partitions_removed=removed))


def _a_deleted_topic_without_a_name(built: LogBuilder) -> None:
    seen_of_the_catalog(built, 2, "")


FORGED: tuple[Callable[[LogBuilder], None], ...] = (
    _a_commit_of_a_negative_offset,
    _a_commit_of_an_impossible_leader_epoch,
    _a_commit_of_a_topic_without_a_name,
    _a_commit_of_nothing,
    _a_commit_of_a_partition_twice,
    _a_commit_that_expired_before_time_began,
    _a_generation_for_no_cause,
    _a_generation_of_another_type,
    _a_generation_of_no_type,
    _a_generation_that_the_coordinator_assigns,
    _a_member_without_a_session,
    _a_member_with_a_negative_time_out,
    _a_member_with_a_negative_grace,
    _a_member_that_is_too_heavy,
    _a_hash_of_another_length,
    _a_protocol_twice,
    _a_protocol_of_an_empty_generation,
    _a_removal_for_a_join,
    _a_silence_of_who_left,
    _a_take_over_for_another_cause,
    _a_partition_kept_twice,
    _an_assignment_of_a_member_twice,
    _a_removal_of_a_group_that_never_was,
    _a_removal_of_no_offsets,
    _a_removal_of_no_partitions,
    _a_removal_in_a_topic_without_a_name,
    _a_removal_of_an_offset_twice,
    _a_catalog_that_was_seen_further_before,
    _a_deleted_topic_without_a_name,
    _a_removal_of_no_partition_of_a_topic,
)
"""What breaks G16."""
