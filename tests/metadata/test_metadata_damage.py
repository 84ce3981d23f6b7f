"""Nodes that cannot write, lose a key, hold changed bytes or restart; instances that are killed."""

import asyncio
import secrets
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit.metadata.metadata_instances import MetadataCluster, Writer, metadata_cluster, records
from kit.waiting import killed, until
from metadata.test_metadata_leases import Holder
from muster_core.position import NOWHERE, Position
from muster_metadata.log.reading import PAGE_BYTES, Wanted
from muster_metadata.log.states import Held
from muster_metadata.log.verdicts import OK
from muster_metadata.nodes import keys
from muster_metadata.nodes.entries import arguments, chain
from muster_metadata.nodes.node import Answer
from muster_metadata.nodes.problem import LOADING
from muster_metadata.nodes.reply import NodeReply
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_server.dev.redis_nodes import RedisNode, RedisNodes
from muster_server.verify.verifier import verify

pytestmark = pytest.mark.cluster

LIMITED = """
import os, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
os.execv(sys.argv[2], sys.argv[2:])
"""


async def write(cluster: MetadataCluster, writer: Writer, count: int, size: int = 0) -> None:
    for _ in range(count):
        record = b"w:%d:" % len(writer.acknowledged) + b"x" * size
        assert (await writer.append(cluster[0], record)).outcome == metadata_pb2.LOG_OUTCOME_OK


def problem_of(cluster: MetadataCluster, index: int) -> str:
    """What this instance tells of a node."""
    return cluster[0].server.metadata.view.cluster.log_nodes[index].problem


async def set_config(cluster: MetadataCluster, index: int, name: str, value: str) -> None:
    async with cluster.client(index) as client:
        await client.config_set(name, value)


