"""Damages of an incremental group, each at the end of a healthy log that has one."""

from collections.abc import Callable

from kit.logs.incremental_log import (
    IncrementalLog,
    begin_converted_group,
    convert,
    with_converted_group,
    with_incremental_group,
)
from kit.logs.log_builder import LogBuilder
from muster_core import cause_kind
from muster_protos.muster.log.v1 import incremental_pb2, records_pb2
from muster_protos.muster.v1 import common_pb2, group_settings_pb2

Make = Callable[[LogBuilder], None]


def _grown(built: LogBuilder) -> IncrementalLog:
    """The group, as `with_incremental_group` leaves it."""
    return IncrementalLog(with_incremental_group(built))


def _last(built: LogBuilder, change: Callable[[records_pb2.Record], None]) -> None:
    """Writes the last record anew, changed."""
    record = records_pb2.Record.FromString(built.entries.pop().record)
    change(record)
    built.add(record)


# --- owners and steps


def _a_partition_given_to_a_second_owner(built: LogBuilder) -> None:
    _grown(built).step("a", 4, given=(2,))


def _a_partition_given_that_was_not_given_back(built: LogBuilder) -> None:
    log = _grown(built)
    log.target(5, ("b", (), (2,)), ("a", (2,), ()))
    log.step("b", 3, taken=(2,))
    log.step("a", 5, given=(2,))


def _a_release_of_what_was_not_taken(built: LogBuilder) -> None:
    log = _grown(built)
    log.target(5, ("b", (), (2,)), ("a", (2,), ()))
    log.step("b", 5, released=(2,))


def _a_release_of_what_another_has(built: LogBuilder) -> None:
    _grown(built).step("a", 4, released=(3,))


def _a_partition_taken_from_who_does_not_have_it(built: LogBuilder) -> None:
    _grown(built).step("a", 2, taken=(7,))


def _a_partition_given_that_is_in_no_target(built: LogBuilder) -> None:
    _grown(built).step("a", 4, given=(7,))


def _a_partition_taken_that_is_in_the_target(built: LogBuilder) -> None:
    _grown(built).step("b", 3, taken=(2,))


def _a_step_beyond_the_target(built: LogBuilder) -> None:
    _grown(built).step("a", 5)


def _a_step_back(built: LogBuilder) -> None:
    _grown(built).step("b", 1)


def _a_member_that_waits_for_nothing(built: LogBuilder) -> None:
    _grown(built).step("b", 4, waits=True)


def _a_member_that_waits_while_it_owes(built: LogBuilder) -> None:
    log = _grown(built)
    log.target(5, ("b", (), (2,)), ("a", (2,), ()))
    log.step("b", 3, taken=(2,), waits=True)


def _a_member_that_waits_before_the_target(built: LogBuilder) -> None:
    _grown(built).step("b", 3, waits=True)


# --- joins


def _an_earlier_join_of_an_incremental_member(built: LogBuilder) -> None:
    log = _grown(built)
    log.subscribe("b", 3)
    log.subscribe("b", 2)


def _a_join_of_an_incremental_member_twice(built: LogBuilder) -> None:
    _grown(built).subscribe("b")


def _an_earlier_join_in_what_a_member_says(built: LogBuilder) -> None:
    log = _grown(built)
    log.subscribe("b", 3)
    log.subscribe("b", 2, joined=False)


def _another_process_that_took_no_place_over(built: LogBuilder) -> None:
    _grown(built).subscribe("b", 2)
    _last(built, lambda record: setattr(record.member_subscribed.member, "process_id", bytes(16)))


# --- epochs and targets


def _a_skipped_epoch(built: LogBuilder) -> None:
    _grown(built).raised(7)


def _an_epoch_twice(built: LogBuilder) -> None:
    _grown(built).raised(5)


def _a_target_of_an_earlier_epoch(built: LogBuilder) -> None:
    _grown(built).target(4)


def _a_target_of_a_later_epoch(built: LogBuilder) -> None:
    _grown(built).target(6)


def _an_emptied_group_that_counts_anew(built: LogBuilder) -> None:
    log = IncrementalLog(built)
    built.left(1, "z")
    log.group = built.group
    log.subscribe("a")
    log.raised(1)


def _a_target_for_two(built: LogBuilder) -> None:
    _grown(built).target(5, ("a", (2,), ()))


def _a_target_for_a_stranger(built: LogBuilder) -> None:
    _grown(built).target(5, ("stranger", (7,), ()))


def _a_target_that_takes_what_it_never_gave(built: LogBuilder) -> None:
    _grown(built).target(5, ("a", (), (7,)))


# --- members


def _a_dynamic_member_that_leaves_for_a_while(built: LogBuilder) -> None:
    _grown(built).away("a")


