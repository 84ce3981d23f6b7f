"""What is on its way in an incremental group: who gives back, and who waits for whom."""

from collections.abc import Iterable, Mapping

import typer
from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupDescribeResponse

from muster.cli._keys import Keys
from muster.cli._output import say, show_table, when


def show_moves(group: ConsumerGroupDescribeResponse.Group, keys: Keys) -> None:
    """Shows it; nothing where nothing is on its way."""
    names = {member.member_id: member.group_instance_id or member.member_id for member in group.members}
    rows: list[tuple[str, str, str]] = []
    for member in group.members:
        name = names[member.member_id]
        if member.revoking:
            left_s = max(member.revocation_remaining_ms, 0) / 1000
            rows.append((name, f"gives back, within {left_s:.0f} s", _text(member.revoking, keys)))
        for one in member.awaits:
            holder = names.get(one.member_id, one.member_id)
            rows.append((name, f"waits for {holder}", _text(one.topics, keys)))
    if group.HasField("hold"):
        typer.echo("")
        say(_hold(group.hold, names))
    if group.group_epoch > group.assignment_epoch:
        typer.echo("")
        say(f"the target of epoch {group.group_epoch} is not computed yet")
    if rows:
        typer.echo("")
        show_table(("MEMBER", "ON ITS WAY", "PARTITIONS"), rows, "")


def _hold(hold: ConsumerGroupDescribeResponse.Hold, names: Mapping[str, str]) -> str:
    if not hold.until_ms:
        return "moves are held back until `muster groups set` ends it (hold)"
    who = names.get(hold.member_id, hold.member_id)
    return f"moves are held back until {when(hold.until_ms)} UTC: {who} joined with rollout_hold_ms"


def _text(topics: Iterable[common_pb2.TopicPartitions], keys: Keys) -> str:
    return ", ".join(keys.of_topic(some.topic, list(some.partitions)) for some in topics)
