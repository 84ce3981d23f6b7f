"""Callers without TLS, without a certificate, or with one of another authority, go to each role.

Must hold: none of them is answered anything, an old version of TLS is no way in, and who has a certificate of
the authority is served.
"""

import socket
import ssl
import tempfile
import warnings
from functools import partial
from pathlib import Path

import grpc
from abuse.caller import HEALTH, raw
from kit.certificates import AUTHORITY, STRANGER, WORKER, Certificates
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_server.dev.cluster import DevCluster

PATIENCE_S = 5.0
OLD = (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2)
NEW = (ssl.TLSVersion.TLSv1_3,)


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as made:
        certificates = Certificates(Path(made) / "certificates")
        async with DevCluster(Path(made) / "c", coordinators=1, settings=certificates.settings) as cluster:
            roles = {role.name: role.address for role in cluster.roles}
            for name, address in roles.items():
                await until(partial(asked, address, certificates.credentials(WORKER)), name)
            refused = 0
            for who, credentials in (
                ("in plain text", None),
                ("without a certificate", certificates.credentials()),
                ("with a certificate of another authority", certificates.credentials(STRANGER)),
            ):
                for name, address in roles.items():
                    if await asked(address, credentials):
                        raise Broken(f"{name} answers a caller {who}")
                    refused += 1
            versions(cluster.servers, certificates)
            if ended := cluster.ended():
                raise Broken(f"ended: {', '.join(ended)}")
    report(f"{refused} callers who may not were refused, those with a certificate of the authority served")


async def asked(address: str, credentials: grpc.ChannelCredentials | None) -> bool:
    """Whether a caller gets an answer of any kind."""
    channel = (
        grpc.aio.insecure_channel(address)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials)
    )
    async with channel:
        status, _, _ = await raw(channel, HEALTH + "Check", b"", timeout_s=PATIENCE_S)
    return status not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def versions(address: str, certificates: Certificates) -> None:
    """Raises `Broken` unless the new versions of TLS are spoken, and the old ones are not."""
    for version in (*OLD, *NEW):
        if shakes_hands(address, certificates, version) is not (version in NEW):
            raise Broken(f"{version.name} is {'refused' if version in NEW else 'spoken'}")


def shakes_hands(address: str, certificates: Certificates, version: ssl.TLSVersion) -> bool:
    """Whether a connection with this version of TLS comes about."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificates.certificate(AUTHORITY))
    context.load_cert_chain(certificates.certificate(WORKER), certificates.key(WORKER))
    context.set_alpn_protocols(["h2"])
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    host, _, port = address.rpartition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    try:
        with (
            socket.create_connection((host, int(port)), PATIENCE_S) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    run(main)
