#!/usr/bin/env python3
"""What it costs a process that nothing blocks to have its event loop watched, and its members stood in for.

An event loop is idle, in turns with and without the thread that asks it for signs on behalf of members. Reads
the CPU time of this process, all threads, and prints the medians and what a member adds.

    ./x bench blocked_loop [--members 1000] [--rounds 5] [--seconds 2]
"""

import argparse
import asyncio
import statistics
import time

from muster._blocked.stand_in import StandIn, Ward
from muster._clock import boot_ms
from muster._cluster.cluster import Cluster
from muster._session.channels import ChannelPool
from muster._session.transport import Vitals
from muster._standing.life import Life
from muster._standing.seat import Caller, Seat


async def cpu_ms_per_s(members: int, seconds: float) -> float:
    """CPU time of an idle process that stands in for so many members."""
    cluster = Cluster("localhost:1")
    stands_in = StandIn(ChannelPool())
    wards = []
    for number in range(members):
        vitals = Vitals(
            Caller("g"), Seat(f"m{number}", 1), interval_ms=3_000, timeout_ms=3_000, beat_interval_ms=500
        )
        life = Life(45_000, 3_000)
        life.renew(boot_ms())
        wards.append(Ward(vitals, cluster.link("g"), life, 45_000))
        stands_in.add(wards[-1])
    await asyncio.sleep(0.2)
    began_s, used_s = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    used_ms = (time.process_time() - used_s) * 1_000 / (time.monotonic() - began_s)
    for ward in wards:
        stands_in.remove(ward)
    await asyncio.sleep(0.2)
    await cluster.close()
    return used_ms


async def main(members: int, rounds: int, seconds: float) -> None:
    kinds = (0, 1, members)
    used: dict[int, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            used[kind].append(await cpu_ms_per_s(kind, seconds))
    for kind in kinds:
        middle = statistics.median(used[kind])
        print(f"{kind:5} members: {middle:6.2f} ms of CPU per second ({middle / 10:.3f} % of a core)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    asyncio.run(main(**vars(parser.parse_args())))
