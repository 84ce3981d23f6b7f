"""The client's side of TLS, against real servers with real certificates."""

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from kit.certificates import AUTHORITY, OTHER_AUTHORITY, SERVER, WORKER, Certificates
from muster import Cluster, ClusterUnavailable, RequestRefused, SettingsError, TlsFiles
from muster._session import tls
from muster_protos.muster.v1 import coordinator_pb2_grpc, discovery_pb2, discovery_pb2_grpc

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on the path; install it"),
]


class Discovery(discovery_pb2_grpc.CoordinatorDiscoveryServiceServicer):
    """Lists no topics; a list that names `wait` waits for `go_on`."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.go_on = asyncio.Event()

    async def ListTopics(
        self, request: discovery_pb2.ListTopicsRequest, context: object
    ) -> discovery_pb2.ListTopicsResponse:
        if "wait" in request.names:
            self.waiting.set()
            await self.go_on.wait()
        return discovery_pb2.ListTopicsResponse()


@contextlib.asynccontextmanager
async def served(
    credentials: grpc.ServerCredentials | None, discovery: Discovery | None = None, port: int = 0
) -> AsyncIterator[str]:
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    if discovery is None:
        other = coordinator_pb2_grpc.GroupCoordinatorServiceServicer()
        coordinator_pb2_grpc.add_GroupCoordinatorServiceServicer_to_server(other, server)
    else:
        discovery_pb2_grpc.add_CoordinatorDiscoveryServiceServicer_to_server(discovery, server)
    if credentials is None:
        port = server.add_insecure_port(f"127.0.0.1:{port}")
    else:
        port = server.add_secure_port(f"127.0.0.1:{port}", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def of_server(
    issued: Certificates, *, asks: bool = False, authority: str = AUTHORITY
) -> grpc.ServerCredentials:
    pair = (Path(issued.key(SERVER)).read_bytes(), Path(issued.certificate(SERVER)).read_bytes())
    return grpc.ssl_server_credentials([pair], Path(issued.certificate(authority)).read_bytes(), asks)


def of_worker(issued: Certificates, *, authority: str = AUTHORITY) -> TlsFiles:
    return TlsFiles(issued.certificate(authority), issued.certificate(WORKER), issued.key(WORKER))


async def trouble(servers: str, credentials: TlsFiles | None, timeout_ms: int) -> str:
    """What a caller who cannot reach a cluster is told."""
    async with Cluster(servers, timeout_ms=timeout_ms, credentials=credentials) as cluster:
        with pytest.raises(ClusterUnavailable) as caught:
            await cluster.topics()
    return str(caught.value)


async def test_the_environment_names_the_files(issued: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_TLS_CA_FILE", issued.certificate(AUTHORITY))
    monkeypatch.setenv("MUSTER_TLS_CERT_FILE", issued.certificate(WORKER))
    monkeypatch.setenv("MUSTER_TLS_KEY_FILE", issued.key(WORKER))
    async with served(of_server(issued, asks=True), Discovery()) as address, Cluster(address) as cluster:
        assert await cluster.topics() == []


async def test_renewed_files_are_used_by_new_connections_and_open_calls_go_on(
    issued: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_MS", 0)
    trusted = tmp_path / "trusted.pem"
    shutil.copyfile(issued.certificate(AUTHORITY), trusted)
    discovery = Discovery()
    async with (
        served(of_server(issued), discovery) as address,
        Cluster(address, timeout_ms=300, credentials=TlsFiles(trusted)) as cluster,
    ):
        waiting = asyncio.create_task(cluster.topics(["wait"]))
        await discovery.waiting.wait()

        shutil.copyfile(issued.certificate(OTHER_AUTHORITY), trusted)
        with pytest.raises(ClusterUnavailable, match="certificate is not trusted"):
            await cluster.topics()

        os.unlink(trusted)  # the credentials stay as they were
        with pytest.raises(ClusterUnavailable, match="certificate is not trusted"):
            await cluster.topics()

        shutil.copyfile(issued.certificate(AUTHORITY), trusted)
        assert await cluster.topics() == []
        discovery.go_on.set()
        assert await waiting == []


# gRPC takes `localhost` for `::1`, too, where nobody listens: after the first attempt it tells of that alone.
@pytest.mark.parametrize(("host", "timeout_ms"), [("127.0.0.1", 300), ("localhost", 600)])
async def test_who_does_not_fit_is_told_why(issued: Certificates, host: str, timeout_ms: int) -> None:
    def named(address: str) -> str:
        return address.replace("127.0.0.1", host)

    async def told(address: str, credentials: TlsFiles | None) -> str:
        return await trouble(named(address), credentials, timeout_ms)

    anonymous = TlsFiles(issued.certificate(AUTHORITY))
    stranger = TlsFiles(issued.certificate(OTHER_AUTHORITY))
    async with served(of_server(issued), Discovery()) as address:
        assert f"{named(address)}: the server speaks TLS, and this client does not" in await told(
            address, None
        )
        assert f"{named(address)}: the server's certificate is not trusted" in await told(address, stranger)
    async with served(None, Discovery()) as address:
        text = await told(address, of_worker(issued))
        assert f"{named(address)}: the server does not speak TLS, and this client does" in text
    async with served(of_server(issued, asks=True), Discovery()) as address:
        text = await told(address, anonymous)
        assert f"{named(address)}: it may ask for a client certificate (MUSTER_TLS_CERT_FILE" in text
    async with served(of_server(issued, asks=True, authority=OTHER_AUTHORITY), Discovery()) as address:
        text = await told(address, of_worker(issued))
        assert f"{named(address)}: it may not trust the certificate of this client" in text
    for credentials in (None, of_worker(issued)):
        assert f"{named(address)}: Connection refused" in await told(address, credentials)


async def test_the_command_says_in_one_line_that_it_trusts_no_such_certificate(issued: Certificates) -> None:
    """A start of its own: gRPC reads when it is imported whether it writes lines of its own."""
    async with served(of_server(issued), Discovery()) as address:
        environment = {**os.environ, "MUSTER_TLS_CA_FILE": issued.certificate(OTHER_AUTHORITY)}
        environment.pop("GRPC_VERBOSITY", None)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from muster.cli import main; main()", "topics", "list"),
            *("--servers", address),
            env=environment,
            stderr=asyncio.subprocess.PIPE,
        )
        _, err = await process.communicate()
    (line,) = err.decode().splitlines()
    assert "the server's certificate is not trusted (MUSTER_TLS_CA_FILE)" in line


async def test_a_coordinator_in_the_place_of_discovery_is_named() -> None:
    async with served(None) as address, Cluster(address) as cluster:
        with pytest.raises(RequestRefused, match=f"{address} does not know ListTopics: it is a coordinator"):
            await cluster.topics()


def test_files_that_cannot_be_used_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match="key_file"):
        TlsFiles(cert_file=tmp_path / "certificate.pem")
    monkeypatch.setenv("MUSTER_TLS_CA_FILE", str(tmp_path / "absent.pem"))
    with pytest.raises(SettingsError, match=r"ca_file.*absent\.pem.*MUSTER_TLS_CA_FILE"):
        Cluster()
    (tmp_path / "empty.pem").write_bytes(b"")
    with pytest.raises(SettingsError, match="ca_file: it does not hold certificates, as PEM"):
        Cluster(credentials=TlsFiles(tmp_path / "empty.pem"))
    monkeypatch.setenv("MUSTER_TLS_CA_FILE", "")
    assert TlsFiles.from_environment() is None
