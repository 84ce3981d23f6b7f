"""What an instance of metadata has while telemetry is off."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from muster_protos.muster.internal.v1 import metadata_pb2

_NOTHING = nullcontext()


class Measures:
    """Watches what an instance does. This one does nothing: telemetry is off.

    Attributes:
        log_streams: open streams of coordinators to their logs.
    """

    log_streams = 0

    def carrying_out(self, call: metadata_pb2.LogCall) -> AbstractContextManager[None]:
        """A step on a log is carried out within, in a task of its own."""
        return _NOTHING

    def step_begins(self, step: str) -> Callable[[metadata_pb2.LogOutcome.ValueType], None]:
        """A step on a log begins; what is returned is to be called with its outcome."""
        return _ended


def _ended(_outcome: metadata_pb2.LogOutcome.ValueType) -> None:
    """Nobody counts it."""
