"""How commands end: with an exit code and, where something is wrong, one sentence; never with a traceback."""

import errno
import os
import re
import sys
from typing import Any, NoReturn

import typer

_INTERRUPTED = 130  # 128 + SIGINT, as a shell says it
_NOT_WRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE})

_CommandError: Any = typer.BadParameter.__mro__[2]
"""What is raised for a command line that makes no sense: Typer has it under names of its own or of Click."""


def run(app: typer.Typer, name: str) -> NoReturn:
    """Runs an application on the arguments of the process, and ends the process.

    Args:
        app: the application.
        name: what it is called.
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
    """The text without the user and password of an address that may stand in it."""
    return re.sub(r"(\w://).*@", r"\1…@", text, flags=re.DOTALL)


def _write_no_more() -> None:
    """What is left of the output goes nowhere, or the end of the process would try once more to write it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
