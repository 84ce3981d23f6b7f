"""Runs the asynchronous main of a process: event loop, signals, exit codes."""

import asyncio
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable

import structlog
import uvloop

from muster_runtime.errors import StartupError
from muster_runtime.garbage import COLLECTOR
from muster_runtime.memory import keep_freed

log = structlog.get_logger()

Main = Callable[[asyncio.Event], Awaitable[int | None]]

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_MISCONFIGURED = StartupError.exit_code


def run(main: Main) -> int:
    """Runs `main` under uvloop until it returns.

    The first SIGTERM or SIGINT sets the event that `main` is given: it should hand over and return. A second
    one ends the process at once with 128 plus the signal's number. Where native code ends it by a signal, as
    libraries do that get no memory, standard error says which Python code called that.

    Args:
        main: gets the stop event; what it returns is the exit code, None is 0.

    Returns:
        The exit code: 0, what `main` returned, 2 for a `StartupError` (one message on standard error, no
        traceback), 1 for any other exception (logged with its traceback).
    """
    threading.excepthook = _of_thread
    sys.unraisablehook = _of_nobody
    faulthandler.enable(all_threads=False)
    keep_freed()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_supervised(main))
    except StartupError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
        return error.exit_code
    except Exception:
        log.exception("process_failed")
        return EXIT_FAILED


def _of_thread(failed: threading.ExceptHookArgs) -> None:
    log.error("thread_failed", thread=failed.thread and failed.thread.name, exc_info=failed.exc_value)


def _of_nobody(failed: "sys.UnraisableHookArgs") -> None:
    log.error("error_dropped", where=repr(failed.object), exc_info=failed.exc_value)


async def _supervised(main: Main) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            log.warning("process_forced_to_end", signal=number.name)
            sys.stderr.flush()
            os._exit(128 + number)
        log.info("process_stopping", signal=number.name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        with COLLECTOR.running():
            code = await main(stop)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    return EXIT_OK if code is None else code
