"""Operators' commands hit one node after the other under load: nothing acknowledged is lost (LOG-31, LOG-66).

FLUSHDB and FLUSHALL, also again while the node is filled, SWAPDB, CLIENT PAUSE, CLIENT KILL, SCRIPT FLUSH, no
memory, keys that are evicted, REPLICAOF another node, BGREWRITEAOF, SHUTDOWN NOSAVE, a server that stops and
goes on, one that restarts, one that restarts with an old file, and one that ran without any. After each
another writer claims the log while another node is away.
"""

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from kit.metadata.metadata_instances import Instance, MetadataCluster, Writer, metadata_cluster, records
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_protos.muster.internal.v1 import metadata_pb2
from redis.exceptions import ConnectionError as RedisConnectionError

Fault = Callable[[MetadataCluster, int], Awaitable[None]]
_AGAIN = (
    metadata_pb2.LOG_OUTCOME_UNKNOWN,
    metadata_pb2.LOG_OUTCOME_REFUSED,
    metadata_pb2.LOG_OUTCOME_NO_LOG,
)


def command(*parts: str | int) -> Fault:
    """Sends one command to the node."""

    async def send(cluster: MetadataCluster, index: int) -> None:
        async with cluster.client(index) as client:
            await client.execute_command(*parts)

    return send


async def flushed_while_it_is_filled(cluster: MetadataCluster, index: int) -> None:
    """Loses its data again and again, in the time in which it may just be filled."""
    for _ in range(6):
        await command("FLUSHALL")(cluster, index)
        await asyncio.sleep(0.4)


async def no_memory(cluster: MetadataCluster, index: int) -> None:
    """Has no memory for a while."""
    await command("CONFIG", "SET", "maxmemory", 1)(cluster, index)
    await asyncio.sleep(1.0)
    await command("CONFIG", "SET", "maxmemory", 0)(cluster, index)


async def stopped(cluster: MetadataCluster, index: int) -> None:
    """Its process is stopped for longer than any time-out, and goes on."""
    cluster.nodes[index].pause()
    await asyncio.sleep(2.0)
    cluster.nodes[index].resume()


async def restarted(cluster: MetadataCluster, index: int) -> None:
    """It crashes and is back."""
    await cluster.nodes[index].kill()
    await cluster.nodes[index].start()


async def restarted_with_an_old_file(cluster: MetadataCluster, index: int) -> None:
    """Its file is switched off, and when the others know, it crashes and is back with what it was."""
    async with cluster.client(index) as client:
        run_id = str((await client.info("server"))["run_id"])
    await command("CONFIG", "SET", "appendonly", "no")(cluster, index)

    async def known() -> bool:
        found = []
        for other in range(len(cluster.nodes)):
            async with cluster.client(other) as client:
                found.append(bool(await client.hexists("muster:doubts", run_id)))
        return all(found)

    await until(known, "the others know that it is without a file")
    await asyncio.sleep(0.5)
    await restarted(cluster, index)


async def evicting(cluster: MetadataCluster, index: int) -> None:
    """Removes keys of its own choice to have memory."""
    async with cluster.client(index) as client:
        await client.config_set("maxmemory-policy", "allkeys-random")
        for _ in range(20):
            used = int((await client.info("memory"))["used_memory"])
            await client.config_set("maxmemory", used - 5_000)
            await asyncio.sleep(0.1)
            await client.config_set("maxmemory", 0)
            await asyncio.sleep(0.1)
        await client.config_set("maxmemory-policy", "noeviction")


async def copy_of_another(cluster: MetadataCluster, index: int) -> None:
    """Is made a replica of another node, then a server of its own again, and is emptied at last."""
    other = cluster.nodes[(index + 1) % len(cluster.nodes)]
    async with cluster.client(index) as client:
        await client.replicaof("127.0.0.1", other.port)

        async def copied() -> bool:
            return str((await client.info("replication")).get("master_link_status")) == "up"

        await until(copied, "it has all that the other one has")
        await asyncio.sleep(1.0)
        await client.replicaof("NO", "ONE")
        await asyncio.sleep(1.0)
        await client.flushall()


async def rewritten(cluster: MetadataCluster, index: int) -> None:
    """Writes its file anew, and crashes meanwhile."""
    await command("BGREWRITEAOF")(cluster, index)
    await restarted(cluster, index)


async def shut_down(cluster: MetadataCluster, index: int) -> None:
    """Is told to end without saving, and started again."""
    with contextlib.suppress(RedisConnectionError):
        await command("SHUTDOWN", "NOSAVE", "NOW")(cluster, index)
    await restarted(cluster, index)


async def without_a_file(cluster: MetadataCluster, index: int) -> None:
    """Is started with `appendonly no`, loses what it gets meanwhile, and is started as before."""
    node = cluster.nodes[index]
    await node.kill()
    as_before = node._configuration
    node._configuration = lambda: as_before().replace("appendonly yes", "appendonly no")
    await node.start()
    await asyncio.sleep(2.0)
    node._configuration = as_before
    await restarted(cluster, index)


