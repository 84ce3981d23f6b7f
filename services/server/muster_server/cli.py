"""Entry point of `muster-server`."""

import sys
from typing import Any

from muster.cli import ended_by_interrupts


def main() -> None:
    """Runs the command line; Ctrl-C ends it without a traceback even while modules are imported."""
    with ended_by_interrupts():
        _import_structlog()
        from muster_server.commands import invoke
    invoke()


def _import_structlog() -> None:
    """Imports it without `rich`, with which it draws tracebacks that our logs do not have.

    That is an eighth of the time of a start.
    """
    modules: dict[str, Any] = sys.modules
    if "rich" not in modules:
        modules["rich"] = None  # whoever imports it gets an ImportError
        import structlog  # noqa: F401  kept in sys.modules

        del modules["rich"]
