"""`muster-audit`, and `python -m muster_audit`."""

import sys

_SPARK = ("pyspark", "pyarrow", "plotly", "jinja2")


def main() -> None:
    """Runs the command; where it needs Spark and that is not installed, says so in one sentence."""
    from muster.cli.ending import run

    from muster_audit.command import app

    try:
        run(app, "muster-audit")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _SPARK:
            raise
        print(
            f"muster-audit: this needs Spark ({error.name} is not installed): "
            "`pip install 'muster-audit[spark]'`; `follow` and `describe` of a running cluster do without",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
