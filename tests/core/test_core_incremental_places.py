"""Who has which place in an incremental group: static ids, member ids, and the kind of the group."""

import pytest
from kit.lives.incremental_shard import (
    AWAY,
    GROUP,
    JOIN,
    LEAVE,
    NumberedMember,
    incremental_of,
    incremental_shard,
    joined,
    settle,
)
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from kit.logs.snapshots import check_every_cut
from muster_core import error_code
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def plain(cluster: VirtualShard, member_id: str, epoch: int, instance: str) -> ConsumerGroupHeartbeatResponse:
    """A request of a static member that names no join."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP, member_id=member_id, member_epoch=epoch, group_instance_id=instance
    )
    if epoch == JOIN:
        request.topics.names.append("t")
        request.rebalance_timeout_ms = 30_000
        request.owned.SetInParent()
    answer = cluster.ask(request)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


@pytest.mark.parametrize("is_numbered", [True, False])
def test_a_static_id_that_a_member_had_before_is_free(is_numbered: bool) -> None:
    cluster = incremental_shard()
    if is_numbered:
        member = NumberedMember(cluster, "a", instance="before")
        member.join()
        member.instance = "after"
        member.join()
    else:
        plain(cluster, "a", JOIN, "before")
        plain(cluster, "a", JOIN, "after")
    assert dict(incremental_of(cluster).statics) == {"after": "a"}
    check_every_cut(cluster.log, cluster.config)
    if is_numbered:
        member.leave(LEAVE)
    else:
        plain(cluster, "a", LEAVE, "after")
    assert not plain(cluster, "b", JOIN, "before").error_code


def test_a_process_takes_no_place_under_the_id_of_a_member_that_lives() -> None:
    """What that member works on would be given to others while it does."""
    cluster = incremental_shard()
    joined(cluster, "b")
    away = NumberedMember(cluster, "a", instance="i")
    away.join()
    away.leave(AWAY)
    other = NumberedMember(cluster, "b", instance="i", process="other")
    place = incremental_of(cluster).members["a"].joined
    count = len(cluster.log)
    assert other.join(replaces=place).error_code == error_code.INVALID_REQUEST
    assert plain(cluster, "b", JOIN, "i").error_code == error_code.INVALID_REQUEST
    assert len(cluster.log) == count
    successor = NumberedMember(cluster, "c", instance="i")
    assert not successor.join(replaces=place).error_code
    settle(successor)
    check_every_cut(cluster.log, cluster.config)


def test_nobody_joins_what_classic_members_are_about_to_have() -> None:
    """A group whose incremental members have gone has classic ones before the log knows of them."""
    cluster = incremental_shard()
    (last,) = joined(cluster, "a")
    last.leave(LEAVE)
    classic = VirtualMember(cluster, "classic").join()
    assert last.join().error_code == error_code.GROUP_ID_NOT_FOUND
    cluster.advance(cluster.config.initial_rebalance_delay_ms)
    assert not classic.joined().error_code
    classic.sync({classic.member_id: b"all"})
    assert not classic.synced().error_code
    classic.leave()
    assert not last.join().error_code


def test_the_names_that_members_subscribe_to_count_as_held() -> None:
    """A call may name as many as fit into a megabyte: nobody fills the memory with names of no topics."""
    cluster = incremental_shard()
    joined(cluster, "a")
    before = cluster.shard.groups[GROUP].weight_bytes
    names = [f"no-topic-{number}" for number in range(1_000)]
    request = NumberedMember(cluster, "b").request(JOIN)
    request.member_seq, request.rebalance_timeout_ms = 1, 30_000
    request.owned.SetInParent()
    request.topics.names.extend(names)
    cluster.ask(request)
    after = cluster.shard.groups[GROUP].weight_bytes
    assert after - before > sum(len(name) for name in names)
    request.member_epoch = LEAVE
    cluster.ask(request)
    assert incremental_of(cluster).held_bytes < after - before
    check_every_cut(cluster.log, cluster.config)


def test_as_in_kafka_a_member_without_numbers_gives_up_its_own_place_for_another() -> None:
    cluster = incremental_shard()
    plain(cluster, "a", JOIN, "i")
    plain(cluster, "b", JOIN, "j")
    plain(cluster, "a", AWAY, "i")
    assert not plain(cluster, "b", JOIN, "i").error_code
    assert dict(incremental_of(cluster).statics) == {"i": "b"}
    check_every_cut(cluster.log, cluster.config)
    plain(cluster, "b", LEAVE, "i")
    assert not plain(cluster, "c", JOIN, "j").error_code
