"""What tests of the doctor change inside a process; Python loads this file by itself.

`SKEWED_CLOCK_MS` puts its wall clock forward, and `SKEWED_VERSION` is what it takes its version for.
"""

import importlib.metadata
import os
import time

_installed = importlib.metadata.version
_shown_ns = time.time_ns
_AHEAD_NS = int(os.environ.get("SKEWED_CLOCK_MS", "0")) * 1_000_000


def _skewed_ns() -> int:
    return _shown_ns() + _AHEAD_NS


def _version(distribution_name: str) -> str:
    return os.environ.get("SKEWED_VERSION") or _installed(distribution_name)


time.time_ns = _skewed_ns
importlib.metadata.version = _version
