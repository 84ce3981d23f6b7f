"""`muster access check`: whether somebody may do something, and by which rule."""

import json
import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from muster_runtime.rpc.access.access import Access, AccessSettings
from muster_runtime.rpc.access.verbs import VERBS, Kind, Verb
from muster_runtime.settings import SettingsError

app = typer.Typer(help="Shows who may do what.", no_args_is_help=True)

EXIT_REFUSED = 1
EXIT_UNUSABLE = 2

_VARIABLE = AccessSettings.variable("file")


@app.callback()
def _access() -> None:
    """Shows who may do what."""


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
