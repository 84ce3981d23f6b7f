"""Entries read many at a time: the same as one by one, in what they give and in what they refuse."""

from itertools import groupby

import pytest
from kit.log_builder import LogBuilder, healthy
from kit.snapshots import pictures
from muster_core.config import GroupConfig
from muster_core.position import Position
from muster_core.record_run import RecordRun
from muster_core.replay import ChainReader, Entry, LogDamaged
from muster_core.shard import Shard
from muster_protos.muster.log.v1 import records_pb2 as log


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
    built.add(log.Record(snapshot=log.Snapshot(upto=built.entries[4].position.to_proto(), groups=7)))
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
        record = log.Record.FromString(entry.record)
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
    with pytest.raises(LogDamaged, match="a claim stands inside an epoch"):
        read_runs(built.entries, 100, ChainReader(), Shard(0, GroupConfig()))
