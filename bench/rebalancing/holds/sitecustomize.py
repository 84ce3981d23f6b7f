"""Loaded into a coordinator by its path: writes down what its event loop runs for long, in CPU time.

The loop is that of the standard library, whose callbacks can be timed, in place of uvloop. Each callback of
at least `SHORTEST_NS` becomes a line of the file that `BENCH_HOLDS` names: when it ended, ns of the
monotonic clock, how long it took, ns of the thread's CPU time, and what it was.
"""

import asyncio
import os
import time
from typing import Any

import uvloop

SHORTEST_NS = 500_000

if path := os.environ.get("BENCH_HOLDS"):
    lines = open(f"{path}.{os.getpid()}", "a", buffering=1)  # noqa: SIM115  it ends with the process
    handle: Any = asyncio.Handle
    run = handle._run

    def timed(self: Any) -> None:
        began_ns = time.thread_time_ns()
        run(self)
        took_ns = time.thread_time_ns() - began_ns
        if took_ns >= SHORTEST_NS:
            lines.write(
                f"{time.monotonic_ns()} {took_ns} {self._callback!r}\n".replace("\n", " ").strip() + "\n"
            )

    handle._run = timed
    uvloop.new_event_loop = asyncio.SelectorEventLoop  # type: ignore[assignment]  # another kind of loop
