"""One worker of the demo: `python -m muster_server.demo.worker NAME SERVERS WORKLOAD GROUP TOPIC PARTITIONS`.

A further argument `auto` makes it a member of either kind, as users have it by default; without one it is a
classic one. It is what a user of Muster writes: the public API and a function for one partition.
"""

import asyncio
import logging
import sys
from dataclasses import dataclass
from typing import Literal

import muster
from muster_runtime.clock import boot_ms

from muster_server.demo.text import count_words
from muster_server.demo.workload import StaleTokenError, Store

SESSION_TIMEOUT_MS = 6_000
GRACE_MS = 3_000
Protocol = Literal["auto", "classic", "incremental"]
_HEARTBEAT_MS = 500
_LINES_AT_ONCE = 400
_IDLE_SECONDS = 0.05
_TURN_SECONDS = 0.15


@dataclass
class Worker:
    """Counts the words of the partitions that it owns."""

    name: str
    store: Store

    async def work(self, partition: muster.Partition) -> None:
        """Counts one partition from where it was left, for as long as it is owned."""
        number, token = partition.number, partition.token
        size = await self.store.size(number)
        position = await partition.committed() or 0
        try:
            # The store may be ahead of the commit: the last owner may have died between the two.
            position = await self.store.apply(number, token, position, position, {})
            await self._report("owned", partition, position)
            # Asked for beside the cancellation, which could get lost in the Redis client.
            while not partition.is_ending:
                lines = await self._next_lines(number, position, size)
                if not lines:
                    await asyncio.sleep(_IDLE_SECONDS)
                    continue
                after = position + len(lines)
                position = await self.store.apply(number, token, position, after, count_words(lines))
                sent_ms = boot_ms()
                await partition.commit(position)
                await self._report("commit", partition, position, sent_ms)
                await asyncio.sleep(_TURN_SECONDS)
        except StaleTokenError:
            await self._report("refused", partition, position)

    async def _next_lines(self, number: int, position: int, size: int) -> list[str]:
        allowed = await self.store.allowed(size)
        if position >= allowed:
            return []
        return await self.store.read(number, position, min(_LINES_AT_ONCE, allowed - position))

    async def _report(self, event: str, partition: muster.Partition, position: int, sent_ms: int = 0) -> None:
        await self.store.report(
            event=event,
            worker=self.name,
            partition=partition.number,
            generation=partition.generation,
            position=position,
            sent_ms=sent_ms,
            at_ms=boot_ms(),
        )


def serve(
    worker: Worker, servers: str, group: str, topic: str, partitions: int, protocol: Protocol = "classic"
) -> None:
    """Works until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    muster.run(
        worker.work,
        group=group,
        topic=topic,
        partitions=partitions,
        servers=servers,
        client_id=worker.name,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        disconnect_grace_ms=GRACE_MS,
        heartbeat_interval_ms=_HEARTBEAT_MS,
        rebalance_timeout_ms=SESSION_TIMEOUT_MS,
        protocol=protocol,
    )


def main() -> None:
    """Entry point."""
    name, servers, workload, group, topic, partitions, *rest = sys.argv[1:]
    protocol: Protocol = "auto" if rest == ["auto"] else "classic"
    serve(Worker(name, Store(workload)), servers, group, topic, int(partitions), protocol)


if __name__ == "__main__":
    main()
