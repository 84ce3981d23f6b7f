"""Rules of docs/safety.md about the log and its leases, each at the place where it matters most."""

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from kit.metadata.metadata_instances import FAST, WATCH, MetadataCluster, Writer, metadata_cluster, records
from kit.waiting import until, until_equal
from metadata.test_metadata_failures import node_of
from metadata.test_metadata_leases import Holder, Watcher
from muster_metadata.cluster.lease_stream import probe
from muster_metadata.cluster.leases import DEAD, LIVE, LeaseRow
from muster_metadata.cluster.monitor import agreed
from muster_metadata.log.verdicts import OK, checked
from muster_metadata.nodes.entries import LogEnd, NodeEntry, arguments, chain
from muster_metadata.nodes.keys import NODE, Identity
from muster_metadata.nodes.node import Answer, Node
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import NodeReply, Status
from muster_protos.muster.internal.v1 import metadata_pb2

pytestmark = pytest.mark.cluster


def promised_late(prepare: Callable[..., Answer], *arguments: Any, **options: Any) -> Answer:
    """A node's promise, which comes after those of the others."""

    async def later() -> NodeReply:
        await asyncio.sleep(0.05)
        return await prepare(*arguments, **options)

    return asyncio.ensure_future(later())


@pytest.mark.brief_lease
@pytest.mark.parametrize("count", [1, 2])
async def test_one_node_of_three_neither_renews_nor_judges(tmp_path: Path, count: int) -> None:
    """With one node away all goes on; with two nothing is renewed, and nobody is dead for that."""
    # Where it is to be renewed each time, a busy machine has long for it.
    lease_ms = 6_000 if count == 1 else 2_000
    times: dict[str, Any] = {"lease_ms": lease_ms, "renew_timeout_ms": lease_ms // 2 - 100}
    async with metadata_cluster(tmp_path, 3, instances=2, **times) as cluster:
        holder, watcher = Holder(cluster[0], "c-1"), Watcher(cluster[1])
        await holder.renew()
        await until_equal(lambda: watcher.state("c-1"), LIVE, "seen")
        for index in range(count):
            cluster.nodes[index].pause()
        await until(
            lambda: sum(not node.available for node in watcher.messages[-1].cluster.log_nodes) == count,
            "the nodes are away",
        )
        keeping = asyncio.get_running_loop().time() + 2.5 * lease_ms / 1000
        while asyncio.get_running_loop().time() < keeping:
            if count == 1:
                assert (await holder.renew()).renewed
            await asyncio.sleep(FAST["poll_ms"] / 1000)
        if count == 2:
            assert not (await holder.renew()).renewed
        seen = {node.state for m in watcher.messages for node in m.cluster.coordinators}
        assert DEAD not in seen
        for index in range(count):
            cluster.nodes[index].resume()
        await watcher.stop()
        holder.close()


async def verdict(server: socket.socket) -> str:
    host, port = server.getsockname()
    return await probe(host, port, 300)


async def test_what_an_address_says_about_its_process() -> None:
    with (
        socket.socket() as listening,
        socket.socket() as full,
        socket.socket() as closed,
        ExitStack() as stack,
    ):
        for server in (listening, full, closed):
            server.bind(("127.0.0.1", 0))
        listening.listen()
        assert await verdict(listening) == ""
        assert await verdict(closed) == "refused"
        assert await probe("255.255.255.255", 1, 300) == "unreachable"
        full.listen(0)
        while await verdict(full) == "":
            # Nobody accepts: when its queue is full the kernel answers no more, as a machine that is gone.
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        assert await verdict(full) == "silent"


@asynccontextmanager
async def one_node(tmp_path: Path) -> AsyncIterator[tuple[MetadataCluster, Writer, Node]]:
    """A log on one node, its owner, and a connection to the node past the service."""
    async with metadata_cluster(tmp_path, 1) as cluster:
        writer = Writer(0)
        assert (await writer.claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_OK
        async with node_of(cluster, 0) as node:
            yield cluster, writer, node


def behind(end: LogEnd, epoch: int, *records: bytes) -> list[NodeEntry]:
    return chain(end, epoch, [(record, secrets.token_bytes(16)) for record in records])


def batch(end: LogEnd, entries: list[NodeEntry], acknowledged: str = "") -> list[bytes | str]:
    return [end.position.stream_id, end.hash, acknowledged, *arguments(entries)]


def ends(*places: LogEnd) -> list[bytes | str]:
    """The exact end and the cut of a repair."""
    return [part for end in places for part in (end.position.stream_id, end.hash)]


async def test_a_promise_only_grows_and_is_for_one_claim(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, writer, node):
        mine, other = secrets.token_bytes(16), secrets.token_bytes(16)
        assert (await node.prepare(0, 5, mine, b"one")).status is Status.OK
        for epoch, nonce in ((4, mine), (4, other), (1, writer.nonce), (5, other)):
            refused = await node.prepare(0, epoch, nonce, b"one")
            assert (refused.status, refused.epoch) == (Status.PROMISED, 5)
        assert (await node.prepare(0, 5, mine, b"one")).status is Status.OK
        assert (await node.check(0, 5, mine)).status is Status.OK
        assert (await node.prepare(0, 6, other, b"one")).status is Status.OK
        assert (await node.check(0, 5, mine)).status is Status.FENCED


@pytest.mark.parametrize("epoch", [1, 2], ids=["another-nonce", "a-higher-epoch"])
async def test_scripts_write_only_under_the_promise(tmp_path: Path, epoch: int) -> None:
    async with one_node(tmp_path) as (cluster, writer, node):
        end, nonce = writer.end, writer.nonce
        if epoch == 1:
            nonce = secrets.token_bytes(16)
        else:
            assert (await node.prepare(0, 2, secrets.token_bytes(16))).status is Status.OK
        entries = behind(end, 1, b"w:x")
        refused = [
            await node.append(0, 1, nonce, batch(end, entries)),
            await node.repair(0, 1, nonce, ends(end, end), entries),
            await node.check(0, 1, nonce),
            await node.acknowledge(0, 1, nonce, end.position.stream_id, end.hash),
        ]
        assert [reply.status for reply in refused] == [Status.FENCED] * 4
        assert await cluster.ends(0) == [(2, end.hash)]


async def test_a_majority_decides_and_the_rest_is_not_waited_for() -> None:
    loop = asyncio.get_running_loop()
    nodes = [cast(Node, name) for name in ("quick", "silent", "quick, too")]
    answers = {node: loop.create_future() for node in nodes}
    late: list[tuple[Node, NodeReply]] = []
    asking = asyncio.ensure_future(
        Quorum(nodes, step_timeout_ms=3_600_000).ask(
            answers.__getitem__, checked(2), late=lambda node, reply: late.append((node, reply))
        )
    )
    for node in (nodes[0], nodes[2]):
        assert not asking.done()
        answers[node].set_result(NodeReply(Status.OK))
        await asyncio.sleep(0)
    verdict, replies = await asyncio.wait_for(asking, 10)
    assert verdict is OK
    assert replies[1] is None
    answers[nodes[1]].set_result(NodeReply(Status.FENCED))
    await asyncio.sleep(0)
    assert late == [(nodes[1], NodeReply(Status.FENCED))]


@pytest.mark.parametrize("status", [Status.FENCED, Status.PROMISED])
def test_one_node_that_promised_another_claim_decides_nothing(status: Status) -> None:
    other = NodeReply(status, (b"9",))
    assert checked(2)([other, None, None], False) is None
    assert checked(2)([other, NodeReply(Status.OK), NodeReply(Status.OK)], True) is OK
    fenced = checked(2)([other, None, other], False)
    assert fenced is not None
    assert (fenced.outcome, fenced.epoch) == (metadata_pb2.LOG_OUTCOME_FENCED, 9)


async def test_who_asks_is_told_when_the_answers_cannot_be_judged() -> None:
    node = Node(1, "redis://127.0.0.1:1", 1_000)
    quorum = Quorum([node], 1_000)

    def answered(_: Node) -> Answer:
        answer: Answer = asyncio.get_running_loop().create_future()
        answer.set_result(NodeReply(Status.OK))
        return answer

    def fail(*_: object) -> None:
        raise ValueError("it makes no sense")

    async with asyncio.timeout(60):
        with pytest.raises(ValueError, match="no sense"):
            await quorum.ask(answered, fail)


async def test_a_gap_is_not_written_over(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (cluster, writer, node):
        entries = behind(writer.end, 1, b"w:missed", b"w:next")
        later = batch(entries[0].end, entries[1:])
        assert (await node.append(0, 1, writer.nonce, later)).status is Status.MISMATCH
        assert await cluster.ends(0) == [(2, writer.end.hash)]


async def test_a_late_repair_cuts_nothing(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (cluster, writer, node):
        before = writer.end
        await writer.append(cluster[0], b"w:kept")
        late = behind(before, 1, b"w:late")
        reply = await node.repair(0, 1, writer.nonce, ends(before, before), late)
        assert (reply.status, reply.end) == (Status.MISMATCH, writer.end)
        assert records(await cluster[0].read(0, writer)) == [b"w:kept"]


async def test_a_log_is_read_up_to_the_acknowledged_position_and_no_further(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (cluster, writer, node):
        # Past the service, so that nobody acknowledges what nobody follows.
        first, second = behind(writer.end, 1, b"w:1", b"w:2")
        assert (await node.append(0, 1, writer.nonce, batch(writer.end, [first]))).status is Status.OK
        assert records(await cluster[0].read(0)) == []
        follows = batch(first.end, [second], first.position.stream_id)
        assert (await node.append(0, 1, writer.nonce, follows)).status is Status.OK
        assert records(await cluster[0].read(0)) == [b"w:1"]
        assert records(await cluster[0].read(0, writer)) == [b"w:1", b"w:2"]


async def test_a_claim_that_reaches_one_node_leaves_no_trace_that_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a node that promises first decide: here it is the one that lacks what was acknowledged."""
    async with metadata_cluster(tmp_path, 3, instances=2) as cluster:
        owner = Writer(0, "c-1")
        await owner.own(cluster[0])
        await cluster.nodes[2].kill()
        for number in range(5):
            await owner.append(cluster[0], b"w:%d" % number)
        await cluster[0].stop()  # or it would repair node 3 before the claim comes
        for index in (0, 1):
            cluster.nodes[index].pause()
        await cluster.nodes[2].start()
        first, second, third = cluster[1].server.metadata.quorum.nodes
        await until(lambda: third.steps.connected, "node 3 is asked")
        for node in (first, second):
            monkeypatch.setattr(node, "prepare", partial(promised_late, node.prepare))
        alone = Writer(0, "c-2")
        for _ in range(3):
            assert (await alone.claim(cluster[1])).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
        for index in (0, 1):
            cluster.nodes[index].resume()

        async def claimed() -> bool:
            return (await alone.claim(cluster[1])).outcome == metadata_pb2.LOG_OUTCOME_OK

        await until(claimed, "claimed with a majority")
        assert records(await cluster[1].read(0, alone)) == owner.acknowledged


async def test_the_best_log_has_the_highest_epoch_not_the_most_entries(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3, instances=2) as cluster:
        old, new, last = Writer(0, "c-1"), Writer(0, "c-2"), Writer(0, "c-3")
        await old.own(cluster[0])
        await until(lambda: cluster.level(0), "level")
        for index in (0, 1):
            await cluster.nodes[index].kill()
        many = old.batch(*(b"w:never acknowledged %d" % number for number in range(20)))
        assert (await old.send(cluster[0], many)).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
        await cluster.nodes[2].kill()
        for index in (0, 1):
            await cluster.nodes[index].start()

        async def claimed(writer: Writer) -> bool:
            return (await writer.claim(cluster[1])).outcome == metadata_pb2.LOG_OUTCOME_OK

        await until(lambda: claimed(new), "claimed without node 3")
        await new.append(cluster[1], b"w:acknowledged")
        await cluster[0].stop()
        await cluster.nodes[0].kill()
        # Nobody repairs node 3 before the next claim: the instance that would is started again.
        await cluster[1].stop()
        await cluster.nodes[2].start()
        instance = await cluster.add_instance()

        async def claimed_last() -> bool:
            return (await last.claim(instance)).outcome == metadata_pb2.LOG_OUTCOME_OK

        await until(claimed_last, "claimed by nodes 2 and 3")
        assert records(await instance.read(0, last)) == [b"w:acknowledged"]


async def test_a_copy_that_is_not_complete_is_not_put_in_place(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (cluster, writer, node):
        await writer.append(cluster[0], b"w:1", b"w:2")
        entries = await cluster[0].read(0, writer)
        async with cluster.client(0) as client:
            await client.delete("muster:{0}:log", "muster:{0}:promise", "muster:{0}:acknowledged")
        held = (0, 1, writer.nonce)
        assert (await node.stage(*held, ("", b""), entries[:-1])).status is Status.OK
        end = entries[-1]
        whole = (end.position.stream_id, end.hash, "", b"", "0-1", 0, "", 0)
        assert (await node.install(*held, *whole)).status is Status.MISMATCH
        assert (await node.inspect(0)).status is Status.NOLOG
        before = entries[-2].end
        rest = (before.position.stream_id, before.hash)
        assert (await node.stage(*held, rest, entries[-1:])).status is Status.OK
        assert (await node.install(*held, *whole)).status is Status.OK
        assert (await node.inspect(0)).status is Status.OK


async def test_nothing_of_a_snapshot_is_changed(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, writer, node):
        mine, deposed = (0, 1, writer.nonce), (0, 1, secrets.token_bytes(16))
        assert (await node.keep(*deposed, "1-2", "0", b"part")).status is Status.FENCED
        assert (await node.keep(*mine, "1-2", "0", b"part")).status is Status.OK
        assert (await node.keep(*mine, "1-2", "0", b"part")).status is Status.DUP
        assert (await node.keep(*mine, "1-2", "0", b"other")).status is Status.MISMATCH
        assert (await node.snapshot_field(0, "1-2", "0")).values[0] == b"part"


async def test_a_node_never_goes_back_to_an_earlier_configuration(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (cluster, writer, node):
        first = Identity.parse(node.identity)
        assert first is not None

        async def configure(number: int) -> Status:
            text = str(first._replace(configuration=number))
            begins = text.rpartition("/")[0] + "/"
            return (await node.table("configure", (NODE,), begins, number, text, "a")).status

        assert await configure(3) is Status.OK
        assert await configure(2) is Status.MOVED
        assert await configure(3) is Status.DUP
        # Who still counts majorities of the configuration before finds no log.
        assert (await node.check(0, 1, writer.nonce)).status is Status.MOVED
        async with cluster.client(0) as client:
            assert await client.hget(NODE, "identity") == str(first._replace(configuration=3)).encode()


async def test_a_copy_is_not_put_in_place_under_a_higher_promise(tmp_path: Path) -> None:
    """The log is gone and the promise to another claim is not: who fills it must not take that back."""
    async with one_node(tmp_path) as (cluster, writer, node):
        await writer.append(cluster[0], b"w:1")
        entries = await cluster[0].read(0, writer)
        assert (await node.prepare(0, 9, secrets.token_bytes(16), b"tag")).status is Status.OK
        async with cluster.client(0) as client:
            await client.delete("muster:{0}:log")
            held = (0, writer.epoch, writer.nonce)
            assert (await node.stage(*held, ("", b""), entries)).status is Status.OK
            end = entries[-1]
            whole = (end.position.stream_id, end.hash, "", b"", "0-1", 0, "", 0)
            assert (await node.install(*held, *whole)).status is Status.FENCED
            assert await client.hget("muster:{0}:promise", "epoch") == b"9"


async def test_a_node_acknowledges_only_what_it_has(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (cluster, writer, node):
        await writer.append(cluster[0], b"w:1")
        held = (0, writer.epoch, writer.nonce)
        (missing,) = behind(writer.end, writer.epoch, b"w:2")
        answer = await node.acknowledge(*held, missing.position.stream_id, missing.hash)
        assert answer.status is Status.MISMATCH
        async with cluster.client(0) as client:
            assert await client.get("muster:{0}:acknowledged") != missing.position.stream_id.encode()


async def test_a_node_takes_only_what_it_has_trimmed_for_acknowledged(tmp_path: Path) -> None:
    """LOG-69: not what is missing after its first entry, nor what may not be acknowledged."""
    async with one_node(tmp_path) as (cluster, writer, node):
        metadata = cluster[0].server.metadata
        await metadata._patrol.stop()
        await metadata.upkeep.stop()
        ends = [writer.end]
        for number in range(4):
            await writer.append(cluster[0], b"w:%d" % number)
            ends.append(writer.end)
        ids = [end.position.stream_id for end in ends]

        async def answer(place: int) -> Status:
            held = (0, writer.epoch, writer.nonce)
            return (await node.acknowledge(*held, ids[place], ends[place].hash)).status

        async with cluster.client(0) as client:
            assert await client.get("muster:{0}:acknowledged") == ids[3].encode()
            await client.xdel("muster:{0}:log", ids[2])
            assert await answer(2) is Status.MISMATCH
            await client.xtrim("muster:{0}:log", minid=ids[3], approximate=False)
            assert [await answer(place) for place in range(4)] == [Status.DUP] * 3 + [Status.OK]
            await client.set("muster:{0}:acknowledged", ids[1])
            unknown = [Status.MISMATCH] * 2
            assert [await answer(place) for place in range(4)] == [Status.DUP, *unknown, Status.OK]


async def test_one_node_does_not_say_which_run_of_a_process_was_the_last(tmp_path: Path) -> None:
    """It may have missed all that came since; a process that believed it would take an old number."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        tables = cluster[0].server.metadata.tables
        row = LeaseRow("c-1", "s-1", run=4, counter=7, host="127.0.0.1", port=1)
        assert (await tables.renew(row, 1_000))[0] is Status.OK
        for index in (1, 2):
            cluster.nodes[index].pause()
        try:
            with pytest.raises(TimeoutError):
                await tables.lease("c-1", 200)
        finally:
            for index in (1, 2):
                cluster.nodes[index].resume()


async def test_two_processes_of_one_name_do_not_share_a_run(tmp_path: Path) -> None:
    """Both started from the same row: the one that stored its own first has the name."""
    async with metadata_cluster(tmp_path, 1) as cluster:
        tables = cluster[0].server.metadata.tables
        first = LeaseRow("c-1", "s-1", run=1, counter=1, host="127.0.0.1", port=1)
        second = LeaseRow("c-1", "s-2", run=1, counter=2, host="127.0.0.1", port=2)
        assert (await tables.renew(first, 1_000))[0] is Status.OK
        assert (await tables.renew(second, 1_000))[0] is Status.SUPERSEDED


@pytest.mark.parametrize(
    ("clocks", "majority", "shown"),
    [
        ([5], 1, 5),
        ([], 1, None),
        ([100, 200, 300], 2, 200),
        ([100, 200, 9_000_000], 2, 200),
        ([-9_000_000, 100, 200], 2, 200),
        ([100, 9_000_000], 2, None),
        ([100], 2, None),
        ([0, 200_000, 400_000], 2, None),
    ],
)
def test_the_time_of_the_log_is_what_a_majority_of_its_clocks_shows(
    clocks: list[int], majority: int, shown: int | None
) -> None:
    assert agreed(clocks, majority) == shown


async def test_the_view_has_the_time_of_the_nodes(tmp_path: Path) -> None:
    """A machine of its own: what this process takes for the time makes no difference."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        watch = cluster[0].stub.Watch(WATCH)
        while not (message := await watch.read()).log_time_ms:
            pass
        assert abs(message.log_time_ms - time.time_ns() // 1_000_000) < 60_000
        watch.cancel()
