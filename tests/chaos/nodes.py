"""Scenarios about the nodes of the log and about metadata."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import redis
from chaos.arena import Arena, NotHit
from chaos.coordinators import new_group, raw_group
from chaos.prober import TOPIC
from chaos.raw import stable
from chaos.scenario import KILLED_MS, NODE_MS, scenario
from kit.links import TO_SOURCE
from muster_metadata.nodes.keys import log_keys
from muster_server.dev.redis_nodes import RedisNode
from muster_server.verify.verifier import verify

AOF_CUT_BYTES = 40_000
FILLER = "filler"


async def none_acknowledged(arena: Arena, from_ns: int, to_ns: int) -> int:
    """Makes sure that no commit of the load was acknowledged in a span of time; gives 0."""
    count = arena.acknowledged_between(from_ns, to_ns)
    arena.expect(count == 0, f"{count} commits were acknowledged without a majority")
    return count


async def owners_kept(arena: Arena, before: dict[int, tuple[str, int]]) -> None:
    """Makes sure that no shard changed hands."""
    moved = [shard for shard, row in (await arena.epochs()).items() if row != before[shard]]
    arena.expect(not moved, f"the coordinators keep their shards, but {moved} moved")


def nobody_stopped(arena: Arena) -> str:
    """Makes sure that every member kept its partitions through an outage shorter than its session."""
    lost = arena.seen().lost
    arena.expect(lost == 0, f"members work on while the log is away, but {lost} partitions were given up")
    return "no member stopped its work"


def silence(arena: Arena, what: str) -> None:
    """Notes that no lease can be renewed from now on, or again."""
    for process in arena.cluster.coordinators:
        arena.history.note(what, node=process.name)


@scenario("14", "one Redis node killed under load", NODE_MS)
async def node_killed(arena: Arena) -> str:
    await arena.balanced()
    before = await arena.epochs()
    await arena.kill("redis-1")
    await asyncio.sleep(3)
    await arena.all_commit()
    await owners_kept(arena, before)
    return "no epoch changed"


@scenario("15", "one Redis node killed while another one is stopped", NODE_MS)
async def node_killed_other_stopped(arena: Arena) -> str:
    arena.pause("redis-2")
    await arena.kill("redis-1")
    silence(arena, "silenced")
    begin_ns = time.monotonic_ns()
    await asyncio.sleep(4)
    end_ns = time.monotonic_ns()
    silence(arena, "heard")
    arena.resume("redis-2")
    arena.fault_ended()
    await arena.all_commit()
    await none_acknowledged(arena, begin_ns + 200_000_000, end_ns)
    return f"no commit was acknowledged for 4 s, {nobody_stopped(arena)}; then all went on with two nodes"


@scenario("16", "one Redis node stopped for 10 s", NODE_MS)
async def node_stopped(arena: Arena) -> str:
    before = await arena.epochs()
    arena.pause("redis-2")
    await asyncio.sleep(10)
    arena.resume("redis-2")
    await arena.all_commit()
    await owners_kept(arena, before)
    return "no epoch changed"


@scenario("17", "power cut of one Redis node: its file loses its end, restart at once", NODE_MS)
async def power_cut(arena: Arena) -> str:
    node = arena.cluster.node(1)
    await arena.kill("redis-1")
    ends = {shard: await arena.logs.end(2, shard) for shard in range(arena.cluster.shard_count)}
    (aof,) = (node.folder / "appendonlydir").glob("*.incr.aof")
    size = aof.stat().st_size
    with aof.open("r+b") as file:
        file.truncate(max(0, size - AOF_CUT_BYTES))
    arena.note(f"its append-only file loses {min(size, AOF_CUT_BYTES)} of {size} bytes")
    await arena.start("redis-1")
    behind = sum([await arena.logs.end(1, shard) < end for shard, end in ends.items()])
    if not behind:
        raise NotHit("no log was behind when the node came back")
    await arena.repaired()
    await arena.all_commit()
    return f"{behind} logs had lost their end, and were repaired"


@scenario("17b", "power cut of one Redis node in the second in which shards are claimed", KILLED_MS)
async def power_cut_in_claims(arena: Arena) -> str:
    node, victim = arena.cluster.node(3), arena.cluster.coordinators[0].name
    (aof,) = (node.folder / "appendonlydir").glob("*.incr.aof")
    synced = aof.stat().st_size
    await arena.kill(victim)
    before = await arena.logs.promises(1)

    async def claimed() -> bool:
        return await arena.logs.promises(1) != before

    await arena.until(claimed, "shards are claimed", 10)
    promised = await arena.logs.promises(3)
    await arena.kill("redis-3")
    with aof.open("r+b") as file:
        file.truncate(synced)
    await arena.start("redis-3")
    back = await arena.logs.promises(3)
    forgotten = sum(back[shard] != epoch for shard, epoch in promised.items())
    if not forgotten:
        raise NotHit("the node forgot no promise")
    await arena.start(victim)
    await arena.repaired()
    await arena.all_commit()
    return f"it forgot the promises of {forgotten} logs, and voted when that decided nothing any more"


@scenario("18", "one Redis node away for 25 s", NODE_MS)
async def node_away(arena: Arena) -> str:
    await arena.kill("redis-3")
    await asyncio.sleep(25)
    shards = range(arena.cluster.shard_count)
    ends = {shard: await arena.logs.end(1, shard) for shard in shards}
    await arena.start("redis-3")
    missed = sum([ends[shard].offset - (await arena.logs.end(3, shard)).offset for shard in shards])
    await arena.repaired()
    await arena.kill("redis-1")  # now its copy is needed
    await arena.all_commit()
    return f"it was behind by about {missed} entries, was repaired, and counted when another one died"


@scenario("19", "two of three Redis nodes away for 30 s", KILLED_MS)
async def majority_lost(arena: Arena) -> str:
    await arena.kill("redis-1", "redis-2")
    silence(arena, "silenced")
    begin_ns = time.monotonic_ns()
    await asyncio.sleep(30)
    end_ns = time.monotonic_ns()
    silence(arena, "heard")
    await arena.start("redis-1", "redis-2")
    arena.fault_ended()
    await arena.all_commit()
    await none_acknowledged(arena, begin_ns + 200_000_000, end_ns)
    return f"nothing was acknowledged, and {nobody_stopped(arena)}"


@scenario("20", "one Redis node stopped for 2 s, again and again", NODE_MS)
async def node_in_pulses(arena: Arena) -> str:
    before = await arena.epochs()
    for _ in range(4):
        arena.pause("redis-2")
        await asyncio.sleep(2)
        arena.resume("redis-2")
        await asyncio.sleep(0.3)
    await arena.all_commit()
    await owners_kept(arena, before)
    return "no epoch changed"


@scenario("21", "metadata reaches one Redis node of three: one instance, then all", KILLED_MS)
async def metadata_isolated(arena: Arena) -> str:
    far = ["redis-2", "redis-3"]
    await arena.cut("metadata-1", far)
    await asyncio.sleep(4)
    await arena.all_commit()
    alone_ms = arena.seen().recovery_ms
    await arena.cut("metadata-2", far)
    silence(arena, "silenced")
    begin_ns = time.monotonic_ns()
    await asyncio.sleep(5)
    end_ns = time.monotonic_ns()
    silence(arena, "heard")
    for name in arena.metadata:
        await arena.mend(name, far)
    arena.fault_ended()
    await arena.all_commit()
    await none_acknowledged(arena, begin_ns + 200_000_000, end_ns)
    return (
        f"with one instance cut off a commit took {alone_ms:.0f} ms at most; "
        f"with both none was acknowledged, and {nobody_stopped(arena)}"
    )


def onto_small_disk(node: RedisNode, kept: Path) -> bool:
    """Moves a stopped node's folder onto a disk of its own, with 2 MB to spare; False: it cannot."""
    shutil.copytree(node.folder, kept)
    size_kb = sum(file.stat().st_size for file in kept.rglob("*") if file.is_file()) // 1024 + 2_048
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", str(node.folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        shutil.rmtree(kept)
        return False
    shutil.copytree(kept, node.folder, dirs_exist_ok=True)
    return True


