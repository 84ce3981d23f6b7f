"""What the groups of a shard hold in memory, counted in passing.

The weights are what things take in CPython with their share of the tables around them, measured with many
of them (`tests/core/test_core_holdings.py` does it again); texts and bytes of callers count by their length.
"""

from collections.abc import Callable

GROUP_BYTES = 3_000
"""A group with nothing in it but what is set for it."""

MEMBER_BYTES = 3_000
"""A member, without its ids and protocols."""

PENDING_MEMBER_BYTES = 350
"""A member id that was given out and not used yet."""

COPIES = 3
"""How often ids, protocols and assignments are kept: as they are used, and in records."""

OWNED_PARTITION_BYTES = 200
"""A partition that a member owns."""

KEPT_TOKEN_BYTES = 300
"""A token that is older than its assignment."""

OFFSET_BYTES = 330
"""A committed offset, without topic and metadata."""

END_BYTES = 230
"""An end of a partition that its owner reported, without the topic."""

GENERATION_BYTES = 3_300
"""A generation of the history."""

PARTICIPANT_BYTES = 150
"""Its members, where those of the generation before were others."""

MOVE_BYTES = 600
"""A partition that changed hands in it, without the names."""


class Holdings:
    """A sum that the groups of a shard count in.

    Attributes:
        bytes: what they hold.
        resized: called with a group that has other numbers of members and of committed partitions, and these.
    """

    __slots__ = ("bytes", "resized")

    def __init__(self) -> None:
        self.bytes = 0
        self.resized: Callable[[str, int, int], None] = lambda _, __, ___: None
