"""Where tables for people go."""

import os

from rich.console import Console

_UNWRAPPED = 1_000


def console() -> Console:
    """Standard output, as wide as its terminal; in a file or a pipe each row is one line, for `grep`."""
    found = Console()
    if found.is_terminal or "COLUMNS" in os.environ:
        return found
    return Console(width=_UNWRAPPED)
