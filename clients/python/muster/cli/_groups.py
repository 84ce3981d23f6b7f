"""`muster groups` and `muster offsets`."""

from contextlib import suppress
from typing import Annotated, TypeAlias

import typer
from muster_protos.muster.v1 import coordinator_pb2
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupDescribeResponse

from muster._cluster.cluster import Cluster
from muster._cluster.group_settings import values_of
from muster._errors import GroupError
from muster._lead.assignor import GROUP_PREFIX, LEADER, PARTITION
from muster._messages import decode_assignment, group_by_topic
from muster._parking import Parked
from muster._values import Committed, Progress, TopicPartition
from muster.cli._conversion import convert
from muster.cli._group_settings import in_words, set_settings
from muster.cli._holdups import name_of as member_name
from muster.cli._holdups import show_holdups
from muster.cli._keys import Keys, keys_of
from muster.cli._moves import show_moves
from muster.cli._output import (
    Format,
    Output,
    Servers,
    as_dict,
    ask,
    name_of,
    say,
    show_json,
    show_table,
    when,
)
from muster.cli._partitions import as_rows, show_parked

app = typer.Typer(help="List, describe and delete groups; show why they rebalanced.", no_args_is_help=True)

MOST_SHOWN = 20
"""So many partitions with something left to do are shown in a table."""

_OF_COORDINATOR = "consumer"
"""Type of the groups whose partitions the coordinator assigns."""
_INCREMENTAL = "incremental"
_Moves: TypeAlias = ConsumerGroupDescribeResponse.Group | None

GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="Id of the group.")]


@app.command("list")
def list_groups(
    state: Annotated[
        list[str] | None, typer.Option(help="Only groups in this state; may be repeated.")
    ] = None,
    servers: Servers = None,
    output: Format = Output.TABLE,
) -> None:
    """All groups of all coordinators."""
    groups = ask(servers, lambda cluster: cluster.list_groups(state or ()))
    if output is Output.JSON:
        show_json([as_dict(group) for group in groups])
        return
    rows = [
        (g.group_id, "Quarantined", "-") if g.quarantined else (g.group_id, _state(g.state), _kind(g))
        for g in groups
    ]
    show_table(("GROUP", "STATE", "KIND"), rows, "there are no groups")


@app.command()
def describe(group_id: GroupId, servers: Servers = None, output: Format = Output.TABLE) -> None:
    """State, generation, cause of the last rebalance, settings, who owns what, what is left or parked."""

    async def question(
        cluster: Cluster,
    ) -> tuple[coordinator_pb2.DescribeGroupsResponse.Group, _Moves, list[Parked], list[Progress], Keys]:
        group = await cluster.describe_group(group_id)
        if group.error_code or group.state == coordinator_pb2.GROUP_STATE_DEAD:
            return group, None, [], [], Keys()  # one in quarantine may not even be read
        moves = None
        if group.type == _OF_COORDINATOR:
            with suppress(GroupError):  # it has just become a classic one
                moves = await cluster.describe_incremental_group(group_id)
        parked, progress = await cluster.parked(group_id), await cluster.progress_of(group)
        owned = {p.topic for member in group.members for p in decode_assignment(member.assignment) or ()}
        topics = owned | {one.partition.topic for one in parked} | {one.partition.topic for one in progress}
        return group, moves, parked, progress, await keys_of(cluster, topics)

    group, moves, parked, progress, keys = ask(servers, question)
    if output is Output.JSON:
        left = [{**one.partition._asdict(), **_left(one, keys)} for one in progress]
        on_its_way = {} if moves is None else {"incremental": as_dict(moves)}
        show_json({**as_dict(group), **on_its_way, "parked": as_rows(parked, keys), "progress": left})
        return
    if group.state == coordinator_pb2.GROUP_STATE_DEAD:
        say(f"there is no group {group_id}")
        raise typer.Exit(1)
    say(f"group {group_id}: {_state(group.state)} since {when(group.state_since_ms)} UTC")
    is_incremental = group.type == _OF_COORDINATOR
    if group_id.startswith(GROUP_PREFIX) and (is_incremental or group.protocol_name in ("", LEADER.name)):
        _show_leadership(group)
        return
    assignor = group.protocol_name or "-"
    if is_incremental:
        say(f"incremental, epoch {group.generation}, assignor {assignor} of the coordinator")
    else:
        say(f"classic, generation {group.generation}, assignor {assignor}, leader {group.leader or '-'}")
    if group.HasField("cause"):
        say(f"because: {group.cause.sentence or group.cause.reason}")
    if group.HasField("settings"):
        say(f"set for it: {in_words(values_of(group.settings))}")
    typer.echo("")
    weights = {m.member_id: m.weight for m in moves.members} if moves is not None else {}
    is_weighted = any(weight > 1 for weight in weights.values())
    rows = [
        (
            member_name(m),
            m.host,
            m.client_version or "-",
            *((weights.get(m.member_id, 1),) if is_weighted else ()),
            _owned(m, keys),
            _token(m),
        )
        for m in group.members
    ]
    weight = ("WEIGHT",) if is_weighted else ()
    show_table(("MEMBER", "HOST", "CLIENT", *weight, "OWNS", "TOKEN"), rows, "it has no members")
    if moves is not None:
        show_moves(moves, keys)
    else:
        show_holdups(group, keys)
    _show_left(progress, keys)
    if parked:
        typer.echo("")
        show_parked(parked, keys)


