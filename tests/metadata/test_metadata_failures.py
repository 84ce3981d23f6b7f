"""Nodes that die, stop, lose data or disagree: nothing acknowledged is lost, a minority delays nobody."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit.metadata.metadata_instances import (
    ContainerNodes,
    Instance,
    MetadataCluster,
    Writer,
    docker_problem,
    fast,
    metadata_cluster,
    records,
)  # fmt: skip
from kit.waiting import stand_still, until, until_equal
from muster_core.features import FEATURE_NAMES
from muster_core.log.chain import chain_hash
from muster_core.position import Position
from muster_metadata.log.claim import Claimer
from muster_metadata.log.repairs import repair
from muster_metadata.log.repairs.repair import Repairer
from muster_metadata.log.states import Held, Repaired
from muster_metadata.log.verdicts import checked
from muster_metadata.nodes import keys
from muster_metadata.nodes.entries import NodeEntry, arguments, chain
from muster_metadata.nodes.node import Answer, Node
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import LOST, NodeReply, Status
from muster_metadata.server import MetadataServer
from muster_metadata.settings import MetadataSettings
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.settings import load
from muster_server.dev.redis_nodes import RedisNode
from structlog.testing import capture_logs

pytestmark = pytest.mark.cluster


@pytest.fixture(
    params=[
        pytest.param("embedded", id="embedded"),
        pytest.param("container", id="containers", marks=pytest.mark.containers),
    ]
)
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataCluster]:
    if request.param == "container" and (problem := docker_problem()):
        pytest.skip(problem)
    nodes = ContainerNodes(3) if request.param == "container" else None
    async with metadata_cluster(tmp_path, 3, instances=2, nodes=nodes) as running:
        yield running


async def write(cluster: MetadataCluster, writer: Writer, count: int) -> None:
    for _ in range(count):
        record = b"w:%d" % len(writer.acknowledged)
        assert (await writer.append(cluster[0], record)).outcome == metadata_pb2.LOG_OUTCOME_OK


@pytest.mark.parametrize("index", [0, 1, 2])
async def test_killed_node_is_not_noticed_and_repaired_when_it_is_back(
    cluster: MetadataCluster, index: int
) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    await write(cluster, writer, 5)
    await cluster.nodes[index].kill()
    await write(cluster, writer, 30)
    await cluster.nodes[index].start()
    await until(lambda: cluster.level(0), "the node that was away has the log")
    assert records(await cluster[0].read(0, writer)) == writer.acknowledged


async def test_paused_node_delays_no_append(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    await write(cluster, writer, 3)
    cluster.nodes[1].pause()
    async with asyncio.timeout(10):
        # A hundred appends that each waited for the time-out of a step would take 50 s.
        await write(cluster, writer, 100)
        other = Writer(1)
        assert (await other.claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_OK
    cluster.nodes[1].resume()
    await write(cluster, writer, 1)
    await until(lambda: cluster.level(0), "the node that was stopped has the log")
    await until(lambda: cluster.level(1), "the node that was stopped has the claim")


async def test_outcome_is_unknown_without_a_majority_and_known_after(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    cluster.nodes[0].pause()
    cluster.nodes[2].pause()
    batch = writer.batch(b"w:1")
    assert (await writer.send(cluster[0], batch)).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
    assert (await writer.send(cluster[1], batch)).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
    cluster.nodes[0].resume()
    cluster.nodes[2].resume()

    async def known() -> bool:
        return (await writer.send(cluster[1], batch)).outcome == metadata_pb2.LOG_OUTCOME_OK

    await until(known, "the repeated append is acknowledged")
    assert records(await cluster[1].read(0, writer)) == [b"w:1"]


async def test_all_nodes_restart_and_nothing_is_lost(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    await write(cluster, writer, 10)
    batch = writer.batch(b"w:during")
    for index in range(3):
        await cluster.nodes[index].kill()
    assert (await writer.send(cluster[0], batch)).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
    for index in range(3):
        await cluster.nodes[index].start()

    async def known() -> bool:
        return (await writer.send(cluster[0], batch)).outcome == metadata_pb2.LOG_OUTCOME_OK

    await until(known, "the log goes on by itself")
    successor = Writer(0, "c-2")

    async def claimed() -> bool:
        return (await successor.claim(cluster[1])).outcome == metadata_pb2.LOG_OUTCOME_OK

    await until(claimed, "the log can be claimed")
    assert records(await cluster[1].read(0, successor)) == writer.acknowledged


async def test_claim_takes_what_only_a_majority_without_one_node_has(cluster: MetadataCluster) -> None:
    old, new = Writer(0, "c-1"), Writer(0, "c-2")
    await old.own(cluster[0])
    await cluster.nodes[2].kill()
    await write(cluster, old, 10)
    # The instance that wrote would repair node 3; without it the claim itself must find the better log.
    await cluster[0].stop()
    await cluster.nodes[0].kill()
    await cluster.nodes[2].start()

    async def claimed() -> bool:
        return (await new.claim(cluster[1])).outcome == metadata_pb2.LOG_OUTCOME_OK

    await until(claimed, "two of three can be claimed, one of them behind")
    assert records(await cluster[1].read(0, new)) == old.acknowledged


async def test_divergent_end_is_cut(cluster: MetadataCluster) -> None:
    """An entry that only one node has, from a claim that reached nobody else, is removed there."""
    old, new = Writer(0, "c-1"), Writer(0, "c-2")
    await old.own(cluster[0])
    await write(cluster, old, 3)
    await until(lambda: cluster.level(0), "level before")
    await cluster.nodes[0].kill()
    await cluster.nodes[1].kill()
    # With two nodes dead this entry reaches node 3 alone and is never acknowledged.
    assert (await old.send(cluster[0], old.batch(b"w:divergent"))).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
    await cluster.nodes[2].kill()
    await cluster.nodes[0].start()
    await cluster.nodes[1].start()

    async def claimed() -> bool:
        return (await new.claim(cluster[1])).outcome == metadata_pb2.LOG_OUTCOME_OK

    await until(claimed, "claimed without node 3")
    await new.append(cluster[1], b"w:after")
    await cluster.nodes[2].start()
    await until(lambda: cluster.level(0), "node 3 lost its divergent end")
    assert records(await cluster[1].read(0, new)) == [*old.acknowledged, b"w:after"]


async def leave_a_claim_behind(cluster: MetadataCluster, writer: Writer) -> None:
    """Writes by hand what a claimant of epoch 5 left at node 3 before it died."""
    async with cluster.client(2) as client:
        nonce, place = secrets.token_bytes(16), Position(5, writer.end.position.offset + 1)
        hash_ = chain_hash(writer.end.hash, place, nonce, b"dead claim")
        fields: dict[Any, Any] = {"r": b"dead claim", "n": nonce, "h": hash_}
        await client.xadd("muster:{0}:log", fields, id=place.stream_id)


@pytest.mark.parametrize("remains", ["0-1", "1-7"])
async def test_a_log_is_made_anew_in_portions_whoever_is_interrupted(
    remains: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an attempt has copied is not copied again, and the rest of another copy is not gone on with."""
    monkeypatch.setattr(repair, "_PORTION_BYTES", 1_000)
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await write(cluster, writer, 40)
        await until(lambda: cluster.level(0), "level before")
        await leave_a_claim_behind(cluster, writer)
        ends, portion = list[Any](), Node.portion

        def interrupted(*arguments: Any) -> Answer:
            if len(ends) == 3:
                ends.append(None)
                return silent()
            answer = portion(*arguments)
            answer.add_done_callback(lambda reply: ends.append(reply.result().end.position))
            return answer

        monkeypatch.setattr(Node, "portion", interrupted)
        async with cluster.client(2) as client:
            await client.xadd("muster:{0}:copy", {"r": b"", "n": b"", "h": b""}, id=remains)
            await write(cluster, writer, 1)
            await until(lambda: cluster.level(0), "node 3 has the log of epoch 1")
            assert not await client.exists("muster:{0}:copy")
            made = await client.xrange("muster:{0}:log")
        async with cluster.client(0) as client:
            assert made == await client.xrange("muster:{0}:log")
        del ends[3]
        assert len(ends) > 5
        assert ends == sorted(set(ends)), "it goes on where it was interrupted"
        assert ends[0].offset < 10


