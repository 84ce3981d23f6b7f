"""Runs a Python program so that Ctrl-C ends it with one line, and leaves no process and no folder of it.

`python -m kit.interruptible -m chaos --small`: what follows are arguments of Python. `./x` starts its
programs so: they run clusters, copies of the repository and pools of processes, and none has to clean up when
it is ended in the middle.

The program has a session of its own, which the terminal's Ctrl-C does not reach, and a folder for all that is
temporary. When this process is interrupted, it kills the program and all that came from it, and removes the
folder. When the program fails by itself, the folder stays, and is named.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import muster_server

_TIED = Path(muster_server.__file__).with_name("_tied.py")
_PR_SET_CHILD_SUBREAPER = 36
_ORDERLY_S = 15.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Interrupted(BaseException):
    """This process was told to end, by the signal that is its argument."""


def run(arguments: Sequence[str]) -> int:
    """Runs a program to its end; returns its exit code as a shell gives it, 128 + the signal that ended it.

    Args:
        arguments: of Python.
    """
    folder = Path(tempfile.mkdtemp(prefix="muster-x-"))
    process: subprocess.Popen[bytes] | None = None
    try:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell's job in the background has it
                signal.signal(number, _interrupted)
        _adopt_orphans()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_TIED), str(os.getpid()), sys.executable, *arguments],
            env={**os.environ, "TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)},
            start_new_session=True,
        )
        code = process.wait()
    except _Interrupted as interrupted:
        _kill_what_was_started(process)
        _remove(folder)
        print("x: interrupted", file=sys.stderr, flush=True)
        return 128 + int(interrupted.args[0])
    if code == 0:
        _remove(folder)
    with suppress(OSError):
        folder.rmdir()  # nothing was left
    if folder.exists():
        print(f"x: what it left is in {folder}", file=sys.stderr)
    return code if code >= 0 else 128 - code


def _interrupted(number: int, _frame: FrameType | None) -> NoReturn:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise _Interrupted(number)


def _adopt_orphans() -> None:
    """Makes this process the parent of what processes below it leave behind when they end (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill_what_was_started(process: subprocess.Popen[bytes] | None) -> None:
    """Kills all processes below this one; where it cannot know them, has the program end them."""
    if sys.platform != "linux":
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGINT)
            process.wait(_ORDERLY_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return
    while children := _children():  # then theirs are ours
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def _children() -> list[int]:
    """The processes whose parent this is (Linux)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it is gone
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(path.parent.name))
    return found


def _remove(folder: Path) -> None:
    """Removes a folder; first what is mounted there (Linux)."""
    mounts = Path("/proc/self/mounts")
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        place = line.split()[1]
        if place.startswith(f"{folder}/"):
            subprocess.run(["umount", place], check=False)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
