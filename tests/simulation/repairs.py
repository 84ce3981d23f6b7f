"""Looks at the repairs of the log's nodes: whoever finds nothing missing does not go on looking (LOG-69)."""

from collections import deque

from muster_metadata.log.states import Repaired
from simulation.cluster import Cluster
from simulation.processes import Process
from simulation.servers import MetadataRole
from simulation.violations import Violations

IDLE_MAX = 200
"""Most repairs of an instance within a minute that may find nothing missing: one of each log at each node
each time that it looks at the logs, every five seconds (LOG-69). Ten to twenty are usual."""

_MINUTE_S = 60.0


class Repairs:
    """Counts the repairs of each instance of metadata that found nothing missing.

    Args:
        cluster: whose instances.
        violations: takes what is wrong.

    Attributes:
        most_idle: most of them that an instance made within a minute.
    """

    def __init__(self, cluster: Cluster, violations: Violations) -> None:
        self.most_idle = 0
        self._cluster = cluster
        self._violations = violations
        self._counts: dict[Process, deque[tuple[float, int]]] = {}

    def look(self) -> None:
        """Looks at the last minute of each instance that runs; called every few seconds."""
        now_s = self._cluster.world.now_s
        for name, role in self._cluster.roles.items():
            process = self._cluster.servers.get(name)
            if process is None or not isinstance(role, MetadataRole):
                continue
            counts = self._counts.setdefault(process, deque([(now_s, 0)]))
            counts.append((now_s, role.server.metadata.upkeep.repairs[Repaired.LEVEL]))
            while counts[0][0] < now_s - _MINUTE_S:
                counts.popleft()
            idle = counts[-1][1] - counts[0][1]
            self.most_idle = max(self.most_idle, idle)
            self._violations.expect(
                "X3",
                idle <= IDLE_MAX,
                f"{name} began {idle} repairs within a minute that found nothing missing",
            )
