"""A stranger at the port of metadata renews a lease for a coordinator that does not exist.

Must hold: nobody is told to go to it, so no shard is kept for it.
"""

import tempfile
from pathlib import Path
from typing import Any

import grpc
from abuse.asked_handoffs import described
from abuse.internal_ports import REFUSALS, renewals
from abuse.lab import Lab
from kit.programs import Broken, run
from kit.tokens import token_settings
from muster_protos.muster.internal.v1 import metadata_pb2_grpc

NAME = "a-coordinator-of-a-stranger"
TIMES = 25


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as folder:
        async with Lab(Path(folder) / "mine", token_settings(Path(folder)), with_worker=False) as lab:
            channel = grpc.aio.insecure_channel(lab.cluster.metadata[0].address)
            stub: Any = metadata_pb2_grpc.MetadataServiceStub(channel)
            try:
                renewed = await renewals(stub, NAME, TIMES)
            except grpc.aio.AioRpcError as error:
                if error.code() in REFUSALS:
                    return
                raise
            finally:
                await channel.close()
            cluster = await described(lab.cluster.servers)
    if NAME in {one.node_id for one in cluster.coordinators}:
        raise Broken(f"the lease of nobody was renewed {renewed} times, and clients are told of it")


if __name__ == "__main__":
    run(main)
