"""Servers as forks of a process that has imported them; see `kit.forked`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from kit import leases
from kit.clusters.linked_cluster import INSIDE
from kit.forked import different_at_start, fork, is_version, program_of
from muster_server import child_process

_LATE_CHANGES = ("SKEWED_CLOCK_MS", "SKEWED_VERSION")
"""Changes of `inside` that only those imports notice that come after them."""

_START = child_process.launch


def launch(
    arguments: Sequence[str], output: IO[bytes], environment: Mapping[str, str], cwd: Path | None
) -> child_process.Launched:
    """As `muster_server.child_process.launch`, which starts what cannot be forked.

    Unless the environment has one, the lease is as `kit.leases` says.
    """
    environment = {**leases.variables(), **environment}
    program = program_of(arguments)
    different = different_at_start(environment)
    other = different == {"PYTHONPATH"} and is_version(environment.get("PYTHONPATH", ""))
    changed = _is_inside(different, environment)
    if not program or (different and not other and not changed):
        return _START(arguments, output, environment, cwd)
    first = str(INSIDE / "sitecustomize.py") if changed else ""
    return fork(program, environment, output, output, cwd, first)


def _is_inside(different: set[str], environment: Mapping[str, str]) -> bool:
    """Whether what differs is only that `inside` changes the process, and a fork will do for that."""
    first, _, others = environment.get("PYTHONPATH", "").partition(os.pathsep)
    added = (first, others) == (str(INSIDE), os.environ.get("PYTHONPATH", ""))
    return different == {"PYTHONPATH"} and added and not any(name in environment for name in _LATE_CHANGES)
