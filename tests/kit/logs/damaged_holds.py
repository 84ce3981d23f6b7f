"""Damages of an incremental group whose moves are held back, at the end of a healthy log that has one."""

from collections.abc import Callable

from kit.logs.incremental_log import IncrementalLog, with_incremental_group
from kit.logs.log_builder import LogBuilder
from muster_core import cause_kind
from muster_protos.muster.log.v1 import incremental_pb2


def _grown(built: LogBuilder) -> IncrementalLog:
    """The group, as `with_incremental_group` leaves it."""
    return IncrementalLog(with_incremental_group(built))


def _held_by(
    log: IncrementalLog, member: str, began_ms: int, until_ms: int, *, is_start: bool = False
) -> None:
    log.add(
        moves_held=incremental_pb2.MovesHeld(
            group_id=log.group, member_id=member, began_ms=began_ms, until_ms=until_ms, is_start=is_start
        )
    )


def _a_hold_that_ends_and_was_none(built: LogBuilder) -> None:
    _held_by(_grown(built), "", 0, 0)


def _a_hold_by_a_stranger(built: LogBuilder) -> None:
    _held_by(_grown(built), "stranger", 1_000, 2_000)


def _a_hold_that_begins_again(built: LogBuilder) -> None:
    log = _grown(built)
    _held_by(log, "a", 1_000, 2_000)
    _held_by(log, "a", 1_500, 2_500)


def _a_hold_after_which_nothing_moved(built: LogBuilder) -> None:
    log = _grown(built)
    _held_by(log, "a", 1_000, 2_000)
    _held_by(log, "", 0, 0)
    log.raised(6, cause_kind.METADATA_CHANGED)
    _held_by(log, "a", 3_000, 4_000)


def _a_move_on_hold(built: LogBuilder) -> None:
    log = _grown(built)
    _held_by(log, "a", 1_000, 2_000)
    log.raised(6)
    log.target(6, ("a", (2,), ()), ("b", (), (2,)))


def _a_hold_of_two_hours(built: LogBuilder) -> None:
    _held_by(_grown(built), "a", 1_000, 7_201_000)


def _a_hold_of_nobody(built: LogBuilder) -> None:
    _held_by(_grown(built), "", 1_000, 2_000)


HOLD_DAMAGES: dict[str, tuple[Callable[[LogBuilder], None], ...]] = {
    "I10": (
        _a_hold_that_ends_and_was_none,
        _a_hold_by_a_stranger,
        _a_hold_that_begins_again,
        _a_hold_after_which_nothing_moved,
        _a_move_on_hold,
    ),
    "G16": (_a_hold_of_two_hours, _a_hold_of_nobody),
}
"""What breaks a promise of a hold, by the promise."""