def _a_member_that_gets_something_while_it_is_away(built: LogBuilder) -> None:
    log = _grown(built)
    log.away("d")
    log.target(5, ("d", (7,), ()))
    log.step("d", 5, given=(7,))


def _a_removal_of_who_owes_nothing(built: LogBuilder) -> None:
    _grown(built).removed("a", cause_kind.REBALANCE_TIMEOUT)


def _a_removal_before_the_rebalance_time_out(built: LogBuilder) -> None:
    log = _grown(built)
    log.target(5, ("b", (), (2,)), ("a", (2,), ()))
    log.step("b", 3, taken=(2,))
    built.now_ms += 20_000
    log.removed("b", cause_kind.REBALANCE_TIMEOUT)


def _a_step_of_a_removed_member(built: LogBuilder) -> None:
    _grown(built).step("e", 4)


def _a_subscription_of_who_did_not_join(built: LogBuilder) -> None:
    _grown(built).subscribe("stranger", joined=False)


def _a_classic_generation_of_an_incremental_group(built: LogBuilder) -> None:
    log = _grown(built)
    built.group = log.group
    built.generation(6, "z")


def _an_incremental_member_of_a_classic_group(built: LogBuilder) -> None:
    log = IncrementalLog(built)
    log.group = built.group
    log.subscribe("a")


def _an_incremental_group_removed_with_members(built: LogBuilder) -> None:
    log = _grown(built)
    built.group = log.group
    built.tombstone(5)


def _a_static_id_for_two_incremental_members(built: LogBuilder) -> None:
    _grown(built).subscribe("f=s")


def _a_place_taken_that_another_had(built: LogBuilder) -> None:
    _grown(built).moved("a", "f=s")


def _an_incremental_member_without_an_id(built: LogBuilder) -> None:
    _grown(built).subscribe("")


def _an_incremental_member_removed_without_silence(built: LogBuilder) -> None:
    log = _grown(built)
    log.subscribe("f")
    log.removed("f", cause_kind.SESSION_EXPIRED, 45_000)


def _an_incremental_member_of_another_identity(built: LogBuilder) -> None:
    log = _grown(built)
    log.subscribe("f")
    _last(built, lambda record: setattr(record.member_subscribed.member, "identity", "alice"))
    log.subscribe("f", 2)
    _last(built, lambda record: setattr(record.member_subscribed.member, "identity", "bob"))


def _an_incremental_member_without_its_secret(built: LogBuilder) -> None:
    log = _grown(built)
    log.subscribe("f")
    _last(built, lambda record: setattr(record.member_subscribed.member, "secret_hash", b"1" * 16))
    log.subscribe("f", 2)


# --- forms


def _an_incremental_record_that_may_be_skipped(built: LogBuilder) -> None:
    _grown(built).raised(6)
    _last(built, lambda record: record.ClearField("critical"))


def _a_join_without_its_process(built: LogBuilder) -> None:
    _grown(built).subscribe("f")
    _last(built, lambda record: record.member_subscribed.member.ClearField("process_id"))


def _an_incremental_member_without_a_time_out(built: LogBuilder) -> None:
    _grown(built).subscribe("f")
    _last(built, lambda record: record.member_subscribed.member.ClearField("rebalance_timeout_ms"))


def _an_incremental_member_that_is_too_heavy(built: LogBuilder) -> None:
    _grown(built).subscribe("f")
    _last(built, lambda record: setattr(record.member_subscribed.member, "weight", 101))


def _a_topic_that_is_subscribed_twice(built: LogBuilder) -> None:
    _grown(built).subscribe("f")
    _last(built, lambda record: record.member_subscribed.member.topics.append("t"))


def _an_epoch_for_no_cause(built: LogBuilder) -> None:
    _grown(built).raised(6)
    _last(built, lambda record: record.epoch_raised.ClearField("cause"))


def _a_target_by_no_assignor(built: LogBuilder) -> None:
    _grown(built).target(5)
    _last(built, lambda record: record.target_assigned.ClearField("server_assignor"))


def _a_target_that_names_a_member_twice(built: LogBuilder) -> None:
    _grown(built).target(5, ("a", (7,), ()), ("a", (8,), ()))


def _a_step_that_gives_a_partition_twice(built: LogBuilder) -> None:
    log = _grown(built)
    log.target(5, ("a", (7,), ()))
    log.step("a", 5, given=(7,))

    def twice(record: records_pb2.Record) -> None:
        record.member_stepped.given.append(common_pb2.TopicPartitions(topic="t", partitions=[7]))

    _last(built, twice)


def _a_removal_for_a_change_of_topics(built: LogBuilder) -> None:
    _grown(built).removed("a")
    _last(built, lambda r: setattr(r.member_removed.cause, "kind", cause_kind.TOPIC_CHANGED))


