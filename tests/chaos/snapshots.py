"""Scenarios about snapshots and trimming, on a cluster that takes and trims all the time."""

import asyncio
from typing import Any

from chaos.arena import Arena, NotHit
from chaos.scenario import KILLED_MS, TRIMMING, scenario
from kit.clusters.linked_cluster import link_name
from kit.links import TO_TARGET
from muster_core.position import Position
from muster_metadata.nodes.keys import log_keys

SLOW_MS = 20


async def snapshots(arena: Arena, shard: int) -> set[str]:
    """Ids up to which snapshots of a shard stand on the first node, with their markers or without."""
    begin = log_keys(shard, arena.cluster.shard_count).snapshot("")
    node: Any = arena.logs.nodes[0]
    return {key.decode().removeprefix(begin) for key in await node.keys(f"{begin}*")}


async def marked(arena: Arena, shard: int) -> set[str]:
    """Ids up to which markers in the log say that there is a snapshot."""
    found = set()
    for index in range(1, len(arena.logs.nodes) + 1):
        for _, record in await arena.logs.records(index, shard):
            if record.WhichOneof("kind") == "snapshot":
                found.add(Position.from_proto(record.snapshot.upto).stream_id)
    return found


async def first_entries(arena: Arena, shard: int) -> list[Position]:
    """Where each node's copy of a log begins."""
    key = log_keys(shard, arena.cluster.shard_count).log
    rows = [await node.xrange(key, count=1) for node in arena.logs.nodes]
    return [Position.parse(row[0][0].decode()) for row in rows]


async def my_shards(arena: Arena, name: str) -> list[int]:
    """What a coordinator serves."""
    return [shard for shard, (node, _) in (await arena.epochs()).items() if node == name]


@scenario("6b", "kill -9 of the owner while it stores a snapshot", KILLED_MS, tries=4, cluster=TRIMMING)
async def kill_in_snapshot(arena: Arena) -> str:
    await arena.balanced()
    owner = await arena.busiest()
    shards = await my_shards(arena, owner.name)
    links = [link_name(name, f"redis-{n}") for name in arena.metadata for n in (1, 2, 3)]
    for link in links:
        await arena.cluster.links.delay(link, SLOW_MS)
    before = {shard: await snapshots(arena, shard) for shard in shards}
    begun: dict[int, set[str]] = {}

    async def somewhere() -> bool:
        for shard in shards:
            new = await snapshots(arena, shard) - before[shard]
            if new:
                begun[shard] = new
                return True
        return False

    await arena.until(somewhere, "a snapshot is begun")
    arena.pause(owner.name)
    await asyncio.sleep(0.2)  # what is on its way arrives
    (shard,) = begun
    half = begun[shard] - await marked(arena, shard)
    await arena.kill(owner.name)
    for link in links:
        await arena.cluster.links.delay(link, 0)
    await arena.all_commit()
    if not half:
        raise NotHit("its marker stood in the log already")
    return f"shard {shard}: parts of the snapshot up to {', '.join(half)} without a marker; nobody used them"


@scenario("6c", "kill -9 of the owner while it trims", KILLED_MS, tries=3, cluster=TRIMMING)
async def kill_in_trim(arena: Arena) -> str:
    await arena.balanced()
    owner = await arena.busiest()
    shards = await my_shards(arena, owner.name)
    await arena.repaired()
    for name in arena.metadata:
        await arena.cut(name, ["redis-3"], [TO_TARGET])
    hit: list[int] = []

    async def trimmed_elsewhere() -> bool:
        for shard in shards:
            first, second, third = await first_entries(arena, shard)
            if third < first and third < second:
                hit[:] = [shard]
                return True
        return False

    await arena.until(trimmed_elsewhere, "a log is trimmed on two nodes")
    await arena.kill(owner.name)
    places = [place.stream_id for place in await first_entries(arena, hit[0])]
    for name in arena.metadata:
        await arena.mend(name, ["redis-3"])
    await arena.all_commit()
    if places[2] == places[0]:
        raise NotHit("the third node had trimmed, too")
    return f"shard {hit[0]} began at {' / '.join(places)} on the three nodes when its owner died"


@scenario("30", "logs are loaded again and again while they are trimmed", KILLED_MS, cluster=TRIMMING)
async def trim_and_load(arena: Arena) -> str:
    async def begins() -> dict[int, Position]:
        return {shard: (await first_entries(arena, shard))[0] for shard in range(arena.cluster.shard_count)}

    before = await begins()
    names = [process.name for process in arena.cluster.coordinators]
    for name in names:
        await arena.kill(name)
        await arena.all_commit()
        await arena.start(name)
        await asyncio.sleep(3)
    trimmed = sum(place > before[shard] for shard, place in (await begins()).items())
    if not trimmed:
        raise NotHit("nothing was trimmed meanwhile")
    for group in arena.load.groups:
        await arena.read_back(group, list(range(arena.load.members)))
    taken = sum(len(arena.said(name, "snapshot_taken")) for name in names)
    return f"{trimmed} logs were trimmed, {taken} snapshots taken; all progress was read back"
