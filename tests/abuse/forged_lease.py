"""A stranger at the port of metadata renews a lease for a coordinator that does not exist.

Must hold: nobody is told to go to it, so no shard is kept for it.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from abuse.asked_handoffs import described
from abuse.internal_ports import REFUSALS
from abuse.lab import Lab
from kit.programs import Broken, run
from kit.tokens import token_settings
from muster_core.features import FEATURE_NAMES
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_protos.muster.v1 import discovery_pb2

NAME = "a-coordinator-of-a-stranger"
EACH_S = 0.25
TIMES = 20


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as folder:
        async with Lab(Path(folder) / "mine", token_settings(Path(folder)), with_worker=False) as lab:
            channel = grpc.aio.insecure_channel(lab.cluster.metadata[0].address)
            stub: Any = metadata_pb2_grpc.MetadataServiceStub(channel)
            try:
                renewed = sum([answer.renewed async for answer in stub.Lease(renewals(), timeout=60)])
            except grpc.aio.AioRpcError as error:
                if error.code() in REFUSALS:
                    return
                raise
            finally:
                await channel.close()
            cluster = await described(lab.cluster.servers)
    if NAME in {one.node_id for one in cluster.coordinators}:
        raise Broken(f"the lease of nobody was renewed {renewed} times, and clients are told of it")


async def renewals() -> AsyncIterator[metadata_pb2.LeaseRequest]:
    """A lease as a coordinator asks for it."""
    for number in range(1, TIMES + 1):
        yield metadata_pb2.LeaseRequest(
            node_id=NAME,
            session="s",
            host="127.0.0.1",
            port=9,
            state=discovery_pb2.COORDINATOR_STATE_LIVE,
            version="0",
            features=FEATURE_NAMES,
            number=number,
        )
        await asyncio.sleep(EACH_S)


if __name__ == "__main__":
    run(main)
