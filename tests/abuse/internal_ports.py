"""A stranger at the port of metadata reads every log and renews a lease in a coordinator's name.

Must hold: what services say to each other is nobody else's.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from abuse.lab import Lab
from kit.programs import Broken, run
from kit.tokens import token_settings
from muster_core.features import FEATURE_NAMES
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_protos.muster.v1 import discovery_pb2

SHARDS = 50
_EACH_S = 0.2
REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAVAILABLE)
"""What a caller is answered who may not."""


async def entries_read(stub: Any) -> int:
    """How many entries of the logs a stranger gets."""
    number = 0
    for shard in range(SHARDS):
        async for page in stub.ReadLog(metadata_pb2.ReadLogRequest(shard=shard), timeout=20):
            number += len(page.entries)
    return number


async def _leases(node_id: str, times: int) -> AsyncIterator[metadata_pb2.LeaseRequest]:
    """A lease as a coordinator asks for it."""
    for number in range(1, times + 1):
        yield metadata_pb2.LeaseRequest(
            node_id=node_id,
            session="a stranger's",
            host="127.0.0.1",
            port=9,
            state=discovery_pb2.COORDINATOR_STATE_LIVE,
            version="0",
            features=FEATURE_NAMES,
            number=number,
        )
        await asyncio.sleep(_EACH_S)


async def renewals(stub: Any, node_id: str, times: int = 5) -> int:
    """How often a lease in a coordinator's name was renewed for a stranger."""
    return sum([answer.renewed async for answer in stub.Lease(_leases(node_id, times), timeout=60)])


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as folder:
        async with Lab(Path(folder) / "mine", token_settings(Path(folder)), with_worker=False) as lab:
            async with grpc.aio.insecure_channel(lab.cluster.metadata[0].address) as channel:
                stub: Any = metadata_pb2_grpc.MetadataServiceStub(channel)
                try:
                    read = await entries_read(stub)
                    print(f"a stranger read {read} entries of the logs")
                    renewed = await renewals(stub, lab.cluster.coordinators[0].name)
                    print(f"a lease in a coordinator's name was renewed {renewed} times")
                except grpc.aio.AioRpcError as error:
                    if error.code() in REFUSALS:
                        return
                    raise
            raise Broken(f"a stranger read {read} entries and renewed a lease {renewed} times")


if __name__ == "__main__":
    run(main)
