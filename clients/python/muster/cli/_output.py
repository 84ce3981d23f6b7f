"""What all commands share: options, a connection, and two output formats."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.table import Table
from rich.text import Text

from muster._cluster.cluster import Cluster
from muster._parking import when as date_and_time
from muster._text import harmless
from muster.cli.console import console

_T = TypeVar("_T")


class Output(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"


Servers = Annotated[
    str | None,
    typer.Option("--servers", help="Discovery servers, host:port with commas between; else $MUSTER_SERVERS."),
]
Format = Annotated[Output, typer.Option("--output", help="A table for people or JSON for programs.")]

TIMEOUT_MS = 5_000
"""How long a command tries to reach the cluster."""


def ask(servers: str | None, question: Callable[[Cluster], Awaitable[_T]]) -> _T:
    """Connects to a cluster, returns what a question to it returns, and disconnects."""

    async def main() -> _T:
        async with Cluster(servers, timeout_ms=TIMEOUT_MS) as cluster:
            return await question(cluster)

    return asyncio.run(main())


def as_dict(message: Message) -> dict[str, object]:
    """A message as a dictionary for JSON, with the field names of the .proto."""
    fields: dict[str, object] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return fields


def say(text: str) -> None:
    """Prints a line with unprintable characters escaped."""
    typer.echo(harmless(text))


def show_json(data: object) -> None:
    """Prints data as indented JSON."""
    typer.echo(json.dumps(data, indent=2))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Prints a table, or the sentence `empty` if it has no rows."""
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        # User strings are values, not markup.
        table.add_row(*(Text(harmless(str(cell)), overflow="fold") for cell in row))
    if table.row_count:
        console().print(table)
    else:
        typer.echo(empty)


def when(at_ms: int) -> str:
    """Unix time in ms as a date and time in UTC; `never` for 0; what is no date as it is."""
    return date_and_time(at_ms) if at_ms else "never"


def name_of(value: int, names: Callable[[Any], str], prefix: str) -> str:
    """The name of an enum's value without its prefix; the number of one that this version does not know."""
    try:
        return names(value).removeprefix(prefix)
    except ValueError:
        return str(value)
