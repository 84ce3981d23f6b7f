"""Shows who owns what in a cluster, as tables or as lines."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import muster
from muster_protos.muster.v1 import coordinator_pb2, discovery_pb2
from rich.console import Group
from rich.table import Table

_GROUPS_SHOWN = 20
_MEMBERS_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Overview:
    """The cluster at one moment.

    Attributes:
        cluster: coordinators, owners, nodes of the log.
        groups: their descriptions, by id; at most 20.
        hidden: number of further groups.
    """

    cluster: discovery_pb2.Cluster
    groups: list[coordinator_pb2.DescribeGroupsResponse.Group] = field(default_factory=list)
    hidden: int = 0

    def shards_of(self) -> dict[str, list[int]]:
        """Shards that each coordinator serves, by its name."""
        owned: dict[str, list[int]] = defaultdict(list)
        for owner in self.cluster.shards:
            if owner.node_id and owner.serving:
                owned[owner.node_id].append(owner.shard)
        return owned


async def look(connection: muster.Cluster) -> Overview:
    """Asks the cluster.

    Raises:
        MusterError: it did not answer.
    """
    cluster = await connection.describe()
    listed = sorted(group.group_id for group in await connection.list_groups())
    groups = [await connection.describe_group(group_id) for group_id in listed[:_GROUPS_SHOWN]]
    return Overview(cluster, groups, max(0, len(listed) - _GROUPS_SHOWN))


def as_tables(overview: Overview) -> Group:
    """Two tables: coordinators with their shards, members with their partitions."""
    coordinators = Table("coordinator", "state", "address", "shards", "which")
    owned = overview.shards_of()
    for node in overview.cluster.coordinators:
        shards = owned.get(node.node_id, [])
        coordinators.add_row(
            node.node_id, _state(node.state), f"{node.host}:{node.port}", str(len(shards)), ranges(shards)
        )
    members = Table("group", "state", "generation", "member", "host", "partitions")
    for group in overview.groups:
        head = [group.group_id, _group_state(group.state), str(group.generation)]
        for member in group.members[:_MEMBERS_SHOWN]:
            members.add_row(*head, member.member_id, member.host, _partitions(member.assignment))
            head = ["", "", ""]
        if not group.members:
            members.add_row(*head, "–", "", "")
    if overview.hidden:
        members.add_row(f"and {overview.hidden} more", "", "", "", "", "")
    return Group(coordinators, members)


def as_lines(overview: Overview) -> list[str]:
    """One line per fact; a line that was not in the overview before is news."""
    owned = overview.shards_of()
    lines = [
        f"{node.node_id} at {node.host}:{node.port}: {_state(node.state)}, "
        f"{len(owned.get(node.node_id, []))} shards"
        for node in overview.cluster.coordinators
    ]
    lines += [
        f"Redis node {node.index}: {'available' if node.available else node.problem}"
        for node in overview.cluster.log_nodes
    ]
    for group in overview.groups:
        name = f"group {group.group_id}"
        about = f"{_group_state(group.state)}, generation {group.generation}, {len(group.members)} members"
        lines.append(f"{name}: {about}")
        lines += [
            f"{name}: {member.member_id} has {_partitions(member.assignment) or 'nothing'}"
            for member in group.members[:_MEMBERS_SHOWN]
        ]
    return lines


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges: `0-3, 7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _state(state: discovery_pb2.CoordinatorState.ValueType) -> str:
    return discovery_pb2.CoordinatorState.Name(state).removeprefix("COORDINATOR_STATE_").lower()


def _group_state(state: coordinator_pb2.GroupState.ValueType) -> str:
    words = coordinator_pb2.GroupState.Name(state).removeprefix("GROUP_STATE_").split("_")
    return "".join(word.capitalize() for word in words)


def _partitions(assignment: bytes) -> str:
    from muster_core.state.published import read_assignment

    message = read_assignment(assignment)
    if message is None:
        return f"{len(assignment)} bytes of its own form" if assignment else ""
    return "; ".join(f"{row.topic} {ranges(row.partitions)}" for row in message.partitions)