@app.command()
def history(
    group_id: GroupId,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many generations at most.")] = 20,
    servers: Servers = None,
    output: Format = Output.TABLE,
) -> None:
    """The last generations: when, why, how many members, what moved."""
    generations = ask(servers, lambda cluster: cluster.group_history(group_id, limit))
    if output is Output.JSON:
        show_json([as_dict(generation) for generation in generations])
        return
    show_table(
        ("GENERATION", "STARTED (UTC)", "MEMBERS", "MOVED", "BECAUSE"),
        [
            (
                g.generation,
                when(g.started_at_ms),
                len(g.members),
                "?" if g.moves_unknown else f"{len(g.moves)}{'+' if g.moves_truncated else ''}",
                g.cause.sentence or g.cause.reason,
            )
            for g in generations
        ],
        "it has no generations yet",
    )


@app.command()
def delete(group_id: GroupId, servers: Servers = None) -> None:
    """Delete an empty group with its offsets."""
    ask(servers, lambda cluster: cluster.delete_group(group_id))
    say(f"group {group_id} is deleted")


@app.command("remove-member")
def remove_member(
    group_id: GroupId,
    member: Annotated[
        str, typer.Argument(metavar="MEMBER", help="Its id or instance id, as `describe` shows it.")
    ],
    reason: Annotated[str, typer.Option(help="Why; the group's history shows it.")] = "",
    servers: Servers = None,
) -> None:
    """Put a member out that is stuck: the others get its work. It may join again.

    Needs the right `admin` of the group, but for a static member and for one without a secret.
    """
    ask(servers, lambda cluster: cluster.remove_member(group_id, member, reason))
    say(f"member {member} of group {group_id} is removed")


app.command("set")(set_settings)
app.command("convert")(convert)


@app.command()
def release(group_id: GroupId, servers: Servers = None) -> None:
    """Take a group out of quarantine: its coordinator loads it again."""
    ask(servers, lambda cluster: cluster.release_group(group_id))
    typer.echo(f"group {group_id} is out of quarantine")


def offsets(group_id: GroupId, servers: Servers = None, output: Format = Output.TABLE) -> None:
    """What a group committed."""

    async def question(cluster: Cluster) -> tuple[list[tuple[TopicPartition, Committed]], Keys]:
        found = sorted((await cluster.committed(group_id)).items())
        return found, await keys_of(cluster, (p.topic for p, _ in found))

    found, keys = ask(servers, question)
    if output is Output.JSON:
        rows = [{**partition._asdict(), "key": keys.of(partition), **at._asdict()} for partition, at in found]
        show_json(rows)
        return
    show_table(
        ("TOPIC", "PARTITION", "OFFSET", "METADATA"),
        [(partition.topic, keys.of(partition), at.offset, at.metadata) for partition, at in found],
        "nothing was committed",
    )


def _kind(group: coordinator_pb2.ListGroupsResponse.Group) -> str:
    return _INCREMENTAL if group.type == _OF_COORDINATOR else group.protocol_type or "simple"


def _state(state: coordinator_pb2.GroupState.ValueType) -> str:
    """`GROUP_STATE_PREPARING_REBALANCE` as Kafka writes it: `PreparingRebalance`."""
    return name_of(state, coordinator_pb2.GroupState.Name, "GROUP_STATE_").title().replace("_", "")


def _show_leadership(group: coordinator_pb2.DescribeGroupsResponse.Group) -> None:
    """A group of `muster.lead`: one member leads, the others stand by."""
    leads = {m.member_id: PARTITION in (decode_assignment(m.assignment) or ()) for m in group.members}
    name = group.group_id.removeprefix(GROUP_PREFIX)
    leader = next((m for m in group.members if leads[m.member_id]), None)
    led = f"led by {leader.member_id}" if leader else "nobody leads"
    say(f"leadership {name}: {led}; {len(group.members) - (leader is not None)} stand by")
    if group.HasField("cause"):
        say(f"the candidates changed because: {group.cause.sentence or group.cause.reason}")
    typer.echo("")
    members = sorted(group.members, key=lambda m: (not leads[m.member_id], m.member_id))
    rows = [(m.member_id, m.host, "leads" if leads[m.member_id] else "stands by") for m in members]
    show_table(("CANDIDATE", "HOST", "STATE"), rows, "it has no candidates")


def _owned(member: coordinator_pb2.DescribeGroupsResponse.Member, keys: Keys) -> str:
    partitions = decode_assignment(member.assignment)
    if partitions is None:
        return "(foreign bytes)"
    return (
        ", ".join(keys.of_topic(topic, numbers) for topic, numbers in group_by_topic(partitions).items())
        or "-"
    )


def _token(member: coordinator_pb2.DescribeGroupsResponse.Member) -> str:
    """The token of its assignment, and how many partitions have an older one."""
    if not member.kept_tokens:
        return member.token
    more = "+" if member.kept_tokens_truncated else ""
    return f"{member.token} ({len(member.kept_tokens)}{more} kept, with older ones)"


def _left(one: Progress, keys: Keys) -> dict[str, object]:
    return {
        "key": keys.of(one.partition),
        "offset": one.offset,
        "committed_at_ms": one.committed_at_ms,
        "end": one.end,
        "lag": one.lag,
    }


def _show_left(progress: list[Progress], keys: Keys) -> None:
    """The partitions of which ends were reported, those with most to do first, and the sum."""
    known = sorted((one for one in progress if one.lag is not None), key=lambda one: -(one.lag or 0))
    if not known:
        return
    typer.echo("")
    say(f"lag {sum(one.lag or 0 for one in known):,} over {len(known):,} partitions that report their end")
    rows = [
        (
            keys.in_words(one.partition),
            "-" if one.offset is None else one.offset,
            when(one.committed_at_ms),
            one.end,
            one.lag,
        )
        for one in known[:MOST_SHOWN]
    ]
    show_table(("PARTITION", "COMMITTED", "AT (UTC)", "END", "LAG"), rows, "")
    if len(known) > MOST_SHOWN:
        say(f"… and {len(known) - MOST_SHOWN:,} with less to do; --output json has all")
