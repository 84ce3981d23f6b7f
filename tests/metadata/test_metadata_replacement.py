"""Replacing a node for good: while appends run, with the command killed at every step, stopped."""

import asyncio
import functools
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kit import forked
from kit.metadata.metadata_instances import (
    FAST,
    Instance,
    MetadataCluster,
    Writer,
    fast,
    metadata_cluster,
    records,
)  # fmt: skip
from kit.waiting import until
from muster_metadata.operator import decision
from muster_metadata.operator.replacement import ReplaceError, Replacement
from muster_metadata.server import MetadataServer
from muster_metadata.settings import MetadataSettings
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.settings import load
from muster_server.dev.redis_nodes import RedisNode
from muster_server.verify.verifier import verify
from redis.asyncio import Redis

pytestmark = pytest.mark.cluster

STEP_TIMEOUT_MS, REBUILD_DELAY_MS = FAST["step_timeout_ms"], FAST["rebuild_delay_ms"]
PATIENT = FAST | {"step_timeout_ms": 20_000, "claim_timeout_ms": 40_000, "rebuild_delay_ms": 40_000}
EVERY_STEP = range(1, 20)
"""With `EVERY_STEP=1`: after each write that a node confirms, until there are no more."""
SOME_STEPS = (2, 5, 8, 9, 10, 11, 12, 13, 14, 15)
"""During the claim of the catalog, the decision, the change-over of each node, the copy of each log."""
TESTS = Path(__file__).parent.parent


def place(node: RedisNode) -> str:
    return node.url.removeprefix("redis://")


class Replaceable:
    """A cluster whose list of nodes changes."""

    def __init__(self, cluster: MetadataCluster, folder: Path) -> None:
        self.cluster = cluster
        self.nodes: list[RedisNode] = [cluster.nodes[index] for index in range(len(cluster.nodes))]
        self._folder = folder
        self._more: list[RedisNode] = []

    @property
    def url(self) -> str:
        return "redis://" + ",".join(map(place, self.nodes))

    async def empty_node(self) -> RedisNode:
        node = RedisNode(self._folder / f"redis-new-{len(self._more) + 1}")
        await node.start()
        self._more.append(node)
        return node

    def replacement(
        self,
        old: RedisNode,
        new: RedisNode,
        timeout_s: float = 20.0,
        step_timeout_ms: int = STEP_TIMEOUT_MS,
    ) -> Replacement:
        return Replacement(
            self.url, place(old), place(new), timeout_s=timeout_s,
            step_timeout_ms=step_timeout_ms, rebuild_delay_ms=REBUILD_DELAY_MS,
        )  # fmt: skip

    async def replace(self, index: int, new: RedisNode) -> None:
        async with self.replacement(self.nodes[index], new) as work:
            await work.run(await work.plan())
        self.nodes[index] = new

    async def process(self, old: RedisNode, new: RedisNode, writes: int) -> tuple[int, str]:
        """The replacement in a process of its own that dies after so many writes; 0: it does not."""
        command = [
            sys.executable, "-m", "kit.started.replace_until", self.url, place(old), place(new), str(writes),
            str(STEP_TIMEOUT_MS), str(REBUILD_DELAY_MS),
        ]  # fmt: skip
        done = await forked.run_beside(command, cwd=TESTS)
        return done.returncode, done.stdout + done.stderr

    async def complete(self, shard: int) -> bool:
        """Whether all nodes of the present list have the same log."""
        found = []
        for node in self.nodes:
            client: Redis = Redis.from_url(node.url)
            entries: Any = await client.xrange(f"muster:{{{shard}}}:log")
            found.append((len(entries), entries[-1][1][b"h"] if entries else b""))
            await client.aclose()
        return len(set(found)) == 1 and found[0][0] > 0

    async def stop(self) -> None:
        for node in self._more:
            if node.process.running:
                node.resume()
                await node.stop()


