"""The catalog as discovery serves it: as metadata pushed it, with every change acknowledged here."""

import asyncio
from collections.abc import Iterable, Sequence

from muster_core.features import Feature
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import discovery_pb2
from muster_runtime.cluster.view import ClusterView
from muster_runtime.rpc.refusals import InvalidArgument, Unavailable, Violation

CATCH_UP_S = 1.0
"""How long a read waits for a change that this instance acknowledged."""

RETRY_AFTER_MS = 200
_NO_VIEW = "this discovery instance has no view from metadata yet; try again"
_BEHIND = "this discovery instance does not have a change of topics yet that it acknowledged; try again"


class TopicReads:
    """Answers reads of the catalog.

    What is read is one version of the catalog. It may lag behind the newest one by the time that a push takes
    from metadata to here, but it has every change that was acknowledged through this instance.

    Args:
        view: as metadata pushed it.
        catch_up_s: see `CATCH_UP_S`.
    """

    def __init__(self, view: ClusterView, catch_up_s: float = CATCH_UP_S) -> None:
        self._view = view
        self._catch_up_s = catch_up_s
        self._acknowledged = 0
        self._places: dict[str, int] = {}
        self._places_of: metadata_pb2.TopicCatalog | None = None
        self._all = discovery_pb2.ListTopicsResponse()
        self._all_of: metadata_pb2.TopicCatalog | None = None

    @property
    def version(self) -> int:
        """Version of the catalog that was pushed last; 0 before the first push."""
        return 0 if self._view.catalog is None else self._view.catalog.version.offset

    async def list(self, names: Sequence[str]) -> discovery_pb2.ListTopicsResponse:
        """The topics with these names; all topics without names.

        Raises:
            Unavailable: metadata has not pushed a catalog yet, or not one with every acknowledged change.
        """
        if self._view.catalog is None:
            raise Unavailable(_NO_VIEW, RETRY_AFTER_MS)
        if not await self._caught_up():
            raise Unavailable(_BEHIND, RETRY_AFTER_MS)
        catalog = self._view.catalog
        return _listed(catalog, self._named(catalog, names)) if names else self._whole(catalog)

    def _whole(self, catalog: metadata_pb2.TopicCatalog) -> discovery_pb2.ListTopicsResponse:
        """All topics, put together once for whoever asks (LIM-65); not to be changed."""
        if self._all_of is not catalog:
            self._all_of, self._all = catalog, _listed(catalog, catalog.topics)
        return self._all

    def knows(self, name: str) -> bool:
        """Whether the catalog that was pushed last has a topic of this name."""
        return self._view.catalog is not None and bool(self._named(self._view.catalog, (name,)))

    def _named(
        self, catalog: metadata_pb2.TopicCatalog, names: Iterable[str]
    ) -> Sequence[discovery_pb2.Topic]:
        """The topics of these names, in the order of the catalog: members ask for theirs again and again."""
        if self._places_of is not catalog:
            self._places_of = catalog
            self._places = {topic.name: place for place, topic in enumerate(catalog.topics)}
        places = {self._places[name] for name in names if name in self._places}
        return [catalog.topics[place] for place in sorted(places)]

    def check_zones(self, topic: discovery_pb2.Topic) -> None:
        """Refuses zones that an older metadata would drop without a word.

        Raises:
            InvalidArgument: their feature is not enabled.
            Unavailable: metadata has not pushed a catalog yet.
        """
        if topic.HasField("zones"):
            self._check_feature(Feature.PARTITION_ZONES, "topic.zones")

    def check_names(self, topic: discovery_pb2.Topic) -> None:
        """Refuses names of partitions that an older metadata would drop without a word.

        Raises:
            InvalidArgument: their feature is not enabled.
            Unavailable: metadata has not pushed a catalog yet.
        """
        if topic.HasField("names"):
            self._check_feature(Feature.PARTITION_NAMES, "topic.names")

    def check_alteration(self) -> None:
        """Refuses changes of single partitions where `check_names` refuses names."""
        self._check_feature(Feature.PARTITION_NAMES, "topic")

    def _check_feature(self, feature: Feature, field: str) -> None:
        if self._view.catalog is None:
            raise Unavailable(_NO_VIEW, RETRY_AFTER_MS)
        if feature not in self._view.features:
            problem = f"needs the feature {feature}: `muster features enable {feature}`"
            raise InvalidArgument([Violation(field, problem)])

    async def changed(self, answer: metadata_pb2.ChangeTopicResponse, before: int) -> None:
        """Notes an acknowledged change, and waits up to `CATCH_UP_S` until it can be read here.

        Args:
            answer: of metadata.
            before: `version` before metadata was asked: if the answer has no version, any later one will do.
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


def _listed(
    catalog: metadata_pb2.TopicCatalog, topics: Iterable[discovery_pb2.Topic]
) -> discovery_pb2.ListTopicsResponse:
    return discovery_pb2.ListTopicsResponse(topics=topics, catalog_version=catalog.version.offset)
