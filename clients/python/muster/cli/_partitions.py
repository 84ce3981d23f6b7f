"""`muster partitions`."""

from dataclasses import asdict
from typing import Annotated

import typer

from muster._cluster.cluster import Cluster
from muster._parking import Parked
from muster._values import TopicPartition
from muster.cli._keys import Keys
from muster.cli._output import Format, Output, Servers, ask, say, show_json, show_table, when

app = typer.Typer(help="List and release the parked partitions of a group.", no_args_is_help=True)

GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="Id of the group.")]


@app.command("list")
def list_parked(group_id: GroupId, servers: Servers = None, output: Format = Output.TABLE) -> None:
    """The parked partitions of a group: why, since when, and who parked them."""

    async def question(cluster: Cluster) -> tuple[list[Parked], Keys]:
        parked = await cluster.parked(group_id)
        return parked, Keys(await cluster.topics({one.partition.topic for one in parked}) if parked else ())

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
        list[int], typer.Argument(metavar="PARTITION...", help="Numbers of partitions.", min=0)
    ],
    servers: Servers = None,
) -> None:
    """Have the work on parked partitions called again."""
    wanted = [TopicPartition(topic, number) for number in partitions]

    async def ask_and_release(cluster: Cluster) -> list[TopicPartition]:
        parked = {one.partition for one in await cluster.parked(group_id)}
        if found := [partition for partition in wanted if partition in parked]:
            await cluster.release_partitions(group_id, found)
        return [partition for partition in wanted if partition not in parked]

    missing = ask(servers, ask_and_release)
    for partition in wanted:
        say(f"{partition} {'is not parked' if partition in missing else 'is released'}")
    if missing:
        raise typer.Exit(1)


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
