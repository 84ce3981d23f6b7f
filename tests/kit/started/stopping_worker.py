"""A worker of the demo that stops itself, once, between the decision to write and the write.

`python stopping_worker.py NAME SERVERS WORKLOAD GROUP TOPIC PARTITIONS FILE`: it stops when FILE is there.
Nothing of its event loop runs between being continued and the write, so the write is always tried, with
the old token.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from muster_server.demo.worker import Worker, serve
from muster_server.demo.workload import Store


class StoppingStore(Store):
    """Stops the process before a write, when it is told to."""

    def __init__(self, url: str, told: Path) -> None:
        super().__init__(url)
        self._url = url
        self._told = told
        self._stopped = False

    async def apply(
        self, partition: int, token: str, before: int, after: int, counts: Mapping[str, int]
    ) -> int:
        if self._stopped or before == after or not self._told.exists():
            return await super().apply(partition, token, before, after, counts)
        self._stopped = True

        async def write() -> int:
            store = Store(self._url)
            try:
                return await store.apply(partition, token, before, after, counts)
            finally:
                await store.close()

        os.kill(os.getpid(), signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, write()).result()


if __name__ == "__main__":
    name, servers, workload, group, topic, partitions, told = sys.argv[1:]
    serve(Worker(name, StoppingStore(workload, Path(told))), servers, group, topic, int(partitions))
