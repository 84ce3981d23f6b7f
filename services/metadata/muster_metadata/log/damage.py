"""Says which node has a damaged copy of a log: at once, and then rarely while it is met again."""

from muster_runtime.clock import boot_ms
from muster_runtime.logs import alarm

from muster_metadata.nodes.node import Node

_AGAIN_MS = 600_000


def report_damage(node: Node, shard: int, problem: str, *, snapshot: bool = False) -> None:
    """Raises the alarm `log_node_damaged`, once in ten minutes for the same log of a node.

    Repairs and claims meet the same damage several times a second, each time at another place.

    Args:
        node: which one has it.
        shard: of which log.
        problem: what is wrong, for people.
        snapshot: whether a snapshot is damaged, not the log.
    """
    now_ms, place = boot_ms(), (shard, snapshot)
    last_ms = node.damage_reported_ms.get(place)
    if last_ms is not None and now_ms - last_ms < _AGAIN_MS:
        return
    node.damage_reported_ms[place] = now_ms
    alarm("log_node_damaged", node=node.index, address=node.place, shard=shard, problem=problem)


def damage_is_repaired(node: Node, shard: int) -> None:
    """The log of a node was repaired: whatever is found there from now on is new."""
    node.damage_reported_ms.pop((shard, False), None)
