"""All scenarios: importing a module of them adds its own to the list."""

from chaos import coordinators, members, network, nodes, snapshots
from chaos.scenario import SCENARIOS

__all__ = ["SCENARIOS", "coordinators", "members", "network", "nodes", "snapshots"]
