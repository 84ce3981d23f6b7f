"""The topics and the features of the cluster, as this process has carried them out in its shards."""

from collections.abc import Callable

from muster_core.catalog import Catalog
from muster_core.events import Event, FeaturesEnabled, TopicsChanged
from muster_core.features import NO_FEATURES, Feature, known_of
from muster_core.log.topics.topic_names import removed_by_topic
from muster_core.log.topics.topic_partitions import weights_by_topic, zones_by_topic
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.cluster.view import ClusterView

from muster_coordinator.log.loader import Loader
from muster_coordinator.ownership.lease import LeaseKeeper

_Topic = tuple[int, int, frozenset[int]]
"""Number of partitions, incarnation (0: not known), and numbers of the removed ones."""
_NONE = frozenset[int]()


class ClusterFollower:
    """Follows the catalog and the enabled features; nobody is answered by topics that may be outdated.

    Args:
        view: the cluster, pushed by metadata.
        lease: held or not; carries to metadata which changes of the catalog were carried out.
        loader: knows the end of the catalog's log.

    Attributes:
        catalog: the topics as the shards know them; None: not known yet.
    """

    def __init__(self, view: ClusterView, lease: LeaseKeeper, loader: Loader) -> None:
        self.catalog: Catalog | None = None
        self._view = view
        self._lease = lease
        self._loader = loader
        self._pushed: metadata_pb2.TopicCatalog | None = None
        self._topics: dict[str, _Topic] | None = None
        self._features = NO_FEATURES
        self._caught_up = False

    @property
    def features(self) -> frozenset[Feature]:
        """What the cluster has enabled, from whoever was the first to say so."""
        return known_of(self._view.features) | self._lease.features

    def may_answer(self, now_ms: int) -> bool:
        """Whether clients may be answered at a boot time: the lease is held, and the topics are known."""
        return self._caught_up and self._lease.may_answer(now_ms)

    def lapsed(self) -> None:
        """The lease's deadline passed: deletions of topics are answered without this process from now on."""
        self._caught_up = False

    async def catch_up(self, notify: Callable[[Event], None]) -> None:
        """Hears of every deletion of a topic that was answered while this process had no lease.

        Who answers a deletion waits for those that hold a lease: this one asks for the end of the catalog's
        log after it has one, so either waits for the other (docs/safety.md, "Topics").

        Args:
            notify: hands an event to all shards of this process.
        """
        seen = 0
        while (cluster := self._view.cluster) is None:
            seen = await self._view.wait_change(seen)
        end = await self._loader.acknowledged(cluster.shard_count)
        while True:
            seen = self._view.changes
            self._note_topics(notify)
            if self.catalog is not None and self.catalog.place >= end:
                break
            await self._view.wait_change(seen)
        self._caught_up = True

    def note(self, notify: Callable[[Event], None]) -> None:
        """Notifies the shards of what is new in the view; cheap when nothing is.

        Args:
            notify: hands an event to all shards of this process.
        """
        self._note_topics(notify)
        features = self.features
        if features != self._features:
            self._features = features
            notify(FeaturesEnabled(features))

    def _note_topics(self, notify: Callable[[Event], None]) -> None:
        pushed = self._view.catalog
        if pushed is None or pushed is self._pushed:
            return
        self._pushed = pushed
        removed = removed_by_topic(pushed.topics)
        topics = {
            topic.name: (topic.partitions, topic.incarnation, removed.get(topic.name, _NONE))
            for topic in pushed.topics
        }
        before, self._topics = self._topics, topics
        self.catalog = Catalog(
            pushed.version.offset,
            {name: partitions for name, (partitions, _, _) in topics.items()},
            {removed.name: removed.offset for removed in pushed.deletions},
            {name: incarnation for name, (_, incarnation, _) in topics.items()},
            pushed.deletions_since,
            pushed.version.epoch,
            removed,
            weights_by_topic(pushed.topics),
            zones_by_topic(pushed.topics),
        )
        changed: frozenset[str] = frozenset()
        deleted: frozenset[str] = frozenset()
        if before is not None:
            changed = frozenset(
                name
                for name, _ in before.items() ^ topics.items()
                if _are_different(before.get(name), topics.get(name))
            )
            deleted = frozenset(before.keys() - topics.keys())
        notify(TopicsChanged(changed, deleted, self.catalog))
        self._lease.carried_out(self.catalog.place)


def _are_different(before: _Topic | None, now: _Topic | None) -> bool:
    """Whether a topic was created, deleted, created again, or has other partitions."""
    if before is None or now is None:
        return before is not now
    if (before[0], before[2]) != (now[0], now[2]):
        return True
    # An instance of metadata of an older version does not send incarnations.
    return before[1] != now[1] and 0 not in (before[1], now[1])
