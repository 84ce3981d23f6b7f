"""A group whose plans would be too large: whoever brings the topics is refused, and the group goes on."""

import pytest
from conformance import acts
from core.test_core_topics import hear
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core import error_code
from muster_core.record_bounds import RECORD_MAX_BYTES
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

FOREIGN = [("range", b"\xff\xff")]


def wanting(*topics: str) -> list[tuple[str, bytes]]:
    """The protocols of a member that wants topics."""
    return [("range", common_pb2.Subscription(version=1, topics=topics).SerializeToString())]


def asked(member: VirtualMember) -> coordinator_pb2.JoinGroupResponse:
    """The answer to a join that is not parked."""
    answer = member.cluster.answer(member.join().call_id)
    assert isinstance(answer, coordinator_pb2.JoinGroupResponse)
    return answer


def of(cluster: VirtualShard, name: str, *topics: str) -> VirtualMember:
    return acts.member(cluster, name, protocols=wanting(*topics))


def test_a_member_that_wants_more_than_a_plan_gives_is_refused_with_the_limit() -> None:
    cluster = acts.shard(max_partitions=10)
    hear(cluster, 5, {"small": 6, "other": 5, "large": 11})
    refused = asked(of(cluster, "a", "large"))
    assert refused.error_code == error_code.INVALID_REQUEST
    assert refused.error_message == (
        "the topics of the group have 11 partitions, and a plan gives at most 10 "
        "(MUSTER_GROUP_MAX_PARTITIONS)"
    )
    members = acts.stable(cluster, of(cluster, "b", "small"), of(cluster, "c", "small", "absent"))
    assert asked(of(cluster, "d", "other")).error_code == error_code.INVALID_REQUEST, (
        "with what the others want"
    )
    assert [member.heartbeat() for member in members] == [0, 0], "the group does not notice"


def test_what_nobody_wants_any_more_does_not_count() -> None:
    cluster = acts.shard(max_partitions=10)
    hear(cluster, 5, {"small": 6, "other": 5})
    first, second = acts.stable(cluster, of(cluster, "a", "small"), of(cluster, "b", "small"))
    second.leave("done")
    first.protocols = wanting("other")
    first.join()
    assert first.joined().error_code == 0
    third = of(cluster, "c", "other").join()
    first.join()
    assert third.joined().error_code == 0
    assert asked(of(cluster, "d", "small")).error_code == error_code.INVALID_REQUEST


def test_members_whose_wants_are_not_known_are_not_refused() -> None:
    cluster = acts.shard(max_partitions=10)
    acts.joined(cluster, of(cluster, "a", "large"))
    hear(cluster, 5, {"large": 11})
    acts.joined(cluster, acts.member(cluster, "b", group="h", protocols=FOREIGN))


@pytest.mark.parametrize(("partitions", "fits"), [(50, True), (90, False)])
def test_a_plan_that_the_log_cannot_hold_as_one_record_is_refused(partitions: int, fits: bool) -> None:
    """Each member may get a partition of each topic, and names all of them."""
    cluster = acts.shard(initial_rebalance_delay_ms=60_000, max_size=1_000, max_group_bytes=7 << 20)
    topics = [f"{number:0240}" for number in range(200)]
    hear(cluster, 5, dict.fromkeys(topics, partitions))
    answers = [of(cluster, f"m{number}", *topics).join() for number in range(partitions)]
    parked = [cluster.is_parked(member.call_id) for member in answers]
    assert all(parked) == fits
    if not fits:
        refused = cluster.answer(answers[-1].call_id)
        assert isinstance(refused, coordinator_pb2.JoinGroupResponse)
        assert refused.error_code == error_code.INVALID_REQUEST
        assert f"at most {RECORD_MAX_BYTES:,} (RECORD_MAX_BYTES)" in refused.error_message
