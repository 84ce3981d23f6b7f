"""Logs with one damage each, and what must find it: what the checks of logs are judged by."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, pairwise

from kit.logs.damaged_holds import HOLD_DAMAGES
from kit.logs.damaged_incremental import INCREMENTAL_DAMAGES
from kit.logs.damaged_reversions import REVERSION_DAMAGES
from kit.logs.forged_members import FORGED_JOINS, FORGED_MEMBERS, FORGED_PLACES
from kit.logs.forged_records import FORGED
from kit.logs.log_builder import LogBuilder, healthy
from muster_core.config import GroupConfig
from muster_core.log.chain import chain_hash
from muster_core.position import Position
from muster_core.record_bounds import RECORD_MAX_BYTES
from muster_core.sharding import shard_of
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2

Make = Callable[[LogBuilder], None]


@dataclass(frozen=True, slots=True)
class Damage:
    """One way to damage a healthy log.

    Attributes:
        invariant: id of the promise that must be found broken.
        make: damages a healthy log, whose group `g` ends in generation 1 with member `z`.
    """

    invariant: str
    make: Make

    @property
    def name(self) -> str:
        """In words."""
        return self.make.__name__.strip("_").replace("_", " ")


def fits_a_stream(built: LogBuilder) -> bool:
    """Whether a server would hold these entries: it refuses ids that do not grow."""
    places = [entry.position for entry in built.entries]
    return all(before < after for before, after in pairwise(places))


def _outside(built: LogBuilder) -> records_pb2.Record:
    return records_pb2.Record(offset_committed=_commit_from_outside(built.named("x")))


def _commit_from_outside(group_id: str) -> records_pb2.OffsetCommitted:
    commit = records_pb2.OffsetCommitted(group_id=group_id, generation=-1)
    commit.offsets.add(topic="t", partition=0, offset=1, leader_epoch=-1)
    return commit


def rechain(built: LogBuilder, first: int) -> None:
    """Makes the chain of hashes whole again from an entry on, as somebody would who knows how."""
    for index in range(first, len(built.entries)):
        entry = built.entries[index]
        before = built.entries[index - 1].hash
        built.change(index, hash=chain_hash(before, entry.position, entry.nonce, entry.record))


def _a_gap(built: LogBuilder) -> None:
    built.add(_outside(built), skip=1)


def _a_repeated_entry(built: LogBuilder) -> None:
    del built.entries[9]
    last = built.entries[8]
    built.entries.insert(9, last._replace(position=Position(last.position.epoch + 1, last.position.offset)))


def _swapped_records(built: LogBuilder) -> None:
    one, two = built.entries[5], built.entries[6]
    built.change(5, record=two.record, nonce=two.nonce, hash=two.hash)
    built.change(6, record=one.record, nonce=one.nonce, hash=one.hash)


def _an_older_epoch(built: LogBuilder) -> None:
    built.add(_outside(built), epoch=1)


def _two_epochs_interleaved(built: LogBuilder) -> None:
    built.claim("coordinator-3")
    built.add(_outside(built), epoch=built.epoch - 1)
    built.add(_outside(built))


def _a_claim_that_names_another_entry(built: LogBuilder) -> None:
    built.claim("coordinator-3", previous=Position(1, 4))


def _a_claim_by_nobody(built: LogBuilder) -> None:
    built.claim("")


def _a_second_claim_of_an_epoch(built: LogBuilder) -> None:
    built.claim("coordinator-3", epoch=built.epoch)


def _a_new_epoch_without_a_claim(built: LogBuilder) -> None:
    built.epoch += 1
    built.add(_outside(built))


def _a_record_after_the_handoff(built: LogBuilder) -> None:
    built.handoff("coordinator-2")
    built.add(_outside(built))


def _a_handoff_by_a_stranger(built: LogBuilder) -> None:
    built.handoff("coordinator-9")


def _an_edited_byte(built: LogBuilder) -> None:
    record = records_pb2.Record.FromString(built.entries[5].record)
    record.offset_committed.offsets[0].offset = 99
    built.change(5, record=record.SerializeToString())


def _a_nonce_twice(built: LogBuilder) -> None:
    built.add(_outside(built), nonce=1003)


def _a_nonce_that_is_too_short(built: LogBuilder) -> None:
    built.add(_outside(built), nonce_bytes=15)


def _a_log_without_its_beginning(built: LogBuilder) -> None:
    del built.entries[0]


def _a_log_of_another_cluster(built: LogBuilder) -> None:
    other = healthy(LogBuilder(shard=built.shard, shard_count=built.shard_count, cluster_id="another"))
    built.entries[:] = other.entries


def _a_log_created_again(built: LogBuilder) -> None:
    built.genesis()


def _a_trim_beyond_the_snapshot(built: LogBuilder) -> None:
    built.snapshot(built.entries[3].position)
    del built.entries[:8]


def _a_snapshot_of_what_comes_later(built: LogBuilder) -> None:
    marker = records_pb2.Snapshot(upto=built.end.after(5).to_proto())
    built.add(records_pb2.Record(snapshot=marker))


def _bytes_that_are_no_record(built: LogBuilder) -> None:
    built.add(b"\xff\xff\xff")


def _a_critical_record_of_an_unknown_kind(built: LogBuilder) -> None:
    built.add(records_pb2.Record(critical=True))


def _a_skipped_generation(built: LogBuilder) -> None:
    built.generation(3, "z")


def _a_generation_twice(built: LogBuilder) -> None:
    built.generation(1, "z")


def _two_assignments(built: LogBuilder) -> None:
    built.assignment(1, leader="z", z=[0])
    built.assignment(1, leader="z", z=[0])


def _an_assignment_of_another_generation(built: LogBuilder) -> None:
    built.assignment(2, leader="z", z=[0])


def _an_assignment_before_its_generation(built: LogBuilder) -> None:
    built.assignment(2, leader="z", z=[0])
    built.generation(2, "z")


def _an_assignment_to_a_stranger(built: LogBuilder) -> None:
    built.assignment(1, leader="z", z=[0], stranger=[1])


def _an_assignment_that_leaves_a_member_out(built: LogBuilder) -> None:
    built.generation(2, "y", "z")
    built.assignment(2, leader="y", y=[0])


def _other_bytes_for_a_generation(built: LogBuilder) -> None:
    built.assignment(1, leader="z", z=[0])
    built.claim("coordinator-3")
    built.assignment(1, leader="z", z=[1])


def _a_leader_that_is_no_member(built: LogBuilder) -> None:
    built.generation(2, "z", leader="stranger")


def _an_assignment_by_another_than_the_leader(built: LogBuilder) -> None:
    built.assignment(1, leader="y", z=[0])


def _an_assignment_by_a_leader_that_left(built: LogBuilder) -> None:
    built.generation(2, "y", "z")
    built.left(2, "y")
    built.assignment(2, leader="y", z=[0])


def _a_protocol_that_nobody_supports(built: LogBuilder) -> None:
    built.generation(2, "z", protocol="sticky")


def _a_member_that_leaves_twice(built: LogBuilder) -> None:
    built.left(1, "z")
    built.left(1, "z")


def _a_group_removed_with_members(built: LogBuilder) -> None:
    built.tombstone(1)


def _a_partition_for_two(built: LogBuilder) -> None:
    built.generation(2, "y", "z")
    built.assignment(2, leader="y", y=[0, 1], z=[1])


def _a_partition_that_another_keeps(built: LogBuilder) -> None:
    built.generation(2, "y", "z", metadata={"y": _keeping(1)})
    built.assignment(2, leader="y", y=[0], z=[1])


def _keeping(*numbers: int) -> bytes:
    """What a member says that keeps partitions of topic `t`."""
    kept = common_pb2.TopicPartitions(topic="t", partitions=numbers)
    told = common_pb2.Subscription(version=1, topics=["t"], owned_partitions=[kept], keeps_owned=True)
    return told.SerializeToString()


def _a_partition_that_two_keep(built: LogBuilder) -> None:
    built.generation(2, "y", "z", metadata={"y": _keeping(1), "z": _keeping(1)})
    built.assignment(2, leader="y", y=[0], z=[1])


def _a_partition_that_is_kept_among_too_many(built: LogBuilder) -> None:
    built.generation(2, "y", "z", metadata={"y": _keeping(1, *range(5, GroupConfig().max_partitions + 5))})
    built.assignment(2, leader="y", y=[0], z=[1])


def _a_static_id_for_two(built: LogBuilder) -> None:
    built.generation(2, "x=s", "y=s")


def _a_replacement_of_a_dynamic_member(built: LogBuilder) -> None:
    built.replaced(1, "z", "y", "static")


def _a_take_over_in_another_generation(built: LogBuilder) -> None:
    built.generation(2, "x=s")
    built.replaced(1, "x", "y", "s")


def _too_many_members(built: LogBuilder) -> None:
    built.generation(2, *(f"m{number}" for number in range(5_001)))


def _too_much_metadata(built: LogBuilder) -> None:
    built.commit(1, "z", 1, metadata="x" * 65_537)


def _a_record_that_is_too_large(built: LogBuilder) -> None:
    built.generation(2, "z")
    built.assignment(2, leader="z", z=[0])
    record = records_pb2.Record.FromString(built.entries.pop().record)
    record.assignment_committed.members[0].assignment = b"\xff" * (RECORD_MAX_BYTES + 1)
    built.add(record)


def _a_departure_from_a_group_that_never_was(built: LogBuilder) -> None:
    left = records_pb2.MemberLeft(group_id=built.named("never"), generation=1, member_id="a")
    left.cause.kind = common_pb2.REBALANCE_CAUSE_KIND_MEMBER_LEFT
    built.add(records_pb2.Record(member_left=left))


def _an_assignment_of_a_removed_group(built: LogBuilder) -> None:
    built.left(1, "z")
    built.generation(2)
    built.tombstone(2)
    built.assignment(2, leader="z", z=[0])


def _a_removed_group_that_goes_on(built: LogBuilder) -> None:
    built.left(1, "z")
    built.generation(2)
    built.tombstone(2)
    built.generation(3, "z")


def _a_token_that_went_back(built: LogBuilder) -> None:
    built.assignment(1, leader="z", z=[0])
    built.generation(2, "z")
    built.keep(2, "z", 0, Position(1, 5), leader="z")


def _a_token_from_the_future(built: LogBuilder) -> None:
    built.keep(1, "z", 0, built.end.after(90), leader="z")


def _a_token_of_a_partition_that_nobody_had(built: LogBuilder) -> None:
    built.assignment(1, leader="z", z=[0])
    built.generation(2, "z")
    built.keep(2, "z", 1, built.end, leader="z")


def _a_token_that_names_a_commit(built: LogBuilder) -> None:
    built.assignment(1, leader="z", z=[0])
    built.commit(1, "z", 1)
    commit = built.end
    built.generation(2, "z")
    built.keep(2, "z", 0, commit, leader="z")


def _a_token_that_names_a_claim(built: LogBuilder) -> None:
    built.keep(1, "z", 0, Position(2, 11), leader="z")


def _a_token_of_what_is_not_given(built: LogBuilder) -> None:
    built.assignment(1, leader="z", z=[0, 1])
    given = built.end
    built.generation(2, "z")
    built.keep(2, "z", 0, given, leader="z")
    record = records_pb2.Record.FromString(built.entries.pop().record)
    token = record.assignment_committed.members[0].kept_tokens.add(topic="t", partition=1)
    token.position.CopyFrom(given.to_proto())
    built.add(record)


def _elsewhere(built: LogBuilder) -> str:
    return next(name for name in map(str, count()) if shard_of(name, built.shard_count) != built.shard)


def _a_group_of_another_shard(built: LogBuilder) -> None:
    built.add(records_pb2.Record(offset_committed=_commit_from_outside(_elsewhere(built))))


def _a_group_of_another_shard_that_is_removed(built: LogBuilder) -> None:
    gone = records_pb2.GroupTombstone(group_id=_elsewhere(built), reason="deleted")
    built.add(records_pb2.Record(group_tombstone=gone))


def _a_record_of_no_kind(built: LogBuilder) -> None:
    built.add(records_pb2.Record())


def _an_empty_record(built: LogBuilder) -> None:
    built.add(b"")


def _a_removal_that_states_a_shorter_time_out(built: LogBuilder) -> None:
    built.assignment(1, leader="z", z=[0])
    built.commit(1, "z", 1)
    built.now_ms += 500
    built.left(1, "z", common_pb2.REBALANCE_CAUSE_KIND_SESSION_EXPIRED, session_timeout_ms=400)
    cause = records_pb2.Record.FromString(built.entries[-1].record).member_left.cause
    built.generation(2, cause=cause)


def _a_removal_without_silence(built: LogBuilder) -> None:
    built.assignment(1, leader="z", z=[0])
    built.commit(1, "z", 1)
    built.left(1, "z", common_pb2.REBALANCE_CAUSE_KIND_SESSION_EXPIRED)


def _a_member_that_comes_back(built: LogBuilder) -> None:
    built.left(1, "z")
    built.generation(2, "z")


def _a_take_over_by_one_that_left(built: LogBuilder) -> None:
    built.generation(2, "x=s")
    built.replaced(2, "x", "y", "s")
    built.replaced(2, "y", "x", "s")


def _a_member_without_an_id(built: LogBuilder) -> None:
    built.generation(2, "", "z", leader="z")


def _a_commit_of_a_fenced_member(built: LogBuilder) -> None:
    built.generation(2, "z")
    built.commit(1, "z", 1)


def _a_commit_of_a_stranger(built: LogBuilder) -> None:
    built.commit(1, "stranger", 1)


def _a_commit_from_outside_while_there_are_members(built: LogBuilder) -> None:
    built.commit(-1, "")


def _a_commit_twice(built: LogBuilder) -> None:
    built.commit(1, "z", 5)
    built.commit(1, "z", 5)


def _offsets_that_expire_under_a_member(built: LogBuilder) -> None:
    built.assignment(1, leader="z", z=[0])
    built.expire("t")


def _an_edited_record_with_a_new_chain(built: LogBuilder) -> None:
    record = records_pb2.Record.FromString(built.entries[4].record)
    record.assignment_committed.members.add(member_id="stranger")
    built.change(4, record=record.SerializeToString())
    rechain(built, 4)


def _a_member_left_out_that_comes_back(built: LogBuilder) -> None:
    built.generation(2, "y", "z")
    built.generation(3, "y")
    built.generation(4, "y", "z")


def _removal_of(built: LogBuilder, *numbers: int) -> None:
    removed = records_pb2.PartitionsRemoved()
    removed.topics.add(topic="t", partitions=numbers)
    built.add(records_pb2.Record(critical=True, partitions_removed=removed))


def _a_removed_partition_that_is_given(built: LogBuilder) -> None:
    _removal_of(built, 7)
    built.generation(2, "y", "z")
    built.assignment(2, leader="y", y=[0], z=[7])


def _a_commit_in_a_removed_partition(built: LogBuilder) -> None:
    _removal_of(built, 0)
    built.add(_outside(built))


DAMAGES: tuple[Damage, ...] = tuple(
    Damage(invariant, make)
    for invariant, makes in {
        "L1": (_a_gap, _a_repeated_entry),
        "L2": (_an_older_epoch, _two_epochs_interleaved),
        "L3": (
            _a_claim_by_nobody,
            _a_claim_that_names_another_entry,
            _a_second_claim_of_an_epoch,
            _a_new_epoch_without_a_claim,
        ),
        "L4": (_a_record_after_the_handoff, _a_handoff_by_a_stranger),
        "L6": (_an_edited_byte, _swapped_records),
        "L7": (_a_nonce_twice, _a_nonce_that_is_too_short),
        "L8": (_a_log_without_its_beginning, _a_log_of_another_cluster, _a_log_created_again),
        "L9": (_a_trim_beyond_the_snapshot, _a_snapshot_of_what_comes_later),
        "L10": (
            _bytes_that_are_no_record,
            _a_critical_record_of_an_unknown_kind,
            _a_record_of_no_kind,
            _an_empty_record,
        ),
        "E3": (_an_older_epoch,),
        "G1": (_a_skipped_generation, _a_generation_twice),
        "G2": (_two_assignments, _an_assignment_of_another_generation, _an_assignment_before_its_generation),
        "G3": (
            _an_assignment_to_a_stranger,
            _an_assignment_that_leaves_a_member_out,
            _an_edited_record_with_a_new_chain,
        ),
        "G4": (_other_bytes_for_a_generation,),
        "G5": (_a_leader_that_is_no_member, _an_assignment_by_another_than_the_leader),
        "G6": (_a_protocol_that_nobody_supports,),
        "G7": (
            _a_member_that_leaves_twice,
            _a_group_removed_with_members,
            _a_take_over_in_another_generation,
            _an_assignment_by_a_leader_that_left,
        ),
        "G9": (_a_partition_for_two,),
        "G10": (_a_static_id_for_two, _a_replacement_of_a_dynamic_member, *FORGED_PLACES),
        "G11": (_too_many_members, _too_much_metadata, _a_record_that_is_too_large),
        "G12": (_a_departure_from_a_group_that_never_was,),
        "G13": (
            _an_assignment_of_a_removed_group,
            _a_removed_group_that_goes_on,
            _a_token_that_went_back,
            _a_token_from_the_future,
            _a_token_of_a_partition_that_nobody_had,
            _a_token_that_names_a_commit,
            _a_token_that_names_a_claim,
            _a_token_of_what_is_not_given,
        ),
        "G14": (_a_group_of_another_shard, _a_group_of_another_shard_that_is_removed),
        "G15": (
            _a_partition_that_another_keeps,
            _a_partition_that_two_keep,
            _a_partition_that_is_kept_among_too_many,
        ),
        "G16": (*FORGED, *FORGED_JOINS),
        "G17": (_a_removed_partition_that_is_given, _a_commit_in_a_removed_partition),
        "G18": FORGED_MEMBERS,
        "M3": (_a_removal_without_silence, _a_removal_that_states_a_shorter_time_out),
        "M4": (_a_member_that_comes_back, _a_member_left_out_that_comes_back, _a_take_over_by_one_that_left),
        "M5": (_a_member_without_an_id,),
        "O3": (
            _a_commit_of_a_fenced_member,
            _a_commit_of_a_stranger,
            _a_commit_from_outside_while_there_are_members,
        ),
        "O4": (_a_commit_twice,),
        "O6": (_offsets_that_expire_under_a_member,),
    }.items()
    for make in makes
) + tuple(
    Damage(invariant, make)
    for damages in (INCREMENTAL_DAMAGES, REVERSION_DAMAGES, HOLD_DAMAGES)
    for invariant, makes in damages.items()
    for make in makes
)
"""Damages of one log, the same on all nodes."""

OF_NODES_AND_SNAPSHOTS = frozenset({"L5", "L6n", "L11", "L12", "O2", "I7"})
"""Promises that the entries of one log cannot break: see `kit.logs.audit_corpus`."""

OF_THE_CATALOG = frozenset({"C1", "C2", "C3", "C4"})
"""Promises about the catalog's log: see `kit.logs.damaged_catalogs`."""