def _a_removed_partition_that_a_step_gives(built: LogBuilder) -> None:
    log = _grown(built)
    log.target(5, ("a", (7,), ()))
    removed = records_pb2.PartitionsRemoved()
    removed.topics.add(topic="t", partitions=[7])
    log.add(partitions_removed=removed)
    log.step("a", 5, given=(7,))


# --- offsets


def _a_commit_of_an_earlier_epoch(built: LogBuilder) -> None:
    log = _grown(built)
    log.step("a", 4)
    log.commit(2, "a", 2)


def _a_commit_of_a_removed_member(built: LogBuilder) -> None:
    _grown(built).commit(4, "e")


def _a_commit_from_outside_an_incremental_group(built: LogBuilder) -> None:
    _grown(built).commit(-1, "")


def _a_number_of_a_commit_twice(built: LogBuilder) -> None:
    _grown(built).commit(2, "a", 2)


def _a_commit_by_token_in_what_another_has(built: LogBuilder) -> None:
    _grown(built).commit(2, "a", 3, partition=2, by_token=True)


def _a_commit_by_token_in_what_nobody_has(built: LogBuilder) -> None:
    _grown(built).commit(2, "a", 3, partition=7, by_token=True)


def _a_commit_by_token_after_it_was_given_back(built: LogBuilder) -> None:
    log = _grown(built)
    log.target(5, ("b", (), (2,)), ("a", (2,), ()))
    log.step("b", 3, taken=(2,))
    log.step("b", 5, released=(2,))
    log.commit(5, "b", 2, partition=2, by_token=True)


def _a_commit_without_token_in_what_a_stream_member_has(built: LogBuilder) -> None:
    log = _grown(built)
    log.subscribe("~b", joined=False)  # it goes onto a stream
    log.commit(2, "a", 3, partition=2)


def _a_commit_of_a_topic_that_was_deleted(built: LogBuilder) -> None:
    log = _grown(built)
    log.add(topics_seen=records_pb2.TopicsSeen(topics=["t"], catalog_epoch=1, catalog_offset=9))
    log.commit(2, "a", 3, by_token=True)


def _offsets_that_expire_under_an_expression(built: LogBuilder) -> None:
    log = _grown(built)
    told = log.told("f")
    told.topics[:], told.topic_regex = (), "u.*"
    joined = incremental_pb2.MemberSubscribed(group_id=log.group, member=told, joined=True)
    log.add(member_subscribed=joined)
    resolved = incremental_pb2.ExpressionResolved(group_id=log.group, expression="u.*", topics=["u1"])
    log.add(expression_resolved=resolved)
    gone = records_pb2.OffsetTombstone(group_id=log.group, reason="expired")
    gone.topics.add(topic="u1", partitions=[0])
    built.add(records_pb2.Record(offset_tombstone=gone))


def _offsets_that_expire_under_an_incremental_member(built: LogBuilder) -> None:
    log = _grown(built)
    built.group = log.group
    built.expire("t")


# --- conversions


def _a_conversion_that_forgets_a_member(built: LogBuilder) -> None:
    convert(begin_converted_group(built), members=["a"])


def _a_conversion_that_takes_a_stranger_in(built: LogBuilder) -> None:
    convert(begin_converted_group(built), members=["a", "b=s", "c"])


def _a_conversion_of_another_generation(built: LogBuilder) -> None:
    convert(begin_converted_group(built), 2)


def _a_conversion_of_who_can_only_be_classic(built: LogBuilder) -> None:
    convert(begin_converted_group(built))
    _last(built, lambda record: setattr(record.group_converted.members[0], "process_id", b"another process."))


def _a_conversion_under_an_earlier_join(built: LogBuilder) -> None:
    convert(begin_converted_group(built))
    _last(built, lambda record: setattr(record.group_converted.members[0], "member_seq", 0))


def _a_conversion_to_another_weight(built: LogBuilder) -> None:
    convert(begin_converted_group(built))
    _last(built, lambda record: setattr(record.group_converted.members[0], "weight", 2))


def _a_conversion_that_gives_a_static_id_away(built: LogBuilder) -> None:
    convert(begin_converted_group(built), members=["a=s", "b"])


def _a_conversion_for_no_cause(built: LogBuilder) -> None:
    convert(begin_converted_group(built))
    _last(built, lambda record: record.group_converted.ClearField("cause"))


def _a_partition_given_to_a_second_owner_after_a_conversion(built: LogBuilder) -> None:
    log = begin_converted_group(built)
    convert(log)
    log.raised(2)
    log.target(2, ("a", (), (1,)), ("b", (1,), ()))
    log.step("b", 2, given=(1,))


