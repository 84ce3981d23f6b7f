# mypy: disable-error-code="abstract"
import shutil
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc
from muster_runtime.rpc.channels import open_channel
from muster_runtime.rpc.server import RpcServer, ServerSettings
from muster_runtime.rpc.tls import TlsSettings
from muster_runtime.settings import SettingsError, load

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
    server = RpcServer(ServerSettings(), tls)
    server.add(discovery_pb2_grpc.add_CoordinatorDiscoveryServiceServicer_to_server, Servicer())
    port = await server.start("127.0.0.1:0")
    method = "/muster.v1.CoordinatorDiscoveryService/ListTopics"
    try:
        async with open_channel(f"127.0.0.1:{port}", tls) as channel:
            call: Any = channel.unary_unary(method)
            assert await call(b"", timeout=60) == b""
        for stranger in (None, TlsSettings(ca_file=tls.ca_file)):
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
