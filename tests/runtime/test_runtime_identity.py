"""Who calls, by client certificates, on real servers."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from kit.certificates import AUTHORITY, SERVER, WORKER, Certificates
from kit.waiting import until
from muster_protos.muster.internal.v1 import process_pb2, process_pb2_grpc
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc
from muster_runtime.clock import wall_ms
from muster_runtime.rpc.access.metrics import UNAUTHENTICATED, AccessSource
from muster_runtime.rpc.channels import open_channel
from muster_runtime.rpc.identity import LONGEST_NAME, NOBODY, Identity, Proof, callers, current_identity
from muster_runtime.rpc.identity.settings import IdentitySettings
from muster_runtime.rpc.server import RpcServer, ServerSettings
from muster_runtime.rpc.trust.tls import TlsSettings
from muster_runtime.rpc.trust.trust import Trust
from muster_runtime.settings import SettingsError
from structlog.testing import capture_logs

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not on the path; install it"
)

DISCOVERY = "/muster.v1.CoordinatorDiscoveryService/"


class Asking(discovery_pb2_grpc.CoordinatorDiscoveryServiceServicer):
    """Notes who calls; a stream asks again after a while, and in a task of its own."""

    def __init__(self) -> None:
        self.seen: list[Identity] = []

    async def ListTopics(self, request: object, context: object) -> discovery_pb2.ListTopicsResponse:
        self.seen.append(current_identity())
        return discovery_pb2.ListTopicsResponse()

    async def WatchCluster(self, request: object, context: object) -> AsyncIterator[Any]:
        for _ in range(2):
            yield discovery_pb2.WatchClusterResponse()
            self.seen.append(current_identity())
        await asyncio.create_task(self.ListTopics(request, context))


def tls(issued: Certificates, name: str) -> TlsSettings:
    return TlsSettings(
        cert_file=Path(issued.certificate(name)),
        key_file=Path(issued.key(name)),
        ca_file=Path(issued.certificate(AUTHORITY)),
        require_client_certificate=True,
    )


@asynccontextmanager
async def serving(trust: Trust | None) -> AsyncIterator[tuple[Asking, str]]:
    server, asking = RpcServer(ServerSettings(), trust), Asking()
    server.add(discovery_pb2_grpc.add_CoordinatorDiscoveryServiceServicer_to_server, asking)
    port = await server.start("127.0.0.1:0")
    try:
        yield asking, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def ask(address: str, trust: Trust | None) -> None:
    async with open_channel(address, trust) as channel:
        call: Any = channel.unary_unary(DISCOVERY + "ListTopics")
        await call(b"", timeout=60)


NAMED = [
    ("", WORKER),
    ("DNS:a.example,DNS:b.example", "a.example"),
    ("DNS:a.example,URI:spiffe://example.org/ns/shop/sa/worker", "spiffe://example.org/ns/shop/sa/worker"),
    ("URI:https://example.org/one,URI:https://example.org/two", "https://example.org/one"),
    ("IP:127.0.0.1,email:worker@example.org", WORKER),
    # What is a SPIFFE id in a field of another type is a name like any other, and no URI goes after it.
    ("DNS:spiffe.example,URI:https://example.org/one", "https://example.org/one"),
]
NAMELESS = [
    "URI:spiffe://example.org/one,URI:spiffe://example.org/two",
    "URI:https://example.org/one,URI:SPIFFE://example.org/two",
    "URI:https://example.org/" + "x" * LONGEST_NAME,
    "URI:https://example.org/\x07",
    # A SPIFFE id is a URI: an authority may let anybody choose the names of another type.
    "DNS:spiffe://example.org/one",
    "DNS:Spiffe://example.org/one,DNS:a.example",
]


@pytest.mark.cluster
@pytest.mark.parametrize(("names", "identity"), NAMED)
async def test_a_certificate_names_its_caller(tmp_path: Path, names: str, identity: str) -> None:
    issued = Certificates(tmp_path)
    issued.issue(WORKER, AUTHORITY, names=names)
    async with serving(Trust(tls(issued, SERVER), identity=IdentitySettings(required=True))) as (asking, at):
        await ask(at, Trust(tls(issued, WORKER)))
        async with open_channel(at, Trust(tls(issued, WORKER))) as channel:
            stream: Any = channel.unary_stream(DISCOVERY + "WatchCluster")
            assert len([answer async for answer in stream(b"", timeout=60)]) == 2
    assert asking.seen == [Identity(identity, Proof.CERTIFICATE)] * 4


@pytest.mark.cluster
@pytest.mark.parametrize("names", NAMELESS)
async def test_a_certificate_without_one_clear_name_proves_nothing(tmp_path: Path, names: str) -> None:
    issued = Certificates(tmp_path)
    issued.issue(WORKER, AUTHORITY, names=names)
    async with serving(Trust(tls(issued, SERVER))) as (asking, at):
        await ask(at, Trust(tls(issued, WORKER)))
    assert asking.seen == [NOBODY]

    with capture_logs() as lines:
        async with serving(Trust(tls(issued, SERVER), identity=IdentitySettings(required=True))) as (_, at):
            with pytest.raises(grpc.aio.AioRpcError, match="has no name to go by") as caught:
                await ask(at, Trust(tls(issued, WORKER)))
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            await healthy_and_internal(at, Trust(tls(issued, WORKER)))
    (line,) = [line for line in lines if line["event"] == "call_unauthenticated"]
    assert line["method"] == DISCOVERY[1:] + "ListTopics"
    assert line["peer"].startswith("ipv4:127.0.0.1:")


@pytest.mark.cluster
async def test_a_connection_lasts_no_longer_than_the_certificate_that_it_was_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC looks at it once; who has a new one shows it on the next connection."""
    issued = Certificates(tmp_path)
    issued.issue(WORKER, AUTHORITY, days=1)
    brief = Trust(tls(issued, WORKER))
    with capture_logs() as lines:
        async with serving(Trust(tls(issued, SERVER))) as (asking, at), open_channel(at, brief) as channel:
            call: Any = channel.unary_unary(DISCOVERY + "ListTopics")
            await call(b"", timeout=60)
            monkeypatch.setattr(callers, "wall_ms", lambda: wall_ms() + 86_400_000 - 60_000)
            await call(b"", timeout=60)
            monkeypatch.setattr(callers, "wall_ms", lambda: wall_ms() + 86_400_000 + 60_000)
            with pytest.raises(grpc.aio.AioRpcError, match="has ended") as caught:
                await call(b"", timeout=60)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            await until(lambda: "caller_cut_off" in [line["event"] for line in lines], "it is cut off")
            issued.issue(WORKER, AUTHORITY, days=2)
            await ask(at, Trust(tls(issued, WORKER)))
    assert asking.seen == [Identity("localhost", Proof.CERTIFICATE)] * 3


