"""A topic is deleted and created again while the coordinator of a group hears late of it (TOP-04 to TOP-07).

The group has an offset in the topic that is deleted. `cut`: what metadata says to its coordinator is held
until the topic is there again. `stop`: the coordinator is stopped until then. `nothing`: nothing is held, it
hears of both together. With `cut` and `stop` a client commits into the topic that was created, first at that
coordinator: a stopped one gets the commit before it hears of anything, one that is cut off may have heard
of all by another instance of metadata, as the deletion is answered only after that or after its lease.

What must hold: the deleted topic's offset is not read in the new one, and a commit into the new one that was
acknowledged is read, also after the coordinator heard of everything.

Arguments: `cut`, `stop` or `nothing`, all three without one; and how many rounds of each, 4 without.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kit.clusters.linked_cluster import LinkedCluster, link_name
from kit.links import TO_SOURCE
from kit.programs import Broken, report, run
from safety.topic_calls import NO_OFFSET, NONE, TopicCalls

CUT, STOP, NOTHING = "cut", "stop", "nothing"
HOWS = [how for how in (CUT, STOP, NOTHING) if how in sys.argv[1:]] or [CUT, STOP, NOTHING]
ROUNDS = next((int(argument) for argument in sys.argv[1:] if argument.isdecimal()), 4)
HEAD_START_S = 0.5
READ_FOR_S = 1.0
PAUSE_S = 0.05
OLD, NEW = 1, 1_000


async def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="muster-recreate-"))
    async with LinkedCluster(folder, shard_count=16) as cluster, TopicCalls(cluster) as calls:
        for how in HOWS:
            at_once = 0
            for number in range(ROUNDS):
                at_once += await attack(cluster, calls, how, number)
            late = (
                ""
                if how == NOTHING
                else f", {at_once} commits acknowledged by the coordinator that hears late"
            )
            report(f"{how}: {ROUNDS} rounds{late}")


async def attack(cluster: LinkedCluster, calls: TopicCalls, how: str, number: int) -> bool:
    """One round; gives whether the coordinator that hears late acknowledged the commit."""
    group = topic = f"{how}-{number}"
    await calls.create(topic, 1)
    await calls.commit(group, topic, OLD)
    node = await calls.owner(group)
    instance = cluster.metadata[number % 2].name
    if how == CUT:
        await cluster.watch(instance, [node])
        node = await calls.owner(group)
    commit: asyncio.Task[int] | None = None
    async with hearing_late(cluster, node, instance, how):
        await calls.delete(topic)
        await calls.create(topic, 1)
        if how != NOTHING:
            commit = asyncio.create_task(calls.commit_at(node, group, topic, NEW))
            await asyncio.wait((commit,), timeout=HEAD_START_S)
    wanted, code, told = NO_OFFSET, -1, "no commit"
    if commit is not None:
        wanted, code = NEW, await commit
        told = f"commit answered {code} by {node}"
        if code != NONE:
            await calls.commit(group, topic, NEW)
    seen = await read_for_a_while(calls, group, topic)
    print(f"{topic}: deleted, created, {told}, read {seen}", flush=True)
    if seen != [wanted]:
        raise Broken(f"{topic}: {wanted} should be read in the new topic all the time, and was {seen}")
    return code == NONE


@asynccontextmanager
async def hearing_late(cluster: LinkedCluster, node: str, instance: str, how: str) -> AsyncIterator[None]:
    """While the block runs, a coordinator hears nothing of what a metadata instance says."""
    link = link_name(node, instance)
    if how == CUT:
        await cluster.links.hold(link, (TO_SOURCE,))
    elif how == STOP:
        cluster.children[node].pause()
    try:
        yield
    finally:
        if how == CUT:
            await cluster.links.release(link)
        elif how == STOP:
            cluster.children[node].resume()


async def read_for_a_while(calls: TopicCalls, group: str, topic: str) -> list[int]:
    """What is read, each time that it is something else than before."""
    seen: list[int] = []
    for _ in range(int(READ_FOR_S / PAUSE_S)):
        offset = await calls.committed(group, topic)
        if seen[-1:] != [offset]:
            seen.append(offset)
        await asyncio.sleep(PAUSE_S)
    return seen


if __name__ == "__main__":
    run(main, limit_s=600)
