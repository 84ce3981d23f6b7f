"""Claim, append, barrier and reading, on one and three nodes, embedded and real."""

import asyncio
import random
import secrets
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from kit.metadata.metadata_instances import (
    ContainerNodes,
    MetadataCluster,
    Writer,
    docker_problem,
    metadata_cluster,
    records,
)  # fmt: skip
from kit.waiting import until
from muster_coordinator.log.log_client import LogClient, LogPace
from muster_core.log.chain import BEFORE_GENESIS, chain_hash
from muster_core.position import Position
from muster_metadata import metadata as metadata_module
from muster_metadata.log import logs as logs_module
from muster_metadata.log_stream import MAX_CALLS, MAX_OPEN_CALLS
from muster_metadata.nodes.entries import chain
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import discovery_pb2
from muster_runtime.clock import wall_ms

pytestmark = pytest.mark.cluster


@pytest.fixture(
    params=[
        pytest.param(("embedded", 1), id="1-node"),
        pytest.param(("embedded", 3), id="3-nodes"),
        pytest.param(("container", 3), id="3-containers", marks=pytest.mark.containers),
    ]
)
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataCluster]:
    kind, count = request.param
    if kind == "container" and (problem := docker_problem()):
        pytest.skip(problem)
    nodes = ContainerNodes(count) if kind == "container" else None
    async with metadata_cluster(tmp_path, count, instances=2, nodes=nodes) as running:
        yield running


async def test_first_claim_goes_behind_genesis(cluster: MetadataCluster) -> None:
    writer = Writer(1)
    result = await writer.claim(cluster[0])
    assert result.outcome == metadata_pb2.LOG_OUTCOME_OK
    assert result.epoch == 1
    assert Position.from_proto(result.end.position) == Position(1, 2)
    entries = await cluster[1].read(1, writer)
    assert [entry.position for entry in entries] == [Position(0, 1), Position(1, 2)]
    claim = records_pb2.Record.FromString(entries[1].record).claim
    assert (claim.node_id, claim.session) == ("c-1", "session-of-c-1")
    assert entries[1].nonce == writer.nonce
    previous = BEFORE_GENESIS
    for entry in entries:
        previous = chain_hash(previous, entry.position, entry.nonce, entry.record)
        assert entry.hash == previous


