"""`muster nodes`."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from muster.cli.ending import without_passwords
from muster_metadata.nodes.addresses import BadUrlsError
from muster_metadata.operator.replacement import (
    REBUILD_DELAY_MS,
    STEP_TIMEOUT_MS,
    ReplaceError,
    Replacement,
    ReplacementPlan,
)
from muster_metadata.operator.restored import RestoredError, raise_epochs
from muster_metadata.settings import MetadataSettings
from muster_runtime.errors import StartupError
from muster_runtime.logs import LogSettings, configure
from muster_runtime.settings import load

from muster_server.dev.cluster import Description
from muster_server.nodes.report import tell
from muster_server.nodes.survey import survey

app = typer.Typer(
    help="Replaces a node of the log. Their state: `muster doctor --nodes`.", no_args_is_help=True
)

EXIT_UNHEALTHY = 1
EXIT_REFUSED = 2

T = TypeVar("T")

Redis = Annotated[
    str,
    typer.Option(
        "--redis",
        metavar="URL",
        help="Nodes of the log, redis://host:port,host:port,…; default: MUSTER_METADATA_REDIS_URL, else "
        "those of `muster dev`.",
    ),
]
Data = Annotated[Path, typer.Option(help="Folder of the `muster dev` cluster.")]
_DEV = Path(".muster/dev")


@app.command("list", hidden=True)
def list_nodes(
    redis: Redis = "",
    output: Annotated[str, typer.Option("--output", "-o", help="`table` or `json`.")] = "table",
    data: Data = _DEV,
) -> None:
    """What `muster doctor --nodes` shows; 0.3.0 will remove this name."""
    typer.echo("muster nodes list is `muster doctor --nodes` now; 0.3.0 will remove this name", err=True)
    if output not in ("table", "json"):
        _fail(f"--output {output!r}: use table or json")
    if not tell(_run(lambda: survey(_address(redis, data))), output):
        raise typer.Exit(EXIT_UNHEALTHY)


@app.command()
def replace(
    old: Annotated[str, typer.Argument(metavar="OLD", help="host:port of the server that leaves.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="host:port of the server that comes; empty.")],
    redis: Redis = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    timeout: Annotated[
        float, typer.Option(min=1, max=3600, help="Seconds that a step waits for nodes before it gives up.")
    ] = 60,
    data: Data = _DEV,
) -> None:
    """Replaces the server of a node for good, while the cluster runs or is stopped.

    Run it again after an interruption: it resumes where it stopped.
    """

    async def main() -> None:
        step_timeout_ms, rebuild_delay_ms = _times()
        async with Replacement(
            _address(redis, data), old, new, tell=typer.echo, timeout_s=timeout,
            step_timeout_ms=step_timeout_ms, rebuild_delay_ms=rebuild_delay_ms,
        ) as work:  # fmt: skip
            plan = await work.plan()
            _introduce(plan)
            if dry_run:
                typer.echo("nothing was changed (--dry-run)")
                return
            await work.run(plan)
        typer.echo(
            f"done: node {plan.index} of the log is {plan.new}. Running services follow by themselves; "
            f"before one starts again, its MUSTER_METADATA_REDIS_URL must name {plan.urls}"
        )

    _run(main)


@app.command()
def restored(
    redis: Redis = "",
    reason: Annotated[
        str, typer.Option(help="Recorded in the log: audits with --accept-restore accept what is gone.")
    ] = "",
    data: Data = _DEV,
) -> None:
    """After the nodes were restored from a backup, before anything else: raises the epoch of every log.

    Tokens that were given after the backup are then lower than those to come. It does no harm otherwise.
    """
    raised = _run(lambda: raise_epochs(_address(redis, data), reason))
    typer.echo(f"cluster {raised.cluster_id}: {raised.logs} logs have a higher epoch")
    for index in raised.empty:
        typer.echo(f"node {index} has no data, or does not answer: it is rebuilt from the others")


def _introduce(plan: ReplacementPlan) -> None:
    goes_on = " (decided before; going on)" if plan.resumed else ""
    typer.echo(f"cluster {plan.configuration.cluster_id}, {plan.configuration.shard_count} shards")
    typer.echo(
        f"node {plan.index}: {plan.old} is replaced by {plan.new} in configuration "
        f"{plan.configuration.number}{goes_on}"
    )


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        configure(load(LogSettings))
        return asyncio.run(work())
    except (ReplaceError, RestoredError, BadUrlsError, StartupError) as error:
        _fail(str(error))


def _address(redis: str, data: Path) -> str:
    if redis:
        return redis
    variable = MetadataSettings.variable("redis_url")
    if os.environ.get(variable) or os.environ.get(f"{variable}_FILE"):
        return load(MetadataSettings).redis_url.get_secret_value()
    try:
        return Description.read(data).redis
    except FileNotFoundError:
        raise BadUrlsError(
            f"name the nodes with --redis or {variable}: no cluster was started on {data}"
        ) from None


def _fail(message: str) -> NoReturn:
    typer.echo(without_passwords(f"muster nodes: {message}"), err=True)
    raise typer.Exit(EXIT_REFUSED)


def _times() -> tuple[int, int]:
    """The step time-out of `replace` and its delay before it fills a server, ms.

    Both are at least those of metadata's settings: for that long a claimant may count an answer that a server
    gave before it lost its data.
    """
    settings = load(MetadataSettings)
    return max(STEP_TIMEOUT_MS, settings.step_timeout_ms), max(REBUILD_DELAY_MS, settings.rebuild_delay_ms)
