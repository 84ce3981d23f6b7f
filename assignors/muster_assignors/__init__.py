"""Kafka's partition assignors as pure functions, and what every assignor must keep.

An assignor is a function from a `GroupSnapshot` to an `Assignment`. Those here assign as Kafka's classes
do: `range`, `roundrobin`, `sticky` and `cooperative-sticky`, and those of Kafka's servers, which assign
for incremental groups: `uniform`, and a `range` without racks. Of these two there are forms that know weights
and zones. Nothing here does I/O or needs another package, so clients and servers share it. Read `_snapshot`,
then `_sticky`; `_equal` and `_unequal` are how it shares, and `_weighted` how `uniform` does with weights.
Each assignor is a file, so one more is a file more, and rooms within would only hide that.
"""

from muster_assignors._check import AssignmentRefused, check_assignment
from muster_assignors._range import assign_range, assign_range_by_weight, assign_range_without_racks
from muster_assignors._roundrobin import assign_roundrobin
from muster_assignors._snapshot import (
    AssignFunction,
    Assignment,
    Assignor,
    GroupSnapshot,
    MemberSnapshot,
    TopicPartition,
    TopicSnapshot,
)
from muster_assignors._sticky import assign_cooperative_sticky, assign_sticky
from muster_assignors._uniform import assign_uniform, assign_uniform_by_weight, even_shares

RANGE = Assignor("range", assign_range)
"""Consecutive partitions of each topic, on members' racks where that is possible."""

ROUNDROBIN = Assignor("roundrobin", assign_roundrobin)
"""One partition to each member in turn, over all topics."""

STICKY = Assignor("sticky", assign_sticky)
"""Even shares in which members keep what they had; everybody stops while it is decided."""

COOPERATIVE_STICKY = Assignor("cooperative-sticky", assign_cooperative_sticky, cooperative=True)
"""`STICKY` for members that work on: a partition that moves is free before somebody else gets it."""

KAFKA: dict[str, Assignor] = {a.name: a for a in (RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY)}
"""The assignors of Kafka's clients, by name."""

__all__ = [
    "COOPERATIVE_STICKY",
    "KAFKA",
    "RANGE",
    "ROUNDROBIN",
    "STICKY",
    "AssignFunction",
    "Assignment",
    "AssignmentRefused",
    "Assignor",
    "GroupSnapshot",
    "MemberSnapshot",
    "TopicPartition",
    "TopicSnapshot",
    "assign_cooperative_sticky",
    "assign_range",
    "assign_range_by_weight",
    "assign_range_without_racks",
    "assign_roundrobin",
    "assign_sticky",
    "assign_uniform",
    "assign_uniform_by_weight",
    "check_assignment",
    "even_shares",
]
