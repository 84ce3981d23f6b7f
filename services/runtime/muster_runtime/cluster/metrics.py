"""What a process knows of the cluster, in numbers: how new it is, who is alive, which shards nobody owns."""

from collections import Counter as Count
from collections.abc import Sequence

from muster_protos.muster.v1 import discovery_pb2

from muster_runtime import clock
from muster_runtime.cluster.view import ClusterView
from muster_runtime.telemetry import Kind, Metric, Sample, Source

_ROLE = {"role": ("discovery", "coordinator")}
_STATES = {
    value: name.removeprefix("COORDINATOR_STATE_").lower()
    for name, value in discovery_pb2.CoordinatorState.items()
}
_SERVES = frozenset({discovery_pb2.COORDINATOR_STATE_LIVE, discovery_pb2.COORDINATOR_STATE_DRAINING})

VIEW_AGE = Metric(
    "muster_view_age",
    Kind.GAUGE,
    "How long ago a majority of the Redis nodes last confirmed the view.",
    "seconds",
    labels=_ROLE,
    advice="Above 5 s: no instance of metadata can be reached, or none reaches a majority of Redis.",
)
CLOCK_AHEAD = Metric(
    "muster_wall_clock_ahead",
    Kind.GAUGE,
    "How far the wall clock of the process is ahead of those of the log's nodes; negative: behind.",
    "seconds",
    labels=_ROLE,
    advice="Beyond a minute: set the clock of that machine. A coordinator expires and trims nothing "
    "meanwhile. Absent: a majority of the nodes does not tell its time, or their clocks are apart; "
    "`muster doctor` compares them.",
)
VIEW_CHANGES = Metric(
    "muster_view_changes", Kind.COUNTER, "Changes of the cluster or its topics that were seen.", labels=_ROLE
)
COORDINATORS = Metric(
    "muster_coordinators",
    Kind.GAUGE,
    "Coordinators in the view, by state.",
    labels={**_ROLE, "state": tuple(_STATES.values())},
    advice="Fewer live ones than are deployed: look at the missing one's log.",
)
LOG_NODES = Metric(
    "muster_log_nodes",
    Kind.GAUGE,
    "Redis nodes of the log in the view, by whether they are well.",
    labels={**_ROLE, "state": ("well", "not_well")},
    advice="`muster doctor --nodes` says what is wrong; docs/failures.md what to do. Without a majority "
    "nothing is stored.",
)
SHARDS_UNOWNED = Metric(
    "muster_shards_unowned",
    Kind.GAUGE,
    "Shards that no coordinator owns that is alive.",
    labels=_ROLE,
    advice="For longer than a lease time: no coordinator can claim; look for `claim_lost`, `claim_failed`.",
)
SHARD_UNOWNED_SECONDS = Metric(
    "muster_shard_unowned",
    Kind.COUNTER,
    "Time that shards had no owner that is alive, added up over all shards.",
    "seconds",
    labels=_ROLE,
    advice="Its growth is what clients waited for: about the lease time per shard when a machine is lost, "
    "next to nothing when a process dies or hands over.",
)
TOPICS = Metric("muster_topics", Kind.GAUGE, "Topics of the catalog.", labels=_ROLE)


class ViewSource(Source):
    """The numbers of a process's view.

    Args:
        view: the cluster; it may change from now on.
        role: whose view it is.
    """

    metrics: Sequence[Metric] = (
        VIEW_AGE,
        CLOCK_AHEAD,
        VIEW_CHANGES,
        COORDINATORS,
        LOG_NODES,
        SHARDS_UNOWNED,
        SHARD_UNOWNED_SECONDS,
        TOPICS,
    )

    def __init__(self, view: ClusterView, role: str) -> None:
        self._view = view
        self._role = role
        self._began_ms = clock.boot_ms()
        self._unowned = 0
        self._unowned_ms = 0
        self._counted_ms = clock.boot_ms()
        view.subscribe(self._changed)

    def _changed(self) -> None:
        """Called when the view changed: the times until now belong to the old one."""
        now_ms = clock.boot_ms()
        self._unowned_ms += self._unowned * (now_ms - self._counted_ms)
        self._counted_ms = now_ms
        self._unowned = self._count_unowned()

    def _count_unowned(self) -> int:
        cluster = self._view.cluster
        if cluster is None:
            return 0
        serving = {node.node_id for node in cluster.coordinators if node.state in _SERVES}
        owned = sum(owner.node_id in serving for owner in cluster.shards)
        return cluster.shard_count - owned

    async def read(self) -> Sequence[Sample]:
        """See `Source`."""
        self._changed()
        view, role = self._view, self._role
        age_ms = view.age_ms()
        if age_ms is None:
            age_ms = clock.boot_ms() - self._began_ms
        samples = [
            Sample(VIEW_AGE, age_ms / 1000, (role,)),
            Sample(VIEW_CHANGES, view.changes, (role,)),
            Sample(SHARDS_UNOWNED, self._unowned, (role,)),
            Sample(SHARD_UNOWNED_SECONDS, self._unowned_ms / 1000, (role,)),
            Sample(TOPICS, 0 if view.catalog is None else len(view.catalog.topics), (role,)),
        ]
        if (ahead_ms := view.wall_clock_off_ms()) is not None:
            samples.append(Sample(CLOCK_AHEAD, ahead_ms / 1000, (role,)))
        if view.cluster is not None:
            states = Count(_STATES.get(node.state, "") for node in view.cluster.coordinators)
            well = sum(node.available for node in view.cluster.log_nodes)
            samples += [Sample(COORDINATORS, states[name], (role, name)) for name in _STATES.values()]
            samples.append(Sample(LOG_NODES, well, (role, "well")))
            samples.append(Sample(LOG_NODES, len(view.cluster.log_nodes) - well, (role, "not_well")))
        return samples
