"""What a coordinator hides from a sweep of garbage: all that its groups are made of (LIM-18)."""

import ctypes
import gc

import pytest
from kit.lives.virtual_shard import VirtualMember, VirtualShard, settled
from muster_coordinator.log.in_use import in_use
from muster_protos.muster.v1 import coordinator_pb2

_untrack = ctypes.pythonapi.PyObject_GC_UnTrack
_track = ctypes.pythonapi.PyObject_GC_Track
_untrack.argtypes = _track.argtypes = [ctypes.py_object]
_untrack.restype = _track.restype = None


@pytest.fixture
def cluster() -> VirtualShard:
    return filled()


def filled() -> VirtualShard:
    """Fifty groups that only commit, one with 2,000 topics, one with members, one whose join is parked."""
    cluster = VirtualShard()
    for number in range(50):
        cluster.ask(commit(f"g{number}", 1))
    cluster.ask_in_turns(commit("large", 2_000))
    settled(cluster, "a", "b", "c")
    VirtualMember(cluster, "d", "joining").join()
    return cluster


def commit(group_id: str, topics: int) -> coordinator_pb2.OffsetCommitRequest:
    request = coordinator_pb2.OffsetCommitRequest(group_id=group_id, generation=-1)
    for number in range(topics):
        request.topics.add(name=f"t{number}").partitions.add(partition=0, offset=1)
    return request


def hidden_of(cluster: VirtualShard) -> list[object]:
    hidden: list[object] = []
    for portion in in_use([cluster.shard]):
        for one in portion:
            _untrack(one)
        hidden += portion
    return hidden


def parts() -> list[object]:
    """What groups are made of, as far as the collector looks at it."""
    gc.collect()
    return [one for one in gc.get_objects() if str(type(one).__module__).startswith("muster_core.state")]


def shown(hidden: list[object]) -> None:
    for one in hidden:
        if not gc.is_tracked(one):
            _track(one)


@pytest.mark.slow
def test_all_that_groups_are_made_of_is_hidden() -> None:
    """Members, generations and offsets too: of 100,000 groups a sweep held the loop for 0.4 s."""
    there = {*map(id, parts())}
    cluster = filled()
    assert len(parts()) > len(there) + 500
    hidden = hidden_of(cluster)
    left = [type(one).__name__ for one in parts() if id(one) not in there]
    shown(hidden)
    assert not left


@pytest.mark.slow
def test_a_portion_is_a_thousand_long_at_most_whatever_a_group_has(cluster: VirtualShard) -> None:
    longest = 0
    hidden: list[object] = []
    for portion in in_use([cluster.shard]):
        longest = max(longest, len(portion))
        for one in portion:
            _untrack(one)
        hidden += portion
    shown(hidden)
    assert 500 < longest <= 1_000


@pytest.mark.slow
def test_groups_go_on_while_they_are_hidden(cluster: VirtualShard) -> None:
    """They come, commit, leave and go meanwhile, and what became garbage is found once it is shown again."""
    portions = in_use([cluster.shard])
    hidden: list[object] = []
    for number, portion in enumerate(portions):
        for one in portion:
            _untrack(one)
        hidden += portion
        if number < 60:
            cluster.ask(commit(f"more{number}", 2))
            cluster.ask(coordinator_pb2.DeleteGroupsRequest(group_ids=[f"g{number}"]))
    settled(cluster, "x", "y", group="later")
    gc.collect()
    shown(hidden)
    del hidden, one, portion
    gc.collect()
    assert "g7" not in cluster.shard.groups
    assert "more7" in cluster.shard.groups
    assert all(map(gc.is_tracked, cluster.shard.groups.values()))
