"""`muster-lake`."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from muster_audit.command import Master, SparkLog, session

app = typer.Typer(
    help="The log as data: decoded tables in Parquet, by day, brought up to date by each run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Folder = Annotated[Path, typer.Argument(help="Folder of the lake.")]
Catalog = Annotated[
    str,
    typer.Option(help="Catalog of Iceberg, as PyIceberg's configuration names it, that gets the tables too."),
]
Namespace = Annotated[str, typer.Option(help="Namespace of the tables in the catalog.")]


@app.callback()
def main() -> None:
    """A command of its own, however many there are."""


@app.command(name="build")
def build_command(
    export: Annotated[str, typer.Argument(help="Folder of an export; or redis://host:port,… of the nodes.")],
    lake: Folder,
    catalog: Catalog = "",
    namespace: Namespace = "muster",
    master: Master = "",
    spark_log: SparkLog = None,
) -> None:
    """Decodes what is new into the tables of a lake. Exit code 2: it could not be read or written."""

    def lake_or_empty() -> None:
        from muster_audit.lake.store import Lake

        Lake.load(lake)

    with session("build", master, spark_log, "muster-lake", first=lake_or_empty, writes=lake) as (
        spark,
        progress,
    ):
        from muster_audit.lake.build import build

        progress(f"building {lake}")
        built = build(spark, export, lake)
        if catalog:
            from muster_audit.lake.iceberg import publish

            progress(f"bringing {catalog}.{namespace} up to {lake}")
            publish(lake, catalog, namespace)
    rows: Counter[str] = Counter()
    for one in built:
        rows.update(one.rows)
        if one.undecodable:
            typer.echo(f"log {one.shard}: {one.undecodable:,} entries are no records", err=True)
    entries = sum(one.entries for one in built)
    said = "".join(f"; {count:,} {name}" for name, count in sorted(rows.items()))
    typer.echo(f"{entries:,} new entries{said}")
