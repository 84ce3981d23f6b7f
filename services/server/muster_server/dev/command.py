"""`muster dev`."""

import asyncio
import os
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import muster
import typer
from muster.cli.ending import without_passwords
from muster_metadata.nodes.addresses import NODE_COUNTS
from muster_runtime.errors import StartupError
from muster_runtime.settings import check_environment
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from muster_server.child_process import ChildError
from muster_server.dev.cluster import ClusterBusyError, DevCluster, Ports
from muster_server.dev.overview import Overview, as_lines, as_tables, look
from muster_server.dev.ports import LOOPBACK
from muster_server.dev.redis_nodes import EmbeddedServerError
from muster_server.dev.role_process import METRICS_LISTEN
from muster_server.roles import settings_classes

_FIRST_PORTS = Ports(discovery=7400, coordinator=7410, metadata=7420, internal=7480, metrics=9464)
_OF_DEV = ("_LISTEN", "_ADVERTISE", "_NODE_ID", "_METADATA", "_REDIS_URL", "_REDIS_URL_FILE")
"""How settings end that say where a process is and whom it calls: they are for the cluster to set."""
_LOOK_SECONDS = 1.0


def dev(
    data: Annotated[Path, typer.Option(help="Folder of data and logs; a restart finds its state.")] = Path(
        ".muster/dev"
    ),
    redis_nodes: Annotated[int, typer.Option(help="Embedded servers that hold the log: 1, 3 or 5.")] = 1,
    redis: Annotated[
        str | None, typer.Option(metavar="URL", help="Nodes of your own instead, redis://host:port,….")
    ] = None,
    coordinators: Annotated[int, typer.Option(min=1, max=50, help="Coordinator processes.")] = 3,
    ports: Annotated[
        str,
        typer.Option(
            help="`default`: discovery 7400, coordinators from 7410, their internal calls from 7480, "
            "metadata 7420, metrics from 9464; `free`: free ones."
        ),
    ] = "default",
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Each process serves its metrics for Prometheus.")
    ] = False,
) -> None:
    """Starts a development cluster here and shows who owns what. Ctrl-C stops it; a second Ctrl-C at once.

    Every setting of the services is passed on to its processes, except for those that say where they listen
    and what they call.
    """
    if redis_nodes not in NODE_COUNTS:
        _fail(f"--redis-nodes {redis_nodes}: use 1, 3 or 5")
    if ports not in ("default", "free"):
        _fail(f"--ports {ports!r}: use default or free")
    try:
        settings = _passed_on()
        cluster = DevCluster(
            data,
            redis_nodes=redis_nodes,
            redis_url=redis,
            coordinators=coordinators,
            ports=_FIRST_PORTS if ports == "default" else Ports(),
            settings=settings,
            metrics=metrics,
        )
        asyncio.run(_run(cluster, settings, Console(highlight=False, soft_wrap=True)))
    except (ClusterBusyError, ChildError, EmbeddedServerError, StartupError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"the folder {data} cannot be used: {error}; choose another one with --data")


def _passed_on() -> dict[str, str]:
    """The settings of services in this environment that every process of the cluster gets.

    Raises:
        SettingsError: nobody knows a variable that begins with `MUSTER_`.
    """
    classes = settings_classes()
    check_environment(classes)
    known: set[str] = set().union(*(settings_class.variables() for settings_class in classes))
    return {key: value for key, value in os.environ.items() if key in known and not key.endswith(_OF_DEV)}


def _fail(message: str) -> None:
    typer.echo(without_passwords(f"muster dev: {message}"), err=True)
    raise typer.Exit(1)


async def _run(cluster: DevCluster, settings: Collection[str], console: Console) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        if stop.is_set():
            console.print("no longer waiting for the processes …")
            cluster.kill_roles()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)
    cluster.check_ports()
    _introduce(cluster, settings, console)
    if METRICS_LISTEN in os.environ and not cluster.metrics_ports:
        console.print(
            f"{METRICS_LISTEN} is left out: it is one address for {len(cluster.roles)} processes; "
            "--metrics gives each its own."
        )
    console.print("starting …")
    started = loop.time()
    starting = asyncio.create_task(cluster.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        console.print("stopping …")
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        console.print("stopped")
        return
    stopping.cancel()
    await starting
    try:
        console.print(f"ready after {loop.time() - started:.1f} s. {_how_to_find(cluster)} Ctrl-C stops it.")
        async with muster.Cluster(cluster.servers, timeout_ms=2_000) as connection:
            await _watch(cluster, connection, console, stop)
    finally:
        console.print("stopping …")
        await cluster.stop()
        console.print("stopped; the state is kept for the next start")


def _introduce(cluster: DevCluster, settings: Collection[str], console: Console) -> None:
    rows = {
        "clients connect to": cluster.servers,
        "coordinators": ", ".join(process.address for process in cluster.coordinators),
        "metadata": ", ".join(process.address for process in cluster.metadata),
        "log": cluster.redis_url,
        "data and logs": str(cluster.folder),
        **({"settings": ", ".join(sorted(settings))} if settings else {}),
    }
    for name, value in rows.items():
        console.print(f"  {name:<20}{value}", markup=False)
    for name, port in cluster.metrics_ports.items():
        console.print(f"  metrics of {name}: http://{LOOPBACK}:{port}/metrics", markup=False)


def _how_to_find(cluster: DevCluster) -> str:
    if cluster.servers.endswith(":7400"):
        return "Workers on this machine find it by themselves."
    return f"Workers find it with MUSTER_SERVERS={cluster.servers}."


async def _watch(
    cluster: DevCluster, connection: muster.Cluster, console: Console, stop: asyncio.Event
) -> None:
    """Shows the cluster until `stop` is set: a table on a terminal, otherwise lines of what is new."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            latest: Overview | None = None
            while not stop.is_set():
                overview, problem = await _look(connection)
                latest = overview or latest
                troubles = [*cluster.ended(), *([problem] if problem else [])]
                parts = [as_tables(latest)] if latest else []
                live.update(Group(*parts, *(Text(line, "red") for line in troubles)), refresh=True)
                await _sleep(stop)
        return
    facts: list[str] = []
    known: list[str] = []
    while not stop.is_set():
        overview, problem = await _look(connection)
        facts = as_lines(overview) if overview else facts
        lines = [*facts, *cluster.ended(), *([problem] if problem else [])]
        for line in lines:
            if line not in known:
                console.print(line, markup=False)
        known = lines
        await _sleep(stop)


async def _look(connection: muster.Cluster) -> tuple[Overview | None, str]:
    """Returns the cluster; or None, and why it cannot be shown."""
    try:
        return await look(connection), ""
    except muster.ClusterUnavailable:
        return None, "the cluster does not answer; what was shown last may have changed"
    except muster.MusterError as error:
        return None, f"the cluster cannot be shown: {error}"


async def _sleep(stop: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_LOOK_SECONDS):
            await stop.wait()
