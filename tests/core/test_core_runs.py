"""Entries read many at a time give, and are refused, as those read one by one."""

from collections.abc import Sequence
from itertools import groupby

import pytest
from google.protobuf.message import DecodeError
from kit.logs.log_builder import LogBuilder, healthy
from kit.logs.snapshots import pictures
from muster_core.config import GroupConfig
from muster_core.log.record_run import RecordRun
from muster_core.log.replay import ChainReader, Entry, LogDamaged
from muster_core.position import Position
from muster_core.shard import Shard
from muster_protos.muster.log.v1 import records_pb2


def read_runs(entries: list[Entry], length: int, chain: ChainReader, shard: Shard) -> None:
    """Reads entries in runs of an epoch, of some length at most."""
    for _, group in groupby(entries, key=lambda entry: entry.position.epoch):
        row = list(group)
        for begin in range(0, len(row), length):
            part = row[begin : begin + length]
            datas = [entry.record for entry in part]
            nonces, hashes = (
                b"".join(column) for column in ([e.nonce for e in part], [e.hash for e in part])
            )
            run = RecordRun(part[0].position, datas)
            chain.read_run(run, nonces, hashes)
            shard.replay_run(run)


def with_marker() -> LogBuilder:
    built = healthy()
    built.add(
        records_pb2.Record(snapshot=records_pb2.Snapshot(upto=built.entries[4].position.to_proto(), groups=7))
    )
    built.commit(-1, "")
    return built


@pytest.mark.parametrize("length", [1, 2, 5, 100])
def test_runs_give_what_single_entries_give(length: int) -> None:
    built = with_marker()
    one, many = ChainReader(), ChainReader()
    state, shard = Shard(0, GroupConfig()), Shard(0, GroupConfig())
    for entry in built.entries:
        state.replay(entry.position, one.read(entry))
    read_runs(built.entries, length, many, shard)
    assert (many.end, many.end_hash) == (one.end, one.end_hash)
    assert many.nonces_of_claims == one.nonces_of_claims
    assert many.markers == one.markers
    assert [marker.snapshot.groups for marker in many.markers] == [7]
    assert many.markers[0].hash == built.entries[-2].hash
    assert pictures(shard) == pictures(state)


@pytest.mark.parametrize("length", [1, 5, 100])
@pytest.mark.parametrize("index", range(len(healthy().entries)))
@pytest.mark.parametrize("field", ["record", "nonce", "hash", "position"])
def test_a_changed_entry_is_named_and_nothing_of_its_run_is_taken(
    length: int, index: int, field: str
) -> None:
    built = healthy()
    entry = built.entries[index]
    if field == "record":
        record = records_pb2.Record.FromString(entry.record)
        record.written_at_ms += 1
        built.change(index, record=record.SerializeToString())
    elif field == "position":
        built.change(index, position=Position(entry.position.epoch, entry.position.offset + 1))
        length = 1  # a run has one place: that of its first entry
    else:
        value: bytes = getattr(entry, field)
        built.change(index, **{field: bytes([value[0] ^ 1]) + value[1:]})
    chain, shard = ChainReader(), Shard(0, GroupConfig())
    with pytest.raises(LogDamaged) as caught:
        read_runs(built.entries, length, chain, shard)
    assert caught.value.position == built.entries[index].position
    assert chain.end < built.entries[index].position


@pytest.mark.parametrize(
    ("nonces", "hashes", "before"), [(15, 32, 32), (17, 32, 32), (16, 24, 32), (16, 40, 32), (16, 32, 31)]
)
def test_nonces_and_hashes_of_another_length_are_refused(nonces: int, hashes: int, before: int) -> None:
    built = healthy()
    begun, entry = built.entries[0], built.entries[1]
    chain = ChainReader(begun.position, begun.hash[:before])
    with pytest.raises(LogDamaged, match="another length") as caught:
        chain.read_run(
            RecordRun(entry.position, [entry.record]),
            entry.nonce.ljust(nonces, b"-")[:nonces],
            entry.hash.ljust(hashes, b"-")[:hashes],
        )
    assert caught.value.position == entry.position
    assert chain.end == begun.position


def test_a_claim_inside_an_epoch_is_refused() -> None:
    built = LogBuilder()
    built.genesis()
    built.claim()
    built.commit(-1, "")
    built.claim(epoch=1)
    with pytest.raises(LogDamaged, match="there is a claim inside an epoch"):
        read_runs(built.entries, 100, ChainReader(), Shard(0, GroupConfig()))


def test_what_the_state_keeps_does_not_keep_its_page() -> None:
    """A group's cause, assignments and kept tokens come from records that were decoded alone."""
    built = healthy()
    chain, shard = ChainReader(), Shard(0, GroupConfig())
    entries = built.entries[:4]
    chain.read(entries[0])
    nonces, hashes = (
        b"".join(column) for column in ([e.nonce for e in entries[1:]], [e.hash for e in entries[1:]])
    )
    run = RecordRun(entries[1].position, [entry.record for entry in entries[1:]])
    chain.read_run(run, nonces, hashes)
    shard.replay_run(run)
    run.others[0].Clear()  # others that were decoded with it would go with it
    assert run.others[2].generation_started.members[0].member_id == "a"
    assert run.kinds == ["claim", "offset_committed", "generation_started"]
    assert shard.groups["g"].generation == 1
    assert [m.member_id for m in shard.groups["g"].members.values()] == ["a", "b"]
    assert shard.groups["g"].history[0].members[0].member_id == "a"


