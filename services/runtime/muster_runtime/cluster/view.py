"""What a process knows of the cluster: pushed by metadata, and kept here."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_protos.muster.v1 import discovery_pb2

from muster_runtime import clock
from muster_runtime.about import software_version
from muster_runtime.addresses import Address
from muster_runtime.chance import between, one_of
from muster_runtime.cluster.merge import ForeignClusterError, merge_catalog, merge_cluster
from muster_runtime.rpc.channels import Channels
from muster_runtime.rpc.reads import read_within

log = structlog.get_logger()

FIRST_VIEW_TIMEOUT_MS = 3_000
"""Time in ms that an instance gets for its first message before the next one is asked."""

WALL_CLOCK_LIMIT_MS = 60_000
"""A wall clock that differs by more from those of the log's nodes is logged."""

BACKOFF_MIN_MS = 50
BACKOFF_MAX_MS = 1_000


class OlderMetadataError(Exception):
    """A metadata instance does not know what is enabled: what it pushes is out of date and stays so."""


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who watches, as metadata sees it.

    Attributes:
        role: `coordinator` or `discovery`.
        name: which one of its role, for people.
        features: names of the features that it knows, in order.
    """

    role: str
    name: str
    features: Sequence[str]

    def request(self) -> metadata_pb2.WatchRequest:
        """The request of the watch."""
        server = metadata_pb2.Server(
            role=self.role, name=self.name, version=software_version(), features=self.features
        )
        return metadata_pb2.WatchRequest(watcher=server)


class ClusterView:
    """The newest `Cluster` and topic catalog that metadata pushed.

    It watches one instance of metadata and goes on with the next as soon as that one fails, is not confirmed
    by a majority of the log's nodes any more, or says nothing for a lease time; once all have failed in a row
    it pauses for 50 ms to 1 s between attempts. What is known stays known meanwhile, and grows old: see
    `age_ms`. The owner of a shard never goes back to a lower epoch, the catalog never to an older version,
    and another cluster's picture is refused. All of it belongs to one event loop.

    Args:
        channels: to the instances of metadata; the caller closes them.
        watcher: who watches.
        first: index of the instance asked first; any if absent.
        first_view_timeout_ms: see `FIRST_VIEW_TIMEOUT_MS`.
    """

    def __init__(
        self,
        channels: Channels,
        watcher: Watcher,
        *,
        first: int | None = None,
        first_view_timeout_ms: int = FIRST_VIEW_TIMEOUT_MS,
    ) -> None:
        self._channels = channels
        self._request = watcher.request()
        self._instance = one_of(len(channels)) if first is None else first
        self._first_view_timeout_s = first_view_timeout_ms / 1000
        self._cluster: discovery_pb2.Cluster | None = None
        self._catalog: metadata_pb2.TopicCatalog | None = None
        self._owners: dict[int, discovery_pb2.ShardOwner] = {}
        self._nodes: dict[str, discovery_pb2.CoordinatorNode] = {}
        self._internal: dict[str, Address] = {}
        self._lease_ms = 0
        self._features: frozenset[str] = frozenset()
        self._connected = False
        self._beats = False
        self._true_at_ms: int | None = None
        self._log_ahead_ms: int | None = None
        self._clock_wrong = False
        self._changes = 0
        self._changed = asyncio.Event()
        self._subscribers: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def cluster(self) -> discovery_pb2.Cluster | None:
        """The cluster; None before the first message. Not to be changed; a change brings a new object."""
        return self._cluster

    @property
    def catalog(self) -> metadata_pb2.TopicCatalog | None:
        """The topics; None before the first message. Not to be changed; a change brings a new object."""
        return self._catalog

    @property
    def features(self) -> frozenset[str]:
        """Names of what the cluster has enabled, as far as metadata said so; none is ever taken away."""
        return self._features

    @property
    def lease_ms(self) -> int:
        """Time in ms for which a coordinator's lease is good; 0 before the first message."""
        return self._lease_ms

    @property
    def connected(self) -> bool:
        """Whether an instance of metadata is pushing now, so that the view is up to date."""
        return self._connected

    @property
    def instance(self) -> int:
        """Index of the instance of metadata that is watched; see `Channels.channel`."""
        return self._instance

    @property
    def changes(self) -> int:
        """Grows with each change of cluster or catalog; 0 before the first message."""
        return self._changes

    def age_ms(self) -> int | None:
        """How long ago a majority of the log's nodes last confirmed the view, ms.

        None before the first message. The standing stream of an instance that does not say it means now.
        """
        if self._true_at_ms is None:
            return None
        return 0 if self._connected and not self._beats else max(0, clock.boot_ms() - self._true_at_ms)

    @property
    def log_ahead_ms(self) -> int | None:
        """How far the wall clocks of the log's nodes are ahead of this boot clock, ms; None: not known."""
        return self._log_ahead_ms

    def wall_clock_off_ms(self) -> int | None:
        """How far this process's wall clock is ahead of the log's, ms; None: not known."""
        if self._log_ahead_ms is None:
            return None
        return clock.wall_ms() - clock.boot_ms() - self._log_ahead_ms

    def owner(self, shard: int) -> discovery_pb2.ShardOwner | None:
        """The entry of a shard in the owner table; None if there is none."""
        return self._owners.get(shard)

    def node(self, node_id: str) -> discovery_pb2.CoordinatorNode | None:
        """A coordinator by name; None if the newest view has no such one."""
        return self._nodes.get(node_id)

    def internal_address(self, node_id: str) -> Address | None:
        """Where a coordinator answers internal calls, by its lease; None if the newest view has no such."""
        node = self._nodes.get(node_id)
        return None if node is None else self._internal.get(node_id) or Address(node.host, node.port)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` on the loop after each change.

        Returns:
            Ends the subscription.
        """
        self._subscribers.append(callback)

        def unsubscribe() -> None:
            with suppress(ValueError):
                self._subscribers.remove(callback)

        return unsubscribe

    async def wait_change(self, after: int) -> int:
        """Waits until `changes` is above `after` and returns it. Quick changes are merged."""
        while self._changes <= after:
            await self._changed.wait()
        return self._changes

    async def start(self) -> None:
        """Begins to watch. Wait for the first view with `wait_change(0)`."""
        if self._task is None:
            self._task = asyncio.create_task(self._watch_forever(), name="cluster-view")

    async def stop(self) -> None:
        """Ends watching; what is known stays readable."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._connected = False

    async def _watch_forever(self) -> None:
        failures = 0
        while True:
            problem, heard = await self._watch_once()
            failures = 1 if heard else failures + 1
            self._connected = False
            address = str(self._channels.addresses[self._instance % len(self._channels)])
            if heard or failures <= len(self._channels):
                log.warning("metadata_watch_ended", address=address, problem=problem)
            self._instance += 1
            if failures >= len(self._channels):
                await asyncio.sleep(_pause_ms(failures - len(self._channels)) / 1000)

    async def _watch_once(self) -> tuple[str, bool]:
        """Watches one instance until it fails; says why, and whether it had pushed anything."""
        stream: Any = None
        heard = shown = False
        patience_s: float | None = self._first_view_timeout_s
        try:
            channel = self._channels.channel(self._instance)
            stub: metadata_pb2_grpc.MetadataServiceAsyncStub
            stub = metadata_pb2_grpc.MetadataServiceStub(channel)
            self._request.last_known = self._cluster is None
            stream = stub.Watch(self._request, wait_for_ready=False)
            message = await read_within(stream, patience_s)
            while isinstance(message, metadata_pb2.WatchResponse):
                if message.cluster.shard_count and not shown:
                    shown = True
                    self._check_age(message)
                heard = self._apply(message) or heard
                if self._channels.channel(self._instance) is not channel:
                    return "the certificates were renewed", heard
                patience_s = message.lease_ms / 1000 if message.beat_ms else None
                message = await read_within(stream, patience_s)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}", heard
        except TimeoutError:
            return f"it sent nothing for {patience_s:g} s", heard
        except (ForeignClusterError, OlderMetadataError) as error:
            return str(error), heard
        except Exception as error:  # a watch that ended for good would leave a view that silently grows old
            log.exception("metadata_watch_failed")
            return repr(error), heard
        finally:
            if stream is not None:
                stream.cancel()
        return "it ended the stream", heard

    def _check_age(self, first: metadata_pb2.WatchResponse) -> None:
        """Refuses an instance whose first message lacks a feature that is known to be enabled."""
        if self._features - set(first.catalog.features):
            raise OlderMetadataError("it does not know which features the cluster has enabled")

    def _apply(self, message: metadata_pb2.WatchResponse) -> bool:
        """Takes in a message; False: no majority of the log's nodes confirmed it, or it is empty."""
        outdated = message.lease_ms > 0 and message.majority_age_ms >= message.lease_ms
        if outdated and self._cluster is not None:
            return False
        cluster, catalog, internal = self._cluster, self._catalog, self._internal
        if message.cluster.shard_count:
            cluster = merge_cluster(cluster, message.cluster)
            internal = {one.node_id: Address(one.host, one.port) for one in message.internal_addresses}
            catalog = merge_catalog(catalog, message.catalog) if message.HasField("catalog") else catalog
        elif not message.beat_ms or cluster is None:
            return False  # the cluster is not initialised yet
        self._true_at_ms = clock.boot_ms() - message.majority_age_ms
        self._beats = message.beat_ms > 0
        self._lease_ms = message.lease_ms or self._lease_ms
        if message.log_time_ms and not outdated:
            self._log_ahead_ms = message.log_time_ms - clock.boot_ms()
            self._look_at_clock()
        if not outdated and not self._connected:
            self._connected = True
            log.info(
                "metadata_watch_began",
                address=str(self._channels.addresses[self._instance % len(self._channels)]),
            )
        if catalog is not self._catalog or (cluster, internal) != (self._cluster, self._internal):
            self._cluster, self._catalog, self._internal = cluster, catalog, internal
            if catalog is not None:
                self._features |= set(catalog.features)
            self._owners = {owner.shard: owner for owner in cluster.shards}
            self._nodes = {node.node_id: node for node in cluster.coordinators}
            self._notify()
        return not outdated

    def _look_at_clock(self) -> None:
        """Logs once when the wall clock is wrong, and once when it is right again."""
        off_ms = self.wall_clock_off_ms() or 0
        wrong = abs(off_ms) > WALL_CLOCK_LIMIT_MS
        if wrong == self._clock_wrong:
            return
        self._clock_wrong = wrong
        if wrong:
            log.error(
                "wall_clock_wrong",
                ahead_ms=off_ms,
                remedy="set the clock of this machine: retention pauses until it agrees with the log's nodes",
            )
        else:
            log.info("wall_clock_right", ahead_ms=off_ms)

    def _notify(self) -> None:
        self._changes += 1
        self._changed.set()
        self._changed = asyncio.Event()
        for callback in tuple(self._subscribers):
            try:
                callback()
            except Exception:
                log.exception("view_subscriber_failed")


def _pause_ms(rounds: int) -> float:
    longest = min(BACKOFF_MAX_MS, BACKOFF_MIN_MS << min(rounds, 10))
    return longest * between(0.5, 1)
