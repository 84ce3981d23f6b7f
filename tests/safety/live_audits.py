"""Audits run while nodes die and come back, groups rebalance and change kind: nobody is accused (AUD-15).

Nodes are killed, stopped, and lose their data; coordinators die; logs are trimmed. Meanwhile `muster verify`
with the anchor of its run before, and the audit's own pass over each log, judge what they find. Then a node
alone gets a commit and dies; another owner goes on without it; the node comes back, and nobody repairs it.
At last all nodes are set back together, which an anchor must show, and what an operator records must excuse.

    ./x safety live_audits [-- SECONDS [SEED]]
"""

import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import muster
import redis
from kit.clusters.server_cluster import FAST_GROUPS, all_served
from kit.logs.mixed_life import NUMBERED, MixedLife
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_audit.reading.facts import Broken as Accused
from muster_audit.reading.scan import ScanOptions, audit_log
from muster_audit.reading.sources import NodesSource
from muster_server.dev.cluster import DevCluster
from muster_server.nodes.command import app as nodes_command
from muster_server.verify.anchors import Anchoring
from muster_server.verify.reader import LogUnreadableError
from muster_server.verify.verifier import Report, verify
from redis.exceptions import RedisError
from typer.testing import CliRunner

SECONDS = 120.0
TRIMMED = {
    "MUSTER_SHARD_LOG_SNAPSHOT_RECORDS": "100",
    "MUSTER_SHARD_LOG_RETENTION_MS": "1",
    "MUSTER_METADATA_CATALOG_SNAPSHOT_RECORDS": "100",
}
_LIMIT_S = 1_200.0
_AWAY_S = (0.3, 1.5, 4.0)


class LiveCluster:
    """A cluster of three nodes, with what audits said of it.

    Args:
        cluster: its processes.
        folder: for the anchor.
        draw: draws the faults.
    """

    def __init__(self, cluster: DevCluster, folder: Path, draw: random.Random) -> None:
        self.cluster, self.draw = cluster, draw
        self.said: Counter[str] = Counter()
        self.anchor = folder / "anchor.json"

    @property
    def _nodes(self) -> Any:
        assert self.cluster.nodes is not None
        return self.cluster.nodes

    def verified(self, *, kept: bool = True, accept_restore: bool = False) -> Report | None:
        """One run of `muster verify`; None: the logs could not be read."""
        place = str(self.anchor) if self.anchor.exists() else ""
        keep = str(self.anchor) if kept else ""
        anchoring = Anchoring(place, keep=keep, accept_restore=accept_restore)
        try:
            found = verify(self.cluster.redis_url, anchoring=anchoring)
        except LogUnreadableError:
            self.said["could not read"] += 1
            return None
        self.said["entries to be repaired"] += bool(found.to_repair)
        return found

    def judge(self) -> None:
        """Verifies, and audits each log by itself."""
        found = self.verified()
        if found is not None:
            self.said["verified"] += 1
            if not found.clean:
                raise Broken(f"verify accuses a right log: {found.evidence[:3]}")
        try:
            with NodesSource(self.cluster.redis_url) as source:
                for shard in source.logs():
                    for fact in audit_log(source, shard, ScanOptions(compare=True)):
                        if isinstance(fact, Accused):
                            raise Broken(f"the audit accuses a right log: {fact}")
            self.said["audited"] += 1
        except (LogUnreadableError, RedisError):
            self.said["could not read"] += 1

    async def judge_until(self, over: asyncio.Event) -> None:
        """One run after the other."""
        while not over.is_set():
            await asyncio.to_thread(self.judge)

    async def trouble(self) -> None:
        """Something happens to a node or to a coordinator, and is over again."""
        fault = self.draw.choice([self._kill, self._kill, self._stop, self._flush, self._kill_coordinator])
        self.said[fault.__name__.strip("_")] += 1
        await fault()
        await asyncio.sleep(self.draw.choice(_AWAY_S))

    async def _kill(self) -> None:
        node = self.draw.choice(list(self._nodes))
        await node.kill()
        await asyncio.sleep(self.draw.choice(_AWAY_S))
        await node.start()

    async def _stop(self) -> None:
        node = self.draw.choice(list(self._nodes))
        node.pause()
        await asyncio.sleep(self.draw.choice(_AWAY_S))
        node.resume()

    async def _flush(self) -> None:
        node = self.draw.choice(list(self._nodes))
        with redis.Redis(port=node.port) as client:
            await asyncio.to_thread(client.flushall)
        await asyncio.sleep(10)  # so that no majority loses its data

    async def _kill_coordinator(self) -> None:
        process = self.draw.choice(self.cluster.coordinators)
        await process.kill()
        process.spawn()
        await process.ready()

    async def one_node_alone(self, client: muster.Cluster) -> None:
        """A commit reaches one node, which dies; it comes back when another owner has gone on, unrepaired."""
        member = muster.Member(client, group_id="alone", topics=NUMBERED, protocol="classic")
        await member.start()
        await until(lambda: _works(member), "it has work")
        await member.commit({member.partitions[0]: 1})
        alone, *others = self._nodes
        for node in others:  # what waits in a stopped server's socket would be written when it goes on
            await asyncio.to_thread(_limit, node.port, 1)
        before = await asyncio.to_thread(_entries, alone.port)
        with contextlib.suppress(TimeoutError, muster.CommitFailed, muster.CommitRejected):
            await asyncio.wait_for(member.commit({member.partitions[0]: 2}), 2.0)
        written = await asyncio.to_thread(_entries, alone.port) - before
        await asyncio.gather(*(process.kill() for process in self.cluster.coordinators))
        await alone.kill()
        for node in others:
            await asyncio.to_thread(_limit, node.port, 0)
        for process in self.cluster.coordinators:
            process.spawn()
        await asyncio.gather(*(process.ready() for process in self.cluster.coordinators))
        await until(lambda: _committed(client, 5), "another owner serves")
        self.cluster.kill_roles()
        await alone.start()
        report(f"{written} entries reached one node alone")
        if not written:
            raise RuntimeError("no entry reached the node: nothing was tried")
        found = await asyncio.to_thread(self.verified)
        if found is None or not found.clean:
            raise Broken(f"what one node alone has is accused: {found and found.evidence[:3]}")
        if not found.to_repair:
            raise RuntimeError("nothing is to be repaired: nothing was tried")
        await asyncio.to_thread(self.judge)

    async def set_back(self) -> None:
        """All nodes are put back to what they were before something was stored; a restore is recorded."""
        place = str(self.anchor)
        clients = [redis.Redis(port=node.port) for node in self._nodes]
        before = [_dumps(one) for one in clients]
        for process in (*self.cluster.metadata, self.cluster.discovery, *self.cluster.coordinators):
            process.spawn()
        for process in (*self.cluster.metadata, self.cluster.discovery, *self.cluster.coordinators):
            await process.ready()
        await all_served(self.cluster.servers)
        async with muster.Cluster(self.cluster.servers) as client:
            await _committed(client, 6)
        self.cluster.kill_roles()
        if (found := await asyncio.to_thread(self.verified)) is None or not found.clean:
            raise Broken(f"a log that went on is accused: {found}")
        for one, keys in zip(clients, before, strict=True):
            one.flushall()
            for key, dump in keys.items():
                one.restore(key, 0, dump)
        found = await asyncio.to_thread(verify, self.cluster.redis_url, anchoring=Anchoring(place))
        if not found.broken["L12"]:
            raise Broken("all nodes were set back, and the anchor does not show it")
        arguments = ["restored", "--redis", self.cluster.redis_url, "--reason", "a disk burned"]
        done = await asyncio.to_thread(CliRunner().invoke, nodes_command, arguments)
        if done.exit_code:
            raise RuntimeError(done.output)
        accepted = await asyncio.to_thread(self.verified, accept_restore=True)
        if accepted is None or not accepted.clean:
            raise Broken(f"a restore that was meant is accused: {accepted and accepted.evidence[:3]}")


