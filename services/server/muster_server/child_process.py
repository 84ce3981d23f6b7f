"""A child process: starts, watches and ends it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

_TIED = Path(__file__).with_name("_tied.py")
_POLL_SECONDS = 0.005
_TAIL_BYTES = 2_000


class ChildError(RuntimeError):
    """A process ended, or was not ready in time; the message carries the end of its log."""


class Launched(Protocol):
    """What `ChildProcess` needs of a process, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def poll(self) -> int | None:
        """Exit code, negative if a signal ended it; None while it runs."""

    def send_signal(self, sig: int) -> None:
        """Sends it a signal if it runs."""


def launch(
    arguments: Sequence[str], output: IO[bytes], environment: Mapping[str, str], cwd: Path | None
) -> Launched:
    """Starts a program in a session of its own, tied to this process."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_TIED), str(os.getpid()), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=cwd,
        start_new_session=True,
    )


class ChildProcess:
    """A real process, in a session of its own, so that the terminal's Ctrl-C reaches only its parent.

    On Linux it is killed when its parent dies, even by SIGKILL. It must be started from a thread that lives
    as long as the process should: the main thread.

    Args:
        name: for messages.
        arguments: program, as an absolute path, and its arguments.
        log: file that gets its output, appended.
        environment: added to this process's environment.
        removed: prefixes of variables of this process's environment that it must not inherit.
        cwd: its working directory.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        removed: Sequence[str] = (),
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._arguments = list(arguments)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(tuple(removed))}
        self._environment = {**inherited, **(environment or {})}
        self._cwd = cwd
        self._process: Launched | None = None
        self._log_begin = 0

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id; that of the last run if it has ended.

        Raises:
            ChildError: it was never started.
        """
        if self._process is None:
            raise ChildError(f"{self.name} was not started")
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, negative if a signal ended it; None: it runs, or was never started."""
        return None if self._process is None else self._process.poll()

    def ending(self) -> str:
        """How it ended, as the end of a sentence; empty: it runs, or was never started."""
        code = self.returncode
        if code is None:
            return ""
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"{how}; its log: {self.log}"

    def start(self) -> None:
        """Starts it without waiting; `wait_until` waits until it is ready."""
        if self.running:
            raise ChildError(f"{self.name} runs already")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._log_begin = output.tell()
            self._process = launch(self._arguments, output, self._environment, self._cwd)

    async def wait_until(self, ready: Callable[[], bool], timeout_seconds: float) -> None:
        """Waits until it is ready.

        Args:
            ready: called repeatedly; must return quickly.
            timeout_seconds: when to give up.

        Raises:
            ChildError: it ended, or time is up.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while not ready():
            if not self.running:
                raise ChildError(
                    f"{self.name} ended with code {self.returncode} before it was ready{self.tail()}"
                )
            if loop.time() > deadline:
                raise ChildError(f"{self.name} was not ready within {timeout_seconds:g} s{self.tail()}")
            await asyncio.sleep(_POLL_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def pause(self) -> None:
        """Sends SIGSTOP: it stops running, and its connections stay open."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Sends SIGCONT: it runs on."""
        self.signal(signal.SIGCONT)

    async def kill(self) -> None:
        """Sends SIGKILL and waits for its end."""
        self.signal(signal.SIGKILL)
        await self.ended(10.0)

    async def terminate(self, timeout_seconds: float = 15.0) -> int:
        """Sends SIGTERM and waits for its end; sends SIGKILL if that takes too long.

        Returns:
            Exit code, negative if a signal ended it.
        """
        self.signal(signal.SIGTERM)
        self.resume()
        if not await self.ended(timeout_seconds):
            await self.kill()
        return self.returncode or 0

    async def ended(self, timeout_seconds: float) -> bool:
        """Waits for its end; returns False if it still runs after the time-out."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while self.running:
            if loop.time() > deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    def tail(self) -> str:
        """The end of its last run's log, as the last part of a message."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as written:
            end = written.seek(0, os.SEEK_END)
            written.seek(max(self._log_begin, end - _TAIL_BYTES))
            text = written.read().decode(errors="replace").strip()
        return f"; the end of {self.log}:\n{text}" if text else f"; {self.log} is empty"
