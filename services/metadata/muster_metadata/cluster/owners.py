"""Who owns which shard: hints, made of the claims and of what coordinators serve. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache

from muster_protos.muster.v1 import discovery_pb2

from muster_metadata.cluster.leases import DEAD, LeaseRow
from muster_metadata.cluster.stored_values import stored_number, stored_text


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """The last known claim of a shard.

    Attributes:
        epoch: its epoch.
        node_id: name of the owner.
        session: process of the owner.
    """

    epoch: int
    node_id: str
    session: str

    def to_json(self) -> str:
        """As the table stores it."""
        return json.dumps(asdict(self))

    @classmethod
    @lru_cache(maxsize=16_384)  # Several nodes have the same row, and are read again and again.
    def from_json(cls, text: bytes) -> "OwnerRow":
        """Reads a row as the table stores it.

        Raises:
            ValueError: it is no row.
        """
        try:
            row = cls(**json.loads(text))
            return cls(stored_number(row.epoch), stored_text(row.node_id), stored_text(row.session))
        except (TypeError, RecursionError) as error:
            raise ValueError("not an owner row") from error


def highest(tables: Iterable[Mapping[int, OwnerRow]]) -> dict[int, OwnerRow]:
    """The row with the highest epoch of each shard."""
    best: dict[int, OwnerRow] = {}
    for table in tables:
        for shard, row in table.items():
            known = best.get(shard)
            if known is None or row.epoch > known.epoch:
                best[shard] = row
    return best


def owners(
    shard_count: int,
    claims: Mapping[int, OwnerRow],
    coordinators: Iterable[tuple[LeaseRow, "discovery_pb2.CoordinatorState.ValueType"]],
) -> list[discovery_pb2.ShardOwner]:
    """The owner of each shard, in order.

    The higher epoch wins. A coordinator that is dead, has given its lease up, or is an earlier process of its
    name owns nothing.
    """
    alive = {row.node_id: row for row, state in coordinators if state != DEAD}
    best = dict(claims)
    served: dict[tuple[int, int], str] = {}
    for row in alive.values():
        for shard, epoch in row.serving:
            served[shard, epoch] = row.node_id
            known = best.get(shard)
            if known is None or epoch > known.epoch:
                best[shard] = OwnerRow(epoch, row.node_id, row.session)
    result = []
    for shard in range(shard_count):
        owner = best.get(shard)
        if owner is None:
            result.append(discovery_pb2.ShardOwner(shard=shard))
            continue
        holder = alive.get(owner.node_id)
        holds = holder is not None and holder.session == owner.session
        result.append(
            discovery_pb2.ShardOwner(
                shard=shard,
                shard_epoch=owner.epoch,
                node_id=owner.node_id if holds else "",
                serving=holds and served.get((shard, owner.epoch)) == owner.node_id,
            )
        )
    return result
