"""The catalog as discovery serves it: what metadata pushed, never older than what was acknowledged here."""

import asyncio
from collections.abc import Sequence

from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import discovery_pb2
from muster_runtime.cluster.view import ClusterView
from muster_runtime.rpc.refusals import Unavailable

CATCH_UP_S = 1.0
"""How long a read waits for a change that this instance acknowledged."""

RETRY_AFTER_MS = 200
_NO_VIEW = "this discovery instance has not heard from metadata yet; try again"
_BEHIND = "this discovery instance has not heard yet of a change of topics that it acknowledged; try again"


class TopicReads:
    """Answers reads of the catalog.

    What is read is one version of it, the same as at any other instance. It may be older than the newest one
    by the time that news need from metadata to here, but it has every change that was acknowledged through
    this instance.

    Args:
        view: what metadata pushed.
        catch_up_s: see `CATCH_UP_S`.
    """

    def __init__(self, view: ClusterView, catch_up_s: float = CATCH_UP_S) -> None:
        self._view = view
        self._catch_up_s = catch_up_s
        self._acknowledged = 0

    @property
    def version(self) -> int:
        """Version of the catalog that was pushed last; 0: none was."""
        return 0 if self._view.catalog is None else self._view.catalog.version.offset

    async def list(self, names: Sequence[str]) -> discovery_pb2.ListTopicsResponse:
        """The topics of these names, or all, by name.

        Raises:
            Unavailable: metadata has not pushed what must be seen.
        """
        if self._view.catalog is None:
            raise Unavailable(_NO_VIEW, RETRY_AFTER_MS)
        if not await self._caught_up():
            raise Unavailable(_BEHIND, RETRY_AFTER_MS)
        catalog = self._view.catalog
        wanted = frozenset(names)
        return discovery_pb2.ListTopicsResponse(
            topics=[topic for topic in catalog.topics if not wanted or topic.name in wanted],
            catalog_version=catalog.version.offset,
        )

    async def changed(self, answer: metadata_pb2.ChangeTopicResponse, before: int) -> None:
        """Notes a change that metadata acknowledged, and waits a while until it can be read here.

        Args:
            answer: what metadata said.
            before: `version` before it was asked: where its place is not told, any later one has the change.
        """
        self._acknowledged = max(self._acknowledged, answer.version.offset or before + 1)
        await self._caught_up()

    async def _caught_up(self) -> bool:
        try:
            async with asyncio.timeout(self._catch_up_s):
                while self.version < self._acknowledged:
                    await self._view.wait_change(self._view.changes)
        except TimeoutError:
            return False
        return True
