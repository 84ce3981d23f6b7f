"""`python -m muster_server.demo`, which `./x demo` runs."""

import asyncio
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from muster_server.child_process import ChildError
from muster_server.demo.run import FAST_PLAN, FULL_PLAN, Demo, DemoError
from muster_server.demo.show import Show
from muster_server.demo.text import InputError


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Less text and shorter pauses: under 45 s.")] = False,
    text: Annotated[
        Path | None,
        typer.Option("--input", help="Folder with text of your own; default: installed documentation."),
    ] = None,
    audit: Annotated[bool, typer.Option("--audit", help="End with the Spark audit of the log.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep data and logs of a run that went well.")] = False,
) -> None:
    """Counts words with six workers while servers and a worker are killed, and proves that nothing was lost.

    Starts a cluster with three Redis nodes on this machine, kills the coordinator that owns the group
    (SIGKILL), a worker (SIGKILL), a Redis node (SIGKILL), and stops another coordinator (SIGTERM); then
    compares the counts with those of a single process and verifies the log. Exit code 1: not equal, or
    not clean. Exit code 2: there is no text.
    """
    folder = Path(tempfile.mkdtemp(prefix="muster-demo-"))
    show = Show()
    started = time.monotonic()
    good = False
    # Told to end, it cleans up as after Ctrl-C. Shells start jobs in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        good = asyncio.run(Demo(folder, FAST_PLAN if fast else FULL_PLAN, text, show, audit=audit).run())
    except InputError as error:  # nothing was started, and nothing is there to be looked at
        shutil.rmtree(folder, ignore_errors=True)
        show.say(f"failed: {error}", "bold red")
        raise typer.Exit(2) from None
    except (DemoError, ChildError) as error:
        show.say(f"failed: {error}", "bold red")
    except KeyboardInterrupt:
        show.say("stopped")
    seconds = time.monotonic() - started
    if good:
        show.console.print(
            f"\nNot a line lost, not a promise broken, in {seconds:.0f} s.", style="bold green"
        )
    if good and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        show.console.print(f"data and logs are in {folder}", markup=False)
    raise typer.Exit(0 if good else 1)


if __name__ == "__main__":
    typer.run(demo)
