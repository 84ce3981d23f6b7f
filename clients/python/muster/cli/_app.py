"""The application: its commands, those that other packages add, and how errors are shown."""

import logging
import sys
from importlib.metadata import entry_points, version
from typing import Annotated

import typer

from muster._errors import MusterError
from muster._text import harmless
from muster.cli import _groups, _partitions, _quotas, _topics
from muster.cli.ending import run

PLUGINS = "muster.commands"
"""Entry points of this group become commands: a function, or a Typer application for several."""

OWN = ("groups", "partitions", "topics", "offsets", "cluster", "quotas")


def build(arguments: list[str]) -> typer.Typer:
    """The application with all installed commands.

    Of other packages' commands only the one that is called is loaded, so that each starts fast; all of them
    where they are listed.
    """
    app = typer.Typer(
        name="muster",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    app.add_typer(_groups.app, name="groups")
    app.add_typer(_partitions.app, name="partitions")
    app.add_typer(_topics.app, name="topics")
    app.command("offsets")(_groups.offsets)
    app.command("cluster")(_topics.cluster)
    app.command("quotas")(_quotas.quotas)
    called = next((word for word in arguments if not word.startswith("-")), "")
    if called in OWN or arguments == ["--version"]:
        return app
    others = sorted(entry_points(group=PLUGINS), key=lambda e: e.name)
    for entry in [entry for entry in others if entry.name == called] or others:
        try:
            command = entry.load()
        except Exception as error:  # another package's fault must not take our commands away
            _absent(app, entry.name, f"{type(error).__name__}: {error}")
            continue
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=entry.name)
        else:
            app.command(entry.name)(command)
    return app


def invoke(app: typer.Typer) -> None:
    """Runs the application; an error of the client becomes one line on stderr and exit code 1."""
    # The error line says all that the client's log would.
    logging.getLogger("muster").setLevel(logging.CRITICAL)
    _check_words(sys.argv[1:])
    try:
        run(app, "muster")
    except MusterError as error:
        sys.exit(harmless(f"muster: {error}"))


def _check_words(words: list[str]) -> None:
    """Ends the process if an argument is not UTF-8, since it can be neither sent nor shown."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            sys.exit(f"muster: the argument {word!a} is not UTF-8")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"muster {version('muster-client')}")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Share work among any fleet of workers: groups, topics, the cluster."""


def _absent(app: typer.Typer, name: str, why: str) -> None:
    """Adds a command that, when called, says why it cannot be loaded."""

    def command() -> None:
        sys.exit(f"muster: the command {name!r} cannot be loaded: {why}")

    # For any arguments, `--help` included, the answer is why the command is missing.
    anything = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(name, hidden=True, context_settings=anything)(command)
