"""Changes topics as an instance of metadata and kills itself after a number of confirmed writes of snapshots.

    python -m kit.started.catalog_until URLS RECORDS WRITES

Counted are the writes that a node confirms: parts of snapshots, their marks and trims. Prints the number of
partitions after each change that was acknowledged.
"""

import asyncio
import sys

from kit.logs.catalog_log import creation, growth
from kit.metadata.metadata_instances import fast
from kit.started.replace_until import kill_after
from muster_metadata.server import MetadataServer
from muster_metadata.settings import MetadataSettings
from muster_protos.muster.v1 import common_pb2
from muster_runtime.settings import load


async def main(urls: str, records: int) -> None:
    settings = load(
        MetadataSettings, redis_url=urls, listen="127.0.0.1:0", catalog_snapshot_records=records, **fast()
    )
    server = MetadataServer(settings)
    await server.start()
    await server.metadata.ready.wait()
    catalog = server.metadata.catalog
    for partitions, request in enumerate([creation("often", 1), *growth(range(2, 100_000))], 1):
        response = await catalog.change(request)
        assert response.error_code == common_pb2.ERROR_CODE_NONE, response
        print(partitions, flush=True)


if __name__ == "__main__":
    kill_after(int(sys.argv[3]), ("snapshot", "mark", "trim"))
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
