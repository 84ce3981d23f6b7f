"""The command line `muster`. Needs the extra `cli`; nothing else in this package does."""

import sys

_INTERRUPTED = 130  # 128 + SIGINT, as a shell says it


def main() -> None:
    """Entry point of the command."""
    try:
        _run()
    except KeyboardInterrupt:  # before a command minds it itself: mostly while the modules are read
        sys.exit(_INTERRUPTED)


def _run() -> None:
    try:
        from muster.cli._app import build, invoke
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit("muster: the command line needs two more packages: pip install 'muster-client[cli]'")
    invoke(build(sys.argv[1:]))
