"""Discovery: names the coordinator of each group, and serves the catalog of topics."""

from muster_discovery.role import Discovery
from muster_discovery.service import DiscoveryService
from muster_discovery.settings import DiscoverySettings

__all__ = ["Discovery", "DiscoveryService", "DiscoverySettings"]
