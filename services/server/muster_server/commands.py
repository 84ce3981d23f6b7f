"""`muster-server`: runs roles, initialises the log, shows the settings."""

import asyncio
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from muster.cli.ending import run, without_passwords
from muster_runtime import effective, process
from muster_runtime.errors import StartupError
from muster_runtime.settings import load

from muster_server.roles import METADATA, ORDER, Composition, parse_roles

app = typer.Typer(
    name="muster-server",
    help="The services of Muster. Settings come from environment variables MUSTER_…: see `config`.",
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Roles = Annotated[
    str,
    typer.Option("--roles", metavar="LIST", help=f"What this process runs: {', '.join(ORDER)}, or all."),
]
RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis",
        metavar="URL",
        help="Nodes of the log, redis://host:port,host:port,…; one, three or five. "
        "The same as MUSTER_METADATA_REDIS_URL.",
    ),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"muster-server {version('muster-server')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def serve(
    context: typer.Context,
    roles: Roles = "",
    redis: RedisUrl = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of an embedded server that is started and initialised; with the role metadata only."
        ),
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Written once everything serves: ports as JSON, by role.")
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Runs roles until SIGTERM or SIGINT; then hands its shards over and ends."""
    if context.invoked_subcommand is not None:
        return
    if not roles:
        raise StartupError(
            "--roles is missing: name what this process runs, e.g. `muster-server --roles all`"
        )
    names = parse_roles(roles)
    if data is not None and (METADATA not in names or redis is not None):
        raise StartupError("--data is for a process with the role metadata and without --redis")
    if ready_file is not None and not ready_file.absolute().parent.is_dir():
        raise StartupError(f"--ready-file: there is no folder {ready_file.absolute().parent}")

    async def main(stop: asyncio.Event) -> int:
        if data is None:
            overrides = {METADATA: {"redis_url": redis}} if redis is not None else {}
            return await Composition(names, overrides).run(stop, ready_file)
        from muster_server.dev.embedded import embedded_log

        async with embedded_log(data) as url:
            return await Composition(names, {METADATA: {"redis_url": url}}).run(stop, ready_file)

    raise typer.Exit(process.run(main))


@app.command("init")
def initialise(
    redis: RedisUrl = None,
    shard_count: Annotated[
        int, typer.Option("--shards", min=1, max=10_000, help="Number of shards; fixed for ever.")
    ] = 50,
    cluster_id: Annotated[str, typer.Option(help="Identity of the cluster, a UUID; drawn if absent.")] = "",
) -> None:
    """Initialises the log on empty nodes, once. Repeating it with the same values changes nothing."""
    from muster_metadata.settings import MetadataSettings

    from muster_server.initialise import in_words, initialise_log

    async def main(_stop: asyncio.Event) -> None:
        url = redis or load(MetadataSettings).redis_url.get_secret_value()
        typer.echo(in_words(await initialise_log(url, shard_count, cluster_id)))

    raise typer.Exit(process.run(main))


@app.command()
def config(
    roles: Roles = "all",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Shows every setting in force; `*` marks what differs from its default."""
    settings = effective.effective(Composition(parse_roles(roles)).settings)
    typer.echo(effective.as_json(settings) if as_json else effective.as_table(settings))


@app.command()
def replay(
    file: Annotated[
        Path, typer.Argument(help="A file of MUSTER_FAULT_FOLDER, such as `muster doctor` names.")
    ],
) -> None:
    """Plays an event again that made the group protocol fail. Exit code 1: it failed again."""
    from muster_server.replay import replay as play

    raise typer.Exit(play(file))


def invoke() -> None:
    """Runs the command line; if the process cannot start, prints why in one line."""
    try:
        run(app, "muster-server")
    except StartupError as error:
        sys.stderr.write(without_passwords(f"muster-server: {error}\n"))
        sys.exit(error.exit_code)