def off_small_disk(node: RedisNode, kept: Path) -> None:
    """Moves a stopped node's folder back."""
    shutil.rmtree(kept)
    shutil.copytree(node.folder, kept, ignore=shutil.ignore_patterns(FILLER))
    subprocess.run(["umount", str(node.folder)], check=True)
    shutil.copytree(kept, node.folder, dirs_exist_ok=True)
    shutil.rmtree(kept)


@asynccontextmanager
async def small_disk(arena: Arena, node: RedisNode) -> AsyncIterator[Path]:
    """Gives what takes all the room when it is filled.

    Raises:
        NotHit: no disk can be mounted here.
    """
    await arena.kill(node.process.name)
    kept = node.folder.with_name(node.folder.name + "-kept")
    if not onto_small_disk(node, kept):
        await node.start()
        raise NotHit("a small disk can only be mounted by root")
    try:
        await arena.start(node.process.name)
        yield node.folder / FILLER
    finally:
        await node.kill()
        off_small_disk(node, kept)
        await node.start()


def fill(path: Path) -> None:
    """Takes all that is left of a disk."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return


@scenario("23", "disk full on one Redis node, everysec and always", NODE_MS)
async def disk_full(arena: Arena) -> str:
    node = arena.cluster.node(2)
    told = []
    async with small_disk(arena, node) as filler:
        for policy in ("everysec", "always"):
            if not node.process.running:
                await arena.start("redis-2")
            client: Any = arena.logs.nodes[1]
            await client.config_set("appendfsync", policy)
            await arena.repaired()
            fill(filler)
            arena.note(f"the disk is full, appendfsync {policy}")

            async def hit(client: Any = client) -> bool:
                try:
                    info = await client.info("persistence")
                except (redis.RedisError, OSError):
                    return not node.process.running
                return bool(info["aof_last_write_status"] != "ok")

            await arena.until(hit, "the node cannot write", 20)
            told.append(f"{policy}: {'refuses writes' if node.process.running else 'ended'}")
            await arena.all_commit()
            filler.unlink()
            arena.note("there is room again")
            if node.process.running:
                await asyncio.sleep(1.5)
    await arena.repaired()
    return "; ".join(told)


@scenario("24", "maxmemory reached, on one Redis node, then on a majority", KILLED_MS)
async def memory_full(arena: Arena) -> str:
    first, second = arena.logs.nodes[1], arena.logs.nodes[2]
    await first.config_set("maxmemory", "1mb")
    arena.note("redis-2 is out of memory")
    await asyncio.sleep(2)
    await arena.all_commit()
    one_ms = arena.seen().recovery_ms
    await second.config_set("maxmemory", "1mb")
    arena.note("redis-3 is out of memory, too")
    begin_ns = time.monotonic_ns()
    await asyncio.sleep(4)
    end_ns = time.monotonic_ns()
    refused = int((await second.info("errorstats")).get("errorstat_OOM", {}).get("count", 0))
    await first.config_set("maxmemory", "0")
    await second.config_set("maxmemory", "0")
    arena.fault_ended()
    await arena.all_commit()
    await none_acknowledged(arena, begin_ns + 200_000_000, end_ns)
    arena.expect(refused > 0, "the node refused writes")
    return f"one: {one_ms:.0f} ms at most; majority: {refused} refusals, none acknowledged, all went on after"


@scenario("25", "FLUSHALL on one Redis node, DEL of a log on another", KILLED_MS)
async def flushed(arena: Arena) -> str:
    await arena.logs.nodes[1].flushall()
    arena.note("FLUSHALL on redis-2")
    await arena.all_commit()
    await arena.repaired()
    shard = arena.logs.shard(arena.load.groups[0])
    await arena.logs.nodes[2].delete(log_keys(shard, arena.cluster.shard_count).log)
    arena.note(f"DEL of the log of shard {shard} on redis-3")
    await arena.all_commit()
    await arena.repaired()
    return "both were rebuilt from the others"


@scenario("25b", "FLUSHALL on one Redis node, and again as soon as it votes", KILLED_MS)
async def flushed_twice(arena: Arena) -> str:
    for time_of in ("first", "second"):
        await arena.logs.nodes[1].flushall()
        arena.note(f"FLUSHALL on redis-2 for the {time_of} time")
        await arena.repaired()
    await arena.all_commit()
    return "it was rebuilt both times"


@scenario("27", "metadata killed between the script and its answer", KILLED_MS, tries=3)
async def metadata_between(arena: Arena) -> str:
    async with arena.wire() as wire:
        group = new_group("between")
        (member,) = await raw_group(arena, wire, group, 1)
        await stable([member], "only")
        arena.expect(await member.commit(TOPIC, 1) == 0, "a commit before is accepted")
        shard = arena.logs.shard(group)
        ends = [await arena.logs.end(index, shard) for index in (1, 2, 3)]
        nodes = ["redis-1", "redis-2", "redis-3"]
        for name in arena.metadata:
            await arena.cut(name, nodes, [TO_SOURCE])
        commit = asyncio.create_task(member.commit(TOPIC, 2, 20))

        async def written() -> bool:
            return sum([await arena.logs.end(index, shard) > ends[index - 1] for index in (1, 2, 3)]) >= 2

        try:
            await arena.until(written, "the script ran on a majority", 1.0)
            hit = not commit.done()
        finally:
            await arena.kill("metadata-1")
            await arena.mend("metadata-1", nodes)
            await arena.mend("metadata-2", nodes)
        arena.expect(await commit == 0, "the commit is acknowledged through the other instance")
        if not hit:
            raise NotHit("the commit was answered before the kill")
        values = [place.value for place in await arena.logs.commits([group])]
        arena.expect(values == [1, 2], f"each commit stands in the log once: {values}")
    await arena.all_commit()
    return "the commit stood on a majority without an answer; it was applied once"


@scenario("28", "all metadata killed, started again after 10 s", KILLED_MS)
async def metadata_restarted(arena: Arena) -> str:
    before = await arena.epochs()
    await arena.kill(*arena.metadata)
    await asyncio.sleep(10)
    await arena.start(*arena.metadata)
    arena.fault_ended()
    await arena.all_commit()
    moved = sum(row != before[shard] for shard, row in (await arena.epochs()).items())
    return f"{moved} of {len(before)} shards were claimed anew, {nobody_stopped(arena)}"


@scenario("29", "one byte of an entry changed, one entry removed, on one Redis node", KILLED_MS)
async def corrupted(arena: Arena) -> str:
    shard = arena.logs.shard(arena.load.groups[0])
    key = log_keys(shard, arena.cluster.shard_count).log
    node: Any = arena.logs.nodes[2]
    rows = await node.xrange(key)
    removed, changed = rows[len(rows) // 3][0], rows[len(rows) // 2][0]
    rewritten = []
    for place, fields in rows:
        if place == changed:
            record = bytearray(fields[b"r"])
            record[-1] ^= 1
            fields = {**fields, b"r": bytes(record)}
        if place != removed:
            rewritten.append((place, fields))
    async with node.pipeline(transaction=True) as pipe:
        pipe.delete("chaos")
        for place, fields in rewritten:
            pipe.xadd("chaos", fields, id=place)
        pipe.rename("chaos", key)
        await pipe.execute()
    arena.note(f"shard {shard} on redis-3: {changed.decode()} changed, {removed.decode()} removed")
    report = await asyncio.to_thread(verify, arena.cluster.redis_url)
    named = {one.violation.position.stream_id for one in report.evidence}
    arena.expect(
        {changed.decode(), removed.decode()} <= named,
        f"the verifier names both entries, not {sorted(named)[:5]}",
    )
    owner = await arena.owner(arena.load.groups[0])
    await arena.kill(owner.name)
    await arena.all_commit()
    await arena.logs.nodes[2].flushall()
    arena.note("the damaged node is wiped, to be rebuilt")
    await arena.repaired()
    await asyncio.sleep(2)
    report = await asyncio.to_thread(verify, arena.cluster.redis_url)
    arena.expect(report.clean, f"rebuilt it is clean: {[one.violation for one in report.evidence[:2]]}")
    return "the verifier named both entries; a load went on with good copies; a rebuild cured it"


@scenario("A", "one Redis node loses its disk and comes back empty", NODE_MS)
async def node_wiped(arena: Arena) -> str:
    node = arena.cluster.node(3)
    await arena.kill("redis-3")
    for path in (node.folder / "appendonlydir", node.folder / "dump.rdb"):
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
    arena.note("its data are gone")
    await arena.start("redis-3")
    keys = await arena.logs.nodes[2].dbsize()
    await arena.repaired()
    await arena.kill("redis-1")  # now its copy is needed
    await arena.all_commit()
    return f"{keys} keys when it came back; rebuilt, and counted when another one died"


@scenario("B", "all Redis nodes restarted, one after the other", NODE_MS)
async def nodes_restarted(arena: Arena) -> str:
    before = await arena.epochs()
    for node in arena.cluster.nodes:
        arena.note(f"SIGTERM {node.process.name}")
        await node.stop()
        await arena.start(node.process.name)
        await arena.repaired()
    await arena.all_commit()
    await owners_kept(arena, before)
    return "no epoch changed"
