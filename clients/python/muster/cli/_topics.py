"""`muster topics` and `muster cluster`."""

from typing import Annotated

import typer
from muster_protos.muster.v1 import discovery_pb2

from muster._values import Topic
from muster.cli._output import Format, Output, Servers, as_dict, ask, name_of, say, show_json, show_table

app = typer.Typer(help="List, create, alter and delete topics.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
Partitions = Annotated[int, typer.Argument(metavar="PARTITIONS", help="Number of partitions, 1 to 100000.")]


@app.command("list")
def list_topics(servers: Servers = None, output: Format = Output.TABLE) -> None:
    """All topics with their number of partitions."""
    _show(ask(servers, lambda cluster: cluster.topics()), output)


@app.command()
def create(
    name: Name, partitions: Partitions, servers: Servers = None, output: Format = Output.TABLE
) -> None:
    """Create a topic."""
    _show([ask(servers, lambda cluster: cluster.create_topic(name, partitions))], output)


@app.command()
def alter(name: Name, partitions: Partitions, servers: Servers = None, output: Format = Output.TABLE) -> None:
    """Raise the number of partitions; groups that subscribe to the topic rebalance."""
    _show([ask(servers, lambda cluster: cluster.alter_topic(name, partitions))], output)


@app.command()
def delete(name: Name, servers: Servers = None) -> None:
    """Delete a topic."""
    ask(servers, lambda cluster: cluster.delete_topic(name))
    say(f"topic {name} is deleted")


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
        show_json([topic._asdict() for topic in topics])
    else:
        show_table(("TOPIC", "PARTITIONS"), topics, "there are no topics")
