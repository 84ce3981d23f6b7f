"""The topics and the features of the cluster, as this process has carried them out in its shards."""

from collections.abc import Callable

from muster_core.catalog import Catalog
from muster_core.events import Event, FeaturesEnabled, TopicsChanged
from muster_core.features import NO_FEATURES, Feature, known_of
from muster_core.log.topics.topic_partitions import Told, told_by_topic
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import discovery_pb2
from muster_runtime.cluster.view import ClusterView

from muster_coordinator.log.loader import Loader
from muster_coordinator.ownership.lease import LeaseKeeper


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
        self._told: dict[str, Told] = {}
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
        # A look at ten thousand topics takes milliseconds, and each change of one brings all of them.
        partitions: dict[str, int] = {}
        incarnations: dict[str, int] = {}
        telling = list[discovery_pb2.Topic]()
        for topic in pushed.topics:
            name = topic.name
            partitions[name], incarnations[name] = topic.partitions, topic.incarnation
            if topic.HasField("names") or topic.HasField("zones"):
                telling.append(topic)
        self._told = told = told_by_topic(telling, self._told)
        before, now = (
            self.catalog,
            Catalog(
                pushed.version.offset,
                partitions,
                {removed.name: removed.offset for removed in pushed.deletions},
                incarnations,
                pushed.deletions_since,
                pushed.version.epoch,
                {name: one.removed for name, one in told.items() if one.removed},
                {name: one.weights for name, one in told.items() if one.weights},
                {name: one.zones_of for name, one in told.items() if one.zones_of},
            ),
        )
        self.catalog = now
        changed: frozenset[str] = frozenset()
        deleted: frozenset[str] = frozenset()
        if before is not None:
            deleted = frozenset(before.partitions.keys() - partitions.keys())
            changed = deleted.union(name for name in partitions if _is_different(name, before, now))
        notify(TopicsChanged(changed, deleted, self.catalog))
        self._lease.carried_out(self.catalog.place)


def _is_different(topic: str, before: Catalog, now: Catalog) -> bool:
    """Whether a topic of now was created, or created again, or has other partitions than before."""
    if before.partitions.get(topic) != now.partitions[topic]:
        return True
    if before.removed.get(topic) != now.removed.get(topic):
        return True
    # An instance of metadata of an older version does not send incarnations.
    of_both = before.incarnations[topic], now.incarnations[topic]
    return of_both[0] != of_both[1] and 0 not in of_both
