"""Makes a process hold up its event loop for a second on SIGUSR1: Python loads this file by itself.

A signal's handler runs in the main thread, between two steps of what that thread does; other threads go on.
"""

import signal
import time

SECONDS = 1.0


def _work_hard(_number: int, _frame: object) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        sum(range(1_000))


signal.signal(signal.SIGUSR1, _work_hard)
