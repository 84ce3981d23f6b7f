"""Members of which something changes that cannot while they live, each at the end of a healthy log."""

from collections.abc import Callable
from typing import Any

from kit.logs.log_builder import LogBuilder
from muster_protos.muster.log.v1 import records_pb2

ONE, OTHER = b"\x01" * 16, b"\x02" * 16


def generation_with(
    built: LogBuilder, number: int, member: str, identity: str = "", secret_hash: bytes = b""
) -> None:
    """A generation of one member, that belongs to an identity and has a secret."""
    built.generation(number, member)
    record = records_pb2.Record.FromString(built.entries.pop().record)
    row = record.generation_started.members[0]
    row.identity, row.secret_hash = identity, secret_hash
    built.add(record)


def replaced_by(built: LogBuilder, number: int, identity: str = "", secret_hash: bytes = b"") -> None:
    """Has a new process `y` of an identity take the place of `x`."""
    built.replaced(number, "x", "y", "s")
    record = records_pb2.Record.FromString(built.entries.pop().record)
    new = record.member_replaced.member
    new.identity, new.secret_hash = identity, secret_hash
    built.add(record)


def _a_member_of_another_identity(built: LogBuilder) -> None:
    generation_with(built, 2, "z", "alice")
    generation_with(built, 3, "z", "bob")


def _a_member_that_belongs_to_nobody_any_more(built: LogBuilder) -> None:
    generation_with(built, 2, "z", "alice")
    generation_with(built, 3, "z")


def _a_member_with_another_secret(built: LogBuilder) -> None:
    generation_with(built, 2, "z", secret_hash=ONE)
    generation_with(built, 3, "z", secret_hash=OTHER)


def _a_member_without_its_secret(built: LogBuilder) -> None:
    generation_with(built, 2, "z", secret_hash=ONE)
    generation_with(built, 3, "z")


def _a_take_over_by_another_identity(built: LogBuilder) -> None:
    generation_with(built, 2, "x=s", "alice")
    replaced_by(built, 2, "bob")


def _another_secret_than_that_of_the_take_over(built: LogBuilder) -> None:
    generation_with(built, 2, "x=s", secret_hash=ONE)
    replaced_by(built, 2, secret_hash=OTHER)
    generation_with(built, 3, "y=s", secret_hash=ONE)


FORGED_MEMBERS: tuple[Callable[[LogBuilder], None], ...] = (
    _a_member_of_another_identity,
    _a_member_that_belongs_to_nobody_any_more,
    _a_member_with_another_secret,
    _a_member_without_its_secret,
    _a_take_over_by_another_identity,
    _another_secret_than_that_of_the_take_over,
)
"""What breaks G18."""


def _join(built: LogBuilder, number: int, member: str, member_seq: int, **said: Any) -> None:
    """A generation of one member, of whose join it is."""
    built.generation(number, member)
    record = records_pb2.Record.FromString(built.entries.pop().record)
    row = record.generation_started.members[0]
    row.member_seq = member_seq
    row.MergeFrom(records_pb2.Member(**said))
    built.add(record)


def _an_earlier_join(built: LogBuilder) -> None:
    _join(built, 2, "x", 5)
    _join(built, 3, "x", 4)


def _an_earlier_join_with_other_terms(built: LogBuilder) -> None:
    _join(built, 2, "x", 5)
    _join(built, 3, "x", 4, session_timeout_ms=9_000)


def _other_time_outs_of_one_join(built: LogBuilder) -> None:
    _join(built, 2, "x", 5)
    _join(built, 3, "x", 5, session_timeout_ms=9_000)


def _another_subscription_of_one_join(built: LogBuilder) -> None:
    _join(built, 2, "x", 5)
    built.metadata = b"another"
    _join(built, 3, "x", 5)


FORGED_JOINS: tuple[Callable[[LogBuilder], None], ...] = (
    _an_earlier_join,
    _an_earlier_join_with_other_terms,
    _other_time_outs_of_one_join,
    _another_subscription_of_one_join,
)
"""Joins of a member that lived on, as no coordinator takes them: they break G16."""


def _a_static_id_that_a_member_gets(built: LogBuilder) -> None:
    built.generation(2, "z=s")


def _a_static_id_that_a_member_loses(built: LogBuilder) -> None:
    built.generation(2, "x=s")
    built.generation(3, "x")


def _static_ids_exchanged(built: LogBuilder) -> None:
    built.generation(2, "x=s", "y=t")
    built.generation(3, "x=t", "y=s")


def _a_static_id_that_another_member_takes(built: LogBuilder) -> None:
    built.generation(2, "x=s")
    built.generation(3, "y=s")


def _a_take_over_under_the_id_of_another_member(built: LogBuilder) -> None:
    built.generation(2, "x=s", "z")
    built.replaced(2, "x", "z", "s")


def _a_take_over_under_the_own_id(built: LogBuilder) -> None:
    built.generation(2, "x=s")
    built.replaced(2, "x", "x", "s")


FORGED_PLACES: tuple[Callable[[LogBuilder], None], ...] = (
    _a_static_id_that_a_member_gets,
    _a_static_id_that_a_member_loses,
    _static_ids_exchanged,
    _a_static_id_that_another_member_takes,
    _a_take_over_under_the_id_of_another_member,
    _a_take_over_under_the_own_id,
)
"""Static ids that change their member without a take-over, or with one that cannot be: they break G10."""


def members_that_may_be(built: LogBuilder) -> None:
    """What breaks nothing: a member gets an identity and a secret, keeps them, and is followed by its own.

    Another one joins again and again, and once without a number.
    """
    generation_with(built, 2, "x=s")
    generation_with(built, 3, "x=s", "alice", ONE)
    generation_with(built, 4, "x=s", "alice", ONE)
    replaced_by(built, 4, "alice", OTHER)
    generation_with(built, 5, "y=s", "alice", OTHER)
    built.left(5, "y")
    generation_with(built, 6, "w=s", "bob", ONE)
    _join(built, 7, "v", 3)
    _join(built, 8, "v", 3)
    _join(built, 9, "v", 4, session_timeout_ms=9_000)
    _join(built, 10, "v", 0)
    _join(built, 11, "v", 2)
