"""A caller whose commit cannot be stored is told why, while the log's nodes are out of memory (LIM-52)."""

from pathlib import Path

import pytest
from coordinator.coordinator_cluster import Coordinators, owns
from kit.metadata.metadata_instances import metadata_cluster
from kit.waiting import until, until_equal
from muster_core import error_code
from muster_protos.muster.v1 import coordinator_pb2

pytestmark = pytest.mark.cluster


def commit(offset: int) -> coordinator_pb2.OffsetCommitRequest:
    partition = coordinator_pb2.OffsetCommitRequest.Partition(offset=offset)
    topic = coordinator_pb2.OffsetCommitRequest.Topic(name="t", partitions=[partition])
    return coordinator_pb2.OffsetCommitRequest(group_id="g", generation=-1, topics=[topic])


async def test_a_commit_says_that_the_nodes_of_the_log_are_out_of_memory(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1, shards=1) as cluster, cluster.client(0) as node:
        coordinators = Coordinators([cluster[0].address])
        coordinator = await coordinators.add("a", join_delay_ms=0)
        await owns(coordinator, 1)
        stub = coordinators.caller(coordinator).stub
        await node.config_set("maxmemory", "1")

        async def is_said() -> bool:
            answer = await stub.OffsetCommit(commit(1), timeout=60)
            assert answer.topics[0].partitions[0].error_code == error_code.COORDINATOR_NOT_AVAILABLE
            return "1 of 1 nodes of the log take no records: it is out of memory" in answer.error_message

        await until(is_said, "the caller is told why")  # on a busy machine the lease may lapse before
        await node.config_set("maxmemory", "0")

        async def outcome() -> int:
            answer = await stub.OffsetCommit(commit(2), timeout=60)
            return int(answer.topics[0].partitions[0].error_code)

        await until_equal(outcome, error_code.NONE)
        await coordinators.stop()