def silent() -> Answer:
    answer: Answer = asyncio.get_running_loop().create_future()
    answer.set_result(LOST)
    return answer


async def test_end_that_does_not_fit_behind_the_last_id_is_rebuilt(cluster: MetadataCluster) -> None:
    """A node has a Claim of a higher epoch that the log does not have: its stream must be made anew."""
    old, new = Writer(0, "c-1"), Writer(0, "c-9")
    await old.own(cluster[0])
    await write(cluster, old, 3)
    await until(lambda: cluster.level(0), "level before")
    await leave_a_claim_behind(cluster, old)
    # It did not promise it: the owner of epoch 1 goes on and repairs it under its own promise.
    await write(cluster, old, 3)
    await until(lambda: cluster.level(0), "node 3 has the log of epoch 1")
    assert (await new.claim(cluster[0])).epoch == 2
    await write(cluster, new, 1)
    await until(lambda: cluster.level(0), "level after")


async def test_late_message_of_an_old_claimant_is_refused(cluster: MetadataCluster) -> None:
    old, new = Writer(0, "c-1"), Writer(0, "c-2")
    await old.own(cluster[0])
    late = old.batch(b"w:late")
    await new.own(cluster[1])
    await write(cluster, new, 1)
    assert (await cluster[0].step(0, append=late)).outcome == metadata_pb2.LOG_OUTCOME_FENCED
    await until(lambda: cluster.level(0), "level")
    assert records(await cluster[0].read(0, new)) == new.acknowledged


