import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from kit.certificates import AUTHORITY, SERVER, WORKER, Certificates
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc
from muster_runtime.addresses import Address
from muster_runtime.rpc import channels
from muster_runtime.rpc.channels import open_channel
from muster_runtime.rpc.server import RpcServer, ServerSettings
from muster_runtime.rpc.trust.tls import TlsSettings
from muster_runtime.rpc.trust.trust import Trust
from muster_runtime.settings import SettingsError, load
from structlog.testing import capture_logs

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not on the path; install it"
)


class Servicer(discovery_pb2_grpc.CoordinatorDiscoveryServiceServicer):
    async def ListTopics(self, request: object, context: object) -> discovery_pb2.ListTopicsResponse:
        return discovery_pb2.ListTopicsResponse()


@pytest.fixture
def tls(tmp_path: Path) -> TlsSettings:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", *curve, *names, "-days", "1", "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    return TlsSettings(cert_file=cert, key_file=key, ca_file=cert, require_client_certificate=True)


@pytest.mark.cluster
async def test_a_server_with_certificates_refuses_others(tls: TlsSettings) -> None:
    server = RpcServer(ServerSettings(), Trust(tls))
    server.add(discovery_pb2_grpc.add_CoordinatorDiscoveryServiceServicer_to_server, Servicer())
    port = await server.start("127.0.0.1:0")
    method = "/muster.v1.CoordinatorDiscoveryService/ListTopics"
    try:
        async with open_channel(f"127.0.0.1:{port}", Trust(tls)) as channel:
            call: Any = channel.unary_unary(method)
            assert await call(b"", timeout=60) == b""
        for stranger in (None, Trust(TlsSettings(ca_file=tls.ca_file))):
            async with open_channel(f"127.0.0.1:{port}", stranger) as channel:
                call = channel.unary_unary(method)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(b"", timeout=60)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        await server.stop(0)


def test_half_a_pair_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUSTER_TLS_CERT_FILE", str(tmp_path / "cert.pem"))
    with pytest.raises(SettingsError, match="must be set together"):
        load(TlsSettings)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    settings = TlsSettings(ca_file=tmp_path / "absent.pem")
    with pytest.raises(SettingsError, match="MUSTER_TLS_CA_FILE"):
        settings.channel_credentials()


class Watched(Servicer):
    async def WatchCluster(self, request: object, context: object) -> AsyncIterator[Any]:
        while True:
            yield discovery_pb2.WatchClusterResponse()
            await asyncio.sleep(0.01)


@pytest.mark.cluster
async def test_renewed_files_count_for_new_connections_at_both_ends(tmp_path: Path) -> None:
    """What is open goes on; files that cannot be read leave what was read."""
    issued = Certificates(tmp_path)
    ours, theirs = (
        Trust(
            TlsSettings(
                cert_file=Path(issued.certificate(name)),
                key_file=Path(issued.key(name)),
                ca_file=Path(issued.certificate(AUTHORITY)),
                require_client_certificate=True,
            )
        )
        for name in (SERVER, WORKER)
    )
    server = RpcServer(ServerSettings(), ours)
    server.add(discovery_pb2_grpc.add_CoordinatorDiscoveryServiceServicer_to_server, Watched())
    address = Address("127.0.0.1", await server.start("127.0.0.1:0"))
    cache = channels.ChannelCache(theirs)
    method = "/muster.v1.CoordinatorDiscoveryService/"

    async def asked(channel: grpc.aio.Channel) -> bytes:
        call: Any = channel.unary_unary(method + "ListTopics")
        return bytes(await call(b"", timeout=60))

    try:
        before = cache.channel(address)
        watch: Any = before.unary_stream(method + "WatchCluster")
        stream = watch(b"")
        await stream.read()

        issued.renew_authority()  # nobody trusts the old certificates from now on
        issued.issue(SERVER, AUTHORITY)
        issued.issue(WORKER, AUTHORITY)
        after = cache.channel(address)
        assert after is not before
        assert await asked(after) == b""
        assert await stream.read() == b""
        assert await asked(before) == b""

        os.unlink(issued.key(WORKER))
        with capture_logs() as logs:
            assert await asked(cache.channel(address)) == b""
            async with channels.open_channel(address, theirs) as another:
                assert await asked(another) == b""
        assert [entry["event"] for entry in logs] == ["certificates_not_used"]
    finally:
        await cache.close()
        await server.stop(0)


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["ca_file", "cert_file", "key_file"])
def test_a_file_that_is_half_written_is_not_used(tmp_path: Path, cut: str) -> None:
    """With an empty key grpc would end the process."""
    issued = Certificates(tmp_path)
    paths = {
        "ca_file": Path(issued.certificate(AUTHORITY)),
        "cert_file": Path(issued.certificate(SERVER)),
        "key_file": Path(issued.key(SERVER)),
    }

    def settings() -> TlsSettings:
        return TlsSettings(ca_file=paths["ca_file"], cert_file=paths["cert_file"], key_file=paths["key_file"])

    running, whole = settings(), paths[cut].read_bytes()
    assert running.channel_credentials() is not None
    paths[cut].write_bytes(b"")
    assert running.channel_credentials() is not None
    assert running.renewals() == 0
    with pytest.raises(SettingsError, match=f"MUSTER_TLS_{cut.upper()}"):
        settings().channel_credentials()
    paths[cut].write_bytes(whole)
    assert running.renewals() == 1