async def test_appends_are_dense_chained_and_on_all_nodes(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    for number in range(20):
        assert (
            await writer.append(cluster[number % 2], b"w:%d" % number)
        ).outcome == metadata_pb2.LOG_OUTCOME_OK
    assert (
        await writer.append(cluster[0], *(b"w:b%d" % n for n in range(300)))
    ).outcome == metadata_pb2.LOG_OUTCOME_OK
    entries = await cluster[0].read(0, writer)
    assert records(entries) == writer.acknowledged
    assert [entry.position.offset for entry in entries] == list(range(1, 323))
    await until(lambda: cluster.level(0), "all nodes have the log")


async def test_repeat_through_another_instance_is_the_same_append(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    batch = writer.batch(b"w:1", b"w:2")
    first = await cluster[0].step(0, append=batch)
    second = await cluster[1].step(0, append=batch)
    assert (first.outcome, second.outcome) == (metadata_pb2.LOG_OUTCOME_OK, metadata_pb2.LOG_OUTCOME_OK)
    assert first.end == second.end
    assert records(await cluster[0].read(0, writer)) == [b"w:1", b"w:2"]


async def test_other_records_behind_an_old_end_are_refused(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    stale = writer.batch(b"w:other")
    await writer.append(cluster[0], b"w:1")
    assert (await cluster[0].step(0, append=stale)).outcome == metadata_pb2.LOG_OUTCOME_INVALID
    assert records(await cluster[0].read(0, writer)) == [b"w:1"]


async def test_higher_claim_fences_the_old_owner(cluster: MetadataCluster) -> None:
    old, new = Writer(2, "c-1"), Writer(2, "c-2")
    await old.own(cluster[0])
    await old.append(cluster[0], b"w:old")
    assert (await new.claim(cluster[1])).epoch == 2
    refused = await old.append(cluster[0], b"w:late")
    assert (refused.outcome, refused.epoch) == (metadata_pb2.LOG_OUTCOME_FENCED, 2)
    assert (await old.check(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_FENCED
    assert (await new.check(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_OK
    await new.append(cluster[1], b"w:new")
    assert records(await cluster[0].read(2, new)) == [b"w:old", b"w:new"]


async def test_claim_epoch_is_above_what_the_caller_asks(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    assert (await writer.claim(cluster[0], above_epoch=41)).epoch == 42


async def test_repeated_claim_goes_on_where_it_stopped(cluster: MetadataCluster) -> None:
    writer = Writer(3)
    first = await writer.claim(cluster[0])
    second = await writer.claim(cluster[1])
    assert (first.epoch, first.end) == (second.epoch, second.end)
    assert len(await cluster[0].read(3, writer)) == 2


async def test_two_claimants_at_once_leave_one_owner(cluster: MetadataCluster) -> None:
    for _ in range(5):
        writers = [Writer(1, "c-1"), Writer(1, "c-2")]
        await asyncio.gather(*(writer.claim(cluster[n]) for n, writer in enumerate(writers)))
        outcomes = [await writer.check(cluster[0]) if writer.epoch else None for writer in writers]
        standing = [o for o in outcomes if o is not None and o.outcome == metadata_pb2.LOG_OUTCOME_OK]
        assert len(standing) <= 1
        epochs = [writer.epoch for writer in writers if writer.epoch]
        assert len(set(epochs)) == len(epochs)
    last = Writer(1, "c-3")
    assert (await last.claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_OK


async def test_reading_without_a_claim_ends_at_the_acknowledged_position(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    await writer.append(cluster[0], b"w:1")

    async def all_read() -> bool:
        return records(await cluster[1].read(0)) == [b"w:1"]

    await until(all_read, "the acknowledged position travels by itself")


async def test_pages_are_of_the_asked_size(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    await writer.append(cluster[0], *(b"w:%d" % n for n in range(95)))
    request = metadata_pb2.ReadLogRequest(shard=0, epoch=writer.epoch, claim_nonce=writer.nonce, page_size=10)
    getattr(request, "from").CopyFrom(Position(1, 8).to_proto())
    sizes = [len(message.entries) async for message in cluster[0].stub.ReadLog(request)]
    assert sum(sizes) == 90
    assert set(sizes[1:-1]) == {10}, "the first is smaller, since nobody knows yet how large the entries are"
    assert max(sizes) == 10


async def test_old_claimant_reads_nothing(cluster: MetadataCluster) -> None:
    old, new = Writer(0, "c-1"), Writer(0, "c-2")
    await old.own(cluster[0])
    await new.own(cluster[0])
    request = metadata_pb2.ReadLogRequest(shard=0, epoch=old.epoch, claim_nonce=old.nonce)
    messages = [message async for message in cluster[0].stub.ReadLog(request)]
    assert [message.outcome for message in messages] == [metadata_pb2.LOG_OUTCOME_FENCED]
    assert not messages[0].entries


async def test_steps_of_many_shards_travel_in_one_message(cluster: MetadataCluster) -> None:
    writers = [Writer(shard) for shard in range(4)]
    stream = cluster[0].stub.Log()
    await stream.write(
        metadata_pb2.LogRequest(
            calls=[
                metadata_pb2.LogCall(call_id=writer.shard, shard=writer.shard, claim=writer.claim_step())
                for writer in writers
            ]
        )
    )
    results: list[metadata_pb2.LogResult] = []
    while len(results) < 4:
        results += (await stream.read()).results
    assert sorted(result.call_id for result in results) == [0, 1, 2, 3]
    assert {result.outcome for result in results} == {metadata_pb2.LOG_OUTCOME_OK}
    stream.cancel()


@pytest.mark.parametrize(
    "step",
    [
        {},
        {"claim": metadata_pb2.ClaimStep(node_id="", nonce=bytes(16))},
        {"claim": metadata_pb2.ClaimStep(node_id="c", nonce=bytes(15))},
        {"claim": metadata_pb2.ClaimStep(node_id="c", nonce=bytes(16), above_epoch=1 << 60)},
        {"append": metadata_pb2.AppendStep(epoch=1, claim_nonce=bytes(16))},
        {"check": metadata_pb2.CheckStep(epoch=1)},
    ],
)
async def test_senseless_steps_are_invalid_and_write_nothing(
    tmp_path: Path, step: dict[str, metadata_pb2.ClaimStep]
) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster:
        before = await cluster.ends(0)
        assert (await cluster[0].step(0, **step)).outcome == metadata_pb2.LOG_OUTCOME_INVALID
        assert (await cluster[0].step(99, **step)).outcome == metadata_pb2.LOG_OUTCOME_INVALID
        assert await cluster.ends(0) == before


async def test_batches_beyond_the_limits_are_invalid(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        too_large = writer.batch(bytes((8 << 20) + 1))
        assert (await cluster[0].step(0, append=too_large)).outcome == metadata_pb2.LOG_OUTCOME_INVALID
        nonce = secrets.token_bytes(16)
        too_many = writer.batch()
        too_many.records.extend([metadata_pb2.NewRecord(record=b"w:", nonce=nonce)] * 10_001)
        assert (await cluster[0].step(0, append=too_many)).outcome == metadata_pb2.LOG_OUTCOME_INVALID
        assert (await writer.append(cluster[0], bytes(8 << 20))).outcome == metadata_pb2.LOG_OUTCOME_OK
        assert len(await cluster[0].read(0, writer)) == 3


@pytest.mark.parametrize("nodes", [1, 3])
async def test_large_records_are_hashed_in_a_thread_and_stored_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    """Else all other logs of the instance would wait for tens of milliseconds."""
    threads: dict[int, set[int]] = {}

    def hashed(end: Any, epoch: int, records: Any) -> Any:
        records = list(records)
        size_bytes = sum(len(record) for record, _ in records)
        threads.setdefault(size_bytes, set()).add(threading.get_ident())
        return chain(end, epoch, records)

    monkeypatch.setattr(logs_module, "chain", hashed)
    async with metadata_cluster(tmp_path, nodes) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        records = [random.Random(size).randbytes(size) for size in (7, logs_module._LARGE_BYTES, 8 << 20)]
        for record in records:
            assert (await writer.append(cluster[0], record)).outcome == metadata_pb2.LOG_OUTCOME_OK
        assert [entry.record for entry in await cluster[0].read(0, writer)][-3:] == records
    small, *large = (threads[len(record)] for record in records)
    assert small == {threading.get_ident()}
    assert all(threading.get_ident() not in used for used in large)


async def test_more_open_calls_than_a_stream_takes_are_all_carried_out_in_the_end(tmp_path: Path) -> None:
    # On a busy machine so many steps take longer than one may, or than a client waits: all would be repeated.
    patient = LogPace(stall_ms=60_000)
    times: dict[str, Any] = {
        "step_timeout_ms": 30_000,
        "claim_timeout_ms": 60_000,
        "rebuild_delay_ms": 60_000,
    }
    async with metadata_cluster(tmp_path, 1, shards=1, **times) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        client = LogClient([cluster[0].address], grpc.aio.insecure_channel, patient)
        client.start()
        try:
            check = metadata_pb2.CheckStep(epoch=writer.epoch, claim_nonce=writer.nonce)
            cluster.nodes[0].pause()
            steps = [asyncio.ensure_future(client.submit(0, check)) for _ in range(MAX_OPEN_CALLS + 900)]
            await until(lambda: client.repeats > 0, "some find the stream full")
            cluster.nodes[0].resume()
            results = await asyncio.gather(*steps)
        finally:
            await client.stop()
        assert {result.outcome for result in results} == {metadata_pb2.LOG_OUTCOME_OK}


async def test_a_message_of_a_log_stream_has_no_more_calls_than_all_shards_can_make(tmp_path: Path) -> None:
    """Two million that name no step held metadata for longer than all leases, and took gigabytes."""
    async with metadata_cluster(tmp_path, 1, shards=1) as cluster:
        stream = cluster[0].stub.Log(timeout=60)
        await stream.write(metadata_pb2.LogRequest(calls=[metadata_pb2.LogCall()] * MAX_CALLS))
        answered = 0
        while answered < MAX_CALLS:
            results = (await stream.read()).results
            assert {result.outcome for result in results} == {metadata_pb2.LOG_OUTCOME_INVALID}
            answered += len(results)
        await stream.write(metadata_pb2.LogRequest(calls=[metadata_pb2.LogCall()] * (MAX_CALLS + 1)))
        with pytest.raises(grpc.aio.AioRpcError, match="calls: must be at most 65,536") as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_what_metadata_writes_is_stamped_with_the_time_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall clock of its machine is a week ahead of those of the nodes."""
    monkeypatch.setattr(metadata_module, "wall_ms", lambda: wall_ms() + 7 * 86_400_000)
    async with metadata_cluster(tmp_path, 3) as cluster:
        metadata = cluster[0].server.metadata
        await until(lambda: metadata.view.log_ahead_ms is not None, "it knows the time of the nodes")
        writer, topic = Writer(0), discovery_pb2.Topic(name="orders", partitions=3)
        assert (await writer.claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_OK
        assert not (
            await cluster[0].stub.ChangeTopic(metadata_pb2.ChangeTopicRequest(create=topic))
        ).error_code
        for shard, reader in ((0, writer), (metadata.shard_count, None)):
            last = (await cluster[0].read(shard, reader))[-1]
            stamped_ms = records_pb2.Record.FromString(last.record).written_at_ms
            assert abs(stamped_ms - wall_ms()) < 60_000
