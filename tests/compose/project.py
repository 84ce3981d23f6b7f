"""`docker compose` with the repository's file, as a project of its own beside whatever else runs here."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
TAG = "compose-check"
"""Of the images: what others built and use under the version's tag stays."""

_PUBLISHED = ("discovery-1", "discovery-2", "coordinator-1", "coordinator-2", "coordinator-3")
_SECONDS = 900


class ComposeError(Exception):
    """A command failed; the message ends with what it said."""


def docker_problem() -> str:
    """Why there is nothing to run this on; empty: there is."""
    try:
        done = subprocess.run(
            ["docker", "compose", "version"], capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode == 0:
            done = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        return "needs Docker with its plugin compose, and there is no program `docker`"
    return "" if done.returncode == 0 else "needs a Docker engine and its plugin compose, and none answers"


class Project:
    """The services of docker-compose.yml, without ports on this machine; a context manager that removes all.

    Args:
        name: of the project; containers, network and volumes carry it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._folder = tempfile.TemporaryDirectory()
        override = Path(self._folder.name) / "override.yml"
        override.write_text(
            "services:\n" + "".join(f"  {service}: {{ports: !reset []}}\n" for service in _PUBLISHED)
        )
        self._command = ["docker", "compose", "--project-name", name]
        self._command += ["--file", str(ROOT / "docker-compose.yml"), "--file", str(override)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.run("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "20")
        self._folder.cleanup()

    def run(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        """Runs `docker compose ARGUMENTS`; what it printed.

        Raises:
            ComposeError: its exit code is none of `codes`.
        """
        done = subprocess.run(
            [*self._command, *arguments],
            cwd=ROOT,
            env={**os.environ, "MUSTER_VERSION": TAG},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        if done.returncode not in codes:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
            raise ComposeError(f"docker compose {' '.join(arguments)}: exit code {done.returncode}\n{said}")
        return done.stdout

    def muster(self, *arguments: str) -> Any:
        """What a command of `muster` answers as JSON, in a container of its own."""
        told = self.run(
            "run", "--rm", "--no-deps", "-T", "muster", *arguments, "--output", "json", codes=(0, 1)
        )
        return json.loads(told)

    def inside(self, service: str, *arguments: str) -> Any:
        """What a command of `muster` answers as JSON, run in a container of a service that is up."""
        return json.loads(self.run("exec", "-T", service, "muster", *arguments, "--output", "json"))

    def left(self) -> list[str]:
        """Containers and volumes of the project that are there."""
        label = f"label=com.docker.compose.project={self.name}"
        found = []
        for what in (["ps", "--all"], ["volume", "ls"]):
            listed = subprocess.run(
                ["docker", *what, "--quiet", "--filter", label], capture_output=True, text=True, check=True
            )
            found += listed.stdout.split()
        return found
