"""What an instance of metadata reports to, while telemetry is off."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from muster_protos.muster.internal.v1 import metadata_pb2

_NOTHING = nullcontext()


class Measures:
    """What an instance calls to be measured. Here every method does nothing; `measures` overrides them.

    Attributes:
        log_streams: open streams of coordinators to their logs.
    """

    log_streams = 0

    def carrying_out(self, call: metadata_pb2.LogCall) -> AbstractContextManager[None]:
        """A context within which a step on a log is carried out, in a task of its own."""
        return _NOTHING

    def step_begins(self, step: str) -> Callable[[metadata_pb2.LogOutcome.ValueType], None]:
        """Called when a step on a log begins; the returned function is to be called with its outcome."""
        return _ended


def _ended(_outcome: metadata_pb2.LogOutcome.ValueType) -> None:
    """Does nothing."""
