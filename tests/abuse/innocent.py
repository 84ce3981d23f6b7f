"""W, the innocent worker: commits thirty times a second on one partition, and writes a line for each commit.

python -m abuse.innocent SERVERS FILE GROUP PROTOCOL
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import muster

TOPIC = "innocent"
INTERVAL_S = 1 / 30


async def _main(servers: str, path: Path, group: str, protocol: Any) -> None:
    with path.open("a", buffering=1) as file:

        def say(**event: object) -> None:
            file.write(json.dumps({"at_s": time.monotonic(), **event}) + "\n")

        async def work(partition: muster.Partition) -> None:
            say(event="assigned", token=partition.token)
            position = await partition.committed() or 0
            try:
                while True:
                    began_s = time.monotonic()
                    position += 1
                    await partition.commit(position)
                    say(event="committed", took_s=time.monotonic() - began_s)
                    await asyncio.sleep(max(0.0, began_s + INTERVAL_S - time.monotonic()))
            except muster.MusterError as error:
                say(event="failed", error=repr(error)[:200])
                raise
            finally:
                say(event="ended")

        while True:
            try:
                await muster.arun(
                    work,
                    group=group,
                    topic=TOPIC,
                    partitions=1,
                    servers=servers,
                    protocol=protocol,
                    on_error="exit",
                )
            except muster.MusterError as error:
                say(event="run failed", error=repr(error)[:200])
                await asyncio.sleep(0.5)
            else:
                return


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
