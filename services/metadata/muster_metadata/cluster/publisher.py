"""Publishes the cluster as this instance sees it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import discovery_pb2
from muster_runtime.rpc.refusals import Unavailable

from muster_metadata.cluster.leases import LeaseObserver
from muster_metadata.cluster.owners import OwnerRow, highest, owners


class ViewPublisher:
    """Assembles the view of the cluster and pushes it to watchers after every change.

    The view has an age: the time since a majority of the nodes was read. When that reaches a lease time the
    watches end, so that the watchers change to another instance.

    Args:
        observer: times the leases.
        now_ms: boot clock.

    Attributes:
        log_ahead_ms: how far the wall clocks of the log's nodes are ahead of this boot clock; None: unknown.
    """

    def __init__(self, observer: LeaseObserver, now_ms: Callable[[], int]) -> None:
        self.observer = observer
        self._now_ms = now_ms
        self._confirmed_ms = now_ms()
        self.log_ahead_ms: int | None = None
        self._claims: dict[int, OwnerRow] = {}
        self._problems: Sequence[str] = ()
        self._cluster_id = ""
        self._shard_count = 0
        self._cluster = discovery_pb2.Cluster()
        self._internal: Sequence[metadata_pb2.InternalAddress] = ()
        self._catalog: metadata_pb2.TopicCatalog | None = None
        self._version = 0
        self._changed = asyncio.Event()
        self._ended = False

    @property
    def cluster(self) -> discovery_pb2.Cluster:
        """The cluster as it was assembled last."""
        return self._cluster

    def known(self, cluster_id: str, shard_count: int) -> None:
        """Sets which cluster this is, according to a majority of the nodes just now."""
        self._cluster_id, self._shard_count = cluster_id, shard_count
        self.confirmed(self._now_ms())

    def confirmed(self, as_of_ms: int) -> None:
        """Sets when the commands were sent, at the latest, by which a majority of the nodes was read."""
        self._confirmed_ms = max(self._confirmed_ms, as_of_ms)

    @property
    def majority_age_ms(self) -> int:
        """Time since a majority of the nodes was read, ms."""
        return self._now_ms() - self._confirmed_ms

    def claimed(self, shard: int, row: OwnerRow) -> None:
        """Adds a claim that was made through this instance."""
        if shard < self._shard_count:
            self._claims = highest((self._claims, {shard: row}))
            self.refresh()

    def read(self, claims: dict[int, OwnerRow]) -> None:
        """Adds the claims that the nodes store."""
        self._claims = highest((self._claims, claims))

    def nodes(self, problems: Sequence[str]) -> None:
        """Sets what is wrong with each node of the log; empty: nothing."""
        self._problems = tuple(problems)

    def topics(self, catalog: metadata_pb2.TopicCatalog) -> None:
        """Sets a new version of the catalog and wakes the watchers."""
        self._catalog = catalog
        self._wake()

    def refresh(self) -> None:
        """Assembles the view again and wakes the watchers if it changed."""
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
        internal = [
            metadata_pb2.InternalAddress(node_id=row.node_id, host=row.internal_host, port=row.internal_port)
            for row, _ in rows
            if row.internal_port
        ]
        if cluster != self._cluster or internal != self._internal:
            self._version += 1
            cluster.version = self._version
            self._cluster, self._internal = cluster, internal
            self._wake()

    def end(self) -> None:
        """Ends every watch."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self, *, last_known: bool = False) -> AsyncIterator[metadata_pb2.WatchResponse]:
        """Yields the view now, after every change, and every quarter of a lease time without one.

        Changes while a message is being sent are merged. The message has no catalog before this instance has
        read one: an empty one would say that no topic exists.

        Args:
            last_known: begin with the last view even if it is outdated.

        Raises:
            Unavailable: no majority of the nodes was read for a lease time.
        """
        beat_ms = max(1, self.observer.lease_ms // 4)
        sent_cluster, sent_catalog, beat_due_ms = discovery_pb2.Cluster(), None, 0
        while not self._ended:
            age_ms = self.majority_age_ms
            outdated = age_ms >= self.observer.lease_ms
            if outdated and not last_known:
                raise Unavailable(f"no majority of the log's nodes answered for {age_ms} ms", 200)
            last_known = False
            changed, cluster, catalog, internal = self._changed, self._cluster, self._catalog, self._internal
            news = cluster.version and (cluster is not sent_cluster or catalog is not sent_catalog)
            if news or (cluster.version and self._now_ms() >= beat_due_ms):
                message = metadata_pb2.WatchResponse(
                    lease_ms=self.observer.lease_ms, majority_age_ms=max(0, age_ms), beat_ms=beat_ms
                )
                if self.log_ahead_ms is not None:
                    message.log_time_ms = max(0, self._now_ms() + self.log_ahead_ms)
                if news:
                    message.cluster.CopyFrom(cluster)
                    message.internal_addresses.extend(internal)
                if catalog is not None and catalog is not sent_catalog:
                    message.catalog.CopyFrom(catalog)
                sent_cluster, sent_catalog, beat_due_ms = cluster, catalog, self._now_ms() + beat_ms
                yield message
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(beat_ms / 1000):
                    await changed.wait()
