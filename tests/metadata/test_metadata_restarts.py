"""Nodes that restart and forgot what they said last, that lose their data again, logs that nobody uses."""

import asyncio
import functools
import itertools
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kit.metadata.metadata_instances import (
    WATCH,
    Instance,
    MetadataCluster,
    Writer,
    metadata_cluster,
    records,
)
from kit.waiting import until, until_equal
from muster_metadata.log.patrol import Patrol
from muster_metadata.log.repairs.repair import Repairer
from muster_metadata.log.states import Held, Repaired
from muster_metadata.nodes.entries import NodeEntry, arguments, chain
from muster_metadata.nodes.node import Answer, Node
from muster_metadata.nodes.reply import NodeReply, Status
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import discovery_pb2
from muster_server.dev.redis_nodes import RedisNode
from structlog.testing import capture_logs

pytestmark = pytest.mark.cluster

MISSING = "log_second_may_be_missing"
CUT = "log_acknowledged_records_cut"


@asynccontextmanager
async def node_of(cluster: MetadataCluster, index: int) -> AsyncIterator[Node]:
    """A connection of its own to one node."""
    known = cluster[0].server.metadata.quorum.nodes[index]
    node = Node(known.index, cluster.nodes[index].url, 1_000)
    node.belongs_to(cluster[0].server.metadata.cluster_id, 4, len(cluster.nodes))
    node.start()
    try:
        await until(lambda: node.steps.connected and node.bulk.connected, "connected")
        yield node
    finally:
        await node.stop()


async def stopped(cluster: MetadataCluster) -> None:
    """Ends all instances, so that nothing happens by itself."""
    for instance in cluster.instances:
        await instance.stop()


def written_bytes(node: RedisNode) -> tuple[Path, int]:
    """The append-only file of a node and how much stands there."""
    (file,) = (node.folder / "appendonlydir").glob("*.incr.aof")
    return file, file.stat().st_size


async def forget(node: RedisNode, since: tuple[Path, int]) -> None:
    """The machine of a node loses its power, and what was written since is gone."""
    await lose_power(node, since)
    await node.start()


async def lose_power(node: RedisNode, since: tuple[Path, int]) -> None:
    """It is away, and its file ends where it did."""
    await node.kill()
    with since[0].open("r+b") as file:
        file.truncate(since[1])


