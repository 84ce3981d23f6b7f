"""Members for bench/rebalance_classic.py: one process, one stream, any number of members.

Commands come on standard input, one a line: `add COUNT`, `remove`, `rejoin`. What happens goes to standard
output as JSON lines with times of the monotonic clock, which all processes of a machine share.
"""

import asyncio
import json
import sys
import time
from functools import partial

import muster


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, "at_ns": time.monotonic_ns(), **fields}), flush=True)


async def main(servers: str, group: str, topic: str, process: str) -> None:
    members: list[muster.Member] = []
    started = 0

    def assigned(name: str, owned: tuple[muster.TopicPartition, ...]) -> None:
        member = by_name[name]
        say("assigned", member=name, generation=member.generation, partitions=len(owned))

    by_name: dict[str, muster.Member] = {}
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with muster.Cluster(servers) as cluster:
        say("ready")
        while line := (await reader.readline()).decode().split():
            if line[0] == "add":
                count = int(line[1])
                say("adding", count=count)
                for _ in range(count):
                    name = f"{process}-{started}"
                    started += 1
                    by_name[name] = muster.Member(
                        cluster,
                        group_id=group,
                        topics=topic,
                        protocol="classic",
                        on_partitions_assigned=partial(assigned, name),
                    )
                    members.append(by_name[name])
                await asyncio.gather(*(member.start() for member in members[-count:]))
            elif line[0] == "remove":
                await members.pop().close("bench")
                say("removed")
            elif line[0] == "rejoin":
                say("rejoining")
                for member in members:
                    member.rejoin("bench")
        await asyncio.gather(*(member.close("bench") for member in members))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
