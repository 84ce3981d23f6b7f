"""What a target is, and what counts as a finding."""

import importlib
import inspect
import resource
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

INPUT_CPU_S = 10.0
"""More CPU time than any input may take, on any machine: inputs have a few kilobytes."""

INPUT_BYTES = 512 << 20
"""More memory than any input may add to the process."""

NAMES = (
    "catalog_records",
    "environment",
    "group_lives",
    "incremental_lives",
    "log_records",
    "redis_replies",
    "session_frames",
    "shard_lives",
    "snapshots",
    "unary_calls",
)
PRODUCT = ("muster_core", "muster_runtime", "muster_coordinator", "muster_discovery", "muster_metadata")
"""Packages whose branches guide the choice of inputs."""

_PACKAGES = Path(__file__).resolve().parents[2]


class Broken(AssertionError):
    """An invariant of a target does not hold; the message says which."""


@dataclass(frozen=True)
class Target:
    """Something that reads bytes.

    Attributes:
        name: of its module.
        invariant: what must hold for every input, for people.
        play: plays an input; raises where the invariant does not hold.
        longest_bytes: inputs are no longer.
    """

    name: str
    invariant: str
    play: Callable[[bytes], None]
    longest_bytes: int


@dataclass(frozen=True)
class Finding:
    """An input that broke an invariant.

    Attributes:
        kind: the exception and the place that raised it: equal for one fault, however it came about.
        trace: the whole of it.
        data: the input.
    """

    kind: str
    trace: str
    data: bytes


def load(name: str) -> Target:
    """The target of a name; what it needs is imported only now, so that it can be instrumented."""
    module = importlib.import_module(f"fuzz.targets.{name}")
    invariant = (inspect.getdoc(module) or "").partition("\n\n")[0].replace("\n", " ")
    return Target(name, invariant, module.play, module.LONGEST_BYTES)


def finding_of(target: Target, data: bytes) -> Finding | None:
    """Plays an input; returns what it broke, None: nothing."""
    began_s, began_bytes = time.process_time(), _peak_bytes()
    try:
        target.play(data)
    except Exception as error:
        place = _place_of(error)
        return Finding(f"{type(error).__name__} in {place}", traceback.format_exc(), data)
    taken_s, taken_bytes = time.process_time() - began_s, _peak_bytes() - began_bytes
    if taken_s > INPUT_CPU_S:
        return Finding("too much time", f"{taken_s:.1f} s of CPU, more than {INPUT_CPU_S:g}", data)
    if taken_bytes > INPUT_BYTES:
        return Finding("too much memory", f"{taken_bytes:,} bytes, more than {INPUT_BYTES:,}", data)
    return None


def shrunk(target: Target, finding: Finding, tries: int = 400) -> Finding:
    """A shorter input with the same kind of finding."""
    best, size = finding, max(1, len(finding.data) // 2)
    while size and tries:
        begin = 0
        while begin < len(best.data) and tries:
            tries -= 1
            found = finding_of(target, best.data[:begin] + best.data[begin + size :])
            if found is not None and found.kind == best.kind:
                best = found
            else:
                begin += size
        size //= 2
    return best


def _place_of(error: BaseException) -> str:
    """The innermost function of this repository."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_ours(frame.filename)]
    return f"{Path(frames[-1].filename).stem}.{frames[-1].name}" if frames else "a library"


def _is_ours(file: str) -> bool:
    path = Path(file)
    return path.is_relative_to(_PACKAGES) and ".venv" not in path.parts


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
