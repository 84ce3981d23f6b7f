"""Scenarios about links and about discovery."""

import asyncio

from chaos.arena import Arena
from chaos.scenario import KILLED_MS, SILENT_MS, scenario


@scenario("31", "a coordinator cut from metadata, clients reach it", SILENT_MS)
async def cut_from_store(arena: Arena) -> str:
    owner = await arena.busiest()
    before = await arena.epochs()
    mine = [shard for shard, (node, _) in before.items() if node == owner.name]
    arena.history.note("silenced", node=owner.name)
    await arena.cut(owner.name, arena.metadata)
    await asyncio.sleep(8)
    after = await arena.epochs()
    arena.expect(all(after[shard][0] != owner.name for shard in mine), "others serve its shards")
    suspended = len(arena.said(owner.name, "lease_lapsed"))
    arena.expect(suspended > 0, "it suspended by itself")
    await arena.mend(owner.name, arena.metadata)
    arena.history.note("heard", node=owner.name)
    await arena.all_commit()
    return f"it suspended; {len(mine)} shards went on elsewhere"


@scenario("21b", "one metadata instance cut off from the log, a coordinator killed", SILENT_MS)
async def frozen_view(arena: Arena) -> str:
    owner = await arena.busiest()
    watchers = [process.name for process in (*arena.cluster.discovery, *arena.cluster.coordinators)]
    await arena.cluster.watch("metadata-1", watchers)
    arena.note("everybody watches metadata-1")
    await arena.cut("metadata-1", [f"redis-{index}" for index in range(1, len(arena.cluster.nodes) + 1)])
    await arena.kill(owner.name)
    await arena.all_commit()
    left = sum(len(arena.said(name, "metadata_watch_ended")) > 0 for name in watchers if name != owner.name)
    arena.expect(left == len(watchers) - 1, "everybody went on with metadata-2")
    await arena.mend("metadata-1", [f"redis-{index}" for index in range(1, len(arena.cluster.nodes) + 1)])
    return f"all watched metadata-1; its watches ended, and the shards of {owner.name} went on"


@scenario("36", "discovery down; restarted; answers from an old map", SILENT_MS)
async def discovery_down(arena: Arena) -> str:
    names = [process.name for process in arena.cluster.discovery]
    await arena.kill(*names)
    await arena.all_commit()
    down_ms = arena.seen().recovery_ms
    arena.expect(down_ms < 3_000, f"commits need no discovery, and took {down_ms:.0f} ms")
    await arena.start(*names)
    for name in names:
        await arena.cut(name, arena.metadata)
    owner = await arena.busiest()
    arena.note(f"both discovery instances know {owner.name} as an owner, and learn nothing new")
    await arena.kill(owner.name)
    await asyncio.sleep(2)
    for name in names:
        await arena.mend(name, arena.metadata)
    await arena.all_commit()
    return f"without discovery {down_ms:.0f} ms at most; from an old map the members found the new owners"


@scenario("33", "one way: what coordinators ask arrives, what metadata answers does not", KILLED_MS)
async def one_way(arena: Arena) -> str:
    owner = await arena.busiest()
    await arena.cut(owner.name, ["metadata-1"], ["to_source"])
    await asyncio.sleep(5)
    await arena.all_commit()
    await arena.mend(owner.name, ["metadata-1"])
    return f"{owner.name} went on through metadata-2"
