"""What the cluster knows of itself: the live node, the owner of the shard, and the topics."""

from collections.abc import Callable

from muster_core.catalog import Catalog
from muster_core.events import TopicsChanged
from muster_core.features import FEATURE_NAMES
from muster_core.log.replay import Entry
from muster_core.log.topics.topic_changes import decide
from muster_core.log.topics.topic_names import removed_by_topic
from muster_core.log.topics.topic_partitions import weights_by_topic, zones_by_topic
from muster_core.log.topics.topics import Topics
from muster_core.position import Position
from muster_discovery._forward import Forwarder
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import discovery_pb2
from muster_runtime.addresses import Address
from muster_runtime.cluster.view import ClusterView, Watcher
from muster_runtime.rpc.channels import Channels

from muster_testing.memory_log import CLUSTER_ID


class Directory(ClusterView):
    """A view that is given what there is, and connects to nobody.

    Attributes:
        topics: the catalog.
        known: the catalog as coordinators know it.
    """

    def __init__(self) -> None:
        nobody = Address("127.0.0.1", 1)
        super().__init__(Channels((nobody,)), Watcher("discovery", "in-process", FEATURE_NAMES), first=0)
        self.topics = Topics()
        self._offset = 0
        for name in FEATURE_NAMES:
            enabled = records_pb2.FeatureEnabled(name=name)
            self._store(records_pb2.Record(feature_enabled=enabled, critical=True))
        self.known = self._catalog_now()
        self._shown = discovery_pb2.Cluster(cluster_id=CLUSTER_ID, shard_count=1)

    def show(self, nodes: list[discovery_pb2.CoordinatorNode], owner: discovery_pb2.ShardOwner) -> None:
        """There are these coordinators, and this owner of the one shard."""
        self._shown = discovery_pb2.Cluster(
            cluster_id=CLUSTER_ID,
            version=self._shown.version + 1,
            shard_count=1,
            coordinators=nodes,
            shards=[owner],
        )
        self._tell()

    def change(
        self, request: metadata_pb2.ChangeTopicRequest
    ) -> tuple[metadata_pb2.ChangeTopicResponse, TopicsChanged | None]:
        """Changes a topic; returns the answer, and what shards have to hear."""
        done = self.topics.done(request)
        decision = done or decide(self.topics, request)
        if isinstance(decision, metadata_pb2.ChangeTopicResponse):
            return decision, None
        before = dict(self.topics.by_name)
        self._store(decision)
        self.known = self._catalog_now()
        self._tell()
        after = self.topics.by_name
        changed = frozenset(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
        news = TopicsChanged(changed, frozenset(before.keys() - after.keys()), self.known)
        return self.topics.stored(request), news

    def _store(self, record: records_pb2.Record) -> None:
        self._offset += 1
        self.topics.apply(Entry(Position(1, self._offset), record.SerializeToString(), b"", b""))

    def _catalog_now(self) -> Catalog:
        topics, shown = self.topics, self.topics.to_proto().topics
        return Catalog(
            topics.version.offset,
            {name: topic.partitions for name, topic in topics.by_name.items()},
            dict(topics.deletions),
            {name: topic.incarnation for name, topic in topics.by_name.items()},
            topics.deletions_since,
            topics.version.epoch,
            removed_by_topic(shown),
            weights_by_topic(shown),
            zones_by_topic(shown),
        )

    def _tell(self) -> None:
        self._apply(metadata_pb2.WatchResponse(cluster=self._shown, catalog=self.topics.to_proto()))


class TopicChanges(Forwarder):
    """Carries changes of topics out at once.

    Args:
        directory: has the topics.
        notify: hands news to the loaded shard.
    """

    def __init__(self, directory: Directory, notify: Callable[[TopicsChanged], None]) -> None:
        self._directory = directory
        self._notify = notify

    async def change(
        self, request: metadata_pb2.ChangeTopicRequest, remaining_s: float | None
    ) -> metadata_pb2.ChangeTopicResponse:
        """See `Forwarder`."""
        answer, news = self._directory.change(request)
        if news is not None:
            self._notify(news)
        return answer