def _dumps(client: Any) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.keys("muster:*")}


def _limit(port: int, memory_bytes: int) -> None:
    """Has a node refuse what takes memory, or not."""
    with redis.Redis(port=port) as client:
        client.config_set("maxmemory", memory_bytes)


def _entries(port: int) -> int:
    with redis.Redis(port=port) as client:
        keys: Any = client.keys("muster:*:log")
        return sum(int(client.xlen(key)) for key in keys)


async def _works(member: muster.Member) -> bool:
    return bool(member.partitions)


async def _committed(client: muster.Cluster, position: int) -> bool:
    """Commits from outside as a tool does; whether it was stored."""
    partition = muster.TopicPartition(NUMBERED, 0)
    try:
        async with asyncio.timeout(20):
            member = muster.Member(
                client, group_id=f"outside-{position}", topics=NUMBERED, protocol="classic"
            )
            await member.start()
            await until(lambda: _works(member), "it has work")
            await member.commit({partition: position})
            await member.close("enough")
    except (TimeoutError, muster.MusterError):
        return False
    return True


async def live_in(client: muster.Cluster, over: asyncio.Event, said: Counter[str]) -> None:
    """Groups live on, whatever happens to their coordinators."""
    while not over.is_set():
        try:
            async with MixedLife.begun(client) as life:
                while not over.is_set():
                    await life.one_round()
                    said["rounds"] += 1
        except (muster.MusterError, TimeoutError, AssertionError):  # a call in the middle of an outage
            said["rounds that were cut short"] += 1


async def story(folder: Path, seconds: float, seed: int) -> Counter[str]:
    """All of it, with so many seconds of trouble; gives what was done and judged.

    Raises:
        Broken: somebody was accused, or what is wrong was not found.
    """
    draw = random.Random(seed)
    settings = {**FAST_GROUPS, **(TRIMMED if seed % 2 else {})}
    cluster = DevCluster(folder, redis_nodes=3, coordinators=2, shard_count=3, settings=settings)
    async with cluster:
        live, over = LiveCluster(cluster, folder, draw), asyncio.Event()
        async with muster.Cluster(cluster.servers) as client:
            lives = asyncio.create_task(live_in(client, over, live.said))
            audits = asyncio.create_task(live.judge_until(over))
            ends_s = time.monotonic() + seconds
            while time.monotonic() < ends_s and not audits.done():
                await live.trouble()
            over.set()
            await audits
            lives.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await lives
            await all_served(cluster.servers)
            await live.one_node_alone(client)
        await live.set_back()
        return live.said


async def main() -> None:
    """The story, with what was judged."""
    arguments = sys.argv[1:]
    seconds = float(arguments[0]) if arguments else SECONDS
    folder = Path(tempfile.mkdtemp(prefix="muster-live-audits-"))
    said = await story(folder, seconds, int(arguments[1]) if len(arguments) > 1 else 1)
    report(", ".join(f"{count} {what}" for what, count in sorted(said.items())))
    if not said["audited"] or not said["verified"]:
        raise RuntimeError("nothing was judged")


if __name__ == "__main__":
    run(main, _LIMIT_S)
