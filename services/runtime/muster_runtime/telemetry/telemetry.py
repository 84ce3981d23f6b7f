"""What the parts of a process know of telemetry; no library is loaded for it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from muster_runtime.telemetry.metric import Metric, Sample

if TYPE_CHECKING:
    from muster_runtime.telemetry.instruments import Instrument
    from muster_runtime.telemetry.tracing import Tracing

Handler = Callable[[Any, Any], Awaitable[Any]]
"""Answers a unary call: request and context."""


class Source:
    """Something that has numbers to report.

    Attributes:
        metrics: every metric that it has.
        instruments: what counts some of them; `read` gives the others.
    """

    metrics: Sequence[Metric] = ()
    instruments: "Sequence[Instrument]" = ()

    async def read(self) -> Sequence[Sample]:
        """The numbers now. Called on the loop; what takes long must let others run in between."""
        return ()


class Telemetry:
    """Where the parts of a process report their numbers. This one is off: nothing is counted or traced.

    Attributes:
        on: whether anything is counted.
        tracing: what makes spans; None: nothing is traced.
        max_groups: how many groups are shown by their names.
    """

    on = False
    max_groups = 0
    tracing: "Tracing | None" = None

    def add(self, make: Callable[[], Source]) -> None:
        """Adds what a part of the process reports.

        Args:
            make: makes the source; only called where somebody listens.
        """

    def watching(self, method: str, handler: Handler) -> Handler:
        """A handler of unary calls that is counted and traced.

        Args:
            method: its service's full name and its own.
            handler: what is called.
        """
        return handler

    async def stop(self) -> None:
        """Ends what `add` began."""


OFF = Telemetry()
"""What a part has that was given none."""