@pytest.mark.cluster
async def test_refused_calls_are_counted(tmp_path: Path) -> None:
    issued = Certificates(tmp_path)
    issued.issue(WORKER, AUTHORITY, names=NAMELESS[0])
    trust = Trust(tls(issued, SERVER), identity=IdentitySettings(required=True))
    server = RpcServer(ServerSettings(), trust)
    server.add(discovery_pb2_grpc.add_CoordinatorDiscoveryServiceServicer_to_server, Asking())
    source = AccessSource(server, "discovery")
    at = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
    try:
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError, match="has no name to go by"):
                await ask(at, Trust(tls(issued, WORKER)))
        told = [one.value for one in await source.read() if one.metric is UNAUTHENTICATED]
    finally:
        await server.stop(0)
    assert told == [3]


async def healthy_and_internal(at: str, trust: Trust) -> None:
    """Makes the calls that need no identity."""
    async with open_channel(at, trust) as channel:
        health: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await health(b"", timeout=60)
        stub: Any = process_pb2_grpc.ProcessServiceStub(channel)
        answer = await stub.DescribeProcess(process_pb2.DescribeProcessRequest(), timeout=60)
        assert answer.version


@pytest.mark.cluster
async def test_nobody_is_asked_where_nothing_is_set_up() -> None:
    async with serving(None) as (asking, at):
        await ask(at, None)
    assert asking.seen == [NOBODY]


def test_an_identity_that_nobody_could_have_is_not_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_IDENTITY_REQUIRED", "true")
    with pytest.raises(
        SettingsError, match=r"MUSTER_IDENTITY_REQUIRED needs MUSTER_TLS_REQUIRE_CLIENT_CERTIF"
    ):
        Trust.load()
