"""Damages of an incremental group that is a classic one again, each at the end of a healthy log."""

from collections.abc import Callable

from kit.logs.log_builder import LogBuilder
from kit.logs.reverted_log import RevertedLog
from muster_protos.muster.log.v1 import records_pb2

Make = Callable[[LogBuilder], None]


def _changed(built: LogBuilder, change: Callable[[records_pb2.Record], None]) -> None:
    """Writes the last record anew, changed."""
    record = records_pb2.Record.FromString(built.entries.pop().record)
    change(record)
    built.add(record)


def _a_reversion_that_forgets_a_member(built: LogBuilder) -> None:
    RevertedLog(built).revert(members=["a"])


def _a_reversion_that_takes_a_stranger_in(built: LogBuilder) -> None:
    RevertedLog(built).revert(members=["a", "b=s", "c"])


def _a_reversion_of_another_epoch(built: LogBuilder) -> None:
    RevertedLog(built).revert(3)


def _a_reversion_of_who_can_only_be_incremental(built: LogBuilder) -> None:
    RevertedLog(built, raw="a").revert()


def _a_reversion_under_another_join(built: LogBuilder) -> None:
    RevertedLog(built).revert()
    _changed(built, lambda record: setattr(record.group_reverted.members[0], "member_seq", 2))


def _a_reversion_that_gives_a_static_id_away(built: LogBuilder) -> None:
    RevertedLog(built).revert(members=["a=s", "b"])


def _a_reversion_that_gives_a_member_away(built: LogBuilder) -> None:
    RevertedLog(built).revert()
    _changed(built, lambda record: setattr(record.group_reverted.members[0], "identity", "another"))


def _a_reversion_of_a_classic_group(built: LogBuilder) -> None:
    log = RevertedLog(built)
    log.revert()
    log.revert()


def _a_reversion_with_what_is_of_a_deleted_topic(built: LogBuilder) -> None:
    log = RevertedLog(built)
    log.add(topics_seen=records_pb2.TopicsSeen(topics=["t"], catalog_epoch=1, catalog_offset=9))
    log.revert()


def _a_reversion_for_no_cause(built: LogBuilder) -> None:
    RevertedLog(built).revert()
    _changed(built, lambda record: record.group_reverted.ClearField("cause"))


def _a_reversion_that_may_be_skipped(built: LogBuilder) -> None:
    RevertedLog(built).revert()
    _changed(built, lambda record: record.ClearField("critical"))


def _say_what_they_support(record: records_pb2.Record) -> None:
    record.group_reverted.members[0].protocols.add(name="range")


def _a_reversion_that_says_what_members_support(built: LogBuilder) -> None:
    RevertedLog(built).revert()
    _changed(built, _say_what_they_support)


def _a_generation_that_begins_anew(built: LogBuilder) -> None:
    log = RevertedLog(built)
    log.revert()
    log.generation(1, "a", "b=s")


def _a_token_that_the_reversion_gave(built: LogBuilder) -> None:
    log = RevertedLog(built)
    log.revert()
    reverted = built.end
    log.generation(3, "a", "b=s")
    log.keep(3, "a", 1, reverted)


def _a_partition_on_its_way_that_the_other_member_keeps(built: LogBuilder) -> None:
    log = RevertedLog(built)
    log.revert()
    log.generation(3, "a", "b=s")
    log.keep(3, "b", 1, log.given)


def _a_commit_without_a_token_while_it_has_no_assignment(built: LogBuilder) -> None:
    log = RevertedLog(built)
    log.revert()
    log.commit(2, "a", 2)


def _a_commit_of_what_another_has_while_it_has_no_assignment(built: LogBuilder) -> None:
    log = RevertedLog(built)
    log.revert()
    log.commit(2, "b", 1, partition=1, by_token=True)


def _a_commit_by_token_after_the_next_assignment(built: LogBuilder) -> None:
    log = RevertedLog(built)
    log.revert()
    log.generation(3, "a", "b=s")
    log.keep(3, "a", 1, log.given)
    log.commit(1, "a", 2, partition=1, by_token=True)


def _a_number_of_a_commit_twice_over_the_reversion(built: LogBuilder) -> None:
    log = RevertedLog(built)
    log.revert()
    log.commit(1, "a", 1, partition=1, by_token=True)


REVERSION_DAMAGES: dict[str, tuple[Make, ...]] = {
    "G1": (_a_generation_that_begins_anew,),
    "G13": (_a_token_that_the_reversion_gave, _a_partition_on_its_way_that_the_other_member_keeps),
    "G16": (
        _a_reversion_for_no_cause,
        _a_reversion_that_may_be_skipped,
        _a_reversion_that_says_what_members_support,
    ),
    "I9": (
        _a_reversion_that_forgets_a_member,
        _a_reversion_that_takes_a_stranger_in,
        _a_reversion_of_another_epoch,
        _a_reversion_of_who_can_only_be_incremental,
        _a_reversion_under_another_join,
        _a_reversion_that_gives_a_static_id_away,
        _a_reversion_that_gives_a_member_away,
        _a_reversion_of_a_classic_group,
        _a_reversion_with_what_is_of_a_deleted_topic,
    ),
    "O3": (
        _a_commit_without_a_token_while_it_has_no_assignment,
        _a_commit_of_what_another_has_while_it_has_no_assignment,
        _a_commit_by_token_after_the_next_assignment,
    ),
    "O4": (_a_number_of_a_commit_twice_over_the_reversion,),
}
"""What breaks a promise in a group that is classic again, by the promise."""