FAULTS: dict[str, Fault] = {
    "FLUSHDB": command("FLUSHDB"),
    "FLUSHALL while it is filled": flushed_while_it_is_filled,
    "SWAPDB": command("SWAPDB", 0, 1),
    "CLIENT PAUSE": command("CLIENT", "PAUSE", 2_000, "ALL"),
    "CLIENT PAUSE WRITE": command("CLIENT", "PAUSE", 2_000, "WRITE"),
    "CLIENT KILL": command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"),
    "SCRIPT FLUSH": command("SCRIPT", "FLUSH"),
    "no memory": no_memory,
    "keys are evicted": evicting,
    "REPLICAOF": copy_of_another,
    "BGREWRITEAOF": rewritten,
    "SHUTDOWN NOSAVE": shut_down,
    "without a file": without_a_file,
    "stopped": stopped,
    "restarted": restarted,
    "restarted with an old file": restarted_with_an_old_file,
}


class Load:
    """One owner after the other, which writes all the time and remembers what was acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self.stopping = False
        self._number = 0

    async def write(self, instance: Instance, name: str) -> None:
        """Claims, then writes until it is told to stop."""
        writer = Writer(0, name)
        await take(instance, writer)
        left = records(await instance.read(0, writer))
        self.check(left)
        # What was written and never acknowledged may be there all the same, once.
        self.acknowledged = left
        while not self.stopping:
            self._number += 1
            batch = writer.batch(b"w:%d" % self._number)
            result = await repeated(writer, instance, batch)
            if result.outcome == metadata_pb2.LOG_OUTCOME_FENCED:
                await take(instance, writer)
                self.acknowledged = records(await instance.read(0, writer))
                continue
            if result.outcome != metadata_pb2.LOG_OUTCOME_OK:
                raise Broken(f"the owner was answered {metadata_pb2.LogOutcome.Name(result.outcome)}")
            self.acknowledged.append(batch.records[0].record)
            await asyncio.sleep(0.002)

    def check(self, left: list[bytes]) -> None:
        """Compares what a log has with what was acknowledged."""
        if left[: len(self.acknowledged)] != self.acknowledged:
            lost = [record for record in self.acknowledged if record not in left]
            raise Broken(f"{len(lost)} of {len(self.acknowledged)} acknowledged records are gone: {lost[:5]}")


async def repeated(
    writer: Writer, instance: Instance, batch: metadata_pb2.AppendStep
) -> metadata_pb2.LogResult:
    """Appends a batch, and repeats it while that says nothing."""
    while True:
        result = await writer.send(instance, batch)
        if result.outcome not in _AGAIN:
            return result
        await asyncio.sleep(0.02)


async def take(instance: Instance, writer: Writer) -> None:
    """Claims until it has the log."""

    async def claimed() -> bool:
        writer.nonce = secrets.token_bytes(16)
        result = await writer.claim(instance)
        if result.outcome == metadata_pb2.LOG_OUTCOME_TRUNCATED:
            raise Broken(f"the log was cut: {result.message}")
        return result.outcome == metadata_pb2.LOG_OUTCOME_OK

    await until(claimed, "the log is claimed")


async def votes(instance: Instance) -> bool:
    """Whether all nodes vote on the shard's log and on the catalog's."""
    nodes = instance.server.metadata.quorum.nodes
    replies = [await node.inspect(log) for node in nodes for log in (0, 1)]
    return all(reply.status.name == "OK" for reply in replies)


async def goes_on(load: Load, writing: "asyncio.Task[None]", what: str) -> None:
    """Waits until more was acknowledged, or writing has failed."""
    before = len(load.acknowledged)
    await until(lambda: writing.done() or len(load.acknowledged) > before + 20, what)


async def main() -> None:
    """All faults, each at another node."""
    folder = Path(tempfile.mkdtemp(prefix="muster-commands-"))
    load = Load()
    async with metadata_cluster(folder, 3, instances=2, shards=1) as cluster:
        for number, (name, fault) in enumerate(FAULTS.items()):
            index, instance = number % 3, cluster[number % 2]
            load.stopping = False
            writing = asyncio.create_task(load.write(instance, f"c-{number}"))
            await asyncio.sleep(0.3)
            await fault(cluster, index)
            await goes_on(load, writing, f"the load goes on after {name}")
            load.stopping = True
            await writing
            await until(lambda: cluster.level(0), f"all nodes are level after {name}")
            await until(partial(votes, instance), f"all nodes vote after {name}")
            away = (index + 1) % 3
            cluster.nodes[away].pause()
            successor = Writer(0, "successor")
            await take(cluster[(number + 1) % 2], successor)
            load.check(records(await cluster[(number + 1) % 2].read(0, successor)))
            cluster.nodes[away].resume()
            report(f"{name} at node {index + 1}: {len(load.acknowledged)} records are there")


if __name__ == "__main__":
    run(main)