def commits(times_ms: Sequence[int], *, whole: bool = True) -> LogBuilder:
    """Commits of members and others, of one partition and of several, again and again, between other records.

    Args:
        times_ms: when each turn of them is made.
        whole: whether fields that are 0 or empty are written, too.
    """
    built = LogBuilder()
    built.genesis()
    built.claim()
    built.generation(1, "a", "b")
    built.assignment(1, a=[0], b=[1])
    for turn, at_ms in enumerate(times_ms):
        for group_id, member_id, seq, partitions in (
            ("g", "a", 2 * turn + 1, [0]),
            ("g", "b", 2 * turn + 1, [0, 1]),
            ("simple", "", 0, [turn]),
        ):
            commit = records_pb2.OffsetCommitted(group_id=group_id, generation=1 if member_id else -1)
            if whole or member_id:
                commit.member_id, commit.member_seq = member_id, seq
            commit.expire_at_ms = 77 if turn == 1 else 0
            for partition in partitions:
                entry = commit.offsets.add(topic="t", offset=100 * turn + partition, leader_epoch=turn - 1)
                if whole or partition:
                    entry.partition = partition
                if whole:
                    entry.metadata = ""
            built.add(records_pb2.Record(written_at_ms=at_ms, offset_committed=commit).SerializeToString())
        if turn == 2:
            built.generation(2, "b")
            built.add(
                records_pb2.Record(
                    written_at_ms=at_ms, group_tombstone=records_pb2.GroupTombstone(group_id="simple")
                )
            )
            built.generation(3, "a", "b")
    return built


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "fields left out"])
@pytest.mark.parametrize(
    "times_ms",
    [
        [1_700_000_000_000 + turn for turn in range(6)],
        [1, 300, 70_000, 1_700_000_000_000, 1 << 62, 5],  # as long on the wire as they are large
        [0, 0, 0, 1_700_000_000_000, 0, 0],
    ],
    ids=["alike", "of all lengths", "none"],
)
@pytest.mark.parametrize("length", [3, 7, 100])
def test_commits_of_a_run_count_as_one_by_one(length: int, times_ms: list[int], whole: bool) -> None:
    built = commits(times_ms, whole=whole)
    one, many = ChainReader(), ChainReader()
    state, shard = Shard(0, GroupConfig()), Shard(0, GroupConfig())
    for entry in built.entries:
        state.replay(entry.position, one.read(entry))
    read_runs(built.entries, length, many, shard)
    assert many.end_hash == one.end_hash
    assert pictures(shard) == pictures(state)
    stored = shard.groups["g"].offsets.get(("t", 0))
    assert stored is not None
    assert (stored.offset, stored.leader_epoch, stored.committed_at_ms) == (500, 4, times_ms[5])
    assert shard.groups["g"].members["b"].commit_seq == 11


def test_a_run_tells_its_commits_and_the_records_between_them() -> None:
    built = commits([1_700_000_000_000 + turn for turn in range(4)])
    entries = built.entries[2:]
    run = RecordRun(entries[0].position, [entry.record for entry in entries])
    decoded = [records_pb2.Record.FromString(entry.record) for entry in entries]
    assert run.kinds == [record.WhichOneof("kind") for record in decoded]
    assert run.times_ms() == [record.written_at_ms for record in decoded]
    rows = [
        (commit.group_id, commit.member_id, commit.generation, commit.member_seq, record.written_at_ms)
        for record in decoded
        if (commit := record.offset_committed).group_id
    ]
    found = list(run.in_order())
    assert [row for _, part in found if isinstance(part, list) for row in part] == rows
    assert {index: part for index, part in found if not isinstance(part, list)} == run.others
    assert [index for index, _ in found] == [0, 1, 2, 11, 12, 13, 14]
    assert [run.kinds[index] for index in run.others] == [
        "generation_started", "assignment_committed", "generation_started", "group_tombstone",
        "generation_started",
    ]  # fmt: skip


@pytest.mark.parametrize("cut", [1, 40])
def test_a_run_with_bytes_that_are_no_record_is_refused(cut: int) -> None:
    datas = [entry.record for entry in commits([1_700_000_000_000] * 4).entries[4:]]
    datas[1] = datas[1][:-cut]
    with pytest.raises(DecodeError):
        RecordRun(Position(1, 5), datas)


def test_a_record_that_only_begins_like_a_commit_is_none() -> None:
    """Where times differ in length, the bytes at which the guess looks may say anything."""
    commit = commits([1_700_000_000_000]).entries[4].record
    odd = b"\x08\x01\xfa\x03\x04\x00\x00\xf2\x01"  # its time, and a field of a later version
    assert odd.index(b"\xf2\x01") == commit.index(b"\xf2\x01")
    run = RecordRun(Position(1, 5), [commit, odd, commit])
    assert run.kinds == ["offset_committed", "", "offset_committed"]
    assert len(run.commits) == 2


def test_a_commit_about_nothing_makes_no_group() -> None:
    built = LogBuilder()
    built.genesis()
    built.claim()
    built.add(records_pb2.Record(offset_committed=records_pb2.OffsetCommitted(group_id="g", generation=-1)))
    one, many = Shard(0, GroupConfig()), Shard(0, GroupConfig())
    for entry in built.entries:
        one.replay(entry.position, records_pb2.Record.FromString(entry.record))
    read_runs(built.entries, 100, ChainReader(), many)
    assert one.groups == many.groups == {}