@asynccontextmanager
async def replaceable(
    folder: Path, count: int = 3, instances: int = 2, shards: int = 2
) -> AsyncIterator[Replaceable]:
    async with metadata_cluster(folder, count, instances=instances, shards=shards) as cluster:
        running = Replaceable(cluster, folder)
        try:
            yield running
        finally:
            for instance in cluster.instances:
                await instance.stop()
            await running.stop()


class Appending:
    """Appends without pause, as an owner does: it claims again when it is fenced."""

    def __init__(self, cluster: MetadataCluster, shard: int) -> None:
        self._cluster = cluster
        self._shard = shard
        self._stop = asyncio.Event()
        self.writer = Writer(shard)
        self.acknowledged: list[bytes] = []
        self.outcomes: set[int] = set()

    async def run(self) -> None:
        await self._claim(0)
        while not self._stop.is_set():
            record = b"w:%d:%d" % (self._shard, len(self.acknowledged))
            batch = self.writer.batch(record)
            while True:
                result = await self.writer.send(self._cluster[0], batch)
                self.outcomes.add(result.outcome)
                if result.outcome == metadata_pb2.LOG_OUTCOME_OK:
                    self.acknowledged.append(record)
                    break
                if result.outcome == metadata_pb2.LOG_OUTCOME_FENCED:
                    await self._claim(result.epoch)
                    break
                assert result.outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN, result
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.005)

    async def _claim(self, above_epoch: int) -> None:
        self.writer.nonce = secrets.token_bytes(16)

        async def claimed() -> bool:
            return (
                await self.writer.claim(self._cluster[0], above_epoch)
            ).outcome == metadata_pb2.LOG_OUTCOME_OK

        await until(claimed, "claimed")

    async def stop(self) -> None:
        self._stop.set()


async def check_nothing_lost(running: Replaceable, appending: Appending, instance: Instance) -> None:
    """All acknowledged records stand in the log, once each and in order."""
    found = records(await instance.read(appending.writer.shard, appending.writer))
    positions = [found.index(record) for record in appending.acknowledged]
    assert positions == sorted(positions)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("count", [3, 5])
