"""What answers that are built in steps have in common."""

from collections.abc import Callable
from typing import Any, Protocol

from muster_core.events import GroupRequest, MemberRange
from muster_runtime.rpc.refusals import InvalidArgument, Violation

CUT_S = 0.005
"""After so long of cutting a request into steps the loop is left to others."""


class Ask(Protocol):
    """Answers a call that concerns one shard, which was reached: it waits for nothing any more."""

    def __call__(self, request: GroupRequest, host: str, shown: MemberRange | None = None, /) -> Any:
        """Answers it; `shown` as in `muster_core.events.Request`."""
        ...


class Budget:
    """How many bytes an answer may still take.

    Args:
        max_bytes: how many at first.
        field: what the call would have to ask for less of.
        pay: counts partitions, groups or members of the answer that the call did not name.
    """

    def __init__(self, max_bytes: int, field: str, pay: Callable[[int], None]) -> None:
        self._max_bytes = self._left_bytes = max_bytes
        self._field = field
        self.pay = pay

    def take(self, part: Any) -> None:
        """Counts a part of the answer in bytes.

        Raises:
            InvalidArgument: the answer is too large with it.
        """
        self._left_bytes -= part.ByteSize()
        if self._left_bytes < 0:
            text = f"the answer would be larger than {self._max_bytes:,} bytes: ask for less, or for pages"
            raise InvalidArgument([Violation(self._field, text)])
