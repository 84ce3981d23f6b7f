"""Python programs as forks of a process that has imported what they import: that takes most CPU of a start.

Each process of the tests has one such process beside it, the fork server of multiprocessing, and another one
for another version of our packages. A program that starts here is a process like any other: it has its own
session, environment, directory and output, ends by a signal or with an exit code, and dies with the process
that started it. What differs is what it has imported already. So programs start as users start them wherever
a test is about that.

The client's tests use it, also where only the client is installed.
"""

import asyncio
import atexit
import math
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

from kit.waiting import until

IMPORTED = (
    "muster.cli._app",
    "muster_coordinator.coordinator",
    "muster_discovery.role",
    "muster_metadata.server",
    "muster_runtime.rpc.identity.tokens",
    "muster_runtime.telemetry.process_telemetry",
    "muster_server.commands",
    "muster_server.doctor.command",
    "muster_server.features.command",
    "muster_server.nodes.command",
    "muster_server.verify.command",
)
MUSTER = str(Path(sys.executable).with_name("muster"))
"""The command `muster`, which arguments follow."""

_AT_START = ("PYTHON", "LC_", "LANG", "LD_")
"""Variables that a process reads only while it starts."""

_AT_OUR_START = {name: value for name, value in os.environ.items() if name.startswith(_AT_START)}
_SERVER = find_spec("muster_server")
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(IMPORTED))
_TIED = str(Path(_SERVER.origin).with_name("_tied.py")) if _SERVER is not None and _SERVER.origin else ""
_STARTING = threading.Lock()
_VERSIONS: dict[str, forkserver.ForkServer] = {}


class Forked:
    """A program that runs in a fork; with the methods of `subprocess.Popen`."""

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
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)


class Program:
    """A program that runs in a fork, and whose outputs are read; as `asyncio.subprocess.Process`."""

    def __init__(self, process: Forked, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader) -> None:
        self._process = process
        self.pid = process.pid
        self.stdout, self.stderr = stdout, stderr

    @property
    def returncode(self) -> int | None:
        """Exit code, negative if a signal ended it; None while it runs."""
        return self._process.poll()

    def send_signal(self, sig: int) -> None:
        """Sends it a signal if it runs."""
        self._process.send_signal(sig)

    def terminate(self) -> None:
        """Sends SIGTERM if it runs."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL if it runs."""
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Waits for its end, and gives the exit code."""
        await until(lambda: self.returncode is not None, "it ends", math.inf)
        assert self.returncode is not None
        return self.returncode

    async def communicate(self) -> tuple[bytes, bytes]:
        """Waits for its end, and gives the rest of both outputs."""
        output, errors, _ = await asyncio.gather(self.stdout.read(), self.stderr.read(), self.wait())
        return output, errors


async def started(
    command: Sequence[str], environment: Mapping[str, str] | None = None, *, cwd: Path | None = None
) -> Program:
    """Starts a Python program, as `asyncio.create_subprocess_exec` with pipes for both outputs."""
    environment = os.environ if environment is None else environment
    program = program_of(command)
    assert program, f"not a Python program: {command}"
    assert not different_at_start(environment), "these variables take effect only in a real start"
    (stdout, output), (stderr, errors) = await _pipe(), await _pipe()
    with output, errors:
        return Program(fork(program, environment, output, errors, cwd), stdout, stderr)


async def _pipe() -> tuple[asyncio.StreamReader, IO[bytes]]:
    """A pipe: what comes out of it, and its other end."""
    reader = asyncio.StreamReader()
    end, other = os.pipe()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(end, "rb", 0)
    )
    return reader, os.fdopen(other, "wb", 0)


def run(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    cwd: Path | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Runs a Python program to its end, as `subprocess.run` with both outputs as text."""
    environment = os.environ if environment is None else environment
    program = program_of(command)
    assert program, f"not a Python program: {command}"
    assert not different_at_start(environment), "these variables take effect only in a real start"
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = fork(program, environment, output, errors, cwd)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(command, code, _text(output), _text(errors))


