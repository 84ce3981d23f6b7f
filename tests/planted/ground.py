"""A copy of the repository in which bugs are planted one after the other, and tests run."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from planted.plants import Plant, planted
from planted.rules import ROOT

_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".hypothesis", "*.egg-info", "build"
)
_PACKAGES = (
    "protos/src", "assignors", "clients/python", "services/core", "services/runtime", "services/discovery",
    "services/coordinator", "services/metadata", "services/server", "services/audit", "tests",
)  # fmt: skip
_TEST_LIMIT_S = 120
_FAILED = re.compile(r"^(?:FAILED|ERROR) tests/(.+?)(?: - (.*))?$", re.MULTILINE)
_TESTS_FAILED = 1
_SECONDS = itertools.count(int(time.time()) + 1)


@dataclass(frozen=True)
class Outcome:
    """What a run of tests showed.

    Attributes:
        failed: the tests that failed.
        reason: what the first of them had to say.
        broken: why the run shows nothing; empty: it does.
    """

    failed: tuple[str, ...] = ()
    reason: str = ""
    broken: str = ""

    @property
    def passed(self) -> bool:
        """Whether everything ran and passed."""
        return not self.failed and not self.broken


class Ground:
    """One copy. Only one bug stands in it at a time.

    Args:
        folder: where the copy is made; must not exist.
        ports: that servers of its tests listen on, as `MUSTER_DEV_PORTS` takes them.
    """

    def __init__(self, folder: Path, ports: str) -> None:
        shutil.copytree(ROOT, folder, ignore=_LEFT_OUT, symlinks=True)
        self._root = folder
        inherited = os.environ.get("PYTHONPATH", "")
        paths = [str(folder / package) for package in _PACKAGES]
        # Before what is installed: the services that a test starts are those of the copy, too.
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [inherited])]),
            "COLUMNS": "400",  # or pytest cuts its words short
            "MUSTER_DEV_PORTS": ports,
        }

    @contextmanager
    def with_bug(self, plant: Plant) -> Iterator[None]:
        """Plants a bug, and takes it out at the end.

        Raises:
            BadPlants: the code is not what the plant says.
        """
        path = self._root / plant.file
        before = path.read_text("utf-8")
        self._write(path, planted(plant, before))
        try:
            yield
        finally:
            self._write(path, before)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text, "utf-8")
        # Python takes what was compiled for the text of this size and second, so no two texts have the same.
        os.utime(path, (second := next(_SECONDS), second))

    def test(
        self, tests: Sequence[str], limit_s: float, *, first_failure_ends: bool, processes: int = 1
    ) -> Outcome:
        """Runs tests.

        Args:
            tests: as pytest names them, from the folder `tests`.
            limit_s: after that the run is ended.
            first_failure_ends: whether one failure is enough.
            processes: how many share the tests, as those of `./x test` do.
        """
        arguments = ["-m", "pytest", "-q", "--tb=line", "-rfE", "-m", "not containers"]
        arguments += [f"--timeout={_TEST_LIMIT_S}", "--timeout-method=signal"]
        arguments += ["-x"] if first_failure_ends else []
        if processes > 1:
            arguments += ["-n", str(processes), "--dist", "loadgroup", "--no-loadscope-reorder"]
        code, output = self._python([*arguments, *(f"tests/{test}" for test in tests)], limit_s)
        if code is None:
            return Outcome(broken=f"the tests did not end within {limit_s:g} s")
        failed = dict[str, str](_FAILED.findall(output))
        if code == 0 or (code == _TESTS_FAILED and failed):
            return Outcome(tuple(failed), next(iter(failed.values()), ""))
        return Outcome(broken=f"pytest ended with {code}: {output.strip().splitlines()[-1:]}")

    def command(self, arguments: Sequence[str], limit_s: float) -> Outcome:
        """Runs a command that fails when it finds something: exit code 1."""
        code, output = self._python(arguments, limit_s)
        if code is None:
            return Outcome(broken=f"it did not end within {limit_s:g} s")
        if code == _TESTS_FAILED:
            return Outcome(failed=(" ".join(arguments),))
        return Outcome(
            broken="" if code == 0 else f"it ended with {code}: {output.strip().splitlines()[-1:]}"
        )

    def _python(self, arguments: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        # A file and no pipe: what a failed test left running would keep a pipe open.
        with TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self._root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            code: int | None = None
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(limit_s)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            output.seek(0)
            return code, output.read()
