"""The cluster as this instance sees it, and who is told of it."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import discovery_pb2

from muster_metadata.leases import LeaseObserver
from muster_metadata.owners import OwnerRow, highest, owners


class ClusterView:
    """Assembles the pushed view; every change wakes the watchers.

    Args:
        observer: times the leases.
    """

    def __init__(self, observer: LeaseObserver) -> None:
        self.observer = observer
        self._claims: dict[int, OwnerRow] = {}
        self._problems: Sequence[str] = ()
        self._cluster_id = ""
        self._shard_count = 0
        self._cluster = discovery_pb2.Cluster()
        self._catalog: metadata_pb2.TopicCatalog | None = None
        self._version = 0
        self._changed = asyncio.Event()
        self._ended = False

    @property
    def cluster(self) -> discovery_pb2.Cluster:
        """The last assembled cluster."""
        return self._cluster

    def known(self, cluster_id: str, shard_count: int) -> None:
        """The nodes said which cluster this is."""
        self._cluster_id, self._shard_count = cluster_id, shard_count

    def claimed(self, shard: int, row: OwnerRow) -> None:
        """Somebody claimed a shard through this instance."""
        if shard < self._shard_count:
            self._claims = highest((self._claims, {shard: row}))
            self.refresh()

    def read(self, claims: dict[int, OwnerRow]) -> None:
        """What the nodes store of owners."""
        self._claims = highest((self._claims, claims))

    def nodes(self, problems: Sequence[str]) -> None:
        """What is wrong with each node of the log; empty: nothing."""
        self._problems = tuple(problems)

    def topics(self, catalog: metadata_pb2.TopicCatalog) -> None:
        """The catalog changed."""
        self._catalog = catalog
        self._wake()

    def refresh(self) -> None:
        """Assembles the view anew and wakes the watchers if it changed."""
        if not self._cluster_id:
            return
        rows = self.observer.rows()
        cluster = discovery_pb2.Cluster(
            cluster_id=self._cluster_id,
            shard_count=self._shard_count,
            coordinators=[
                discovery_pb2.CoordinatorNode(
                    node_id=row.node_id, host=row.host, port=row.port, state=state, version=row.version
                )
                for row, state in rows
            ],
            shards=owners(self._shard_count, self._claims, rows),
            log_nodes=[
                discovery_pb2.LogNode(index=index, available=not problem, problem=problem)
                for index, problem in enumerate(self._problems, 1)
            ],
            version=self._version,
        )
        if cluster != self._cluster:
            self._version += 1
            cluster.version = self._version
            self._cluster = cluster
            self._wake()

    def end(self) -> None:
        """Ends every watch."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self) -> AsyncIterator[metadata_pb2.WatchResponse]:
        """The view now and after every change; what changes while a message is sent is merged.

        There is no catalog in it before this instance read one: an empty one would say that no topic exists.
        """
        sent_cluster, sent_catalog = discovery_pb2.Cluster(), None
        while not self._ended:
            changed, cluster, catalog = self._changed, self._cluster, self._catalog
            if cluster.version and (cluster is not sent_cluster or catalog is not sent_catalog):
                message = metadata_pb2.WatchResponse(cluster=cluster, lease_ms=self.observer.lease_ms)
                if catalog is not None and catalog is not sent_catalog:
                    message.catalog.CopyFrom(catalog)
                sent_cluster, sent_catalog = cluster, catalog
                yield message
                continue
            await changed.wait()
