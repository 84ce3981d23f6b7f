"""`muster-audit follow` begins in the middle: with a log that its coordinator has trimmed."""

import signal
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis
from kit.clusters.server_cluster import find, running
from kit.logs.audit_follower import FollowProcess
from kit.waiting import until
from muster_core.log.chain import chain_hash
from muster_core.position import Position
from muster_core.sharding import shard_of
from muster_metadata.nodes.keys import log_keys
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, coordinator_pb2_grpc
from muster_server.verify.stored_logs import StoredLogs

pytest.importorskip("pyarrow", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

GROUP = "progress"
SETTINGS = {"MUSTER_SHARD_LOG_SNAPSHOT_RECORDS": "100", "MUSTER_SHARD_LOG_RETENTION_MS": "1"}
PATIENCE_S = 120


class Shard:
    """The shard of the group, and what its one node holds.

    Args:
        url: address of the log.
    """

    def __init__(self, url: str) -> None:
        with StoredLogs(url) as reader:
            self.number = shard_of(GROUP, reader.shard_count)
            self.keys = log_keys(self.number, reader.shard_count)
        self.redis: Any = redis.Redis.from_url(url)

    def oldest(self) -> Position:
        """Place of the first entry that is left."""
        rows = self.redis.xrange(self.keys.log, count=1)
        return Position.parse(rows[0][0].decode())

    def put(self, record: records_pb2.Record) -> Position:
        """Writes a record after the last one, as only its owner may; gives its place."""
        ((id_, fields),) = self.redis.xrevrange(self.keys.log, count=1)
        place, nonce, data = Position.parse(id_.decode()).after(1), b"n" * 16, record.SerializeToString()
        hash_ = chain_hash(fields[b"h"], place, nonce, data)
        self.redis.xadd(self.keys.log, {"r": data, "n": nonce, "h": hash_}, id=place.stream_id)
        self.redis.set(self.keys.acknowledged, place.stream_id)
        return place


async def commit(address: str, offset: int) -> bool:
    """Commits from outside the group; False: its coordinator is not ready yet."""
    row = coordinator_pb2.OffsetCommitRequest.Partition(partition=offset % 7, offset=offset)
    topic = coordinator_pb2.OffsetCommitRequest.Topic(name="t", partitions=[row])
    request = coordinator_pb2.OffsetCommitRequest(group_id=GROUP, generation=-1, topics=[topic])
    async with grpc.aio.insecure_channel(address) as channel:
        stub: coordinator_pb2_grpc.GroupCoordinatorServiceAsyncStub = (
            coordinator_pb2_grpc.GroupCoordinatorServiceStub(channel)
        )
        answer = await stub.OffsetCommit(request, timeout=30)
    code: int = answer.topics[0].partitions[0].error_code
    return code == common_pb2.ERROR_CODE_NONE


async def test_a_trimmed_log_is_followed_from_its_snapshot(tmp_path: Path) -> None:
    async with running(tmp_path / "cluster", redis_nodes=1, coordinators=1, settings=SETTINGS) as cluster:
        shard, address = Shard(cluster.redis_url), await find(cluster.servers, GROUP)
        offset = 0

        async def trimmed() -> bool:
            nonlocal offset
            offset += await commit(address, offset + 1)
            return shard.oldest().offset > 100

        await until(trimmed, "the log is trimmed", PATIENCE_S)
        name = f"shard {shard.number}"
        one = FollowProcess(cluster.redis_url, tmp_path)
        one.says(f'muster_audit_lag_entries{{log="{name}"}} 0.0\n', "muster_audit_up 1.0\n")
        for coordinator in cluster.coordinators:
            await coordinator.kill()
        # The group is known through the snapshot alone: that this commit is wrong could not be told without.
        wrong = records_pb2.OffsetCommitted(group_id=GROUP, generation=3, member_id="stranger")
        wrong.offsets.add(topic="t", partition=0, offset=1, leader_epoch=-1)
        place = shard.put(records_pb2.Record(offset_committed=wrong))
        one.says('muster_audit_violations_total{invariant="O3"} 1.0\n')
        assert one.end(signal.SIGKILL) == (-signal.SIGKILL, [("O3", place.stream_id)])
        one.metrics.unlink()
        two = FollowProcess(cluster.redis_url, tmp_path)
        two.says(f'muster_audit_lag_entries{{log="{name}"}} 0.0\n', "muster_audit_up 1.0\n")
        assert two.end(signal.SIGTERM) == (1, [])
