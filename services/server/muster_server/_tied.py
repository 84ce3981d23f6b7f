"""Runs a program that dies with its parent: `python -I -S _tied.py PARENT_PID PROGRAM ARGUMENT…`.

A program of its own, because the request has to be made between fork and exec, and Python code there
(`preexec_fn`) is not safe in a process with threads. Linux kills the child when the thread that started
it ends; where the system has no such call, the program is run without it.
"""

import os
import sys

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


def tie(parent: int) -> None:
    """Has this process killed when its parent ends; ends it if that has happened already."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the request was made
        os._exit(1)


if __name__ == "__main__":
    tie(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
