"""Copies leases to a node that lost its data, before it counts again."""

import asyncio

from muster_metadata.cluster.leases import LeaseRow, merged
from muster_metadata.cluster.tables import lease_rows
from muster_metadata.nodes import keys
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import Status


class LeaseCopies:
    """Copies leases to nodes that lost them.

    Otherwise two nodes that were filled one after the other would say that a name was never used. Its next
    process would get too low a number: the third node has a higher one, of an earlier process.

    Args:
        quorum: the nodes.
    """

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum

    async def copy_to(self, node: Node) -> bool:
        """Copies to an empty node the leases that a majority of the others has.

        Returns:
            Whether the node has them all; if not, try again.
        """
        others = [other for other in self._quorum.nodes if other is not node]
        for table in (keys.LEASES_BEFORE_FEATURES, keys.LEASES):
            replies = await asyncio.gather(*(other.ask("HGETALL", table) for other in others))
            # Once leases were moved to the second table, the first one is no longer a table.
            answered = [reply for reply in replies if reply.status in (Status.OK, Status.BROKEN)]
            if len(answered) < self._quorum.majority:
                return False
            known = [lease_rows(reply.values[0]) for reply in answered if reply.status is Status.OK]
            rows = merged(known, self._quorum.majority)
            stored = await asyncio.gather(*(_store(node, table, row) for row in rows.values()))
            if not all(stored):
                return False
        return True


async def _store(node: Node, table: str, row: LeaseRow) -> bool:
    rest = (row.node_id, row.run, row.counter, row.to_json())
    return (await node.table("adopt", (table, keys.NODE), *rest)).done
