"""Which library a member of an incremental group uses: shown to people, and kept through changes of kind."""

from core.test_core_conversions import CONFIG, WAIT_MS, stable
from core.test_core_reversions import AUTO, both, convert
from kit.lives.incremental_shard import NumberedMember, incremental_of, incremental_shard
from kit.lives.virtual_shard import VirtualShard
from kit.logs.core_audit import broken_promises
from kit.logs.snapshots import check_every_cut
from muster_core import error_code
from muster_protos.muster.v1 import coordinator_pb2

OLD, NEW = "library/1", "library/2"


def shown(cluster: VirtualShard) -> dict[str, str]:
    """What DescribeGroups says that members use."""
    answer = cluster.ask(coordinator_pb2.DescribeGroupsRequest(group_ids=["g"]))
    assert isinstance(answer, coordinator_pb2.DescribeGroupsResponse)
    return {member.member_id: member.client_version for member in answer.groups[0].members}


def test_a_member_is_shown_with_the_library_of_its_last_join() -> None:
    cluster = incremental_shard()
    member, silent = NumberedMember(cluster, "a"), NumberedMember(cluster, "b")
    member.client_version = OLD
    assert not member.join().error_code
    assert not silent.join().error_code
    beat = member.request(member.epoch)
    beat.client_version = NEW
    assert not member.ask(beat).error_code
    assert shown(cluster) == {"a": OLD, "b": ""}, "a heartbeat that is no join says nothing of it"
    member.client_version = NEW
    assert not member.join().error_code
    assert shown(cluster) == {"a": NEW, "b": ""}
    check_every_cut([*cluster.log], cluster.config)
    assert shown(incremental_shard(4, cluster.log, cluster.config)) == {"a": NEW, "b": ""}


def test_the_next_process_of_a_static_member_is_shown_with_its_own_library() -> None:
    cluster = incremental_shard()
    old = NumberedMember(cluster, "a", instance="i", process="old")
    old.client_version = OLD
    old.join()
    holder = incremental_of(cluster).members["a"].joined
    assert not old.leave(-2).error_code
    new = NumberedMember(cluster, "b", instance="i", process="new")
    new.client_version = NEW
    assert not new.join(replaces=holder).error_code
    assert shown(cluster) == {"b": NEW}


def test_it_is_kept_when_the_group_becomes_incremental_and_classic_again() -> None:
    cluster = incremental_shard(config=CONFIG)
    (member,) = stable(cluster, "a")
    before = shown(cluster)
    assert before == {member.member_id: "library of a"}
    cluster.advance(WAIT_MS)
    assert incremental_of(cluster).members
    assert shown(cluster) == before

    cluster = incremental_shard(config=AUTO)
    (other,) = both(cluster, "a")
    other.client_version = NEW
    assert not other.join().error_code
    assert convert(cluster) == error_code.NONE
    assert cluster.shard.groups["g"].incremental is None
    assert shown(cluster) == {"a": NEW}
    check_every_cut([*cluster.log], AUTO)
    assert not broken_promises(cluster)
