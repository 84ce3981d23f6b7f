"""`muster partitions`."""

from dataclasses import asdict
from typing import Annotated

import typer
from muster_protos.limits import is_name

from muster._cluster.cluster import Cluster
from muster._errors import TopicError
from muster._parking import Parked
from muster._values import Topic, TopicPartition
from muster.cli._keys import Keys, keys_of
from muster.cli._output import Format, Output, Servers, ask, say, show_json, show_table, when

app = typer.Typer(help="List and release the parked partitions of a group.", no_args_is_help=True)

GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="Id of the group.")]


@app.command("list")
def list_parked(group_id: GroupId, servers: Servers = None, output: Format = Output.TABLE) -> None:
    """The parked partitions of a group: why, since when, and who parked them."""

    async def question(cluster: Cluster) -> tuple[list[Parked], Keys]:
        parked = await cluster.parked(group_id)
        return parked, await keys_of(cluster, (one.partition.topic for one in parked))

    parked, keys = ask(servers, question)
    if output is Output.JSON:
        show_json(as_rows(parked, keys))
    else:
        show_parked(parked, keys)


@app.command()
def release(
    group_id: GroupId,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    partitions: Annotated[
        list[str], typer.Argument(metavar="PARTITION...", help="Names or numbers of partitions.")
    ],
    servers: Servers = None,
) -> None:
    """Have the work on parked partitions called again."""

    async def ask_and_release(cluster: Cluster) -> tuple[list[TopicPartition], list[TopicPartition], Keys]:
        topics = await cluster.topics([topic]) if is_name(topic) else []
        wanted = [TopicPartition(topic, _number(topic, topics, key)) for key in partitions]
        parked = {one.partition for one in await cluster.parked(group_id)}
        if found := [partition for partition in wanted if partition in parked]:
            await cluster.release_partitions(group_id, found)
        return wanted, found, Keys(topics)

    wanted, released, keys = ask(servers, ask_and_release)
    for partition in wanted:
        said = "is released" if partition in released else "is not parked"
        say(f"{keys.in_words(partition)} {said}")
    if len(released) < len(wanted):
        raise typer.Exit(1)


def _number(topic: str, topics: list[Topic], key: str) -> int:
    """Number of a partition that is called by its name or number, also where the catalog does not know it."""
    number = topics[0].number_of(key) if topics else None
    if number is None and key.isascii() and key.isdecimal() and int(key) < 1 << 32:
        number = int(key)
    if number is None:
        raise TopicError(topic, f"topic {topic!r} has no partition {key!r}")
    return number


def as_rows(parked: list[Parked], keys: Keys) -> list[dict[str, object]]:
    """Parked partitions for JSON."""
    return [
        {
            **one.partition._asdict(),
            "key": keys.of(one.partition),
            **{k: v for k, v in asdict(one).items() if k != "partition"},
        }
        for one in parked
    ]


def show_parked(parked: list[Parked], keys: Keys) -> None:
    """Prints a table of parked partitions."""
    rows = [
        (
            keys.in_words(one.partition),
            when(one.since_ms),
            one.member_id or "-",
            one.version or "-",
            one.reason,
        )
        for one in parked
    ]
    show_table(("PARKED", "SINCE (UTC)", "BY", "VERSION", "BECAUSE"), rows, "no partition is parked")
