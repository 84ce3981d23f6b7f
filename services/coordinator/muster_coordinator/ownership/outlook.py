"""What the cluster looks like from here: the view, and what this process knows better than the view."""

from collections.abc import Callable, Set

from muster_protos.muster.v1 import common_pb2, discovery_pb2
from muster_runtime.addresses import Address
from muster_runtime.cluster.view import ClusterView

from muster_coordinator.ownership.reconcile import Owner, Picture

_REACHABLE = (discovery_pb2.COORDINATOR_STATE_LIVE, discovery_pb2.COORDINATOR_STATE_DRAINING)


class Outlook:
    """Who is live, who owns which shard, and to whom this process gave one.

    Args:
        me: this coordinator, as clients reach it.
        view: the cluster, pushed by metadata.
        held: numbers of the shards that are here, as of now.
        now_ms: boot clock.
        settle_ms: the live set must be unchanged for so long before a shard moves for balance.
        stale_owner_ms: how long entries of the owner table that name this process are not believed after it
            gave a shard up.
    """

    def __init__(
        self,
        me: common_pb2.Coordinator,
        view: ClusterView,
        held: Set[int],
        now_ms: Callable[[], int],
        settle_ms: int,
        stale_owner_ms: int,
    ) -> None:
        self._me = me
        self._view = view
        self._held = held
        self._now_ms = now_ms
        self._settle_ms = settle_ms
        self._stale_owner_ms = stale_owner_ms
        self._lost: dict[int, tuple[int, int]] = {}
        self._given: dict[int, common_pb2.Coordinator] = {}
        self._live: frozenset[str] = frozenset()
        self._live_since_ms = 0
        self._live_here_since_ms: int | None = None

    # --- what this process did

    def gave(self, number: int, successor: common_pb2.Coordinator) -> None:
        """A shard is being handed over: callers are sent to its successor from now on."""
        self._given[number] = successor

    def lost(self, number: int, epoch: int) -> None:
        """A shard is gone from here: a table that still names this process as its owner is not believed."""
        self._lost[number] = (epoch, self._now_ms() + self._stale_owner_ms)

    def took(self, number: int) -> None:
        """A shard is served here."""
        self._given.pop(number, None)

    # --- what there is

    def note_live(self) -> None:
        """Notes who is live, and since when these are."""
        picture = self.picture()
        live = frozenset(picture.live) if picture is not None else frozenset()
        if live != self._live:
            self._live, self._live_since_ms = live, self._now_ms()

    def live_here_ms(self, picture: Picture) -> int | None:
        """How long this process has been seen here as a live one; None: it is not live."""
        if self._me.node_id not in picture.live:
            self._live_here_since_ms = None
            return None
        now_ms = self._now_ms()
        if self._live_here_since_ms is None:
            self._live_here_since_ms = now_ms
        return now_ms - self._live_here_since_ms

    def addresses(self) -> frozenset[Address]:
        """Where all coordinators that are not known to be dead answer internal calls."""
        cluster = self._view.cluster
        nodes = () if cluster is None else cluster.coordinators
        gone = discovery_pb2.COORDINATOR_STATE_DEAD
        found = (self._view.internal_address(node.node_id) for node in nodes if node.state != gone)
        return frozenset(address for address in found if address is not None)

    def picture(self) -> Picture | None:
        """What a plan is made of; None: the cluster is not known yet."""
        cluster = self._view.cluster
        if cluster is None:
            return None
        now_ms = self._now_ms()
        for number, (_, until_ms) in tuple(self._lost.items()):
            if until_ms <= now_ms:
                del self._lost[number]
        return Picture(
            me=self._me.node_id,
            shard_count=cluster.shard_count,
            nodes={node.node_id: node.state for node in cluster.coordinators},
            owners={shard.shard: Owner(shard.node_id, shard.shard_epoch) for shard in cluster.shards},
            held=self._held,
            lost={number: epoch for number, (epoch, _) in self._lost.items()},
            settled=now_ms - self._live_since_ms >= self._settle_ms,
        )

    @property
    def others_live(self) -> bool:
        """Whether the view has other live coordinators, which can take shards over."""
        picture = self.picture()
        return picture is not None and any(node != self._me.node_id for node in picture.live)

    def owner_elsewhere(self, shard: int) -> common_pb2.Coordinator | None:
        """Who owns a shard that is not served here, as far as known; without a node only the epoch counts."""
        owner = self._view.owner(shard)
        given = self._given.get(shard)
        if given is not None and (owner is None or owner.shard_epoch <= given.shard_epoch):
            return given
        if owner is None:
            return None
        node = None if owner.node_id == self._me.node_id else self._view.node(owner.node_id)
        if node is None or node.state not in _REACHABLE:
            return common_pb2.Coordinator(shard=shard, shard_epoch=owner.shard_epoch)
        return common_pb2.Coordinator(
            node_id=node.node_id, host=node.host, port=node.port, shard=shard, shard_epoch=owner.shard_epoch
        )
