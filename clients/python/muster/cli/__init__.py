"""The command line `muster`. Needs the extra `cli`; nothing else in this package does."""

import sys


def main() -> None:
    """Entry point of the command."""
    try:
        from muster.cli._app import build, invoke
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit("muster: the command line needs two more packages: pip install 'muster-client[cli]'")
    invoke(build(sys.argv[1:]))
