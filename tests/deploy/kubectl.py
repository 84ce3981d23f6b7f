"""The cluster that `kubectl` points at."""

import json
import subprocess
from pathlib import Path
from typing import Any


class KubectlError(Exception):
    """A command failed; the message says which, and what it said."""


class Kubectl:
    """Runs `kubectl` in one namespace.

    Args:
        namespace: where everything is.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def run(self, *arguments: str, given: str | None = None, limit_s: float = 120) -> str:
        """What a command prints.

        Args:
            arguments: of kubectl.
            given: its standard input.
            limit_s: time that it gets.

        Raises:
            KubectlError: it failed, or took longer.
        """
        command = ["kubectl", "--namespace", self.namespace, *arguments]
        try:
            done = subprocess.run(
                command, input=given, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except FileNotFoundError:
            raise KubectlError("kubectl is not on the path") from None
        except subprocess.TimeoutExpired:
            raise KubectlError(f"{' '.join(command)}: no answer for {limit_s:.0f} s") from None
        if done.returncode:
            raise KubectlError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """What a command prints with `--output json`."""
        return json.loads(self.run(*arguments, "--output", "json"))

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """Pods by label."""
        items: list[dict[str, Any]] = self.json("get", "pods", "--selector", selector)["items"]
        return items

    def rest_of(self, pod: str, container: str, file: str, local: Path) -> None:
        """Appends to a local copy what a growing file of a container has more."""
        size = local.stat().st_size if local.exists() else 0
        command = ["kubectl", "--namespace", self.namespace, "exec", pod, "--container", container, "--"]
        with local.open("ab") as copy:
            subprocess.run(
                [*command, "tail", "-c", f"+{size + 1}", file], stdout=copy, timeout=120, check=True
            )


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether a pod serves and is not about to end."""
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def name_of(pod: dict[str, Any]) -> str:
    """Its name."""
    return str(pod["metadata"]["name"])