def _a_classic_commit_of_what_came_after_the_conversion(built: LogBuilder) -> None:
    log = IncrementalLog(with_converted_group(built))
    log.group = built.named("k")
    log.commit(1, "b", 2)
    _last(built, lambda record: setattr(record.offset_committed.offsets[0], "partition", 1))


def _settings_that_may_be_skipped(built: LogBuilder) -> None:
    log = _grown(built)
    settings = group_settings_pb2.GroupSettings(hold=True)
    log.add(group_settings_altered=records_pb2.GroupSettingsAltered(group_id=log.group, settings=settings))
    _last(built, lambda record: record.ClearField("critical"))


def _settings_that_no_server_takes(built: LogBuilder) -> None:
    log = _grown(built)
    settings = group_settings_pb2.GroupSettings(convert="soon")
    log.add(group_settings_altered=records_pb2.GroupSettingsAltered(group_id=log.group, settings=settings))


INCREMENTAL_DAMAGES: dict[str, tuple[Make, ...]] = {
    "I1": (
        _a_partition_given_to_a_second_owner,
        _a_partition_given_that_was_not_given_back,
        _a_partition_given_to_a_second_owner_after_a_conversion,
    ),
    "I9": (
        _a_conversion_that_forgets_a_member,
        _a_conversion_that_takes_a_stranger_in,
        _a_conversion_of_another_generation,
        _a_conversion_of_who_can_only_be_classic,
        _a_conversion_under_an_earlier_join,
        _a_conversion_to_another_weight,
        _a_conversion_that_gives_a_static_id_away,
    ),
    "I2": (
        _a_release_of_what_was_not_taken,
        _a_release_of_what_another_has,
        _a_partition_taken_from_who_does_not_have_it,
    ),
    "I3": (
        _a_partition_given_that_is_in_no_target,
        _a_partition_taken_that_is_in_the_target,
        _a_step_beyond_the_target,
        _a_step_back,
        _a_member_that_waits_for_nothing,
        _a_member_that_waits_while_it_owes,
        _a_member_that_waits_before_the_target,
    ),
    "I4": (
        _a_skipped_epoch,
        _an_epoch_twice,
        _a_target_of_an_earlier_epoch,
        _a_target_of_a_later_epoch,
        _an_emptied_group_that_counts_anew,
    ),
    "I5": (_a_target_for_two, _a_target_for_a_stranger, _a_target_that_takes_what_it_never_gave),
    "I6": (_a_dynamic_member_that_leaves_for_a_while, _a_member_that_gets_something_while_it_is_away),
    "I8": (_a_removal_of_who_owes_nothing, _a_removal_before_the_rebalance_time_out),
    "G7": (
        _a_step_of_a_removed_member,
        _a_subscription_of_who_did_not_join,
        _a_classic_generation_of_an_incremental_group,
        _an_incremental_member_of_a_classic_group,
        _an_incremental_group_removed_with_members,
    ),
    "G10": (_a_static_id_for_two_incremental_members, _a_place_taken_that_another_had),
    "G16": (
        _a_conversion_for_no_cause,
        _settings_that_may_be_skipped,
        _settings_that_no_server_takes,
        _an_incremental_record_that_may_be_skipped,
        _a_join_without_its_process,
        _an_earlier_join_of_an_incremental_member,
        _a_join_of_an_incremental_member_twice,
        _an_earlier_join_in_what_a_member_says,
        _another_process_that_took_no_place_over,
        _an_incremental_member_without_a_time_out,
        _an_incremental_member_that_is_too_heavy,
        _a_topic_that_is_subscribed_twice,
        _an_epoch_for_no_cause,
        _a_target_by_no_assignor,
        _a_target_that_names_a_member_twice,
        _a_step_that_gives_a_partition_twice,
        _a_removal_for_a_change_of_topics,
    ),
    "G17": (_a_removed_partition_that_a_step_gives,),
    "G18": (_an_incremental_member_of_another_identity, _an_incremental_member_without_its_secret),
    "M3": (_an_incremental_member_removed_without_silence,),
    "M5": (_an_incremental_member_without_an_id,),
    "O3": (
        _a_classic_commit_of_what_came_after_the_conversion,
        _a_commit_of_an_earlier_epoch,
        _a_commit_of_a_removed_member,
        _a_commit_from_outside_an_incremental_group,
        _a_commit_by_token_in_what_another_has,
        _a_commit_by_token_in_what_nobody_has,
        _a_commit_by_token_after_it_was_given_back,
        _a_commit_without_token_in_what_a_stream_member_has,
        _a_commit_of_a_topic_that_was_deleted,
    ),
    "O4": (_a_number_of_a_commit_twice,),
    "O6": (
        _offsets_that_expire_under_an_incremental_member,
        _offsets_that_expire_under_an_expression,
    ),
}
"""What breaks a promise in an incremental group, by the promise."""
