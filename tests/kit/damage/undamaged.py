"""What the nodes of a cluster hold before any damage, and can hold again."""

from collections.abc import Sequence
from typing import Any

import redis
from kit.damage.target import Entry
from muster_core.position import Position

_SCRATCH = b"muster:scratch"


class Undamaged:
    """The keys of the nodes, as they are when this is made.

    Args:
        ports: of the nodes.

    Attributes:
        nodes: connections.
        whole: of each node, key → value as the server dumps it.
        acknowledged: of each log (without `:log`), the position up to which it is acknowledged.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self.nodes: list[Any] = [redis.Redis(port=port) for port in ports]
        self.whole = [{key: node.dump(key) for key in node.keys("muster:*")} for node in self.nodes]
        self.acknowledged = {
            key.removesuffix(b":acknowledged"): max(
                Position.parse((node.get(key) or b"0-0").decode()) for node in self.nodes
            )
            for key in self.whole[0]
            if key.endswith(b":acknowledged")
        }

    def hash(self, key: bytes, node: Any) -> dict[bytes, bytes]:
        """What a hash was on a node; empty: there was none."""
        whole = self.whole[self.nodes.index(node)].get(key)
        if whole is None:
            return {}
        node.restore(_SCRATCH, 0, whole, replace=True)
        try:
            return dict(node.hgetall(_SCRATCH))
        finally:
            node.delete(_SCRATCH)

    def entries(self, key: bytes, node: Any = None) -> list[Entry]:
        """What a node held, or the first one."""
        node = self.nodes[0] if node is None else node
        node.restore(_SCRATCH, 0, self.whole[self.nodes.index(node)][key], replace=True)
        try:
            return list(node.xrange(_SCRATCH))
        finally:
            node.delete(_SCRATCH)

    def changed(self) -> bool:
        """Whether anything is damaged."""
        return any(
            {key: node.dump(key) for key in node.keys("muster:*")} != whole
            for node, whole in zip(self.nodes, self.whole, strict=True)
        )

    def restore(self) -> None:
        """Undoes all damages."""
        for node, whole in zip(self.nodes, self.whole, strict=True):
            for key in {*node.keys("muster:*"), *whole}:
                if key not in whole:
                    node.delete(key)
                elif node.dump(key) != whole[key] or node.pttl(key) >= 0:
                    node.restore(key, 0, whole[key], replace=True)