async def claimed(cluster: MetadataCluster, *payload: bytes) -> Writer:
    """A writer whose log is level at all nodes."""
    writer = Writer(0)
    assert (await writer.claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_OK
    for record in payload:
        await writer.append(cluster[0], record)
    await until(lambda: cluster.level(0), "level")
    return writer


async def test_a_node_that_forgot_a_promise_does_not_vote(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        writer = await claimed(cluster, b"w:1")
        await stopped(cluster)
        before = written_bytes(cluster.nodes[2])
        async with node_of(cluster, 2) as node:
            assert (await node.prepare(0, 2, secrets.token_bytes(16), b"tag")).status is Status.OK
        await forget(cluster.nodes[2], before)
        async with cluster.client(2) as client:
            assert await client.hget("muster:{0}:promise", "epoch") == b"1"
        entries = chain(writer.end, 1, [(b"w:2", secrets.token_bytes(16))])
        id_ = writer.end.position.stream_id
        batch: list[bytes | str] = [id_, writer.end.hash, id_, *arguments(entries)]
        async with node_of(cluster, 2) as node:
            held = (0, writer.epoch, writer.nonce)
            for answer in (
                node.append(*held, batch),
                node.check(*held),
                node.inspect(0),
                node.prepare(0, 3, secrets.token_bytes(16), b"tag"),
                node.acknowledge(*held, id_, writer.end.hash),
            ):
                assert (await answer).status is Status.RESTARTED


async def test_a_record_that_one_node_forgot_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes 2 and 3 acknowledged it, node 3 forgot it, and only nodes 1 and 3 are heard at first."""
    async with metadata_cluster(
        tmp_path, 3, instances=2, fsync="everysec", claim_timeout_ms=4_000
    ) as cluster:
        writer = await claimed(cluster, b"w:1")
        before = written_bytes(cluster.nodes[2])
        monkeypatch.setattr(cluster[0].server.metadata.quorum.nodes[0], "append", _unreached)
        assert (await writer.append(cluster[0], b"w:2")).outcome == metadata_pb2.LOG_OUTCOME_OK
        assert [count for count, _ in await cluster.ends(0)] == [3, 4, 4]
        await cluster[0].stop()
        await lose_power(cluster.nodes[2], before)
        cluster.nodes[1].pause()
        await cluster.nodes[2].start()
        instance = cluster[1]
        await until_equal(lambda: hears(instance), [True, False, True], "nodes 1 and 3 answer")
        successor = Writer(0, "c-2")
        assert (await successor.claim(instance)).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
        cluster.nodes[1].resume()
        await until(lambda: owns(successor, instance), "the successor has the log")
        assert records(await instance.read(0, successor)) == [b"w:1", b"w:2"]
        await until_equal(lambda: voting(cluster, 0), 3, "the node that forgot votes again")


def _unreached(*_: Any, **__: Any) -> Answer:
    answer: Answer = asyncio.get_running_loop().create_future()
    answer.set_result(NodeReply(Status.DOWN))
    return answer


async def hears(instance: Instance) -> list[bool]:
    """Which nodes an instance has connections to."""
    return [node.steps.connected for node in instance.server.metadata.quorum.nodes]


async def owns(writer: Writer, instance: Instance) -> bool:
    """Claims, with another nonce each time."""
    writer.nonce = secrets.token_bytes(16)
    return (await writer.claim(instance)).outcome == metadata_pb2.LOG_OUTCOME_OK


async def voting(cluster: MetadataCluster, shard: int) -> int:
    """How many nodes vote on a log."""
    found = 0
    for index in range(len(cluster.nodes)):
        async with node_of(cluster, index) as node:
            found += (await node.inspect(shard)).status is Status.OK
    return found


async def test_a_node_that_restarted_votes_again_under_a_floor(tmp_path: Path) -> None:
    """What it may have forgotten decides nothing: no forgotten promise gets another, no older write lands."""
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        writer = await claimed(cluster, b"w:1")
        forgotten = (0, writer.epoch + 1, secrets.token_bytes(16))
        before = written_bytes(cluster.nodes[2])
        async with node_of(cluster, 2) as node:
            assert (await node.prepare(*forgotten, b"tag")).status is Status.OK
        await forget(cluster.nodes[2], before)
        await until(lambda: cluster.level(0), "it is brought back")
        await until_equal(lambda: voting(cluster, 3), 3, "also for a log that nobody ever claimed")
        batch = writer.batch(b"w:2")
        entries = chain(writer.end, 1, [(b"w:2", batch.records[0].nonce)])
        id_ = writer.end.position.stream_id
        parts: list[bytes | str] = [id_, writer.end.hash, id_, *arguments(entries)]
        for index in (0, 1):
            async with node_of(cluster, index) as node:
                assert (await node.prepare(*forgotten, b"tag")).status is Status.PROMISED
                assert (await node.append(0, writer.epoch, writer.nonce, parts)).status is Status.RAISED
        assert (await writer.send(cluster[0], batch)).outcome == metadata_pb2.LOG_OUTCOME_OK
        assert (await writer.append(cluster[0], b"w:3")).outcome == metadata_pb2.LOG_OUTCOME_OK
        successor = Writer(0, "c-2")
        await successor.own(cluster[0])
        assert records(await cluster[0].read(0, successor)) == writer.acknowledged


async def test_a_node_is_let_in_with_what_the_others_had_and_not_before(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        writer = await claimed(cluster, b"w:1")
        await stopped(cluster)
        before = written_bytes(cluster.nodes[2])
        held = (0, writer.epoch, writer.nonce)
        id_ = writer.end.position.stream_id
        entries = chain(writer.end, 1, [(b"w:2", secrets.token_bytes(16))])
        async with node_of(cluster, 2) as node:
            batch: list[bytes | str] = [id_, writer.end.hash, id_, *arguments(entries)]
            assert (await node.append(*held, batch)).status is Status.OK
        await forget(cluster.nodes[2], before)
        last: NodeEntry = entries[0]
        having = (last.position.stream_id, last.hash)
        async with node_of(cluster, 2) as node:
            run = node.steps.run
            assert (await node.readmit(*held, having, 9, run)).status is Status.MISMATCH
            assert (await node.inspect(0)).status is Status.RESTARTED
            ends = (id_, writer.end.hash, id_, writer.end.hash)
            assert (await node.repair(*held, ends, entries)).status is Status.OK
            assert (await node.readmit(*held, having, 9, run)).status is Status.OK
            assert (await node.inspect(0)).status is Status.OK


@asynccontextmanager
async def doubted(tmp_path: Path) -> AsyncIterator[tuple[MetadataCluster, Patrol, list[int]]]:
    """Nodes 2 and 3 restarted; nobody brings them back but a patrol, whose clock can be moved."""
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        await claimed(cluster, b"w:1")
        metadata = cluster[0].server.metadata
        await metadata._patrol.stop()
        await metadata.upkeep.stop()
        for index in (1, 2):
            await cluster.nodes[index].kill()
            await cluster.nodes[index].start()
        await until_equal(lambda: hears(cluster[0]), [True, True, True], "connected again")
        assert await voting(cluster, 0) == 1
        now_ms = [0]
        yield cluster, Patrol(metadata.quorum, metadata.upkeep, lambda: None, lambda: now_ms[0]), now_ms


async def test_what_was_heard_long_ago_lets_no_node_vote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance was stopped while the nodes answered it; another may have let the best one in since."""
    async with doubted(tmp_path) as (cluster, patrol, now_ms):
        node = cluster[0].server.metadata.quorum.nodes[0]
        inspect = node.inspect

        def answered_before_a_pause(*arguments: Any, **options: Any) -> Answer:
            async def paused() -> NodeReply:
                reply = await inspect(*arguments, **options)
                now_ms[0] += 60_000
                return reply

            return asyncio.ensure_future(paused())

        with monkeypatch.context() as patched:
            patched.setattr(node, "inspect", answered_before_a_pause)
            await patrol._look(0)
        assert await voting(cluster, 0) == 1
        await patrol._look(0)
        assert await voting(cluster, 0) == 2


async def test_what_was_heard_long_ago_acknowledges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance that slept adds up what nodes said at different times, and may have lost in between."""
    async with metadata_cluster(tmp_path, 3, instances=2) as cluster:
        writer = await claimed(cluster, b"w:1")
        quorum, upkeep = cluster[1].server.metadata.quorum, cluster[1].server.metadata.upkeep
        awake = quorum._now_ms
        monkeypatch.setattr(quorum, "_now_ms", functools.partial(next, itertools.count(0, 60_000)))
        await upkeep.adopt(0, writer.epoch)
        assert not upkeep.knows(0, writer.epoch)
        monkeypatch.setattr(quorum, "_now_ms", awake)
        await upkeep.adopt(0, writer.epoch)
        assert upkeep.knows(0, writer.epoch)


async def test_a_node_that_restarts_once_more_is_not_let_in_for_what_it_was_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with doubted(tmp_path) as (cluster, patrol, _):
        node = cluster[0].server.metadata.quorum.nodes[1]
        other = cluster[0].server.metadata.quorum.nodes[2]
        inspect, run = node.inspect, node.steps.run

        def answered_before_a_restart(*arguments: Any, vote: bool = True) -> Answer:
            async def restarted() -> NodeReply:
                reply = await inspect(*arguments, vote=vote)
                if not vote:
                    await cluster.nodes[1].kill()
                    await cluster.nodes[1].start()
                    await until(lambda: node.steps.connected and node.steps.run != run, "it is back")
                return reply

            return asyncio.ensure_future(restarted())

        monkeypatch.setattr(node, "inspect", answered_before_a_restart)
        await patrol._look(0)
        assert (await inspect(0)).status is Status.RESTARTED
        assert (await other.inspect(0)).status is Status.RESTARTED


@pytest.mark.parametrize("count", [1, 3])
async def test_where_all_nodes_restart_they_go_on_and_an_alarm_says_so(tmp_path: Path, count: int) -> None:
    async with metadata_cluster(tmp_path, count, fsync="everysec") as cluster:
        writer = await claimed(cluster, b"w:1")
        with capture_logs() as logs:
            for node in range(count):
                await cluster.nodes[node].kill()
            for node in range(count):
                await cluster.nodes[node].start()
            assert (await writer.append(cluster[0], b"w:2")).outcome == metadata_pb2.LOG_OUTCOME_OK
            await until_equal(lambda: voting(cluster, 0), count, "all nodes vote")
            await until(lambda: any(line["event"] == MISSING for line in logs), "the alarm")
        told = next(line for line in logs if line["event"] == MISSING)
        assert told["alarm"]
        assert told["restarted_at"]
        assert records(await cluster[0].read(0, writer)) == writer.acknowledged


async def test_a_node_that_syncs_each_write_forgets_nothing(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster:
        writer = await claimed(cluster, b"w:1")
        with capture_logs() as logs:
            await cluster.nodes[0].kill()
            await cluster.nodes[0].start()
            assert (await writer.append(cluster[0], b"w:2")).outcome == metadata_pb2.LOG_OUTCOME_OK
        assert not any(line["event"] == MISSING for line in logs)


async def test_a_second_loss_of_a_node_is_waited_for_again(tmp_path: Path) -> None:
    """What was seen before somebody else filled the node says nothing about how long it is empty now."""
    async with metadata_cluster(tmp_path, 3, instances=1) as cluster:
        writer = await claimed(cluster, b"w:1")
        quorum = cluster[0].server.metadata.quorum
        now_ms = 0
        repairer = Repairer(quorum, rebuild_delay_ms=5_000, now_ms=lambda: now_ms)
        held = Held(0, writer.epoch, writer.nonce)
        async with cluster.client(2) as client:
            await client.flushall()
            assert await repairer.repair(quorum.nodes[2], held) is Repaired.LATER
            await until(lambda: cluster.level(0), "the instance has filled it")
            now_ms = 60_000
            await client.flushall()
            assert await repairer.repair(quorum.nodes[2], held) is Repaired.LATER


async def test_a_node_that_does_not_answer_is_not_taken_for_one_that_forgets(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster:
        node = cluster[0].server.metadata.quorum.nodes[0]
        assert node.steps.run.endswith("/always")
        await cluster.nodes[0].kill()
        await until(lambda: not node.tables.connected, "it is away")
        await node.look()
        assert node.steps.run.endswith("/always")


async def test_a_file_that_is_still_written_for_the_first_time_keeps_nothing(tmp_path: Path) -> None:
    """`appendonly` was switched on while the server runs: until then a crash takes everything with it."""
    async with metadata_cluster(tmp_path, 1) as cluster:
        node = cluster[0].server.metadata.quorum.nodes[0]
        async with cluster.client(0) as client:
            await client.config_set("appendonly", "no")
            await client.config_set("rdb-key-save-delay", 30_000_000)
            await client.config_set("appendonly", "yes")
            await node.look()
            assert node.steps.run == node.steps.run_id
            async with node_of(cluster, 0) as other:
                assert other.steps.run == other.steps.run_id
            await client.config_set("appendonly", "no")
            await client.config_set("rdb-key-save-delay", 0)
            await client.config_set("appendonly", "yes")
        await until(functools.partial(_counts_as_synced, node), "the file is written")


async def _counts_as_synced(node: Node) -> bool:
    await node.look()
    return node.steps.run.endswith("/always")


async def test_a_shorter_log_of_a_later_epoch_is_not_claimed(tmp_path: Path) -> None:
    """It lacks what was acknowledged, although its last position is the higher one."""
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        writer = await claimed(cluster, *(b"w:%d" % number for number in range(5)))
        await until_equal(
            lambda: acknowledged(cluster, 1), b"1-7", "the second node knows what is acknowledged"
        )
        await stopped(cluster)
        await cluster.nodes[2].kill()
        nonce = secrets.token_bytes(16)
        async with node_of(cluster, 0) as node:
            assert (await node.prepare(0, 2, nonce, b"tag")).status is Status.OK
            rows = (await node.page(0, "-", "+", 2)).values[0]
            claim = NodeEntry.from_redis(rows[1])
            id_ = writer.end.position.stream_id
            ends = (id_, writer.end.hash, claim.position.stream_id, claim.hash)
            later = chain(claim.end, 2, [(b"w:later", secrets.token_bytes(16))])
            assert (await node.repair(0, 2, nonce, ends, later)).status is Status.OK
        instance = await cluster.add_instance()
        result = await Writer(0, "c-2").claim(instance)
        assert result.outcome == metadata_pb2.LOG_OUTCOME_TRUNCATED


async def acknowledged(cluster: MetadataCluster, index: int) -> bytes:
    """The acknowledged position that a node knows."""
    async with cluster.client(index) as client:
        found: Any = await client.get("muster:{0}:acknowledged")
        return bytes(found or b"")


async def test_a_nonce_names_one_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that left its Claim at one node and was overtaken does not leave another one after it."""
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        writer = await claimed(cluster, b"w:1")
        nodes = cluster[0].server.metadata.quorum.nodes
        monkeypatch.setattr(nodes[2], "append", _unreached)
        send = nodes[1].append
        overtaking: list[Answer] = []

        def overtaken(shard: int, *rest: Any, **options: Any) -> Answer:
            if not overtaking:
                # On the same connection: it comes before the Claim.
                overtaking.append(nodes[1].prepare(shard, 50, secrets.token_bytes(16), b"other"))
            return send(shard, *rest, **options)

        monkeypatch.setattr(nodes[1], "append", overtaken)
        successor = Writer(0, "c-2")
        result = await successor.claim(cluster[0])
        assert overtaking
        if result.outcome != metadata_pb2.LOG_OUTCOME_OK:
            assert result.outcome == metadata_pb2.LOG_OUTCOME_FENCED
            await until(lambda: owns(successor, cluster[0]), "another nonce takes the log")
        entries = await cluster[0].read(0, successor)
        nonces = [entry.nonce for entry in entries]
        assert len(set(nonces)) == len(nonces)
        assert records(entries) == writer.acknowledged


async def test_a_nonce_that_stands_in_the_log_is_promised_nothing(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        writer = await claimed(cluster, b"w:1")
        await stopped(cluster)
        async with node_of(cluster, 0) as node:
            answer = await node.prepare(0, 7, writer.nonce, b"tag", above=0)
            assert (answer.status, answer.epoch) == (Status.SPENT, writer.epoch)
            fresh = secrets.token_bytes(16)
            assert (await node.prepare(0, 7, fresh, b"tag", above=0)).status is Status.OK


async def test_a_deleted_log_that_nobody_uses_is_filled_and_nothing_is_left(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        await claimed(cluster, b"w:1")
        await stopped(cluster)
        await cluster.add_instance()
        await cluster.add_instance()
        cluster.instances = cluster.instances[1:]
        async with cluster.client(1) as client:
            await client.delete("muster:{0}:log", "muster:{0}:promise")
            await until(lambda: cluster.level(0), "it is filled")
            await until_equal(
                lambda: client.exists("muster:{0}:copy", "muster:{0}:vacant"), 0, "nothing is left"
            )


async def test_instances_that_fill_a_node_at_once_do_not_undo_each_others_copies(tmp_path: Path) -> None:
    """The log has many pages, and who begins anew removes what another has copied."""
    async with metadata_cluster(tmp_path, 3, instances=3) as cluster:
        writer = await claimed(cluster)
        for _ in range(6):
            await writer.append(cluster[0], *([b"w:1"] * 5_000))
        await until(lambda: cluster.level(0), "level")
        async with cluster.client(1) as client:
            await client.flushall()
            await until(lambda: cluster.level(0), "it is filled")
            await until_equal(lambda: client.exists("muster:{0}:copy"), 0, "nothing is left")


async def test_a_copy_that_grows_is_left_alone_and_one_that_stands_is_made_again(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = await claimed(cluster, b"w:1")
        await cluster[0].server.metadata._patrol.stop()
        await cluster[0].server.metadata.upkeep.stop()
        quorum = cluster[0].server.metadata.quorum
        now_ms = 0
        repairer = Repairer(quorum, rebuild_delay_ms=0, now_ms=lambda: now_ms)
        held, node = Held(0, writer.epoch, writer.nonce), quorum.nodes[2]
        rows = (await node.page(0, "-", "+", 2)).values[0]
        copy = [NodeEntry.from_redis(row) for row in rows]
        async with cluster.client(2) as client:
            await client.flushall()
            assert (await node.stage(*held, ("", b""), copy[:1], gone=True)).status is Status.OK
            assert await repairer.repair(node, held) is Repaired.LATER
            now_ms = 60_000
            after = (copy[0].position.stream_id, copy[0].hash)
            assert (await node.stage(*held, after, copy[1:], gone=True)).status is Status.OK
            assert await repairer.repair(node, held) is Repaired.LATER
            now_ms = 120_000
            assert await repairer.repair(node, held) is Repaired.DONE
            await until_equal(lambda: client.exists("muster:{0}:copy"), 0, "nothing is left")


async def test_a_claim_whose_counted_promise_is_gone_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes 1 and 2 promised; node 2 lost the promise, and the owner went on with nodes 2 and 3."""
    async with metadata_cluster(tmp_path, 3, instances=2) as cluster:
        writer = await claimed(cluster, b"w:1")
        nodes = cluster[1].server.metadata.quorum.nodes
        unheard = [True]
        prepare, send = nodes[2].prepare, nodes[1].append

        def not_at_first(*arguments: Any, **options: Any) -> Answer:
            return _unreached() if unheard and unheard.pop() else prepare(*arguments, **options)

        def after_a_loss(*arguments: Any, **options: Any) -> Answer:
            monkeypatch.setattr(nodes[1], "append", send)

            async def lose() -> NodeReply:
                async with cluster.client(1) as client:
                    await client.hset(
                        "muster:{0}:promise", mapping={"epoch": writer.epoch, "nonce": writer.nonce}
                    )
                await writer.append(cluster[0], b"w:2")
                return await send(*arguments, **options)

            return asyncio.ensure_future(lose())

        monkeypatch.setattr(nodes[2], "prepare", not_at_first)
        monkeypatch.setattr(nodes[1], "append", after_a_loss)
        successor = Writer(0, "c-2")
        result = await successor.claim(cluster[1])
        assert writer.acknowledged == [b"w:1", b"w:2"]
        if result.outcome != metadata_pb2.LOG_OUTCOME_OK:
            await until(lambda: owns(successor, cluster[1]), "another nonce takes the log")
        assert records(await cluster[1].read(0, successor)) == writer.acknowledged


async def test_the_catalog_is_written_on_when_all_nodes_forgot_a_change(tmp_path: Path) -> None:
    """An instance that goes on knows what no node has any more."""
    async with metadata_cluster(tmp_path, 1, fsync="everysec") as cluster:
        assert not (await create(cluster[0], "kept")).error_code
        before = written_bytes(cluster.nodes[0])
        assert not (await create(cluster[0], "forgotten")).error_code
        await forget(cluster.nodes[0], before)

        async def created() -> bool:
            return not (await create(cluster[0], "new")).error_code

        await until(created, "the catalog is written again")
        async for message in cluster[0].stub.Watch(WATCH):
            if message.HasField("catalog"):
                assert [topic.name for topic in message.catalog.topics] == ["kept", "new"]
                break


async def create(instance: Instance, name: str) -> metadata_pb2.ChangeTopicResponse:
    """Creates a topic."""
    request = metadata_pb2.ChangeTopicRequest(create=discovery_pb2.Topic(name=name, partitions=3))
    response: metadata_pb2.ChangeTopicResponse = await instance.stub.ChangeTopic(request)
    return response


async def test_acknowledged_records_that_a_majority_forgot_are_cut_with_an_alarm(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3, fsync="everysec") as cluster:
        writer = await claimed(cluster, b"w:1")
        before = [written_bytes(cluster.nodes[node]) for node in (1, 2)]
        for record in (b"w:2", b"w:3"):
            assert (await writer.append(cluster[0], record)).outcome == metadata_pb2.LOG_OUTCOME_OK
        await until(lambda: cluster.level(0), "level")
        for node, since in zip((1, 2), before, strict=True):
            await lose_power(cluster.nodes[node], since)
        cluster.nodes[0].pause()
        for node in (1, 2):
            await cluster.nodes[node].start()
        successor = Writer(0, "c-2")
        await until(lambda: owns(successor, cluster[0]), "the successor has the log")
        with capture_logs() as logs:
            cluster.nodes[0].resume()
            await until(lambda: cluster.level(0), "node 1 has the successor's log")
        told = next(line for line in logs if line["event"] == CUT)
        assert (told["alarm"], told["node"]) == (True, 1)
        assert told["acknowledged"] > told["after"]
        assert records(await cluster[0].read(0, successor)) == [b"w:1"]


async def test_a_source_that_is_only_behind_cuts_nothing_and_raises_no_alarm(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = await claimed(cluster, b"w:1")
        await cluster[0].server.metadata._patrol.stop()
        await cluster[0].server.metadata.upkeep.stop()
        quorum = cluster[0].server.metadata.quorum
        held, node = Held(0, writer.epoch, writer.nonce), quorum.nodes[0]
        (entry,) = chain(writer.end, writer.epoch, [(b"w:2", secrets.token_bytes(16))])
        id_, last = writer.end.position.stream_id, entry.position.stream_id
        batch: list[bytes | str] = [id_, writer.end.hash, id_, *arguments([entry])]
        assert (await node.append(*held, batch)).status is Status.OK
        assert (await node.acknowledge(*held, last, entry.hash)).status is Status.OK
        repairer = Repairer(quorum, rebuild_delay_ms=0)
        with capture_logs() as logs:
            assert await repairer.repair(node, held) is Repaired.LATER
        assert not any(line["event"] == CUT for line in logs)
        assert [count for count, _ in await cluster.ends(0)] == [4, 3, 3]


async def test_a_log_that_a_majority_lost_is_told_also_when_nobody_uses_it(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with metadata_cluster(tmp_path, 3) as cluster:
            patrol = cluster[0].server.metadata._patrol
            await patrol._round()
            assert not [line for line in logs if line["event"] == "log_lost"]
            for index in (0, 1):
                async with cluster.client(index) as client:
                    await client.delete("muster:{catalog}:log", "muster:{2}:log")
            for _ in range(2):
                await patrol._round()
    told = [(line["shard"], line["nodes"], line["alarm"]) for line in logs if line["event"] == "log_lost"]
    assert sorted(told, key=str) == [("catalog", "1,2", True), (2, "1,2", True)]