async def test_wiped_node_is_rebuilt_and_votes_again(cluster: MetadataCluster) -> None:
    writers = [Writer(shard) for shard in range(4)]
    for writer in writers:
        await writer.own(cluster[0])
        await write(cluster, writer, 20)
    async with cluster.client(1) as client:
        await client.flushall()
    for writer in writers:
        await write(cluster, writer, 5)
    for writer in writers:
        await until(partial(cluster.level, writer.shard), "the wiped node has the log")
    await until(lambda: cluster.level(4), "the wiped node has the catalog")
    # It votes: with another node dead there is a majority only with it.
    await cluster.nodes[0].kill()
    for writer in writers:
        await write(cluster, writer, 2)
        assert records(await cluster[1].read(writer.shard, writer)) == writer.acknowledged


async def test_repair_goes_on_at_the_instance_that_the_owner_moved_to(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    await write(cluster, writer, 5)
    await cluster[0].stop()
    async with cluster.client(1) as client:
        await client.flushall()

    async def rebuilt() -> bool:
        ends = await cluster.ends(0)
        return ends[0] == ends[1]

    async with lease_of(writer, cluster[1]):
        await until(rebuilt, "the wiped node has the log, though nobody wrote")


async def test_a_claim_is_acknowledged_though_its_instance_dies_at_once(tmp_path: Path) -> None:
    """The owner moves to an instance that knows of the claim only what the log says."""
    async with metadata_cluster(tmp_path, 3, instances=2) as cluster:
        writer = Writer(0)
        await cluster[0].server.metadata.upkeep.stop()
        await writer.own(cluster[0])
        assert (await writer.check(cluster[1])).outcome == metadata_pb2.LOG_OUTCOME_OK

        async def acknowledged() -> bool:
            stored = set()
            for index in range(3):
                async with cluster.client(index) as client:
                    stored.add(await client.get("muster:{0}:acknowledged"))
            return stored == {writer.end.position.stream_id.encode()}

        async with lease_of(writer, cluster[1]):
            await until(acknowledged, "the nodes hear how far the log is acknowledged, though nobody writes")


@asynccontextmanager
async def lease_of(writer: Writer, instance: Instance) -> AsyncIterator[None]:
    """The writer says there, once, that it serves its shard."""
    lease = instance.stub.Lease()
    request = metadata_pb2.LeaseRequest(
        node_id=writer.name,
        session=writer.session,
        host="127.0.0.1",
        port=1,
        number=1,
        serving=[metadata_pb2.ServedShard(shard=writer.shard, epoch=writer.epoch)],
        features=FEATURE_NAMES,
    )
    await lease.write(request)
    assert (await lease.read()).renewed
    yield
    lease.cancel()


async def test_wiped_node_does_not_vote_before_it_is_rebuilt(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    await write(cluster, writer, 3)
    async with cluster.client(1) as client:
        await client.flushall()
    await cluster.nodes[0].kill()
    assert (await writer.send(cluster[0], writer.batch(b"w:x"))).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
    assert (await Writer(0, "c-2").claim(cluster[1])).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
    async with cluster.client(1) as client:
        # But for the marks by which a later loss is told from this one.
        keys: list[Any] = await client.keys("*")
        assert all(key.endswith(b":vacant") for key in keys)


async def test_wiped_majority_is_no_log(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    await write(cluster, writer, 3)
    for index in (0, 1):
        async with cluster.client(index) as client:
            await client.flushall()
    assert (await writer.send(cluster[0], writer.batch(b"w:x"))).outcome == metadata_pb2.LOG_OUTCOME_NO_LOG
    assert (await Writer(0, "c-2").claim(cluster[1])).outcome == metadata_pb2.LOG_OUTCOME_NO_LOG


async def test_laggard_beyond_a_trim_gets_the_whole_log(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    await write(cluster, writer, 5)
    await cluster.nodes[2].kill()
    await write(cluster, writer, 20)
    for index in (0, 1):
        async with cluster.client(index) as client:
            await client.xtrim("muster:{0}:log", minid="1-20", approximate=False)
    await cluster.nodes[2].start()
    await until(lambda: cluster.level(0), "node 3 has what is left of the log")


async def test_a_laggard_with_a_claim_of_its_own_beyond_a_trim_gets_the_whole_log(tmp_path: Path) -> None:
    """Its last entry is of a later epoch than the oldest that is left, and comes before that one."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await write(cluster, writer, 5)
        await until(lambda: cluster.level(0), "level")
        nonce = secrets.token_bytes(16)
        async with node_of(cluster, 2) as node:
            assert (await node.prepare(0, 2, nonce, b"tag")).status is Status.OK
            claim = chain(writer.end, 2, [(b"a Claim of which nothing came", nonce)])
            batch: list[bytes | str] = [writer.end.position.stream_id, writer.end.hash, "", *arguments(claim)]
            assert (await node.append(0, 2, nonce, batch)).status is Status.OK
        await cluster.nodes[2].kill()
        await write(cluster, writer, 20)
        successor = Writer(0, "c-2")
        assert (await successor.claim(cluster[0], above_epoch=2)).epoch == 3
        for index in (0, 1):
            async with cluster.client(index) as client:
                await client.xtrim("muster:{0}:log", minid="1-20", approximate=False)
        await cluster.nodes[2].start()
        await until(lambda: cluster.level(0), "node 3 has what is left of the log")


async def test_shorter_log_than_acknowledged_is_truncated(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await write(cluster, writer, 3)
        async with cluster.client(0) as client:
            await client.xdel("muster:{0}:log", "1-5", "1-4")
        result = await writer.send(cluster[0], writer.batch(b"w:x"))
        assert result.outcome == metadata_pb2.LOG_OUTCOME_TRUNCATED
        missing = "acknowledged up to 1-5, and the last 2 are missing; the best copy that answers ends at 1-3"
        assert missing in result.message


async def test_log_that_lost_what_was_acknowledged_is_not_claimed(tmp_path: Path) -> None:
    """Its last owner is gone; the position that is stored beside the log says what it had."""
    async with metadata_cluster(tmp_path, 1) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await write(cluster, writer, 3)
        async with cluster.client(0) as client:

            async def stored() -> bool:
                return bool(await client.get("muster:{0}:acknowledged") == b"1-5")

            await until(stored, "the acknowledged position is stored")
            await client.xdel("muster:{0}:log", "1-5", "1-4")
        result = await Writer(0, "c-2").claim(cluster[0])
        assert result.outcome == metadata_pb2.LOG_OUTCOME_TRUNCATED
        assert "the last 2 are missing" in result.message


async def test_promise_to_a_claimant_that_died_is_told_once(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await until(lambda: cluster.level(0), "level")
        with capture_logs() as logs:
            async with node_of(cluster, 2) as node:
                assert (await node.prepare(0, 9, secrets.token_bytes(16), b"tag")).status is Status.OK
            await write(cluster, writer, 3)
            event = "log_nodes_promised_to_another"
            await until(lambda: any(line["event"] == event for line in logs), "it is told")
            await write(cluster, writer, 3)
        told = [line for line in logs if line["event"] == event]
        assert [(line["nodes"], line["shard"], line["epoch"]) for line in told] == [("3", 0, 1)]


async def test_out_of_memory_is_refused_on_a_first_attempt_only(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        async with cluster.client(0) as client:
            await client.config_set("maxmemory", "1")
            batch = writer.batch(b"w:x")
            assert (await writer.send(cluster[0], batch)).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
            batch.first_attempt = True
            refused = await writer.send(cluster[0], batch)
            assert refused.outcome == metadata_pb2.LOG_OUTCOME_REFUSED
            assert refused.message == "1 of 1 nodes of the log take no records: it is out of memory"
            assert refused.refusing_nodes == 1
            await client.config_set("maxmemory", "0")
        assert (await writer.append(cluster[0], b"w:y")).outcome == metadata_pb2.LOG_OUTCOME_OK


async def test_flushed_scripts_come_back(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        async with cluster.client(0) as client:
            await client.script_flush()
        assert (await writer.append(cluster[0], b"w:x")).outcome == metadata_pb2.LOG_OUTCOME_OK


async def test_node_without_identity_answers_no_log(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster:
        async with cluster.client(0) as client:
            await client.delete(keys.NODE)
        assert (await Writer(0).claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_NO_LOG
        async with cluster.client(0) as client:
            await client.hset(keys.NODE, "identity", "another/4/1 of 1/1")
        # It is not the node, of which nothing is known.
        assert (await Writer(0).claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN


@asynccontextmanager
async def misled(cluster: MetadataCluster, folder: Path) -> AsyncIterator[Instance]:
    """An instance whose settings name an empty server in the place of the third node."""
    other = RedisNode(folder / "other")
    await other.start()
    one, two, _ = cluster.nodes.url.removeprefix("redis://").split(",")
    urls = f"redis://{one},{two},{other.url.removeprefix('redis://')}"
    settings = load(MetadataSettings, redis_url=urls, listen="127.0.0.1:0", **fast())
    instance = await Instance(MetadataServer(settings)).start()
    try:
        yield instance
    finally:
        await instance.stop()
        await other.stop()


async def test_a_log_is_not_lost_where_a_server_stands_that_is_none_of_its_nodes(tmp_path: Path) -> None:
    """An instance has the address of an empty server for the third node, and the second one is wiped."""
    async with metadata_cluster(tmp_path, 3) as cluster, misled(cluster, tmp_path) as instance:
        writer = Writer(0)
        await writer.own(cluster[0])
        await write(cluster, writer, 3)
        await cluster[0].stop()
        async with cluster.client(1) as client:
            await client.flushall()
        assert (await writer.send(instance, writer.batch(b"w:x"))).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
        assert (await Writer(0, "c-2").claim(instance)).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
        request = metadata_pb2.ReadLogRequest(shard=0, epoch=writer.epoch, claim_nonce=writer.nonce)
        async for page in instance.stub.ReadLog(request):
            assert page.outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN


async def test_a_node_that_forgot_waits_for_one_in_whose_place_a_stranger_stands(tmp_path: Path) -> None:
    """What it said to the third node is known there, so it is not let in as it is."""
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await until(lambda: cluster.level(0), "level")
        await cluster[0].stop()
        with capture_logs() as logs:
            async with misled(cluster, tmp_path):
                await cluster.nodes[1].kill()
                await cluster.nodes[1].start()
                await until(
                    lambda: any(line["event"] == "log_waits_for_a_node" for line in logs), "it is waited for"
                )
        assert [line["away"] for line in logs if line["event"] == "log_waits_for_a_node"] == ["3"]
        assert not any(line["event"] == "log_second_may_be_missing" for line in logs)


async def test_promise_of_a_claimant_that_died_at_one_node_stops_nobody(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    async with node_of(cluster, 2) as node:
        reply = await node.prepare(0, 9, secrets.token_bytes(16), b"tag")
        assert reply.status is Status.OK
    await write(cluster, writer, 5)
    again = Writer(0, "c-1")
    assert (await again.claim(cluster[0])).epoch >= 2
    assert records(await cluster[0].read(0, again)) == writer.acknowledged


async def test_promise_of_a_claimant_that_died_is_no_trap_when_another_node_dies(
    cluster: MetadataCluster,
) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    await write(cluster, writer, 5)
    async with node_of(cluster, 2) as node:
        assert (await node.prepare(0, 9, secrets.token_bytes(16), b"tag")).status is Status.OK
    await cluster.nodes[0].kill()
    result = await writer.append(cluster[0], b"x")
    assert (result.outcome, result.epoch) == (metadata_pb2.LOG_OUTCOME_FENCED, 9)
    assert (await writer.check(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_FENCED
    again = Writer(0, "c-1")
    assert (await again.claim(cluster[0], above_epoch=9)).outcome == metadata_pb2.LOG_OUTCOME_OK
    await write(cluster, again, 5)
    found = records(await cluster[0].read(0, again))
    assert found[: len(writer.acknowledged)] == writer.acknowledged


async def test_promises_of_two_attempts_at_one_claim_are_not_counted_together(
    cluster: MetadataCluster,
) -> None:
    nonce = secrets.token_bytes(16)
    async with node_of(cluster, 0) as node:
        assert (await node.prepare(0, 3, nonce, b"one")).status is Status.OK
        assert (await node.prepare(0, 3, nonce, b"two")).status is Status.PROMISED
        assert (await node.prepare(0, 3, nonce, b"one")).status is Status.OK
        assert (await node.prepare(0, 3, nonce)).status is Status.OK


async def test_expected_end_is_id_and_hash(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    await until(lambda: cluster.level(0), "level")
    entry = NodeEntry(Position(1, 3), b"w:x", bytes(16), bytes(32))
    id_ = writer.end.position.stream_id
    async with node_of(cluster, 0) as node:
        wrong = await node.append(0, 1, writer.nonce, [id_, bytes(32), "", *arguments([entry])])
        assert wrong.status is Status.MISMATCH
        assert wrong.end == writer.end
        cut: list[bytes | str] = [id_, bytes(32), "0-1", bytes(32)]
        assert (await node.repair(0, 1, writer.nonce, cut, [entry])).status is Status.MISMATCH


async def test_trim_needs_the_promise_a_later_marker_and_a_whole_snapshot(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    await write(cluster, writer, 5)
    await until(lambda: cluster.level(0), "level")
    end = writer.end
    async with node_of(cluster, 0) as node:
        other = secrets.token_bytes(16)
        marker = (end.position.stream_id, end.hash)
        mine = (0, 1, writer.nonce)
        assert (await node.trim(0, 1, other, "1-4", *marker, "1-4")).status is Status.FENCED
        assert (await node.trim(*mine, "1-4", *marker, "1-4")).status is Status.MISMATCH
        assert (await node.keep(*mine, "1-4", "0", b"part")).status is Status.OK
        assert (await node.trim(*mine, "1-4", *marker, "1-4")).status is Status.MISMATCH
        assert (await node.keep(*mine, "1-4", "hashes", bytes(32))).status is Status.OK
        assert (await node.trim(*mine, "1-4", "1-6", bytes(32), "1-4")).status is Status.MISMATCH
        assert (await node.trim(*mine, "1-5", *marker, "1-4")).status is Status.MISMATCH
        assert (await node.trim(*mine, "1-4", *marker, marker[0])).status is Status.MISMATCH
        assert (await node.trim(*mine, "1-4", *marker, "1-4")).status is Status.OK
        first = await node.page(0, "-", "+", 1)
        assert first.values[0][0][0] == b"1-4"


async def test_empty_node_is_not_rebuilt_under_a_claim_that_lost_a_node(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    await until(lambda: cluster.level(0), "level")
    await cluster[0].stop()
    quorum = cluster[1].server.metadata.quorum
    async with node_of(cluster, 0) as node:
        assert (await node.prepare(0, 9, secrets.token_bytes(16), b"tag")).status is Status.OK
    async with cluster.client(1) as client:
        await client.flushall()
        repairer = Repairer(quorum, rebuild_delay_ms=0)
        held = Held(0, writer.epoch, writer.nonce)
        assert await repairer.repair(quorum.nodes[1], held) is Repaired.LATER
        assert not await client.exists("muster:{0}:log", "muster:{0}:promise", keys.NODE)


async def test_empty_node_is_not_rebuilt_from_a_copy_that_lacks_what_was_acknowledged(
    cluster: MetadataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 1 alone has an acknowledged entry besides the node that lost it, and is not heard at first."""
    writer = Writer(0)
    await writer.own(cluster[0])
    await until(lambda: cluster.level(0), "level")
    await cluster.nodes[2].kill()
    await write(cluster, writer, 1)
    await cluster[0].stop()
    async with cluster.client(1) as client:
        await client.flushall()
    await cluster.nodes[2].start()
    quorum = cluster[1].server.metadata.quorum
    await until(lambda: all(node.bulk.connected for node in quorum.nodes), "connected")
    repairer = Repairer(quorum, rebuild_delay_ms=0)
    held = Held(0, writer.epoch, writer.nonce)

    async def promised() -> bool:
        return (await quorum.nodes[2].prepare(*held, vote=False)).status is Status.OK

    await until(promised, "promised")  # its connections come back one after the other
    monkeypatch.setattr(quorum.nodes[0], "inspect", _silent)
    assert await repairer.repair(quorum.nodes[1], held) is Repaired.LATER
    async with cluster.client(1) as client:
        assert not await client.exists("muster:{0}:log")
    monkeypatch.undo()
    await until_equal(lambda: repairer.repair(quorum.nodes[1], held), Repaired.DONE, "all are heard")


async def _silent(_shard: int, **_: bool) -> NodeReply:
    return NodeReply(Status.DOWN)


async def test_answers_that_are_read_after_the_time_out_do_not_count() -> None:
    """A process that was stopped must not add up what nodes said before and what they say now."""
    answers: list[asyncio.Future[NodeReply]] = [asyncio.get_running_loop().create_future() for _ in range(3)]
    given = iter(answers)
    nodes: list[Any] = [object(), object(), object()]
    quorum = Quorum(nodes, step_timeout_ms=50)
    asking = asyncio.create_task(quorum.ask(lambda _: next(given), checked(quorum.majority)))
    await asyncio.sleep(0)
    answers[0].set_result(NodeReply(Status.OK))
    await asyncio.sleep(0)
    stand_still(0.1)
    answers[1].set_result(NodeReply(Status.OK))
    verdict, replies = await asking
    assert verdict is not None
    assert verdict.outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
    assert replies[1] is None


async def test_answers_of_two_configurations_are_not_added_up() -> None:
    answers: list[asyncio.Future[NodeReply]] = [asyncio.get_running_loop().create_future() for _ in range(3)]
    given = iter(answers)
    nodes: list[Any] = [object(), object(), object()]
    quorum = Quorum(nodes, step_timeout_ms=60_000)
    asking = asyncio.create_task(quorum.ask(lambda _: next(given), checked(quorum.majority)))
    await asyncio.sleep(0)
    answers[0].set_result(NodeReply(Status.OK))
    await asyncio.sleep(0)
    quorum.configuration += 1
    answers[1].set_result(NodeReply(Status.OK))
    verdict, replies = await asking
    assert verdict is not None
    assert verdict.outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
    assert replies[1] is None


async def test_claim_on_one_node_of_three_is_not_acknowledged(cluster: MetadataCluster) -> None:
    writer = Writer(0)
    await writer.own(cluster[0])
    quorum = cluster[0].server.metadata.quorum
    for index in (1, 2):
        await cluster.nodes[index].kill()
    claimer = Claimer(quorum, Repairer(quorum, rebuild_delay_ms=0), lambda: 0, claim_timeout_ms=1_000)
    held = Held(0, writer.epoch, writer.nonce)
    claimed = await claimer._spread(held, writer.end, {quorum.nodes[0]: NodeReply(Status.OK)})
    assert claimed.verdict.outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN


@asynccontextmanager
async def node_of(cluster: MetadataCluster, index: int) -> AsyncIterator[Node]:
    """A connection of one's own to a node, past the service."""
    metadata = cluster[0].server.metadata
    node = Node(index + 1, cluster.nodes[index].url, 2_000)
    node.belongs_to(metadata.cluster_id, metadata.shard_count, len(cluster.nodes))
    node.start()
    try:
        await until(lambda: node.steps.connected and node.bulk.connected, "connected")
        yield node
    finally:
        await node.stop()


@pytest.mark.parametrize("count", [1, 3])
async def test_a_node_that_refuses_is_named_in_the_log_once(tmp_path: Path, count: int) -> None:
    async with metadata_cluster(tmp_path, count) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        with capture_logs() as logs:
            async with cluster.client(count - 1) as client:
                await client.delete("muster:{0}:log")
                await client.set("muster:{0}:log", "something else")
            for _ in range(3):
                if count == 1:
                    result = await writer.send(cluster[0], writer.batch(b"x"))
                    assert result.outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
                else:
                    await write(cluster, writer, 1)
            await until(lambda: any(line["event"] == "log_node_refuses" for line in logs), "it is told")
        told = [line for line in logs if line["event"] == "log_node_refuses"]
        address = cluster.nodes[count - 1].url.removeprefix("redis://")
        assert [(line["node"], line["address"]) for line in told] == [(count, address)]
        assert "WRONGTYPE" in told[0]["problem"]
