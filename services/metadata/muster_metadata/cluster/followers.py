"""Waits until every coordinator has carried out what the catalog says."""

import asyncio
from collections.abc import Callable

import structlog

from muster_metadata.cluster.leases import LeaseObserver

log = structlog.get_logger()

_LOOK_S = 0.02
_TELL_S = 1.0


class Followers:
    """The coordinators, as they follow the catalog.

    A coordinator says with its lease how far it has carried the catalog out. One that comes later, or comes
    back after its lease ran out, asks for the end of the catalog's log once it holds a lease, and answers
    nobody before it has heard of everything up to there. So after a deletion is acknowledged, and the leases
    were read from a majority after that, only those that are in them can still act on an older catalog.

    Args:
        observer: reads the leases.
        now_ms: boot clock, the observer's.
    """

    def __init__(self, observer: LeaseObserver, now_ms: Callable[[], int]) -> None:
        self._observer = observer
        self._now_ms = now_ms

    async def carried_out(self, offset: int) -> None:
        """Returns when no coordinator may answer by a catalog older than a place of its log."""
        began_ms = self._now_ms()
        told = False
        while not self._observer.read_since(began_ms) or self._observer.lagging(offset):
            if not told and self._now_ms() - began_ms > _TELL_S * 1000:
                told = True
                log.warning(
                    "deletion_waits", catalog_offset=offset, lagging=",".join(self._observer.lagging(offset))
                )
            await asyncio.sleep(_LOOK_S)
