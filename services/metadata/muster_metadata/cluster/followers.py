"""Waits until every coordinator has applied the catalog."""

import asyncio
from collections.abc import Callable

import structlog
from muster_core.position import Position

from muster_metadata.cluster.leases import LeaseObserver

log = structlog.get_logger()

_LOOK_S = 0.02
_REPORT_S = 1.0


class Followers:
    """The coordinators, as followers of the catalog.

    A coordinator's lease has the offset up to which it has applied the catalog's log. A coordinator that
    starts, or returns after its lease ran out, asks for the end of that log once it holds a lease, and
    answers no call before it has applied everything up to there. So once a deletion is acknowledged, and the
    leases were read from a majority after that, only the holders of those leases can still act on an older
    catalog.

    Args:
        observer: knows the leases.
        now_ms: boot clock; the same as the observer's.
    """

    def __init__(self, observer: LeaseObserver, now_ms: Callable[[], int]) -> None:
        self._observer = observer
        self._now_ms = now_ms

    async def carried_out(self, place: Position) -> None:
        """Returns when no coordinator can answer by a catalog that ends before a place in its log."""
        began_ms = self._now_ms()
        reported = False
        while not self._observer.read_since(began_ms) or self._observer.lagging(place):
            if not reported and self._now_ms() - began_ms > _REPORT_S * 1000:
                reported = True
                lagging = ",".join(self._observer.lagging(place))
                log.warning("deletion_waits", catalog_offset=place.offset, lagging=lagging)
            await asyncio.sleep(_LOOK_S)
