"""`muster access`: whether somebody may do something, and what was done and refused."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from muster.cli.ending import without_passwords
from muster_runtime.errors import StartupError
from muster_runtime.logs import LogSettings, configure
from muster_runtime.rpc.access.access import Access, AccessSettings
from muster_runtime.rpc.access.verbs import VERBS, Kind, Verb
from muster_runtime.settings import SettingsError, load

from muster_server.access import trail as trails

app = typer.Typer(help="Shows who may do what, and what was done and refused.", no_args_is_help=True)

EXIT_REFUSED = 1
EXIT_UNUSABLE = 2

_VARIABLE = AccessSettings.variable("file")


@app.command()
def check(
    who: Annotated[str, typer.Argument(help="Name of the identity; an empty one: a caller without any.")],
    verb: Annotated[str, typer.Argument(help=f"What it does: {', '.join(Verb)}.")],
    what: Annotated[
        str, typer.Argument(help="With what: group:NAME, topic:NAME, or cluster.", metavar="WHAT")
    ],
    file: Annotated[
        Path | None, typer.Option("--file", help=f"File of rules; default: what {_VARIABLE} names.")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="`text` or `json`.")] = "text",
) -> None:
    """Says whether somebody may do something, and which rule allows it. Asks no server.

    Exit code 0: it may, 1: it may not, 2: the file or an argument cannot be used.
    """
    if output not in ("text", "json"):
        _fail(f"--output {output!r}: use text or json")
    kind, name = _thing(what)
    if verb not in VERBS[kind]:
        _fail(f"VERB {verb!r}: of a {kind} there are {', '.join(VERBS[kind])}")
    file = file or (Path(os.environ[_VARIABLE]) if os.environ.get(_VARIABLE) else None)
    if file is None:
        _fail(f"name the file of rules with --file, or with {_VARIABLE}")
    try:
        decision = Access(AccessSettings(file=file)).explain(who, Verb(verb), kind, name)
    except SettingsError as error:
        _fail("\n".join(error.problems))
    if output == "json":
        typer.echo(
            json.dumps(
                {"allowed": decision.allowed, "rule": decision.number or None, "reason": decision.reason}
            )
        )
    else:
        typer.echo(f"{'allowed' if decision.allowed else 'refused'}: {decision.reason}")
    if not decision.allowed:
        raise typer.Exit(EXIT_REFUSED)


@app.command()
def trail(
    since: Annotated[
        str,
        typer.Option(help="None before it: `2h`, `7d`, or a date and time (UTC); default: all that is kept."),
    ] = "",
    who: Annotated[
        str | None, typer.Option(help="Of this identity alone; an empty one: of nobody's.")
    ] = None,
    verb: Annotated[
        str | None, typer.Option(help="Of this verb or call alone, as `ACTION` shows it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON for each event.")] = False,
    metadata: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Instances of metadata, host:port,…; default: MUSTER_DISCOVERY_METADATA, else that of "
            "`muster dev`.",
        ),
    ] = "",
    data: Annotated[Path, typer.Option(help="Folder of the `muster dev` cluster.")] = Path(".muster/dev"),
) -> None:
    """Shows the audit trail: who did what of consequence from where, and what was refused, the oldest first.

    It asks metadata, as the other operators' commands do. Exit code 2: it could not be read.
    """
    try:
        configure(load(LogSettings, level="error"))
        since_ms = trails.parse_since(since, datetime.now(UTC)) if since else 0
        found = trails.run(trails.addresses_of(metadata, data), trails.Wanted(since_ms, who, verb))
    except (ValueError, OverflowError):
        _fail(f"--since {since!r}: use 2h, 7d, or a date and time such as 2026-11-23T18:00")
    except (trails.TrailError, StartupError) as error:
        _fail(without_passwords(str(error)))
    for line in trails.as_lines(found) if as_json else trails.as_text(found):
        typer.echo(line)


def _thing(text: str) -> tuple[Kind, str]:
    kind, _, name = text.partition(":")
    if text == Kind.CLUSTER:
        return Kind.CLUSTER, ""
    if kind not in (Kind.GROUP, Kind.TOPIC) or not name:
        _fail(f"WHAT {text!r}: use group:NAME, topic:NAME or cluster")
    return Kind(kind), name


def _fail(message: str) -> NoReturn:
    typer.echo(f"muster access: {message}", err=True)
    raise typer.Exit(EXIT_UNUSABLE)
