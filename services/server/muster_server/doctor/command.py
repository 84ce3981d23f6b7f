"""`muster doctor`."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from muster.cli.console import console
from muster.cli.ending import without_passwords
from muster_coordinator.settings import CoordinatorSettings
from muster_discovery.settings import DiscoverySettings
from muster_metadata.nodes.addresses import BadUrlsError
from muster_metadata.settings import MetadataSettings
from muster_runtime.addresses import parse_addresses
from muster_runtime.errors import StartupError
from muster_runtime.logs import LogSettings, configure
from muster_runtime.rpc.trust.trust import Trust
from muster_runtime.settings import Settings, load
from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster_server.dev.cluster import Description
from muster_server.doctor.examination import Patient, examine
from muster_server.doctor.findings import CheckResult, Finding, healthy
from muster_server.doctor.security.examination import examine_security
from muster_server.nodes.report import tell
from muster_server.nodes.survey import survey

EXIT_UNHEALTHY = 1
EXIT_REFUSED = 2

_SERVERS = "MUSTER_SERVERS"
_DEFAULT_SERVERS = "localhost:7400"
_STYLES = {
    CheckResult.OK: "green",
    CheckResult.WARNING: "yellow",
    CheckResult.FAILED: "bold red",
    CheckResult.SKIPPED: "dim",
}


def doctor(
    servers: Annotated[
        str, typer.Option(metavar="LIST", help=f"Discovery, host:port,…; default: {_SERVERS}.")
    ] = "",
    metadata: Annotated[
        str,
        typer.Option(metavar="LIST", help="Metadata, host:port,…; default: MUSTER_DISCOVERY_METADATA."),
    ] = "",
    redis: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Nodes of the log, redis://host:port,…; default: MUSTER_METADATA_REDIS_URL.",
        ),
    ] = "",
    nodes: Annotated[
        bool,
        typer.Option(
            "--nodes",
            help="Only the nodes of the log, each in full.",
        ),
    ] = False,
    security: Annotated[
        bool,
        typer.Option(
            "--security",
            help="Only the hardening list of docs/security.md: ports, certificates, tokens, rights, users.",
        ),
    ] = False,
    output: Annotated[str, typer.Option("--output", "-o", help="`table` or `json`.")] = "table",
    data: Annotated[
        Path, typer.Option(help="Folder of the `muster dev` cluster, looked at where nothing is named.")
    ] = Path(".muster/dev"),
) -> None:
    """Shows what is wrong with a cluster and how to mend it; changes nothing.

    Exit code 0: nothing failed (there may be warnings), 1: something did, 2: it could not be examined.
    """
    if output not in ("table", "json"):
        _fail(f"--output {output!r}: use table or json")
    try:
        configure(load(LogSettings, level="error"))
        patient = _patient(servers, metadata, redis, data)
        if nodes and not patient.redis:
            _fail(
                f"--nodes: no cluster was started on {data}; name the nodes with --redis or "
                f"{MetadataSettings.variable('redis_url')}"
            )
        if nodes and security:
            _fail("--nodes and --security: use one of them")
        if nodes:
            if not tell(asyncio.run(survey(patient.redis)), output):
                raise typer.Exit(EXIT_UNHEALTHY)
            return
        findings = asyncio.run(examine_security(patient) if security else examine(patient))
    except (BadUrlsError, StartupError) as error:
        _fail(str(error))
    if output == "json":
        typer.echo(as_json(findings))
    else:
        show(findings, console())
    if not healthy(findings):
        raise typer.Exit(EXIT_UNHEALTHY)


def _fail(message: str) -> NoReturn:
    typer.echo(without_passwords(f"muster doctor: {message}"), err=True)
    raise typer.Exit(EXIT_REFUSED)


def _patient(servers: str, metadata: str, redis: str, data: Path) -> Patient:
    """What to examine: options first, then the environment, then the cluster of `muster dev`."""
    servers = servers or os.environ.get(_SERVERS, "")
    for settings in (DiscoverySettings, CoordinatorSettings):
        metadata = metadata or os.environ.get(settings.variable("metadata"), "")
    if not redis and _is_set(MetadataSettings, "redis_url"):
        redis = load(MetadataSettings).redis_url.get_secret_value()
    if not (servers or metadata or redis):
        with suppress(FileNotFoundError):
            dev = Description.read(data)
            servers, metadata, redis = dev.servers, dev.metadata, dev.redis
    return Patient(
        servers=_listed("--servers", servers or _DEFAULT_SERVERS),
        metadata=_listed("--metadata", metadata) if metadata else (),
        redis=redis,
        trust=Trust.load(),
    )


def _is_set(settings: type[Settings], field: str) -> bool:
    variable = settings.variable(field)
    return bool(os.environ.get(variable) or os.environ.get(f"{variable}_FILE"))


def _listed(option: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(map(str, parse_addresses(text)))
    except ValueError as error:
        _fail(f"{option}: {error}")


def as_json(findings: Sequence[Finding]) -> str:
    """The findings as JSON."""
    return json.dumps(
        {
            "healthy": healthy(findings),
            **_counted(findings),
            "findings": [asdict(finding) for finding in findings],
        },
        indent=2,
        ensure_ascii=False,
    )


def _counted(findings: Sequence[Finding]) -> dict[str, int]:
    counted = Counter(finding.result for finding in findings)
    return {result.value: counted[result] for result in CheckResult}


def show(findings: Sequence[Finding], console: Console) -> None:
    """Prints the findings: a line each, and the fix below each failure."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("CHECK", "WHAT", "RESULT", "FOUND"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        found = Text(finding.detail)
        if finding.fix and finding.result is not CheckResult.OK:
            found.append(f"\n→ {finding.fix}", "italic")
        table.add_row(finding.check, finding.subject, Text(finding.result, _STYLES[finding.result]), found)
    console.print(table)
    counted = _counted(findings)
    summary = ", ".join(f"{count} {name}" for name, count in counted.items() if count)
    console.print(f"\n{summary}", style="green" if healthy(findings) else "bold red", highlight=False)
