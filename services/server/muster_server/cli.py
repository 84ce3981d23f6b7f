"""Entry point of `muster-server`."""

from muster.cli import ended_by_interrupts


def main() -> None:
    """Runs the command line; Ctrl-C ends it without a traceback even while modules are imported."""
    with ended_by_interrupts():
        from muster_server.commands import invoke
    invoke()
