"""`muster topics` and `muster cluster`."""

import sys
from collections.abc import Iterable, Mapping
from typing import Annotated

import typer
from muster_protos.limits import TOPIC_PARTITIONS_MAX
from muster_protos.muster.v1 import discovery_pb2

from muster._cluster.cluster import Cluster
from muster._cluster.topic_users import TopicUser, topic_users
from muster._messages import runs
from muster._values import Topic
from muster.cli._output import Format, Output, Servers, as_dict, ask, name_of, say, show_json, show_table

app = typer.Typer(help="List, create, alter and delete topics.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
Partitions = Annotated[int, typer.Argument(metavar="PARTITIONS", help="Number of partitions, 1 to 100000.")]
PartitionName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the partition.")]


Zones = Annotated[
    list[str] | None,
    typer.Option(
        "--zone",
        metavar="ZONE=NUMBERS",
        help="Partitions that are near a zone, such as eu-1=0-4,7. `range` gives them to members with that "
        "rack_id first. For each zone once.",
    ),
]


@app.command("list")
def list_topics(servers: Servers = None, output: Format = Output.TABLE) -> None:
    """All topics with their number of partitions, and the zones of these."""
    _show(ask(servers, lambda cluster: cluster.topics()), output)


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int | None, typer.Argument(metavar="[PARTITIONS]", help="Number of partitions, 1 to 100000.")
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Name of a partition, in place of a number of them. Once for each."
        ),
    ] = None,
    zone: Zones = None,
    servers: Servers = None,
    output: Format = Output.TABLE,
) -> None:
    """Create a topic, with a number of partitions or with names of them."""
    zones = _zones(zone or [])
    if (partitions is None) == (not partition):
        raise typer.BadParameter("give PARTITIONS, or --partition for each of them", param_hint="PARTITIONS")
    wanted = partition or partitions or 0
    _show([ask(servers, lambda cluster: cluster.create_topic(name, wanted, zones=zones))], output)


@app.command()
def alter(
    name: Name,
    partitions: Partitions,
    zone: Zones = None,
    no_zones: Annotated[bool, typer.Option("--no-zones", help="Remove all zones.")] = False,
    servers: Servers = None,
    output: Format = Output.TABLE,
) -> None:
    """Raise the number of partitions, or set their zones; groups that subscribe to the topic rebalance.

    Zones stay as they are without --zone and --no-zones.
    """
    if zone and no_zones:
        raise typer.BadParameter("give --zone or --no-zones, not both", param_hint="--no-zones")
    zones = _zones(zone or []) if zone or no_zones else None
    _show([ask(servers, lambda cluster: cluster.alter_topic(name, partitions, zones=zones))], output)


@app.command()
def delete(
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Delete it also while members work on it, and do not ask.")
    ] = False,
    servers: Servers = None,
) -> None:
    """Delete a topic, with the progress that groups committed on it; asks if members work on it."""
    users = [] if force else ask(servers, lambda cluster: _users(cluster, name))
    if users:
        _confirm(f"topic {name}", users, "Delete it?")
    ask(servers, lambda cluster: cluster.delete_topic(name))
    say(f"topic {name} is deleted")


@app.command()
def describe(name: Name, servers: Servers = None, output: Format = Output.TABLE) -> None:
    """The partitions of a topic: numbers, names, weights and zones."""
    topics = ask(servers, lambda cluster: cluster.topics([name]))
    if not topics:
        say(f"there is no topic {name}")
        raise typer.Exit(1)
    (topic,) = topics
    if output is Output.JSON:
        _show(topics, output)
        return
    removed = topic.removed
    say(f"topic {name}: {_count(topic)} partitions" + ("" if topic.names else ", by number"))
    rows = [
        (
            number,
            topic.names[number] if topic.names else "-",
            _weight(topic, number),
            _zones_of(topic, number),
        )
        for number in range(topic.partitions)
        if number not in removed
    ]
    if topic.names or topic.zones:
        typer.echo("")
        show_table(("NUMBER", "NAME", "WEIGHT", "ZONES"), rows, "all partitions were removed")


@app.command("add-partition")
def add_partition(
    name: Name,
    partition: PartitionName,
    weight: Annotated[
        int | None, typer.Option(min=1, help="How much work it is beside the others; 1 if it is new.")
    ] = None,
    servers: Servers = None,
    output: Format = Output.TABLE,
) -> None:
    """Add a partition to a topic whose partitions have names, or change its weight."""
    put = [partition] if weight is None else {partition: weight}
    _show([ask(servers, lambda cluster: cluster.add_partitions(name, put))], output)


