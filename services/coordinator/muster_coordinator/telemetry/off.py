"""What a coordinator has while telemetry is off."""

from collections.abc import Awaitable, Callable

from muster_core.events import GroupRequest, GroupResponse
from muster_core.shard import Shard

from muster_coordinator.log.log_client import Log
from muster_coordinator.log.watch import Watch
from muster_coordinator.ownership.lease import LeaseKeeper
from muster_coordinator.ownership.ownership import Ownership
from muster_coordinator.session.calls import UNWATCHED, CallWatch
from muster_coordinator.session.sessions import Sessions

UnaryHandler = Callable[[GroupRequest, str], Awaitable[GroupResponse]]
"""Answers a unary call of a client at an address."""


class Measures:
    """Watches what a coordinator does. This one does nothing: telemetry is off.

    Args:
        log: carries out the steps on logs.

    Attributes:
        log: what everybody is to use for that.
    """

    def __init__(self, log: Log) -> None:
        self.log = log

    def attach(self, ownership: Ownership, lease: LeaseKeeper, sessions: Sessions) -> None:
        """What is to be watched, and looked at when the numbers are read."""

    def watch(self, core: Shard) -> Watch | None:
        """What is notified of the records of a shard's groups; None: nothing is."""
        return None

    def of_stream(self) -> CallWatch:
        """What watches the calls of a new session stream."""
        return UNWATCHED

    def answering(self, answer: UnaryHandler) -> UnaryHandler:
        """Wraps a handler of unary calls so that the calls are watched."""
        return answer

    def refused(self, limit: str) -> None:
        """Something was refused for a limit, by the name of its setting."""

    def unproven(self) -> None:
        """Somebody spoke for a member without its secret."""
