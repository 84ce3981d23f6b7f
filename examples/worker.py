"""A worker in 15 lines: start it several times, kill one, and watch the others take over.

MUSTER_SERVERS names the servers; without it, localhost:7400.
"""

import asyncio

import muster


async def work(p: muster.Partition) -> None:
    position = await p.committed() or 0
    print(f"{p.topic}-{p.number}: on from {position} with token {p.token}", flush=True)
    while True:
        await asyncio.sleep(0.5)  # the real work goes here
        position += 1
        await p.commit(position)


if __name__ == "__main__":
    muster.run(work, group="crawlers", topic="sites", partitions=12)