@app.command("remove-partition")
def remove_partition(
    name: Name,
    partition: PartitionName,
    force: Annotated[
        bool, typer.Option("--force", help="Remove it also while members work on the topic, and do not ask.")
    ] = False,
    servers: Servers = None,
) -> None:
    """Remove a partition for good, with the progress that groups committed on it."""
    users = [] if force else ask(servers, lambda cluster: _users(cluster, name, partition))
    if users:
        _confirm(f"partition {partition} of topic {name}", users, "Remove it?")
    ask(servers, lambda cluster: cluster.remove_partitions(name, [partition]))
    say(f"partition {partition} of topic {name} is removed")


async def _users(cluster: Cluster, name: str, partition: str | None = None) -> list[TopicUser]:
    for topic in await cluster.topics([name]):
        number = None if partition is None else topic.number_of(partition)
        if partition is None or number is not None:
            return await topic_users(cluster, topic, None if number is None else [number])
    return []


def _confirm(what: str, users: list[TopicUser], question: str) -> None:
    """Shows whose work would end, and asks; exits where the answer is no, or nobody can be asked."""
    show_table(("GROUP", "MEMBERS ON IT", "PARTITIONS WITH PROGRESS"), users, "")
    say(f"These groups work on {what}: their work on it ends, and their progress on it is lost.")
    if not sys.stdin.isatty():
        typer.echo("muster: nothing was deleted; --force deletes it all the same", err=True)
        raise typer.Exit(1)
    typer.confirm(question, abort=True)


def cluster(servers: Servers = None, output: Format = Output.TABLE) -> None:
    """Coordinators, how many shards each of them serves, and the nodes of the log."""
    view = ask(servers, lambda connection: connection.describe())
    if output is Output.JSON:
        show_json(as_dict(view))
        return
    serving: dict[str, int] = {}
    for shard in view.shards:
        if shard.serving:
            serving[shard.node_id] = serving.get(shard.node_id, 0) + 1
    typer.echo(
        f"cluster {view.cluster_id}: {sum(serving.values())} of {view.shard_count} shards are served\n"
    )
    show_table(
        ("COORDINATOR", "ADDRESS", "STATE", "SHARDS", "VERSION"),
        [
            (c.node_id, f"{c.host}:{c.port}", _state(c.state), serving.get(c.node_id, 0), c.version)
            for c in view.coordinators
        ],
        "no coordinator is known",
    )
    typer.echo("")
    show_table(
        ("LOG NODE", "STATE"),
        [(n.index, "available" if n.available else n.problem or "not available") for n in view.log_nodes],
        "no node of the log is known",
    )


def _state(state: discovery_pb2.CoordinatorState.ValueType) -> str:
    return name_of(state, discovery_pb2.CoordinatorState.Name, "COORDINATOR_STATE_").lower()


def _show(topics: list[Topic], output: Output) -> None:
    if output is Output.JSON:
        show_json([_as_row(topic) for topic in topics])
    elif any(topic.zones for topic in topics):
        rows = [(topic.name, _count(topic), _in_words(topic.zones)) for topic in topics]
        show_table(("TOPIC", "PARTITIONS", "ZONES"), rows, "")
    else:
        show_table(
            ("TOPIC", "PARTITIONS"), [(topic.name, _count(topic)) for topic in topics], "there are no topics"
        )


def _as_row(topic: Topic) -> dict[str, object]:
    row: dict[str, object] = {"name": topic.name, "partitions": topic.partitions, "zones": dict(topic.zones)}
    return row | {"names": topic.names, "weights": topic.weights} if topic.names else row


def _count(topic: Topic) -> int:
    """How many partitions there are."""
    return topic.partitions - len(topic.removed)


def _weight(topic: Topic, number: int) -> int:
    return topic.weights[number] if topic.weights else 1


def _zones_of(topic: Topic, number: int) -> str:
    return " ".join(zone for zone, numbers in topic.zones.items() if number in numbers) or "-"


def _zones(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Reads `ZONE=0-4,7`, once for each zone."""
    zones: dict[str, tuple[int, ...]] = {}
    for text in texts:
        zone, equals, numbers = text.rpartition("=")
        if not equals or not zone:
            raise typer.BadParameter(f"{text!r} is not ZONE=NUMBERS, such as eu-1=0-4,7", param_hint="--zone")
        if zone in zones:
            raise typer.BadParameter(f"zone {zone!r} is given more than once", param_hint="--zone")
        zones[zone] = tuple(number for part in numbers.split(",") for number in _numbers(part.strip()))
    return zones


def _numbers(text: str) -> range:
    low, _, high = text.partition("-")
    try:
        first, last = int(low), int(high or low)
    except ValueError:
        first, last = 0, -1
    if not 0 <= first <= last < TOPIC_PARTITIONS_MAX:
        problem = f"{text!r} is no partition and no range of them, such as 7 or 0-4"
        raise typer.BadParameter(problem, param_hint="--zone")
    return range(first, last + 1)


def _in_words(zones: Mapping[str, Iterable[int]]) -> str:
    return "  ".join(f"{zone}={runs(partitions).replace(' ', ',')}" for zone, partitions in zones.items())
