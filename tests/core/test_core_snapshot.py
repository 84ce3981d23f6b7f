"""Snapshots: everything is in them, and what is no snapshot is refused."""

from collections.abc import Callable

import pytest
from core.test_core_golden import Teller
from kit.lives.story import STORIES, read
from kit.lives.virtual_shard import VirtualShard
from kit.logs.log_builder import healthy
from kit.logs.snapshots import check_every_cut, pictures, through_snapshot
from muster_core.config import GroupConfig
from muster_core.log.snapshot import (
    Covered,
    Milestone,
    SnapshotUnusable,
    digest_of,
    nothing_of,
    part_hash,
    parts,
)
from muster_core.position import Position
from muster_core.shard import Shard
from muster_protos.muster.log.v1 import records_pb2, snapshot_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

UPTO = Position(1, 9)


@pytest.mark.parametrize("story", STORIES)
def test_a_golden_story_is_the_same_by_way_of_a_snapshot_at_every_cut(story: str) -> None:
    teller = Teller()
    for step in read(story):
        teller.tell(step)
    assert len(teller.cluster.log) >= 3
    check_every_cut(teller.cluster.log, teller.cluster.config)


def full_group() -> Shard:
    """A group with one of everything."""
    shard = Shard(3, GroupConfig())
    records = [records_pb2.Record.FromString(entry.record) for entry in healthy().entries[:12]]
    for offset, record in enumerate(records, 1):
        shard.replay(Position(1, offset), record)
    commit = records_pb2.OffsetCommitted(
        group_id="g", generation=1, member_id="a", member_seq=9, expire_at_ms=77
    )
    for partition in range(1_200):
        commit.offsets.add(topic="t", partition=partition, offset=partition, leader_epoch=4, metadata="m")
    shard.replay(Position(2, 99), records_pb2.Record(written_at_ms=5, offset_committed=commit))
    cause = common_pb2.RebalanceCause(kind=common_pb2.REBALANCE_CAUSE_KIND_MEMBER_LEFT, member_id="c")
    left = records_pb2.MemberLeft(group_id="g", generation=1, member_id="c", cause=cause)
    shard.replay(Position(2, 100), records_pb2.Record(written_at_ms=6, member_left=left))
    return shard


def test_what_the_log_began_is_finished_after_a_snapshot_too() -> None:
    shard = full_group()
    copy = through_snapshot(shard, UPTO, GroupConfig())
    group = copy.groups["g"]
    assert group.unfinished is not None
    assert group.unfinished.member_id == "c"
    assert group.members["a"].commit_seq == 9
    found = group.offsets.get(("t", 1_199))
    assert found is not None
    assert (found.leader_epoch, found.metadata, found.committed_at_ms, found.expire_at_ms) == (4, "m", 5, 77)
    assert group.owners["t", 2] == ("c", Position(1, 8))
    assert pictures(copy) == pictures(shard)


def test_a_deleted_group_begins_again_with_its_first_generation_and_higher_tokens() -> None:
    cluster = VirtualShard()
    records = [records_pb2.Record.FromString(entry.record) for entry in healthy().entries[:-1]]
    shard = Shard(0, cluster.config)
    for offset, record in enumerate(records, 1):
        shard.replay(Position(1, offset), record)
    copy = through_snapshot(shard, Position(1, len(records)), cluster.config)
    assert copy.groups == {}
    again = records_pb2.Record.FromString(healthy().entries[-1].record)
    copy.replay(Position(2, len(records) + 1), again)
    assert copy.groups["g"].generation == 1
    assert copy.groups["g"].history[0].position == Position(2, len(records) + 1)


def test_the_same_state_gives_the_same_bytes_however_it_came_to_be() -> None:
    covered = Covered(3, UPTO, bytes(32), (Milestone(Position(1, 4), 17),), Position(1, 4))
    first = list(parts(full_group().groups.values(), covered))
    copy = through_snapshot(full_group(), UPTO, GroupConfig())
    assert list(parts(copy.groups.values(), covered)) == first


def test_a_part_ends_where_it_is_large_enough() -> None:
    covered = Covered(3, UPTO, bytes(32))
    whole = list(parts(full_group().groups.values(), covered))
    small = list(parts(full_group().groups.values(), covered, part_bytes=4_096))
    assert len(whole) == 1
    assert len(small) > 3
    assert all(len(part) < 4_096 + 20_000 for part in small)


