"""A worker, with a certificate of the cluster's authority, goes to the port of metadata.

Must hold: what lets somebody work in groups does not let him read the logs or speak for a coordinator.
"""

import tempfile
from pathlib import Path
from typing import Any

import grpc
from abuse.internal_ports import REFUSALS, entries_read, renewals
from kit.certificates import WORKER, Certificates
from kit.programs import Broken, run
from kit.tokens import token_settings
from kit.waiting import until
from muster_protos.muster.internal.v1 import metadata_pb2_grpc
from muster_server.dev.cluster import DevCluster


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as made:
        certificates = Certificates(Path(made) / "certificates")
        settings = {**certificates.settings, **token_settings(Path(made) / "token")}
        async with DevCluster(Path(made) / "c", coordinators=1, settings=settings) as cluster:
            worker = certificates.credentials(WORKER)
            async with grpc.aio.secure_channel(cluster.metadata[0].address, worker) as channel:
                stub: Any = metadata_pb2_grpc.MetadataServiceStub(channel)

                async def something_read() -> int:
                    return await entries_read(stub)

                try:
                    read = await until(something_read, "entries of the logs")
                    renewed = await renewals(stub, cluster.coordinators[0].name)
                except grpc.aio.AioRpcError as error:
                    if error.code() in REFUSALS:
                        return
                    raise
    raise Broken(
        f"a worker read {read} entries of the logs and renewed a coordinator's lease {renewed} times"
    )


if __name__ == "__main__":
    run(main)
