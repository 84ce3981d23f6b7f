"""Limits that shard and process have, and what of the process they ask for."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from muster_core.incremental.targets.target import Expressions, ServerAssignor
from muster_core.protocol.kept_tokens import KeptTokens
from muster_core.state.group import Group


class Limit(Enum):
    """A limit of what callers can make grow, by the name of its setting."""

    GROUPS = "group_max_groups"
    GROUPS_PER_SHARD = "group_max_groups_per_shard"
    NEW_GROUPS_PER_SHARD = "group_max_new_groups_per_shard"
    BYTES = "group_max_bytes"
    BYTES_PER_SHARD = "group_max_bytes_per_shard"
    OFFSETS = "group_max_offsets"
    OFFSET_BYTES = "group_max_offset_bytes"
    COMMIT_BYTES = "group_commit_max_bytes"

    @property
    def setting(self) -> str:
        """The setting, as an operator knows it."""
        return f"MUSTER_{self.value.upper()}"


@dataclass(slots=True)
class LookedThrough:
    """What plans that are gone through now have looked through of what members keep.

    Attributes:
        partitions: how many.
    """

    partitions: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """The process around a shard.

    Attributes:
        groups: groups of all its shards.
        held_bytes: what they hold, give or take what came in the last moments.
        refused: called for each call that is refused because of a limit.
        wait_ms: how long work on so many bytes must wait, because other work of its kind takes the time now;
            where it says 0 the work is begun.
        unproven: called for each call in the name of a member without its secret, with group, member id, the
            caller's identity (empty: it proved none) and its address (empty: not known).
        foreign: called for each call that is refused because its member belongs to another identity, with
            group, member or instance id, the caller's identity and its address, as `unproven`.
        assignors: what assigns in incremental groups, by name, the default first.
        log_trouble: why the log takes no records now, for people; empty: it does, or nobody knows.
        at_once_max: members and partitions up to which they are asked in a turn of the shard; what is larger
            is left to who carries out `Effects.work`.
        alike_factor: how many times as large a group may be for that whose members all want the same, with
            the default assignor.
        expressions: what judges subscriptions by expressions; somebody must carry out `Effects.work` then.
            None: there are none.
        sees: whether an identity, by name, may see a topic.
        tokens: writes the tokens that members keep into answers.
        kept: what the plans of all its shards have looked through.
        turn_ms: how long a group, by id, waits with an assignment of so many members and partitions, or with
            a generation of so many members, since those for the same caller take the time now; after that it
            has its turn. 0: it has it now.
        left_alone: called with a group, by id, and how many of the members and partitions that an assignment
            looked at it has left as they were.
        ended: called with each group that the log has removed.
        resized: called with a group that has other numbers of members and of committed partitions, and these.
    """

    groups: Callable[[], int] = lambda: 0
    held_bytes: Callable[[], int] = lambda: 0
    refused: Callable[[Limit], None] = lambda _: None
    wait_ms: Callable[[int], int] = lambda _: 0
    unproven: Callable[[str, str, str, str], None] = lambda _, __, ___, ____: None
    foreign: Callable[[str, str, str, str], None] = lambda _, __, ___, ____: None
    assignors: Mapping[str, ServerAssignor] = field(default_factory=dict)
    log_trouble: Callable[[], str] = str
    at_once_max: int = sys.maxsize
    alike_factor: int = 1
    expressions: Expressions | None = None
    sees: Callable[[str, str], bool] = lambda _, __: True
    tokens: KeptTokens = field(default_factory=KeptTokens)
    kept: LookedThrough = field(default_factory=LookedThrough)
    turn_ms: Callable[[str, int], int] = lambda _, __: 0
    left_alone: Callable[[str, int], None] = lambda _, __: None
    ended: Callable[[Group], None] = lambda _: None
    resized: Callable[[str, int, int], None] = lambda _, __, ___: None


ALONE = Room()
"""A shard that has a process for itself."""
