"""Members of one group in one process that commit all the time, patient with a machine that is busy.

`python steady_members.py SERVERS GROUP FIRST COUNT`: members FIRST to FIRST + COUNT - 1; the topic has the
group's name. What happens is told as JSON lines; the end of standard input ends it.
"""

import asyncio
import json
import sys

import muster

COMMIT_INTERVAL_SECONDS = 0.1


def say(event: str, member: int, **fields: object) -> None:
    print(json.dumps({"event": event, "member": member, **fields}), flush=True)


async def commit_steadily(number: int, member: muster.Member) -> None:
    position = 0
    while True:
        await asyncio.sleep(COMMIT_INTERVAL_SECONDS)
        if member.partitions:
            position += 1
            try:
                await member.commit({member.partitions[0]: position})
            except muster.CommitFailed:
                continue
            say("committed", number)


async def main(servers: str, group: str, first: str, count: str) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with muster.Cluster(servers) as cluster:
        members: dict[int, muster.Member] = {}

        def made(number: int) -> muster.Member:
            return muster.Member(
                cluster,
                group_id=group,
                topics=group,
                on_partitions_assigned=lambda _: say(
                    "assigned", number, generation=members[number].generation
                ),
                session_timeout_ms=120_000,
                disconnect_grace_ms=60_000,
            )

        members.update({n: made(n) for n in range(int(first), int(first) + int(count))})
        await asyncio.gather(*(member.start() for member in members.values()))
        work = [asyncio.create_task(commit_steadily(number, member)) for number, member in members.items()]
        await reader.read()
        for task in work:
            task.cancel()
        await asyncio.gather(*(member.close("the test is over") for member in members.values()))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
