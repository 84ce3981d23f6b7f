"""Who was in a generation, or an epoch, of a group of either kind."""

from operator import attrgetter
from typing import NamedTuple, Protocol


class Named(Protocol):
    """A member, as it is, as it was told or as it is sent."""

    @property
    def member_id(self) -> str:
        """Its id."""

    @property
    def group_instance_id(self) -> str:
        """Its static id; empty: dynamic."""

    @property
    def client_id(self) -> str:
        """Its client id."""

    @property
    def host(self) -> str:
        """Its address."""


class Participant(NamedTuple):
    """Who was in a generation.

    Attributes:
        member_id: its id then.
        group_instance_id: its static id; empty: dynamic.
        client_id: its client id.
        host: its address.
    """

    member_id: str
    group_instance_id: str
    client_id: str
    host: str

    @classmethod
    def of(cls, member: Named) -> "Participant":
        """The member as it is now."""
        return _new(cls, _named(member))  # half the time: a join phase of thousands makes one for each


_new = tuple.__new__
_named = attrgetter(*Participant._fields)
