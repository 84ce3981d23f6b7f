"""`muster-audit`, and `python -m muster_audit`."""

import sys


def main() -> None:
    """Runs the command; where Spark and its companions are not installed, says so in one sentence."""
    try:
        from muster_audit.command import app
    except ModuleNotFoundError as error:
        sys.exit(f"muster-audit: {error.name} is not installed: `pip install muster-audit`, or `./x audit`")
    app(prog_name="muster-audit")


if __name__ == "__main__":
    main()
