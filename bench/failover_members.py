"""Members for bench/failover.py: one process, one group, members that commit at a steady pace.

Every acknowledged commit and every rebalance is a JSON line on standard output, with times of the monotonic
clock, which all processes of a machine share. The end of standard input ends it.
"""

import asyncio
import json
import sys
import time

import muster

COMMIT_INTERVAL_SECONDS = 0.05


def say(event: str, member: int, **fields: object) -> None:
    print(json.dumps({"event": event, "member": member, "at_ns": time.monotonic_ns(), **fields}), flush=True)


async def commit_steadily(number: int, member: muster.Member) -> None:
    """20 commits a second of one partition; what cannot be committed in time is not made up for."""
    position = 0
    due = time.monotonic()
    while True:
        due = max(due + COMMIT_INTERVAL_SECONDS, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
        if not member.partitions:
            continue
        position += 1
        try:
            await member.commit({member.partitions[0]: position})
        except muster.CommitFailed:
            continue  # the gap shows it
        say("committed", number)


async def main(servers: str, group: str, topic: str, first: str, count: str) -> None:
    numbers = range(int(first), int(first) + int(count))
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with muster.Cluster(servers) as cluster:
        members: dict[int, muster.Member] = {}

        def made(number: int) -> muster.Member:
            return muster.Member(
                cluster,
                group_id=group,
                topics=topic,
                protocol="classic",
                on_partitions_assigned=lambda owned: say(
                    "assigned", number, generation=members[number].generation, partitions=len(owned)
                ),
                on_partitions_lost=lambda _: say("lost", number),
            )

        members.update({number: made(number) for number in numbers})
        await asyncio.gather(*(member.start() for member in members.values()))
        work = [asyncio.create_task(commit_steadily(number, member)) for number, member in members.items()]
        await reader.read()
        for task in work:
            task.cancel()
        await asyncio.gather(*(member.close("bench") for member in members.values()))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