@pytest.mark.slow
def test_no_part_is_too_large_for_metadata_however_long_the_metadata_of_commits_is() -> None:
    shard = Shard(3, GroupConfig())
    for number in range(500):
        commit = records_pb2.OffsetCommitted(group_id="g", generation=-1)
        commit.offsets.add(topic="t", partition=number, offset=number, metadata="é" * 32_768)
        shard.replay(Position(1, number + 1), records_pb2.Record(written_at_ms=5, offset_committed=commit))
    found = list(parts(shard.groups.values(), Covered(3, UPTO, bytes(32))))
    assert len(found) > 2
    assert max(map(len, found)) < 16 << 20
    assert pictures(through_snapshot(shard, UPTO, GroupConfig())) == pictures(shard)


def test_of_many_milestones_every_second_one_goes_and_the_newest_stays() -> None:
    covered = nothing_of(3)
    for offset in range(1, 3_000):
        covered = Covered(3, Position(1, offset), bytes(32)).following(covered, offset)
    assert covered.previous_upto == Position(1, 2_998)
    kept = covered.milestones
    assert len(kept) <= 513
    assert kept[0] == Milestone(Position(1, 1), 1)
    assert kept[-1] == Milestone(Position(1, 2_999), 2_999)
    assert list(kept) == sorted(kept, key=lambda milestone: milestone.position)


def spoil_header(part: snapshot_pb2.SnapshotPart) -> None:
    del part.items[0]


def spoil_end(part: snapshot_pb2.SnapshotPart) -> None:
    part.items[-1].end.groups = 2


def spoil_group(part: snapshot_pb2.SnapshotPart) -> None:
    part.items.insert(1, part.items[2])


def spoil_twice(part: snapshot_pb2.SnapshotPart) -> None:
    part.items.insert(1, part.items[1])


def spoil_format(part: snapshot_pb2.SnapshotPart) -> None:
    part.items[0].header.format = 2


def spoil_shard(part: snapshot_pb2.SnapshotPart) -> None:
    part.items[0].header.shard = 4


def spoil_kind(part: snapshot_pb2.SnapshotPart) -> None:
    part.items[2].Clear()


def spoil_tail(part: snapshot_pb2.SnapshotPart) -> None:
    part.items.append(part.items[1])


def spoil_state(part: snapshot_pb2.SnapshotPart) -> None:
    part.items[1].group.state = coordinator_pb2.GroupState.ValueType(99)


def spoil_members(part: snapshot_pb2.SnapshotPart) -> None:
    part.items.insert(2, part.items[2])


def spoil_instances(part: snapshot_pb2.SnapshotPart) -> None:
    part.items.insert(2, part.items[2])
    part.items[2].member.member.member_id = "another"
    for item in part.items[2:4]:
        item.member.member.group_instance_id = "i"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_header, "does not begin with its header"),
        (spoil_end, "2 groups were written, 1 are there"),
        (spoil_group, "kind member in no group"),
        (spoil_twice, "'g' twice"),
        (spoil_format, "format 2"),
        (spoil_shard, "of shard 4, not of 3"),
        (spoil_kind, "kind unknown"),
        (spoil_tail, "follows the end"),
        (spoil_state, "is of another version: KeyError"),
        (spoil_members, "a member of group 'g' twice"),
        (spoil_instances, "contradicts itself"),
    ],
)
def test_what_is_no_whole_snapshot_is_refused(
    spoil: Callable[[snapshot_pb2.SnapshotPart], None], words: str
) -> None:
    (data,) = parts(full_group().groups.values(), Covered(3, UPTO, bytes(32)))
    part = snapshot_pb2.SnapshotPart.FromString(data)
    spoil(part)
    with pytest.raises(SnapshotUnusable, match=words):
        Shard(3, GroupConfig()).restore().take(part.SerializeToString())


def test_bytes_that_are_no_snapshot_are_refused() -> None:
    with pytest.raises(SnapshotUnusable, match="part 0 of the snapshot is no snapshot"):
        Shard(3, GroupConfig()).restore().take(b"\xff\xff")


def test_the_digest_is_over_all_parts_in_order() -> None:
    a, b = part_hash(b"a"), part_hash(b"b")
    assert len({digest_of([a, b]), digest_of([b, a]), digest_of([a]), digest_of([])}) == 4
