"""The command line `muster`. Needs the extra `cli`; nothing else in this package does.

Each group of commands is a file, with one for each longer screen of it; `_app` puts them together, and
`_output`, `_keys`, `console` and `ending` are what they share.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

_INTERRUPTED = 130  # 128 + SIGINT, as a shell says it


def main() -> None:
    """Entry point of the command."""
    try:
        with ended_by_interrupts():
            run = _prepared()
        run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


@contextmanager
def ended_by_interrupts() -> Iterator[None]:
    """Makes Ctrl-C end the process at once and silently, for use before it has done anything.

    A KeyboardInterrupt could be raised anywhere in a module that is being imported; compiled modules print it
    or turn it into another error.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, as in a background job of a shell
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _prepared() -> Callable[[], None]:
    # What matters of gRPC's own lines is in the one line of an error. To debug gRPC, set another value.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from muster.cli._app import build, invoke
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit("muster: the command line needs two more packages: pip install 'muster-client[cli]'")
    return partial(invoke, build(sys.argv[1:]))
