"""A member as an assignor sees it."""

from typing import NamedTuple

from muster_core.incremental.partitions import Partitions


class Candidate(NamedTuple):
    """A member as an assignor sees it.

    Attributes:
        member_id: its id.
        group_instance_id: its static id; empty: dynamic.
        rack_id: where it runs; empty: not known.
        topics: what it subscribes to, by name or by an expression, also what does not exist.
        before: what it should have had so far.
        weight: how much it can do beside the others.
    """

    member_id: str
    group_instance_id: str
    rack_id: str
    topics: frozenset[str]
    before: Partitions
    weight: int = 1
