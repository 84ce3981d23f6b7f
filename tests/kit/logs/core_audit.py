"""What `muster verify` says of the log that a core alone has made."""

from collections.abc import Iterable

from kit.lives.virtual_shard import VirtualShard
from muster_core.audit.invariants import Violation
from muster_core.audit.log_audit import LogAudit
from muster_core.config import GroupConfig
from muster_core.log.chain import BEFORE_GENESIS, chain_hash
from muster_core.log.page import Page
from muster_core.position import GENESIS, Position
from muster_protos.muster.log.v1 import records_pb2

_CLUSTER = records_pb2.Genesis(cluster_id="c", shard_count=1, shard=0)


def broken_promises(cluster: VirtualShard) -> list[Violation]:
    """Every promise that the log of a shard breaks."""
    return broken_in(cluster.log, cluster.config)


def broken_in(log: Iterable[tuple[Position, records_pb2.Record]], config: GroupConfig) -> list[Violation]:
    """Every promise that the records of a log after its Genesis break."""
    audit = LogAudit(0, cluster=_CLUSTER, limits=config)
    places, datas, nonces, hashes = (
        [GENESIS],
        [records_pb2.Record(genesis=_CLUSTER).SerializeToString()],
        [],
        [],
    )
    for position, record in log:
        if record.HasField("claim"):  # the shard does not know what stands before it
            claim = records_pb2.Claim(node_id="c", previous=places[-1].to_proto())
            record = records_pb2.Record(claim=claim)
        places.append(position)
        datas.append(record.SerializeToString())
    before = BEFORE_GENESIS
    for place, data in zip(places, datas, strict=True):
        nonces.append(_nonce(place))
        before = chain_hash(before, place, nonces[-1], data)
        hashes.append(before)
    audit.add_page(Page(places[0], datas, nonces, hashes, places))
    return audit.finish(places[-1]).violations


def _nonce(place: Position) -> bytes:
    return place.offset.to_bytes(16, "big")
