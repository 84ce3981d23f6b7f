"""What a node that lost its data gets besides its logs, before it counts again."""

from collections.abc import Awaitable, Callable

from muster_metadata.cluster.lease_copies import LeaseCopies
from muster_metadata.cluster.trail import copy_trail
from muster_metadata.nodes.doubts import copy_doubts
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.quorum import Quorum


def refill_of(quorum: Quorum) -> Callable[[Node], Awaitable[bool]]:
    """Returns what copies tables and audit trail to a node, and answers whether it has all of them."""
    leases = LeaseCopies(quorum)

    async def refill(node: Node) -> bool:
        return (
            await leases.copy_to(node) and await copy_doubts(quorum, node) and await copy_trail(quorum, node)
        )

    return refill
