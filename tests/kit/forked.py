"""Our programs as forks of a process that has imported them: importing takes most of the CPU of a start.

Each process of the tests has one such process beside it, the fork server of multiprocessing. A program that
starts here is a process like any other: it has its own session, environment, directory and output, ends by a
signal or with an exit code, and dies with the process that started it. What differs is what it has imported
already. So programs start as users start them wherever a test is about that.

The client's tests use it, also where only the client is installed.
"""

import asyncio
import atexit
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

_MODULES = {"muster_server": "muster_server.cli"}
"""What runs for `python -m NAME`."""

_SCRIPTS = {"muster": "muster.cli", "muster-server": "muster_server.cli"}
"""What runs for an installed command."""

IMPORTED = (
    "muster.cli._app",
    "muster_coordinator.coordinator",
    "muster_discovery.role",
    "muster_metadata.server",
    "muster_runtime.telemetry.process_telemetry",
    "muster_server.commands",
    "muster_server.doctor.command",
    "muster_server.features.command",
    "muster_server.nodes.command",
    "muster_server.verify.command",
)
_AT_START = ("PYTHON", "LC_", "LANG", "LD_")
"""Variables that a process reads only while it starts."""

_AT_OUR_START = {name: value for name, value in os.environ.items() if name.startswith(_AT_START)}
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(IMPORTED))


class Forked:
    """A program of ours that runs in a fork; with the methods of `subprocess.Popen`."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        assert process.pid is not None
        self.pid = process.pid

    def poll(self) -> int | None:
        """Exit code, negative if a signal ended it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Waits for its end, and gives the exit code.

        Raises:
            TimeoutExpired: it still runs.
        """
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return code

    def send_signal(self, sig: int) -> None:
        """Sends it a signal if it runs."""
        if self.poll() is None:
            os.kill(self.pid, sig)


def run(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    cwd: Path | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Runs one of our commands to its end, as `subprocess.run` with both outputs as text."""
    environment = os.environ if environment is None else environment
    main = main_of(command)
    assert main, f"not a command of ours: {command}"
    assert not different_at_start(environment), "these variables take effect only in a real start"
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = fork(main, environment, output, errors, cwd)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(command, code, _text(output), _text(errors))


async def run_beside(
    command: Sequence[str], environment: Mapping[str, str] | None = None, *, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Runs one of our commands as `run` does, while the event loop goes on."""
    return await asyncio.to_thread(run, command, environment, timeout=timeout)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def main_of(command: Sequence[str]) -> tuple[str, list[str]] | None:
    """The module whose `main` a command runs, and the `sys.argv` it gets; None: none of ours."""
    program, *rest = command
    path = Path(program)
    if program == sys.executable and rest[:1] == ["-m"]:
        program, *rest = rest[1:]
        module = _MODULES.get(program, "")
    else:
        module = _SCRIPTS.get(path.name, "") if path.parent in (Path(), Path(sys.executable).parent) else ""
    return (module, [program, *rest]) if module else None


def different_at_start(environment: Mapping[str, str]) -> set[str]:
    """The variables that take effect only at the start of a process, and are others than here."""
    names = {name for name in environment if name.startswith(_AT_START)} | _AT_OUR_START.keys()
    return {name for name in names if environment.get(name) != _AT_OUR_START.get(name)}


def fork(
    main: tuple[str, list[str]],
    environment: Mapping[str, str],
    output: IO[bytes],
    errors: IO[bytes],
    cwd: Path | None = None,
    first: str = "",
) -> Forked:
    """Starts a program of ours.

    Args:
        main: as `main_of` gives it.
        environment: its whole environment.
        output: takes its standard output.
        errors: takes its standard error.
        cwd: its working directory; None: that of this process.
        first: a file of Python that it runs before.
    """
    module, arguments = main
    start = _Start(
        module, arguments, dict(environment), str(cwd or Path.cwd()), first, output.fileno(), errors.fileno()
    )
    process = _CONTEXT.Process(target=start, name=" ".join(arguments), daemon=True)
    process.start()
    return Forked(process)


@dataclass(frozen=True)
class _Start:
    """What a fork is to do; it travels there, and its files with it."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    cwd: str
    first: str
    output: int
    errors: int

    def __reduce__(self) -> tuple[Any, ...]:
        given = (self.module, self.arguments, self.environment, self.cwd, self.first)
        return _received, (given, DupFd(self.output), DupFd(self.errors))

    def __call__(self) -> None:
        """Becomes a process as if it had been started, and runs the program."""
        os.setsid()
        if find_spec("muster_server") is not None:
            from muster_server._tied import tie

            tie(os.getppid())
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, file in enumerate((nothing, self.output, self.errors)):
            os.dup2(file, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.chdir(self.cwd)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.argv = self.arguments
        if self.first:
            runpy.run_path(self.first)
        try:
            import_module(self.module).main()
        finally:
            atexit._run_exitfuncs()


def _received(given: tuple[str, list[str], dict[str, str], str, str], output: Any, errors: Any) -> _Start:
    return _Start(*given, output.detach(), errors.detach())
