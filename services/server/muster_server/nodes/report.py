"""Prints a survey of the nodes, as tables or as JSON."""

import json
from dataclasses import asdict
from typing import Any

from muster.cli.console import console
from rich.console import Console
from rich.table import Table

from muster_server.nodes.survey import NodeState, Survey


def tell(found: Survey, output: str) -> bool:
    """Prints a survey; returns whether all is well.

    Args:
        found: the survey.
        output: `table` or `json`.
    """
    if output == "json":
        print(as_json(found))
    else:
        show(found, console())
    return found.healthy


def as_json(found: Survey) -> str:
    """The survey as JSON."""
    configuration = found.configuration
    return json.dumps(
        {
            "healthy": found.healthy,
            "problem": found.problem,
            "cluster_id": configuration.cluster_id if configuration else "",
            "shard_count": configuration.shard_count if configuration else 0,
            "configuration": configuration.number if configuration else 0,
            "nodes": [_for_programs(node) for node in found.nodes],
        },
        indent=2,
    )


def _for_programs(node: NodeState) -> dict[str, Any]:
    return asdict(node) | {"problems": [str(problem) for problem in node.problems]}


def show(found: Survey, console: Console) -> None:
    """Prints the survey as a table, with the problems below it."""
    configuration = found.configuration
    if configuration is not None:
        console.print(
            f"cluster {configuration.cluster_id}, {configuration.shard_count} shards, configuration "
            f"{configuration.number}",
            highlight=False,
        )
    table = Table()
    for column in ("node", "address", "server", "fsync", "eviction", "memory", "lag", "promises", "state"):
        table.add_column(column)
    for node in found.nodes:
        table.add_row(*_row(node))
    console.print(table)
    for node in found.nodes:
        for problem in node.problems:
            console.print(f"node {node.index}: {problem}", style="red", markup=False)
        for weakness in node.weaknesses:
            console.print(f"node {node.index}: {weakness}", style="yellow", markup=False)
    if found.problem:
        console.print(found.problem, style="red", markup=False)


def _row(node: NodeState) -> tuple[str, ...]:
    memory = f"{node.memory_bytes / (1 << 20):.0f} MiB"
    if node.memory_limit_bytes:
        memory += f" of {node.memory_limit_bytes / (1 << 20):.0f}"
    lag = f"{node.lag_entries} in {node.lagging_logs} logs" if node.lagging_logs else "none"
    apart = f"{node.apart_promises} apart" if node.apart_promises else "as the others"
    if not node.server:
        return (str(node.index), node.address, *["–"] * 6, "not well")
    return (
        str(node.index),
        node.address,
        node.server,
        node.persistence,
        node.eviction,
        memory,
        lag,
        apart,
        "not well" if node.problems else "well",
    )
