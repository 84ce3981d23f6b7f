"""A member whose machine slept through its life and wakes without a network must own nothing (SES-18).

The boot clock of the process is moved on by a minute while its timers stand still, as in a sleep. From then
on `partitions` must be empty, and `on_partitions_lost` must come without a wait for the rest of the life.
"""

import asyncio
from typing import Any

import muster
from client.client_scripted import ScriptedCluster
from client.client_streams import StreamingCoordinator
from kit.programs import Broken, report, run
from kit.waiting import until
from muster._clock import Time, boot_ms, replaced

SLEPT_MS = 60_000
SOON_MS = 2_000


class _Sleeper(Time):
    """The time of a machine that has been asleep for `slept_ms`."""

    slept_ms = 0

    def boot_ms(self) -> int:
        return super().boot_ms() + self.slept_ms


async def _one(sleeper: _Sleeper, **settings: Any) -> None:
    cluster = ScriptedCluster([StreamingCoordinator("a")])
    await cluster.start()
    lost = asyncio.Event()
    connection = muster.Cluster(cluster.address)
    member = muster.Member(
        connection, group_id="g", topics="t", on_partitions_lost=lambda _: lost.set(), **settings
    )
    await member.start()
    await until(lambda: bool(member.partitions), "the member owns something")
    await cluster.stop()
    sleeper.slept_ms += SLEPT_MS
    woke_ms = boot_ms()
    if member.partitions:
        raise Broken(f"{settings}: woke up after {SLEPT_MS} ms and owns {len(member.partitions)} partitions")
    await asyncio.wait_for(lost.wait(), 120)
    took_ms = boot_ms() - woke_ms
    report(f"{settings or 'defaults'}: on_partitions_lost came {took_ms} ms after waking up")
    if took_ms > SOON_MS:
        raise Broken(f"on_partitions_lost came {took_ms} ms after waking up")


async def main() -> None:
    """A member with a grace, and one with a session."""
    sleeper = _Sleeper()
    with replaced(sleeper):
        await _one(sleeper)
        await _one(sleeper, group_instance_id="i-1", session_timeout_ms=20_000)


if __name__ == "__main__":
    run(main)
