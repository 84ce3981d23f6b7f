"""`muster verify`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from muster.cli.console import console
from muster.cli.ending import without_passwords
from muster_core.audit.invariants import INVARIANTS
from muster_core.config import GroupConfig
from muster_runtime.logs import clean_text
from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster_server.dev.cluster import Description, UnusableDescription
from muster_server.verify.anchors import Anchoring
from muster_server.verify.reader import LogUnreadableError
from muster_server.verify.verifier import Evidence, Report
from muster_server.verify.verifier import verify as verify_log

AnchorPlace = Annotated[
    str, typer.Option(help="File or URL of the ends that an earlier audit kept: the log must contain them.")
]
AnchorKey = Annotated[
    Path | None, typer.Option(help="Public key (Ed25519, PEM) with which the anchor must be signed.")
]
AcceptRestore = Annotated[
    bool, typer.Option(help="Accept that the log was set back, if it tells of a restore since the anchor.")
]
KeepAnchor = Annotated[
    str, typer.Option(help="File or URL (PUT) where the ends are kept as an anchor if nothing is broken.")
]
SignWith = Annotated[Path | None, typer.Option(help="Private key (Ed25519, PEM) to sign the anchor with.")]

_LINE_MAX_CHARACTERS = 100_000

EXIT_BROKEN = 1
EXIT_UNREADABLE = 2


def verify(
    url: Annotated[
        str, typer.Argument(help="Nodes of the log, redis://host:port,…; default: those of `muster dev`.")
    ] = "",
    nodes: Annotated[
        str, typer.Option(help="`all`: also compare what the nodes hold; `one`: only check the best log.")
    ] = "all",
    output: Annotated[str, typer.Option("--output", "-o", help="`text` or `json`.")] = "text",
    data: Annotated[Path, typer.Option(help="Folder of the `muster dev` cluster.")] = Path(".muster/dev"),
    max_group_size: Annotated[int, typer.Option(min=1, help="Members that a group may have.")] = 5_000,
    anchor: AnchorPlace = "",
    anchor_key: AnchorKey = None,
    accept_restore: AcceptRestore = False,
    keep_anchor: KeepAnchor = "",
    sign_with: SignWith = None,
) -> None:
    """Checks from the log alone, read-only, that no declared promise was broken. Exit code 1: one was."""
    for name, value, known in (("nodes", nodes, ("all", "one")), ("output", output, ("text", "json"))):
        if value not in known:
            _fail(f"--{name} {value!r}: use {' or '.join(known)}")
    try:
        anchoring = Anchoring(anchor, anchor_key, keep_anchor, sign_with, accept_restore)
        limits = GroupConfig(max_size=max_group_size)
        report = verify_log(
            url or _dev_url(data), all_nodes=nodes == "all", anchoring=anchoring, limits=limits
        )
    except (LogUnreadableError, UnusableDescription) as error:
        _fail(str(error))
    if output == "json":
        typer.echo(as_json(report))
    else:
        show(report, console())
    if not report.clean:
        raise typer.Exit(EXIT_BROKEN)


def _fail(message: str) -> NoReturn:
    typer.echo(_harmless(without_passwords(f"muster verify: {message}")), err=True)
    raise typer.Exit(EXIT_UNREADABLE)


def _dev_url(folder: Path) -> str:
    try:
        return Description.read(folder).redis
    except FileNotFoundError:
        raise LogUnreadableError(
            f"no cluster was started on {folder}: name the nodes, e.g. `muster verify redis://localhost:6379`"
        ) from None


def show(report: Report, console: Console) -> None:
    """Prints the report."""
    table = Table(title="What the log shows", title_justify="left")
    for column in ("id", "promise", "looked at", "verdict"):
        table.add_column(column, justify="right" if column == "looked at" else "left")
    for row in INVARIANTS.values():
        broken = report.broken[row.id]
        looked = report.checked[row.id]
        verdict = (
            Text(f"BROKEN {broken}×", "bold red") if broken else Text("holds" if looked else "–", "green")
        )
        table.add_row(row.id, row.promise, f"{looked} {row.counted}", verdict)
    console.print(table)
    for index, problem in sorted(report.problems.items()):
        console.print(_harmless(f"node {index} was not read: {problem}"), style="yellow", markup=False)
    for text in report.to_repair:
        console.print(_harmless(f"to be repaired in {text}"), style="yellow", markup=False)
    for note in report.notes:
        console.print(_harmless(note), style="yellow", markup=False)
    for evidence in _first_of_each(report.evidence):
        violation = evidence.violation
        where = f"{evidence.log} at {violation.position.stream_id}"
        console.print(
            _harmless(f"{violation.invariant} is broken in {where}: {violation.detail}"),
            style="red",
            markup=False,
        )
        for line in evidence.around:
            console.print(f"  {_harmless(line)}", markup=False, highlight=False)
    more = f" and {report.unacknowledged} unacknowledged ones" if report.unacknowledged else ""
    summary = "clean" if report.clean else f"{sum(report.broken.values())} violations"
    console.print(
        f"{report.logs} logs, {report.entries} entries{more}, {report.groups} groups, "
        f"{_nodes(report)}: {summary}",
        style="green" if report.clean else "bold red",
        highlight=False,
    )


def _nodes(report: Report) -> str:
    """How many nodes were read to the end of every log."""
    text = f"{report.nodes} node{'s' if report.nodes > 1 else ''}"
    return f"{report.nodes - len(report.problems)} of {text}" if report.problems else text


def _harmless(text: str) -> str:
    """Text with user strings in it, made safe for a terminal."""
    return clean_text(text, _LINE_MAX_CHARACTERS)


def _first_of_each(evidence: list[Evidence]) -> list[Evidence]:
    first: dict[str, Evidence] = {}
    for one in evidence:
        first.setdefault(one.violation.invariant, one)
    return list(first.values())


def as_json(report: Report) -> str:
    """The report as JSON."""
    return json.dumps(
        {
            "clean": report.clean,
            "cluster_id": report.cluster_id,
            "nodes": report.nodes,
            "unread_nodes": report.problems,
            "to_repair": report.to_repair,
            "notes": report.notes,
            "logs": report.logs,
            "entries": report.entries,
            "unacknowledged_entries": report.unacknowledged,
            "groups": report.groups,
            "records": dict(report.kinds),
            "invariants": [
                {**asdict(row), "looked_at": report.checked[row.id], "broken": report.broken[row.id]}
                for row in INVARIANTS.values()
            ],
            "violations": [
                {
                    "invariant": one.violation.invariant,
                    "log": one.log,
                    "position": one.violation.position.stream_id,
                    "detail": one.violation.detail,
                    "around": list(one.around),
                }
                for one in report.evidence
            ],
        },
        indent=2,
    )
