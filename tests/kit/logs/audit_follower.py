"""`muster-audit follow` as a process."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 120


class FollowProcess:
    """The real command, with what it tells.

    Args:
        url: address of the log.
        folder: where its checkpoint and its metrics are.
        more: further arguments.
    """

    def __init__(self, url: str, folder: Path, *more: str) -> None:
        self.metrics = folder / "audit.prom"
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "muster_audit", "follow", url, "--checkpoint", str(folder / "at.json"),
                "--metrics", str(self.metrics), "--poll-seconds", "0.2", "-o", "json", *more,
            ],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def has_checked(self, count: int) -> None:
        """Waits until so many entries of shard 0 are checked."""
        self.says(f'muster_audit_entries_checked_total{{log="shard 0"}} {float(count)}\n')

    def says(self, *lines: str) -> None:
        """Waits until the metrics have these lines."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.metrics.is_file() or any(line not in self.metrics.read_text() for line in lines):
            assert time.monotonic() < deadline, f"not in time: {lines}"
            assert self.process.poll() is None
            time.sleep(0.05)

    def end(self, number: signal.Signals) -> tuple[int, list[tuple[str, str]]]:
        """Ends it; gives the exit code and what was told."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        told = [json.loads(line) for line in out.splitlines()]
        return self.process.returncode, [(one["invariant"], one["position"]) for one in told]
