"""How commands end: with an exit code and, on failure, one sentence; never with a traceback."""

import errno
import os
import re
import sys
from typing import Any, NoReturn

import typer

_INTERRUPTED = 130  # 128 + SIGINT, as a shell says it
_NOT_WRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE})

_CommandError: Any = typer.BadParameter.__mro__[2]
"""Raised for a wrong command line. Typer's versions define it themselves or take Click's."""


def run(app: typer.Typer, name: str) -> NoReturn:
    """Runs an application with the process's arguments, and ends the process.

    Args:
        app: the application.
        name: of the command, for messages.
    """
    try:
        code = app(prog_name=name, standalone_mode=False)
        print(end="", flush=True)
    except _CommandError as error:
        error.message = without_passwords(error.message)
        error.show()
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except OSError as error:
        if error.errno not in _NOT_WRITTEN:
            raise
        _write_no_more()
        sys.exit(1 if error.errno == errno.EPIPE else f"{name}: it cannot be written: {error.strerror}")
    sys.exit(code if isinstance(code, int) else 0)


def without_passwords(text: str) -> str:
    """The text, with user and password removed from any address in it."""
    return re.sub(r"(\w://).*@", r"\1…@", text, flags=re.DOTALL)


def _write_no_more() -> None:
    """Discards the rest of the output, which Python would else write again at the end of the process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
