"""A log that nobody uses is deleted on one node after metadata was restarted: it is filled again (LOG-55).

Two instances of metadata look after it; neither leaves its copy behind.
"""

import tempfile
import time
from pathlib import Path

from kit.metadata.metadata_instances import Writer, metadata_cluster
from kit.programs import Broken, report, run
from kit.waiting import until

LIMIT_S = 15.0


async def main() -> None:
    """The story, how long it took, and what is left on the node."""
    folder = Path(tempfile.mkdtemp(prefix="muster-idle-"))
    async with metadata_cluster(folder, 3, instances=2, shards=4) as cluster:
        writer = Writer(0, "c-1")
        await writer.own(cluster[0])
        await writer.append(cluster[0], b"w:1")
        await until(lambda: cluster.level(0), "level")
        for instance in cluster.instances:
            await instance.stop()
        cluster.instances.clear()
        for _ in range(2):
            await cluster.add_instance()
        async with cluster.client(1) as client:
            await client.delete("muster:{0}:log", "muster:{0}:promise")
            began_s = time.monotonic()
            await until(lambda: cluster.level(0), "it is filled")
            took_s = time.monotonic() - began_s
            report(f"filled after {took_s:.1f} s")
            if took_s > LIMIT_S:
                raise Broken(f"it took {took_s:.0f} s to fill a log of two records")

            async def clean() -> bool:
                return not await client.exists("muster:{0}:copy", "muster:{0}:vacant")

            await until(clean, "nothing is left")


if __name__ == "__main__":
    run(main)
