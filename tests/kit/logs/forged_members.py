"""Members whose identity or secret changes while they live, each at the end of a healthy log."""

from collections.abc import Callable

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
    """Has a new process `y` of an identity take the place of `z`."""
    built.replaced(number, "z", "y", "s")
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
    generation_with(built, 2, "z=s", "alice")
    replaced_by(built, 2, "bob")


def _another_secret_than_that_of_the_take_over(built: LogBuilder) -> None:
    generation_with(built, 2, "z=s", secret_hash=ONE)
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


def members_that_may_be(built: LogBuilder) -> None:
    """What breaks nothing: a member gets an identity and a secret, keeps them, and is followed by its own."""
    generation_with(built, 2, "z=s")
    generation_with(built, 3, "z=s", "alice", ONE)
    generation_with(built, 4, "z=s", "alice", ONE)
    replaced_by(built, 4, "alice", OTHER)
    generation_with(built, 5, "y=s", "alice", OTHER)
    built.left(5, "y")
    generation_with(built, 6, "x=s", "bob", ONE)
