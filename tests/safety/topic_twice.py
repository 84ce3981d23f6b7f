"""A deletion of a topic is stored, its answer is lost, and discovery repeats it elsewhere (TOP-01 to TOP-03).

What the nodes of the log answer to one instance of metadata is held. `wait`: until discovery has enough of
that instance and asks the next one. `kill`: the instance is killed. Meanwhile somebody creates the topic
again, with other partitions, through the other discovery instance; afterwards the deletion is repeated at
both, under its id.

What must hold: the change takes place once. The topic whose creation was acknowledged is there, at both.

Arguments: `wait` or `kill`, both without one; and how many rounds of each, 4 without.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from kit.clusters.linked_cluster import LinkedCluster, link_name
from kit.links import TO_SOURCE
from kit.programs import Broken, report, run
from muster_protos.muster.v1 import common_pb2
from safety.topic_calls import NONE, TopicCalls

KILL, WAIT = "kill", "wait"
HOWS = [how for how in (KILL, WAIT) if how in sys.argv[1:]] or [KILL, WAIT]
ROUNDS = next((int(argument) for argument in sys.argv[1:] if argument.isdecimal()), 4)
HEAD_START_S = 0.4
HELD_S = 4.0
BEFORE, AFTER = 3, 7


async def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="muster-twice-"))
    async with LinkedCluster(folder, shard_count=4) as cluster, TopicCalls(cluster) as calls:
        for how in HOWS:
            for number in range(ROUNDS):
                await attack(cluster, calls, how, number)
            report(f"{how}: {ROUNDS} rounds")


async def attack(cluster: LinkedCluster, calls: TopicCalls, how: str, number: int) -> None:
    topic = change = f"{how}-{number}"
    await calls.create(topic, BEFORE)
    victim = cluster.metadata[number % 2].name
    links = [link_name(victim, node.process.name) for node in cluster.nodes]
    for link in links:
        await cluster.links.hold(link, (TO_SOURCE,))
    deletion = asyncio.create_task(calls.delete(topic, 0, change))
    await asyncio.wait((deletion,), timeout=HEAD_START_S)
    creation = asyncio.create_task(create_anew(calls, topic))
    ends: list[str] = []
    deletion.add_done_callback(lambda _: ends.append("deleted"))
    creation.add_done_callback(lambda _: ends.append("created anew"))
    await asyncio.wait((creation,), timeout=HEAD_START_S)
    if how == KILL:
        await cluster.children[victim].kill()
    await asyncio.wait((deletion, creation), timeout=HELD_S)
    for link in links:
        await cluster.links.release(link)
    if how == KILL:
        await cluster.role(victim).start()
    answers = [await deletion]
    await creation
    answers += [await calls.delete(topic, instance, change) for instance in range(2)]
    codes = [answer.error_code for answer in answers]
    found = [await calls.partitions(topic, instance) for instance in range(2)]
    print(f"{topic}: {', then '.join(ends)}; the deletion and its repeats were answered {codes}", flush=True)
    if found != [AFTER, AFTER]:
        raise Broken(f"{topic}: {AFTER} partitions were acknowledged, the instances list {found}")
    if codes != [NONE] * 3:
        raise Broken(f"{topic}: a deletion and its repeats were answered {codes}")


async def create_anew(calls: TopicCalls, topic: str) -> None:
    """Creates the topic through the second instance, as soon as the one before is gone."""
    while True:
        answer = await calls.create(topic, AFTER, 1)
        if answer.error_code == NONE:
            return
        if answer.error_code != common_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS:
            raise Broken(f"{topic}: its creation was answered {answer.error_code}: {answer.error_message}")
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    run(main, limit_s=600)