async def run_beside(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    cwd: Path | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Runs a Python program as `run` does, while the event loop goes on."""
    return await asyncio.to_thread(run, command, environment, cwd=cwd, timeout=timeout)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def program_of(command: Sequence[str]) -> list[str]:
    """A Python program and its arguments, as they follow `python`; empty: it is something else."""
    program, *rest = command
    if program == sys.executable:
        return rest
    beside = Path(sys.executable).with_name(Path(program).name)
    installed = program in (str(beside), beside.name) and beside.name.startswith("muster")
    return [str(beside), *rest] if installed else []


def different_at_start(environment: Mapping[str, str]) -> set[str]:
    """The variables that take effect only at the start of a process, and are others than here."""
    names = {name for name in environment if name.startswith(_AT_START)} | _AT_OUR_START.keys()
    return {name for name in names if environment.get(name) != _AT_OUR_START.get(name)}


def prepare_version(path: str, imported: Sequence[str]) -> None:
    """Lets programs of another version of our packages be forks, too, of a process that has imported these.

    Args:
        path: the PYTHONPATH of that version.
        imported: modules.
    """
    if path not in _VERSIONS:
        server = _VERSIONS[path] = forkserver.ForkServer()
        server.set_forkserver_preload(list(imported))


def is_version(path: str) -> bool:
    """Whether programs with this PYTHONPATH can be forks."""
    return path in _VERSIONS


@contextmanager
def _server_of(path: str) -> Iterator[None]:
    """Lets multiprocessing fork from the server of a version; it starts with that version's PYTHONPATH."""
    usual, before = forkserver.connect_to_new_process, os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = path
    vars(forkserver)["connect_to_new_process"] = _VERSIONS[path].connect_to_new_process
    try:
        yield
    finally:
        vars(forkserver)["connect_to_new_process"] = usual
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


def fork(
    program: Sequence[str],
    environment: Mapping[str, str],
    output: IO[bytes],
    errors: IO[bytes],
    cwd: Path | None = None,
    first: str = "",
) -> Forked:
    """Starts a Python program.

    Args:
        program: and its arguments, as `program_of` returns them.
        environment: its whole environment.
        output: takes its standard output.
        errors: takes its standard error.
        cwd: its working directory; None: that of this process.
        first: a file of Python that it runs before.
    """
    path = environment.get("PYTHONPATH", "")
    other = path.split(os.pathsep) if is_version(path) else []
    place = str(cwd or Path.cwd())
    start = _Start(
        list(program), dict(environment), place, other, _TIED, first, output.fileno(), errors.fileno()
    )
    process = _CONTEXT.Process(target=start, name=" ".join(program), daemon=True)
    with _STARTING, _server_of(path) if other else nullcontext():
        process.start()
    return Forked(process)


@dataclass(frozen=True)
class _Start:
    """What a fork is to do; it travels there, and its files with it."""

    program: list[str]
    environment: dict[str, str]
    cwd: str
    path: list[str]
    tied: str
    first: str
    output: int
    errors: int

    def __reduce__(self) -> tuple[Any, ...]:
        given = (self.program, self.environment, self.cwd, self.path, self.tied, self.first)
        return _received, (given, DupFd(self.output), DupFd(self.errors))

    def __call__(self) -> None:
        """Becomes a process as if it had been started, and runs the program."""
        os.setsid()
        if self.tied:  # the file, for another version may have another one
            runpy.run_path(self.tied)["tie"](os.getppid())
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, file in enumerate((nothing, self.output, self.errors)):
            os.dup2(file, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.chdir(self.cwd)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.path[:0] = self.path
        if self.first:
            runpy.run_path(self.first)
        try:
            self._run()
        finally:
            atexit._run_exitfuncs()

    def _run(self) -> None:
        match self.program:
            case ["-m", module, *arguments]:
                sys.argv = [module, *arguments]
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            case ["-c", text, *arguments]:
                sys.argv = ["-c", *arguments]
                exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
            case [script, *_]:
                sys.argv = self.program
                runpy.run_path(script, run_name="__main__")


def _received(
    given: tuple[list[str], dict[str, str], str, list[str], str, str], output: Any, errors: Any
) -> _Start:
    return _Start(*given, output.detach(), errors.detach())
