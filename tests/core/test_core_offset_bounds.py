"""The offsets of a group are limited in number and in bytes, before they are stored (LIM-35)."""

import pytest
from kit.lives.virtual_shard import VirtualShard, fetched, settled
from muster_core import error_code
from muster_core.config import GroupConfig
from muster_core.protocol.room import Limit, Room
from muster_core.state.offsets.offset_store import weight_of
from muster_protos.muster.v1 import coordinator_pb2

FEW = GroupConfig(max_offsets=10)
ROOM_BYTES = 10 * weight_of(("t", 0), "m" * 100)
LITTLE = GroupConfig(max_offset_bytes=ROOM_BYTES)


def commit(cluster: VirtualShard, partitions: range, metadata: str = "", group_id: str = "g") -> str:
    """Commits as nobody's member; gives the name of the code, and the text where there is one."""
    return told(cluster, cluster.send(asked(partitions, metadata, group_id)))


def asked(partitions: range, metadata: str = "", group_id: str = "g") -> coordinator_pb2.OffsetCommitRequest:
    request = coordinator_pb2.OffsetCommitRequest(group_id=group_id, generation=-1)
    topic = request.topics.add(name="t")
    for number in partitions:
        topic.partitions.add(partition=number, offset=7, metadata=metadata)
    return request


def told(cluster: VirtualShard, call: int) -> str:
    answer = cluster.answer(call)
    assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
    code = answer.topics[0].partitions[0].error_code
    return answer.error_message if code == error_code.INVALID_REQUEST else str(code)


def test_a_group_has_as_many_offsets_as_it_may_and_no_more() -> None:
    cluster = VirtualShard(FEW)
    refused: list[Limit] = []
    cluster.shard.live_in(Room(refused=refused.append))
    assert "MUSTER_GROUP_MAX_OFFSETS" in commit(cluster, range(11))
    assert commit(cluster, range(10)) == "0"
    assert "limit of 10 committed partitions" in commit(cluster, range(9, 11))
    assert refused == [Limit.OFFSETS] * 2
    assert commit(cluster, range(10)) == "0", "it adds nothing"
    assert len(cluster.shard.groups["g"].offsets) == 10
    assert commit(cluster, range(10), group_id="other") == "0"


def test_the_offsets_of_a_group_hold_as_many_bytes_as_they_may_and_no_more() -> None:
    cluster = VirtualShard(LITTLE)
    refused: list[Limit] = []
    cluster.shard.live_in(Room(refused=refused.append))
    assert commit(cluster, range(9), "m" * 100) == "0"
    assert "MUSTER_GROUP_MAX_OFFSET_BYTES" in commit(cluster, range(9, 10), "m" * 101)
    assert commit(cluster, range(9, 10), "m" * 100) == "0"
    assert cluster.shard.groups["g"].offsets.held_bytes == ROOM_BYTES
    assert "MUSTER_GROUP_MAX_OFFSET_BYTES" in commit(cluster, range(1), "m" * 101)
    assert refused == [Limit.OFFSET_BYTES] * 2
    assert commit(cluster, range(10), "n" * 100) == "0", "it adds nothing"
    assert commit(cluster, range(5)) == "0"
    assert commit(cluster, range(5, 6), "m" * 600) == "0", "there is room again"


@pytest.mark.parametrize("config", [FEW, LITTLE])
def test_commits_on_their_way_count(config: GroupConfig) -> None:
    cluster = VirtualShard(config)
    cluster.auto_ack = False
    calls = [cluster.send(asked(range(first, first + 3), "m" * 100)) for first in range(0, 30, 3)]
    while cluster.waiting:
        cluster.acknowledge()
    assert [told(cluster, call) == "0" for call in calls] == [True] * 3 + [False] * 7
    cluster.auto_ack = True
    assert commit(cluster, range(9), "m" * 100) == "0", "nothing is left of what was on its way"
    assert commit(cluster, range(9, 10), "m" * 50) == "0"


def test_a_group_above_a_limit_is_loaded_and_goes_on() -> None:
    roomy = VirtualShard()
    (member,) = settled(roomy, "a")
    for partition in range(20):
        assert member.commit(5, partition=partition) == error_code.NONE
    cluster = VirtualShard(GroupConfig(max_offsets=10, max_offset_bytes=65_536), roomy.log)
    member.cluster = cluster
    assert member.commit(6) == error_code.NONE
    assert fetched(cluster) == 6
    assert member.commit(1, partition=20) == error_code.INVALID_REQUEST