async def test_node_is_replaced_while_appends_run(tmp_path: Path, count: int) -> None:
    async with replaceable(tmp_path, count) as running:
        appending = Appending(running.cluster, 0)
        task = asyncio.create_task(appending.run())
        await until(lambda: len(appending.acknowledged) > 5, "appends run")
        old, new = running.nodes[1], await running.empty_node()
        await running.replace(1, new)
        before = len(appending.acknowledged)
        await until(lambda: len(appending.acknowledged) > before + 20, "appends go on")
        await appending.stop()
        await task
        await until(lambda: running.complete(0), "the new node has the log of the shard that is written")
        assert await running.complete(1)
        # The old one is out for ever; the new one is needed for a majority as soon as others are gone.
        await old.kill()
        for index in range(count // 2):
            await running.nodes[2 * index].kill()
        await running.cluster[1].stop()
        assert (
            await appending.writer.append(running.cluster[0], b"w:last")
        ).outcome == metadata_pb2.LOG_OUTCOME_OK
        await check_nothing_lost(running, appending, running.cluster[0])


async def test_a_node_is_not_incomplete_because_a_connection_to_it_is_not_open_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It introduces itself on one of its connections, and shows its logs on another."""
    async with replaceable(tmp_path, instances=1) as running:
        new = await running.empty_node()
        work = running.replacement(running.nodes[0], new, step_timeout_ms=20_000)
        for node in work._staying:
            begin = node.steps.start
            start = functools.partial(asyncio.get_running_loop().call_later, 0.5, begin)
            monkeypatch.setattr(node.steps, "start", start)
        async with work:
            assert (await work.plan()).new == place(new)


@pytest.mark.parametrize("writes", EVERY_STEP if os.environ.get("EVERY_STEP") else SOME_STEPS)
async def test_command_that_is_killed_at_any_step_loses_nothing_and_goes_on(
    tmp_path: Path, writes: int
) -> None:
    async with replaceable(tmp_path, shards=1, instances=1) as running:
        appending = Appending(running.cluster, 0)
        task = asyncio.create_task(appending.run())
        await until(lambda: len(appending.acknowledged) > 5, "appends run")
        new = await running.empty_node()
        code, told = await running.process(running.nodes[2], new, writes)
        assert code in (-9, 0), told
        before = len(appending.acknowledged)
        await until(lambda: len(appending.acknowledged) > before + 5, "appends go on without the command")
        code, told = await running.process(running.nodes[2], new, 0)
        assert code == 0, told
        running.nodes[2] = new
        before = len(appending.acknowledged)
        await until(lambda: len(appending.acknowledged) > before + 5, "appends go on")
        await appending.stop()
        await task
        await until(lambda: running.complete(0), "the new node has the log")
        await running.nodes[0].kill()
        assert (
            await appending.writer.append(running.cluster[0], b"w:last")
        ).outcome == metadata_pb2.LOG_OUTCOME_OK
        await check_nothing_lost(running, appending, running.cluster[0])


async def test_dead_node_is_replaced_in_a_cluster_that_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replaceable(tmp_path, instances=1) as running:
        writer = Writer(0)
        await writer.claim(running.cluster[0])
        await writer.append(running.cluster[0], b"w:1")
        await running.cluster[0].stop()
        old = running.nodes[0]
        await old.kill()
        new = await running.empty_node()
        await running.replace(0, new)
        # The old server comes back and still believes to be node 1: an instance that counts it is refused.
        await old.start()
        url = f"redis://{place(old)},{place(running.nodes[1])},{place(running.nodes[2])}"
        stale = MetadataServer(load(MetadataSettings, redis_url=url, listen="127.0.0.1:0", **PATIENT))
        # It is reached after the others, which are a majority.
        connection = stale.metadata.quorum.nodes[0].tables
        begin = connection.start
        monkeypatch.setattr(connection, "start", lambda: asyncio.get_running_loop().call_later(0.2, begin))
        await stale.start()
        await until(lambda: "was replaced by" in stale.metadata.problem, "it says what is wrong")
        assert place(new) in stale.metadata.problem
        assert "MUSTER_METADATA_REDIS_URL" in stale.metadata.problem
        assert not stale.metadata.ready.is_set()
        await stale.stop(0)
        settings = load(MetadataSettings, redis_url=running.url, listen="127.0.0.1:0", **fast())
        instance = await Instance(MetadataServer(settings)).start()
        await running.nodes[1].kill()
        again = Writer(0, "c-2")

        async def claimed() -> bool:
            return (await again.claim(instance)).outcome == metadata_pb2.LOG_OUTCOME_OK

        await until(claimed, "the new node votes")
        assert records(await instance.read(0, again)) == [b"w:1"]
        await instance.stop()


async def test_a_replacement_that_is_done_is_acknowledged(tmp_path: Path) -> None:
    """No later change of the catalog says so: nodes would be in a configuration that nobody has decided."""
    async with replaceable(tmp_path, instances=0) as running:
        old = running.nodes[0]
        await running.replace(0, await running.empty_node())
        await old.kill()
        report = verify(running.url)
        assert report.clean, report.evidence
        assert report.kinds["node_replaced"] == 1


async def test_what_a_writer_left_unacknowledged_is_acknowledged_by_an_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of 0.1.0 leaves its decision so, as does one that is killed in between."""

    async def left(*_: object) -> bool:
        return True

    monkeypatch.setattr(decision, "_acknowledge", left)
    async with replaceable(tmp_path, instances=0) as running:
        old = running.nodes[0]
        await running.replace(0, await running.empty_node())
        await old.kill()
        assert set(verify(running.url).broken) == {"C3"}
        settings = load(MetadataSettings, redis_url=running.url, listen="127.0.0.1:0", **fast())
        instance = await Instance(MetadataServer(settings)).start()
        await until(lambda: verify(running.url).clean, "the decision is acknowledged")
        await instance.stop()


async def test_old_majority_is_dead_when_the_old_server_was_never_told(tmp_path: Path) -> None:
    """The old server and one that stays are stopped during the change; both come back."""
    async with replaceable(tmp_path, 5, instances=1) as running:
        writer = Writer(0)
        await writer.claim(running.cluster[0])
        await writer.append(running.cluster[0], b"w:1")
        old = running.nodes[4]
        old.pause()
        running.nodes[3].pause()
        new = await running.empty_node()
        await running.replace(4, new)
        assert (await writer.append(running.cluster[0], b"w:2")).outcome == metadata_pb2.LOG_OUTCOME_OK
        old.resume()
        running.nodes[3].resume()
        client: Redis = Redis.from_url(running.nodes[3].url)

        async def brought() -> bool:
            return str(await client.hget("muster:node", "identity")).endswith("4 of 5/2'")

        await until(brought, "the node that was away is told by the running instance")
        await client.aclose()
        client = Redis.from_url(old.url)
        assert str(await client.hget("muster:node", "identity")).endswith("5 of 5/1'")
        await client.aclose()
        await until(lambda: running.complete(0), "all five have the log")


async def test_a_node_of_another_log_at_the_old_address_hides_no_replacement(tmp_path: Path) -> None:
    """The node died, its address was given to a node of another cluster, and of that more were replaced."""
    async with replaceable(tmp_path, instances=1) as running:
        writer = Writer(0)
        await writer.claim(running.cluster[0])
        client: Redis = Redis.from_url(running.nodes[2].url)
        await client.flushall()
        foreign: Any = {"identity": "another/2/3 of 3/7", "created_at_ms": "1", "nodes": "a:1,b:1,c:1"}
        await client.hset("muster:node", mapping=foreign)
        await client.aclose()
        await running.replace(2, await running.empty_node())
        assert (await writer.append(running.cluster[0], b"w:1")).outcome == metadata_pb2.LOG_OUTCOME_OK
        await until(lambda: running.complete(0), "all three have the log")


async def test_who_slept_through_two_replacements_takes_the_log_for_elsewhere_and_not_for_lost(
    tmp_path: Path,
) -> None:
    async with replaceable(tmp_path) as running:
        awake, asleep = running.cluster.instances
        writer = Writer(0)
        await writer.claim(awake)
        await writer.append(awake, b"w:1")
        # As a process that stands still: it hears nothing of the configurations that come.
        await asleep.server.metadata._monitor.stop()
        await asleep.server.metadata._patrol.stop()
        for index in (0, 1):
            await running.replace(index, await running.empty_node())
        batch = writer.batch(b"w:2")
        for step in ({"append": batch}, {"claim": writer.claim_step()}):
            assert (await asleep.step(0, **step)).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
        assert (await writer.check(asleep)).outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN
        asleep.server.metadata._monitor.start()

        async def stored() -> bool:
            return (await writer.send(asleep, batch)).outcome == metadata_pb2.LOG_OUTCOME_OK

        await until(stored, "it has followed")


async def test_two_replacements_at_once_are_refused(tmp_path: Path) -> None:
    async with replaceable(tmp_path, instances=1) as running:
        one, two = await running.empty_node(), await running.empty_node()
        async with running.replacement(running.nodes[2], one) as first:
            plan = await first.plan()
            await first._decide(plan.configuration)
            async with running.replacement(running.nodes[1], two) as second:
                other = await second.plan()
                with pytest.raises(ReplaceError, match=f"under way: node 3, .* by {place(one)}"):
                    await second.run(other)
            await first.run(plan)
        running.nodes[2] = one
        # What is decided but not complete yet blocks the next one, too.
        client: Redis = Redis.from_url(one.url)
        await client.delete("muster:{0}:log", "muster:{1}:log")
        await client.aclose()
        await running.nodes[0].kill()
        async with running.replacement(running.nodes[0], two) as third:
            with pytest.raises(ReplaceError, match=r"lacks [12] of 3 logs: wait until they are rebuilt"):
                await third.plan()


async def test_a_server_that_dies_after_it_was_decided_for_can_be_replaced(tmp_path: Path) -> None:
    """The command was killed after the decision, which nothing takes back."""
    async with replaceable(tmp_path, instances=1) as running:
        old, one, two = running.nodes[2], await running.empty_node(), await running.empty_node()
        async with running.replacement(old, one) as killed:
            await killed._decide((await killed.plan()).configuration)
        await old.kill()
        await one.kill()
        async with running.replacement(old, two) as other:
            with pytest.raises(ReplaceError, match=f"under way: node 3, .* by {place(one)}"):
                await other.run(await other.plan())
        async with running.replacement(old, one, timeout_s=2) as again:
            with pytest.raises(ReplaceError, match="gone for good, replace it"):
                await again.run(await again.plan())
        running.nodes[2] = one
        async with running.replacement(one, two) as last:
            await last.run(await last.plan())
        running.nodes[2] = two
        client: Redis = Redis.from_url(two.url)
        assert await client.hget("muster:node", "identity")
        await client.aclose()


async def test_replacements_that_cannot_be_are_refused(tmp_path: Path) -> None:
    async with replaceable(tmp_path, instances=1) as running:
        new = await running.empty_node()
        a, b = map(place, running.nodes[:2])

        async def refused(old: str, new: str, sentence: str) -> None:
            with pytest.raises(ReplaceError, match=sentence):
                async with Replacement(running.url, old, new, timeout_s=1) as work:
                    await work.plan()

        await refused("127.0.0.1:1", "127.0.0.1:2", "is no node of the log, which has")
        await refused(a, a, "cannot be replaced by itself")
        await refused(a, b, "is node 2 of the log already")
        await refused(a, f"localhost:{running.nodes[1].port}", "is the same server as node 2")
        await refused(a, "127.0.0.1:1", "the new server 127.0.0.1:1: it cannot be reached")
        client: Redis = Redis.from_url(new.url)
        await client.set("something", "else")
        await refused(a, place(new), "must be empty, and it has 1 keys")
        await client.flushall()
        await client.replicaof("127.0.0.1", running.nodes[0].port)
        await refused(a, place(new), "must be empty|is a replica")
        await client.replicaof("NO", "ONE")
        await client.flushall()
        await client.aclose()
        await running.nodes[1].kill()
        await refused(a, place(new), "1 of the 2 nodes that stay are there with their data, and 2 are needed")
        with pytest.raises(ReplaceError, match="a log of one node has no others"):
            Replacement(f"redis://{a}", a, place(new))


async def test_empty_server_at_another_address_is_not_filled(tmp_path: Path) -> None:
    """Changing the settings alone must not make a second node 3 beside the one that others still count."""
    async with replaceable(tmp_path, instances=1) as running:
        writer = Writer(0)
        await writer.claim(running.cluster[0])
        await writer.append(running.cluster[0], b"w:1")
        new = await running.empty_node()
        changed = f"redis://{place(running.nodes[0])},{place(running.nodes[1])},{place(new)}"
        settings = load(MetadataSettings, redis_url=changed, listen="127.0.0.1:0", **fast())
        instance = await Instance(MetadataServer(settings)).start()
        again = Writer(0, "c-2")
        await again.own(instance)
        await until(
            lambda: any(
                "muster nodes" in node.problem for node in instance.server.metadata.view.cluster.log_nodes
            ),
            "it says what to do",
        )
        await asyncio.sleep(2 * FAST["rebuild_delay_ms"] / 1000)
        client: Redis = Redis.from_url(new.url)
        assert await client.keys("*") == []
        await client.aclose()
        await instance.stop()
