"""The certificate of a running cluster is replaced, as it must be before it ends.

Must hold: the processes present the new one soon, without a restart.
"""

import asyncio
import socket
import ssl
import tempfile
import time
from pathlib import Path

from kit.certificates import AUTHORITY, SERVER, WORKER, Certificates
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_server.dev.cluster import DevCluster

SOON_S = 15.0


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as made:
        certificates = Certificates(Path(made) / "certificates")
        async with DevCluster(Path(made) / "c", coordinators=1, settings=certificates.settings) as cluster:
            before = await asyncio.to_thread(presented, cluster.servers, certificates)
            certificates.issue(SERVER, AUTHORITY)
            began_s = time.monotonic()

            async def replaced() -> bool:
                return await asyncio.to_thread(presented, cluster.servers, certificates) != before

            try:
                await until(replaced, "the new certificate", SOON_S)
            except AssertionError:
                raise Broken(f"the old certificate is presented {SOON_S:g} s after it was replaced") from None
    report(f"the new certificate was presented after {time.monotonic() - began_s:.1f} s")


def presented(address: str, certificates: Certificates) -> bytes | None:
    """The certificate that a server shows, as DER."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificates.certificate(AUTHORITY))
    context.load_cert_chain(certificates.certificate(WORKER), certificates.key(WORKER))
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), SOON_S) as connection,
        context.wrap_socket(connection, server_hostname=host) as speaking,
    ):
        return speaking.getpeercert(binary_form=True)


if __name__ == "__main__":
    run(main)
