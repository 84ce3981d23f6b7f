"""What a quick test may not do: start a server, wait for a clock, or compute for long.

The client's tests use it, also where only the client is installed.
"""

import selectors
import time
from importlib.util import find_spec
from typing import Any

import pytest

LONGEST_WAIT_S = 1.0
LONGEST_COMPUTING_S = 5.0
"""Of the process: several times what a test without the marker `slow` needs, also on a busy machine."""


class Quickness:
    """Notes what a test does that has no place among the quick ones."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._began_s = time.process_time()

    @property
    def computed_s(self) -> float:
        """Time of processors since its beginning."""
        return time.process_time() - self._began_s

    @property
    def is_slow(self) -> bool:
        """Whether that is more than a quick test takes."""
        return self.computed_s > LONGEST_COMPUTING_S

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """From now on."""
        sleep, select = time.sleep, selectors.DefaultSelector.select

        def noted_sleep(seconds: float) -> None:
            self._waits(seconds)
            sleep(seconds)

        def noted_select(selector: Any, timeout: float | None = None) -> Any:
            ready = select(selector, timeout)
            if not ready:
                self._waits(timeout or 0)
            return ready

        patch.setattr(time, "sleep", noted_sleep)
        patch.setattr(selectors.DefaultSelector, "select", noted_select)
        if find_spec("muster_server") is not None:
            from muster_runtime.rpc.server import RpcServer
            from muster_server.child_process import ChildProcess

            self._note_calls(patch, RpcServer, "bind", "listens as a server")
            self._note_calls(patch, ChildProcess, "start", "starts a process that serves")

    def _waits(self, seconds: float) -> None:
        if seconds > LONGEST_WAIT_S:
            self.faults.append(f"waits for {seconds:g} s")

    def _note_calls(self, patch: pytest.MonkeyPatch, kind: type, name: str, fault: str) -> None:
        called = getattr(kind, name)

        def noted(*arguments: Any, **others: Any) -> Any:
            self.faults.append(fault)
            return called(*arguments, **others)

        patch.setattr(kind, name, noted)
