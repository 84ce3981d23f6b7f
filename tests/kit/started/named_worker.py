"""A worker on partitions with names, which keeps the names of those that it works on in a file.

`python named_worker.py SERVERS GROUP TOPIC FILE [PARTITION…]`: FILE has a list in JSON. SIGTERM ends it.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import muster


def main(servers: str, group: str, topic: str, file: str, *partitions: str) -> None:
    names: list[str] = []
    path = Path(file)

    def tell() -> None:
        new = path.with_suffix(".new")
        new.write_text(json.dumps(sorted(names)))
        os.replace(new, path)

    async def work(partition: muster.Partition) -> None:
        assert partition.name == partition.key
        names.append(partition.key)
        tell()
        try:
            position = await partition.committed() or 0
            while True:
                position += 1
                await partition.commit(position)
                await asyncio.sleep(0.05)
        finally:
            names.remove(partition.key)
            tell()

    muster.run(
        work,
        group=group,
        topic=topic,
        partitions=partitions or None,
        servers=servers,
        client_id=path.name,
        session_timeout_ms=60_000,
        disconnect_grace_ms=30_000,
        drain_timeout_ms=10_000,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
