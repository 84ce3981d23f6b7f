"""What a classic group waits for, from whom, and who makes its rebalances stop everything."""

import typer
from muster_protos.muster.v1.coordinator_pb2 import DescribeGroupsResponse

from muster.assignors import BUILT_IN
from muster.cli._keys import Keys
from muster.cli._output import say, show_table

_TO_DO = {
    DescribeGroupsResponse.AWAITED_JOIN: "is to join again",
    DescribeGroupsResponse.AWAITED_SYNC: "is to fetch its assignment",
    DescribeGroupsResponse.AWAITED_RELEASE: "is to release, and to join again",
}
MOST_NAMED = 5
"""So many members are named in a sentence."""


def show_holdups(group: DescribeGroupsResponse.Group, keys: Keys) -> None:
    """Shows it; nothing where the group waits for nobody and no member makes it stop everything."""
    rows = [
        (
            name_of(member),
            _due(member),
            ", ".join(keys.of_topic(some.topic, list(some.partitions)) for some in member.withheld) or "-",
        )
        for member in group.members
        if member.awaited
    ]
    sentences = []
    if group.unused_ids:
        sentences.append(f"{group.unused_ids} more have an id and have not joined with it yet")
    if eager := _eager(group):
        more = f" and {len(eager) - MOST_NAMED} more" if len(eager) > MOST_NAMED else ""
        who = ", ".join(eager[:MOST_NAMED]) + more
        sentences.append(f"its rebalances stop everything: {who} can use no assignor that keeps partitions")
    if rows:
        typer.echo("")
        show_table(("MEMBER", "HOLDS IT UP", "NOBODY HAS BEFORE"), rows, "")
    if sentences:
        typer.echo("")
    for sentence in sentences:
        say(sentence)


def name_of(member: DescribeGroupsResponse.Member) -> str:
    """What a member is called."""
    return member.group_instance_id or member.member_id


def _due(member: DescribeGroupsResponse.Member) -> str:
    to_do = _TO_DO.get(member.awaited, "is waited for")
    if member.awaited_remaining_ms < 0:
        return to_do
    return f"{to_do}, within {member.awaited_remaining_ms / 1000:.0f} s"


def _eager(group: DescribeGroupsResponse.Group) -> list[str]:
    """Who makes a group stop everything in which others need not; nobody where that is known of nobody."""
    named = [member for member in group.members if member.protocols]
    eager = [member for member in named if not any(map(_keeps, member.protocols))]
    return [name_of(member) for member in eager] if len(eager) < len(named) else []


def _keeps(protocol: str) -> bool:
    assignor = BUILT_IN.get(protocol)
    return assignor is not None and assignor.cooperative
