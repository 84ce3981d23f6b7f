"""`muster-audit`, which `python -m muster_audit` is too, and `muster-lake`."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

_SPARK = ("pyspark", "pyarrow", "plotly", "jinja2")


def main() -> None:
    """Runs `muster-audit`."""
    from muster_audit.command import app

    _run(app, "muster-audit", "; `follow` and `describe` of a running cluster do without")


def lake() -> None:
    """Runs `muster-lake`."""
    from muster_audit.lake_command import app

    _run(app, "muster-lake")


def _run(app: "typer.Typer", name: str, advice: str = "") -> None:
    """Runs a command; where it needs Spark and that is not installed, says so in one sentence."""
    from muster.cli.ending import run

    try:
        run(app, name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _SPARK:
            raise
        print(
            f"{name}: this needs Spark ({error.name} is not installed): "
            f"`pip install 'muster-audit[spark]'`{advice}",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