class NodesWithFullDisk(RedisNodes):
    """The last node cannot write a file beyond a size: the kernel answers as a full disk does.

    Args:
        folder: as `RedisNodes`.
        limit_bytes: the size.
        full: how many of the last nodes have it.
    """

    def __init__(self, folder: Path, limit_bytes: int, full: int = 1) -> None:
        super().__init__(folder, 3)
        for node in self[-full:]:
            arguments = node.process._arguments
            node.process._arguments = [sys.executable, "-c", LIMITED, str(limit_bytes), *arguments]

    def make_room(self, index: int) -> None:
        """More space, in the running process."""
        import resource

        pid = self[index].process.pid
        assert pid is not None
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit(2), which Linux has")
async def test_full_disk_of_one_node_is_told_and_delays_nobody(tmp_path: Path) -> None:
    nodes = NodesWithFullDisk(tmp_path, 200_000)
    async with metadata_cluster(tmp_path, 3, nodes=nodes) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await write(cluster, writer, 60, size=5_000)
        # The server notices that its file cannot grow, and refuses what comes after.
        await until(lambda: "cannot write to its disk" in problem_of(cluster, 2), "the node is told of")
        await write(cluster, writer, 60, size=5_000)
        assert problem_of(cluster, 0) == problem_of(cluster, 1) == ""
        nodes.make_room(2)
        await until(lambda: cluster.level(0), "the node has what it missed")
        await until(lambda: not problem_of(cluster, 2), "the node is well again")
        assert records(await cluster[0].read(0, writer)) == writer.acknowledged


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit(2), which Linux has")
async def test_full_disks_of_a_majority_lose_nothing(tmp_path: Path) -> None:
    nodes = NodesWithFullDisk(tmp_path, 200_000, full=2)
    async with metadata_cluster(tmp_path, 3, nodes=nodes) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await write(cluster, writer, 20, size=5_000)

        async def stuck() -> bool:
            batch = writer.batch(b"w:%d:" % len(writer.acknowledged) + b"x" * 5_000)
            return (await writer.send(cluster[0], batch)).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN

        await until(stuck, "no majority can write")
        for index in (1, 2):
            nodes.make_room(index)
        successor = Writer(0, "c-2")

        async def claimed() -> bool:
            return (await successor.claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_OK

        await until(claimed, "the log goes on when there is room")
        found = records(await cluster[0].read(0, successor))
        assert found[: len(writer.acknowledged)] == writer.acknowledged


async def test_node_that_is_out_of_memory_is_told_and_catches_up(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await set_config(cluster, 1, "maxmemory", "1")
        await write(cluster, writer, 10)
        await until(lambda: "out of memory" in problem_of(cluster, 1), "the node is told of")
        # The others do not: a majority without memory is refused, or not known, and nothing is lost.
        await set_config(cluster, 2, "maxmemory", "1")
        batch = writer.batch(b"w:x")
        assert (await writer.send(cluster[0], batch)).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
        for index in (1, 2):
            await set_config(cluster, index, "maxmemory", "0")

        async def known() -> bool:
            return (await writer.send(cluster[0], batch)).outcome == metadata_pb2.LOG_OUTCOME_OK

        await until(known, "the repeated batch is acknowledged")
        await until(lambda: cluster.level(0), "the node has what it missed")
        await until(lambda: not problem_of(cluster, 1), "the node is well again")


async def test_deleted_log_of_one_shard_is_rebuilt_and_others_are_not_touched(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        writers = [Writer(shard) for shard in range(2)]
        for writer in writers:
            await writer.own(cluster[0])
            await write(cluster, writer, 5)
        async with cluster.client(1) as client:
            await client.delete("muster:{0}:log")
        for writer in writers:
            await write(cluster, writer, 5)
        await until(lambda: cluster.level(0), "the log is there again")
        assert await cluster.level(1)
        await cluster.nodes[2].kill()
        for writer in writers:
            await write(cluster, writer, 1)
            assert records(await cluster[0].read(writer.shard, writer)) == writer.acknowledged


async def test_deleted_log_of_a_majority_stops_that_shard_alone(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        writers = [Writer(shard) for shard in range(2)]
        for writer in writers:
            await writer.own(cluster[0])
            await write(cluster, writer, 5)
        for index in (0, 1):
            async with cluster.client(index) as client:
                await client.delete("muster:{0}:log")
        result = await writers[0].send(cluster[0], writers[0].batch(b"w:x"))
        assert result.outcome == metadata_pb2.LOG_OUTCOME_NO_LOG
        assert (await Writer(0, "c-2").claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_NO_LOG
        await write(cluster, writers[1], 5)


@pytest.mark.parametrize("removed", [False, True], ids=["changed_byte", "removed_entry"])
@pytest.mark.parametrize("where", [(1,), (0, 1)], ids=["one_node", "majority"])
async def test_damaged_entry_is_found_and_named(
    tmp_path: Path, where: tuple[int, ...], removed: bool
) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await write(cluster, writer, 5)
        await until(lambda: cluster.level(0), "level")
        for index in where:
            await damage(cluster, index, removed=removed)
        report = await asyncio.to_thread(verify, cluster.nodes.url)
        assert report.broken["L6n"]
        named = " ".join(one.violation.detail for one in report.evidence if one.violation.invariant == "L6n")
        places = {one.violation.position.stream_id for one in report.evidence}
        assert "1-4" in places
        assert "nodes" in named


async def damage(cluster: MetadataCluster, index: int, *, removed: bool) -> None:
    """Entry 1-4 of the first shard: removed, or with another byte in it, all else as it was."""
    key = "muster:{0}:log"
    async with cluster.client(index) as client:
        if removed:
            await client.xdel(key, "1-4")
            return
        entries: Any = await client.xrange(key)
        await client.delete(key)
        for id_, fields in entries:
            record = fields[b"r"]
            changed = record[:-1] + b"!" if id_ == b"1-4" else record
            await client.xadd(key, {b"r": changed, b"n": fields[b"n"], b"h": fields[b"h"]}, id=id_)


async def test_a_log_is_damaged_only_when_every_node_that_may_have_it_was_looked_at(tmp_path: Path) -> None:
    """Who loads such a log stops its shard for good."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await write(cluster, writer, 5)
        await until(lambda: cluster.level(0), "all nodes have the log")

        async def outcome() -> int:
            request = metadata_pb2.ReadLogRequest(shard=0, epoch=writer.epoch, claim_nonce=writer.nonce)
            outcomes: list[int] = [page.outcome async for page in cluster[0].stub.ReadLog(request)]
            return outcomes[-1]

        for index in (0, 1):
            async with cluster.client(index) as client:
                assert await client.xdel("muster:{0}:log", f"{writer.epoch}-4")
        for _ in range(5):
            assert await outcome() == metadata_pb2.LOG_OUTCOME_OK
        cluster.nodes[2].pause()
        assert await outcome() == metadata_pb2.LOG_OUTCOME_UNKNOWN
        cluster.nodes[2].resume()
        async with cluster.client(2) as client:
            await client.xdel("muster:{0}:log", f"{writer.epoch}-5")

        async def damaged() -> bool:
            return await outcome() == metadata_pb2.LOG_OUTCOME_DAMAGED

        await until(damaged, "no node has it right")


async def test_a_log_that_its_node_loses_while_it_is_read_has_not_ended(tmp_path: Path) -> None:
    """Who reads it would take what came so far for all of it."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await write(cluster, writer, 60)
        await until(lambda: cluster.level(0), "all nodes have the log")
        found = []
        async for page in cluster[0].server.metadata.reader.read(
            Wanted(shard=0, first=NOWHERE, epoch=writer.epoch, nonce=writer.nonce)
        ):
            assert page.verdict == OK
            found += page.entries
            for index in (0, 1):  # it is read from one of these
                async with cluster.client(index) as client:
                    await client.delete("muster:{0}:log")
        assert records(found) == writer.acknowledged


@pytest.mark.parametrize("removed", [False, True])
async def test_a_node_is_filled_from_a_copy_that_is_right(
    tmp_path: Path, removed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that answers first has another byte in it, or lacks an entry."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await write(cluster, writer, 5)
        await until(lambda: cluster.level(0), "all nodes have the log")
        second = cluster[0].server.metadata.quorum.nodes[1]
        inspect = second.inspect

        def late(*arguments: Any, **options: Any) -> Answer:
            async def answer() -> NodeReply:
                await asyncio.sleep(0.05)
                return await inspect(*arguments, **options)

            return asyncio.ensure_future(answer())

        monkeypatch.setattr(second, "inspect", late)
        await damage(cluster, 0, removed=removed)
        right = (await cluster.ends(0))[1]
        async with cluster.client(2) as client:
            await client.flushall()
        await write(cluster, writer, 1)

        async def filled() -> bool:
            ends = await cluster.ends(0)
            return ends[2] == ends[1] != right

        await until(filled, "it has the log again")
        async with cluster.client(2) as client:
            found: Any = await client.xrange("muster:{0}:log", "1-4", "1-4")
            assert [fields[b"r"] for _, fields in found] == [writer.acknowledged[1]]


async def test_large_records_are_copied_some_megabytes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds at once would take the memory of the node that they come from, and not come in time."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await write(cluster, writer, 12, size=1 << 20)
        await until(lambda: cluster.level(0), "all nodes have the log")
        sizes: list[int] = []

        def watched(send: Callable[..., Answer]) -> Callable[..., Answer]:
            def noted(answer: Answer) -> None:
                reply = answer.result()
                sizes.append(sum(len(fields[1]) for _, fields in reply.values))

            def ask(*arguments: Any) -> Answer:
                answer = send(*arguments)
                answer.add_done_callback(noted)
                return answer

            return ask

        for node in cluster[0].server.metadata.quorum.nodes:
            monkeypatch.setattr(node, "entries", watched(node.entries))
        async with cluster.client(2) as client:
            await client.flushall()
        await until(lambda: cluster.level(0), "it is filled")
        assert 3 << 20 < max(sizes) < 6 << 20


async def spoil_end(node: Any, writer: Writer) -> None:
    place = writer.end.position
    await node.xadd("muster:{0}:log", {"foo": "bar"}, id=f"{place.epoch}-{place.offset + 1}")


async def spoil_acknowledged(node: Any, _: Writer) -> None:
    await node.set("muster:{0}:acknowledged", "nowhere")


async def spoil_promise(node: Any, _: Writer) -> None:
    await node.hset("muster:{0}:promise", "epoch", "many")


async def spoil_promise_for_lua(node: Any, _: Writer) -> None:
    """A number for the scripts, and none that they write."""
    await node.hset("muster:{0}:promise", "epoch", "1e5")


async def spoil_promise_for_ever(node: Any, _: Writer) -> None:
    """No claim has an epoch above it."""
    await node.hset("muster:{0}:promise", "epoch", "9" * 20)


async def spoil_run(node: Any, _: Writer) -> None:
    await node.hset("muster:{0}:promise", "run", b"\xff/always")


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_end,
        spoil_acknowledged,
        spoil_promise,
        spoil_promise_for_lua,
        spoil_promise_for_ever,
        spoil_run,
    ],
)
async def test_what_stands_on_one_node_and_is_no_log_keeps_no_step_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any, Writer], Awaitable[None]]
) -> None:
    """It is the first one to answer."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer, successor = Writer(0, "c-1"), Writer(0, "c-2")
        await writer.own(cluster[0])
        await write(cluster, writer, 3)
        await until(lambda: cluster.level(0), "all nodes have the log")
        async with cluster.client(0) as client:
            await spoil(client, writer)
        for node in cluster[0].server.metadata.quorum.nodes[1:]:
            monkeypatch.setattr(node, "inspect", partial(later, node.inspect))
        async with asyncio.timeout(60):
            await write(cluster, writer, 1)
            assert (await successor.claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_OK
            assert records(await cluster[0].read(0, successor)) == writer.acknowledged
            await write(cluster, successor, 1)


async def test_a_node_with_something_else_in_a_place_of_the_log_has_written_nothing(tmp_path: Path) -> None:
    """The others refuse, so the writer is told that nobody wrote: it sends other bytes then."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await write(cluster, writer, 3)
        await until(lambda: cluster.level(0), "all nodes have the log")
        before = await cluster.ends(0)
        async with cluster.client(0) as client:
            await spoil_acknowledged(client, writer)
        for index in (1, 2):
            await set_config(cluster, index, "maxmemory", "1mb")
        batch = writer.batch(b"w:other")
        batch.first_attempt = True
        assert (await writer.send(cluster[0], batch)).outcome == metadata_pb2.LOG_OUTCOME_REFUSED
        assert await cluster.ends(0) == before


def later(send: Callable[..., Answer], *arguments: Any, **options: Any) -> Answer:
    """Asks a node later than the others."""

    async def answer() -> NodeReply:
        await asyncio.sleep(0.02)
        return await send(*arguments, **options)

    return asyncio.ensure_future(answer())


async def test_a_row_of_the_lease_table_that_is_none_keeps_nobody_from_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that has it is the first one to answer."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        async with cluster.client(0) as client:
            await client.hset(keys.LEASES, "c-1", "nonsense")
        for node in cluster[0].server.metadata.quorum.nodes[1:]:
            monkeypatch.setattr(node, "table", partial(later, node.table))
        holder = Holder(cluster[0], "c-1")
        await until(lambda: renewed(holder), "it has a lease")
        holder.close()


@pytest.mark.parametrize("row", ["nonsense", '{"run": "many", "counter": 1}', "7"])
async def test_a_row_of_the_lease_table_that_is_none_is_replaced_by_a_renewal(
    tmp_path: Path, row: str
) -> None:
    """The node would take no renewal of that name any more, and not be filled again after a loss."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        holder = Holder(cluster[0], "c-1")
        await until(lambda: renewed(holder), "it has a lease")
        async with cluster.client(0) as client:
            await client.hset(keys.LEASES, "c-1", row)
        cluster.nodes[2].pause()
        await until(lambda: renewed(holder), "it has a lease without the third node")
        cluster.nodes[2].resume()
        holder.close()


async def renewed(holder: Holder) -> bool:
    return bool((await holder.renew()).renewed)


async def test_a_claim_that_a_dead_claimant_left_on_one_node_is_no_damage(tmp_path: Path) -> None:
    """Its epoch is higher than that of the owner, who goes on with the other nodes."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        some = records_pb2.Record(written_at_ms=5).SerializeToString() + b"\xfa\x3f\x01x"  # a later version's
        await writer.append(cluster[0], some)
        await until(lambda: cluster.level(0), "all nodes have the log")
        node, epoch, nonce = cluster[0].server.metadata.quorum.nodes[2], writer.epoch + 1, bytes(16)
        claim = records_pb2.Record(
            written_at_ms=5,
            critical=True,
            claim=records_pb2.Claim(node_id="c-2", previous=writer.end.position.to_proto()),
        )
        batch = chain(writer.end, epoch, [(claim.SerializeToString(), nonce)])
        place = (writer.end.position.stream_id, writer.end.hash, "")
        assert (await node.prepare(0, epoch, nonce)).done
        assert (await node.append(0, epoch, nonce, [*place, *arguments(batch)])).done
        for _ in range(3):
            assert (await writer.append(cluster[0], some)).outcome == metadata_pb2.LOG_OUTCOME_OK
        acknowledged = await cluster[0].server.metadata.upkeep.acknowledge(
            Held(0, writer.epoch, writer.nonce), writer.end
        )
        assert acknowledged
        report = await asyncio.to_thread(verify, cluster.nodes.url)
        assert not report.evidence


async def test_a_load_ends_where_large_records_stand_together(tmp_path: Path) -> None:
    """Hundreds at once would take the memory of metadata, and keep each other from coming in time."""
    async with metadata_cluster(tmp_path, 1, fsync="no") as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await write(cluster, writer, 40, size=1 << 20)
        await write(cluster, writer, 40)
        wanted = Wanted(0, Position(0, 0), writer.epoch, writer.nonce)
        pages = [page.entries async for page in cluster[0].server.metadata.reader.read(wanted)]
        sizes = [sum(len(entry.record) for entry in entries) for entries in pages]
        assert max(sizes) < 9 << 20
        assert max(sizes[1:]) < 6 << 20
        assert max(map(len, pages)) > 8


async def test_a_read_of_all_of_a_log_has_pages_of_some_megabytes_whatever_came_before(
    tmp_path: Path,
) -> None:
    """After a thousand small records a page had a thousand large ones: gigabytes for one call."""
    async with metadata_cluster(tmp_path, 1, fsync="no") as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await writer.append(cluster[0], *(b"w:%d" % number for number in range(600)))
        await write(cluster, writer, 16, size=1 << 20)
        await write(cluster, writer, 1)
        read = cluster[0].server.metadata.reader.read
        whole = Wanted(0, Position(0, 0))

        async def acknowledged() -> bool:
            ends = [page.entries[-1].position async for page in read(whole) if page.entries]
            return ends[-1] == writer.end.position

        await until(acknowledged, "its node knows that the last append is acknowledged")
        pages = [page.entries async for page in read(whole)]
        largest = max(sum(len(entry.record) for entry in entries) for entries in pages)
        assert PAGE_BYTES <= largest < PAGE_BYTES + (2 << 20)
        assert max(map(len, pages)) > 100
        entries = [entry for page in pages for entry in page]
        assert len(entries) >= 617
        load = replace(whole, snapshot=True)
        assert load.is_load
        assert [entry async for page in read(load) for entry in page.entries] == entries
        for other in (
            replace(load, without=frozenset((Position(1, 1),))),
            replace(load, first=Position(1, 2)),
        ):
            assert not other.is_load


async def test_nodes_restart_one_after_another_while_appends_run(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        stop = asyncio.Event()

        async def go_on() -> None:
            while not stop.is_set():
                await write(cluster, writer, 1)
                await asyncio.sleep(0.002)

        def has_more_than(count: int) -> bool:
            return len(writer.acknowledged) > count

        writing = asyncio.create_task(go_on())
        for index in range(3):
            before = len(writer.acknowledged)
            await cluster.nodes[index].stop()
            await until(partial(has_more_than, before + 10), "appends go on")
            await cluster.nodes[index].start()
            await until(lambda: cluster_complete(cluster, writer), "the node has what it missed")
        stop.set()
        await writing
        await until(lambda: cluster.level(0), "all have everything")
        assert records(await cluster[0].read(0, writer)) == writer.acknowledged


async def cluster_complete(cluster: MetadataCluster, writer: Writer) -> bool:
    """Whether every node has what was acknowledged up to now."""
    upto = writer.end.position.offset
    return all(count >= upto for count, _ in await cluster.ends(0))


SERVE = """
import asyncio, sys
from muster_metadata.server import MetadataServer
from muster_metadata.settings import MetadataSettings
from muster_runtime.settings import load

async def main():
    server = MetadataServer(load(MetadataSettings, redis_url=sys.argv[1], listen="127.0.0.1:0"))
    port = await server.start()
    await server.metadata.ready.wait()
    print("port", port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_instance_that_dies_after_the_script_and_before_the_answer(tmp_path: Path) -> None:
    """Its answer is lost; the other instance finds the batch there."""
    import grpc
    from muster_protos.muster.internal.v1 import metadata_pb2_grpc

    async with metadata_cluster(tmp_path, 1) as cluster:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SERVE, cluster.nodes.url, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        while not (line := await process.stdout.readline()).startswith(b"port "):
            assert line, "the instance did not start"
        port = int(line.split()[1])
        writer = Writer(0)
        await writer.own(cluster[0])
        batch = writer.batch(b"w:1", b"w:2")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = metadata_pb2_grpc.MetadataServiceStub(channel).Log()
            await call.write(
                metadata_pb2.LogRequest(
                    calls=[metadata_pb2.LogCall(call_id=1, shard=1, claim=writer.claim_step())]
                )
            )
            await call.read()
            await call.write(
                metadata_pb2.LogRequest(calls=[metadata_pb2.LogCall(call_id=2, shard=0, append=batch)])
            )

            async def carried_out() -> bool:
                return (await cluster.ends(0))[0][0] == 4

            await until(carried_out, "the script ran")
            await killed(process)
        assert (await writer.send(cluster[0], batch)).outcome == metadata_pb2.LOG_OUTCOME_OK
        assert records(await cluster[0].read(0, writer)) == [b"w:1", b"w:2"]
        assert secrets.compare_digest(writer.end.hash, (await cluster.ends(0))[0][1])


class SlowToLoad(RedisNode):
    """Waits with every command that it reads back at a start, once it is told to."""

    delay_us = 0

    def _configuration(self) -> str:
        return super()._configuration() + f"key-load-delay {self.delay_us}\n"


class NodesSlowToLoad(RedisNodes):
    def __init__(self, folder: Path, count: int) -> None:
        self._nodes = [SlowToLoad(folder / f"redis-{index}") for index in range(1, count + 1)]


@pytest.mark.parametrize("count", [1, 3])
async def test_node_that_reads_its_data_after_a_start_counts_when_it_is_done(
    tmp_path: Path, count: int
) -> None:
    nodes = NodesSlowToLoad(tmp_path, count)
    async with metadata_cluster(tmp_path, count, nodes=nodes) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        # While it loads, a server looks at its connections after each thousand commands or so.
        for _ in range(4):
            result = await writer.append(cluster[0], *(b"w:%d" % number for number in range(5_000)))
            assert result.outcome == metadata_pb2.LOG_OUTCOME_OK
        await until(lambda: cluster.level(0), "level")
        last = nodes[count - 1]
        assert isinstance(last, SlowToLoad)
        await last.stop()
        last.delay_us = 100
        last.spawn()
        node = cluster[0].server.metadata.quorum.nodes[count - 1]
        await until(lambda: node.steps.problem == LOADING, "it says what it does")
        assert problem_of(cluster, count - 1)
        if count == 3:
            await write(cluster, writer, 5)
        else:
            batch = writer.batch(b"w:during")
            assert (await writer.send(cluster[0], batch)).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
            assert (await writer.append(cluster[0], b"w:after")).outcome == metadata_pb2.LOG_OUTCOME_OK
        await until(lambda: cluster.level(0), "the node has the log")
        assert records(await cluster[0].read(0, writer)) == writer.acknowledged
