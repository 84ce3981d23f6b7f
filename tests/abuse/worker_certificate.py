"""A worker, with a certificate of the cluster's authority, goes to the ports for internal calls.

First where processes present a token to each other, then where they are known by the names in their
certificates. Must hold: what lets somebody work in groups does not let him read the logs or speak for a
coordinator.
"""

import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
from abuse.internal_ports import entries_read, renewals
from kit.certificates import SERVER, WORKER, Certificates, uri
from kit.programs import Broken, report, run
from kit.tokens import token_settings
from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_protos.muster.internal.v1 import coordinator_pb2_grpc as peer_pb2_grpc
from muster_protos.muster.internal.v1 import metadata_pb2_grpc
from muster_server.dev.cluster import DevCluster
from muster_server.dev.ports import LOOPBACK

_OWN_ERROR = "Internal error from Core"
"""What the caller's gRPC may say instead of the answer where a stream is refused while it writes to it."""


async def attack(
    folder: Path, certificates: Certificates, settings: Mapping[str, str], refusal: grpc.StatusCode
) -> None:
    """What a worker tries on a cluster with these settings; each call must be refused so."""
    all_settings = {**certificates.settings, **settings}
    worker = certificates.credentials(WORKER)
    async with DevCluster(folder, coordinators=1, settings=all_settings) as cluster:
        ((name, port),) = cluster.internal_ports.items()
        async with (
            grpc.aio.secure_channel(cluster.metadata[0].address, worker) as metadata,
            grpc.aio.secure_channel(f"{LOOPBACK}:{port}", worker) as coordinator,
        ):
            stub: Any = metadata_pb2_grpc.MetadataServiceStub(metadata)
            peer: Any = peer_pb2_grpc.CoordinatorPeerServiceStub(coordinator)
            faults = peer_pb2.DescribeFaultsRequest()
            tries: dict[str, Callable[[], Awaitable[Any]]] = {
                "read the logs": lambda: entries_read(stub),
                "renewed a lease": lambda: renewals(stub, name),
                "asked for what failed": lambda: peer.DescribeFaults(faults, timeout=20),
            }
            for what, call in tries.items():
                error = await refused(what, call)
                report(f"{what}: {error.code().name}")
                if error.code() is not refusal:
                    raise Broken(f"a worker that {what} was answered {error.code().name}: {error.details()}")


async def refused(what: str, call: Callable[[], Awaitable[Any]]) -> grpc.aio.AioRpcError:
    """How a server refuses a call; it is made again where that is not heard.

    Raises:
        Broken: it is answered.
    """
    while True:
        try:
            came_of_it = await call()
        except grpc.aio.AioRpcError as error:
            if error.details() != _OWN_ERROR:
                return error
        else:
            raise Broken(f"a worker {what}: {came_of_it}")


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as made:
        folder = Path(made)
        certificates = Certificates(folder / "certificates")
        certificates.issue_with_uris()
        token = token_settings(folder / "token")
        await attack(folder / "by-token", certificates, token, grpc.StatusCode.UNAUTHENTICATED)
        peers = {"MUSTER_INTERNAL_PEERS": uri(SERVER)}
        await attack(folder / "by-name", certificates, peers, grpc.StatusCode.PERMISSION_DENIED)


if __name__ == "__main__":
    run(main)
