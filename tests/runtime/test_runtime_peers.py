"""Internal calls by the names in a certificate, on real servers."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kit.certificates import AUTHORITY, SERVER, WORKER, Certificates, uri
from muster_runtime.effective import effective
from muster_runtime.rpc.server import PortUse, RpcServer, ServerSettings
from muster_runtime.rpc.trust.inside import InternalSettings
from muster_runtime.rpc.trust.peers import LONGEST_PEER, MOST_PEERS, Name, Peer
from muster_runtime.rpc.trust.tls import TlsSettings
from muster_runtime.rpc.trust.trust import Trust
from muster_runtime.settings import SettingsError, load
from runtime.test_runtime_inside import ask
from structlog.testing import capture_logs

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not on the path; install it"
)
PEERS = (Peer(uri(SERVER)),)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.issue_with_uris()
    return made


def showing(certificates: Certificates, name: str, peers: tuple[Peer, ...] = ()) -> Trust:
    """What somebody has who shows the certificate of that name; without one: none."""
    tls = TlsSettings(
        ca_file=Path(certificates.certificate(AUTHORITY)),
        cert_file=Path(certificates.certificate(name)) if name else None,
        key_file=Path(certificates.key(name)) if name else None,
    )
    return Trust(tls, InternalSettings(peers=peers))


@asynccontextmanager
async def serving(trust: Trust, use: PortUse) -> AsyncIterator[str]:
    server = RpcServer(ServerSettings(), trust, use=use)
    port = await server.start("127.0.0.1:0")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@needs_openssl
@pytest.mark.cluster
async def test_a_workers_certificate_opens_no_internal_call(certificates: Certificates) -> None:
    """The port demands a certificate although `MUSTER_TLS_REQUIRE_CLIENT_CERTIFICATE` is not set."""
    async with serving(showing(certificates, SERVER, PEERS), PortUse.INTERNAL) as address:
        with capture_logs() as lines:
            assert await ask(address, showing(certificates, SERVER)) == ""
            assert await ask(address, showing(certificates, WORKER)) == (
                "PERMISSION_DENIED: muster.internal.v1.ProcessService/DescribeProcess is for processes of "
                "the cluster: the caller's certificate is not one of a peer, but of "
                f"{uri(WORKER)}, localhost (MUSTER_INTERNAL_PEERS)"
            )
            assert (await ask(address, showing(certificates, ""))).startswith("UNAVAILABLE")
    (line,) = [line for line in lines if line["event"] == "internal_call_refused"]
    assert uri(WORKER) in line["reason"]


@needs_openssl
@pytest.mark.cluster
async def test_where_clients_connect_who_shows_none_is_refused_for_internal_calls_alone(
    certificates: Certificates,
) -> None:
    async with serving(showing(certificates, SERVER, PEERS), PortUse.ALL) as address:
        refused = await ask(address, showing(certificates, SERVER))
    assert refused.startswith("UNAUTHENTICATED")
    assert "the caller shows no certificate (MUSTER_INTERNAL_PEERS)" in refused


@pytest.mark.cluster
async def test_a_port_for_clients_alone_has_no_internal_service() -> None:
    async with serving(Trust(TlsSettings(), InternalSettings()), PortUse.PUBLIC) as address:
        assert (await ask(address, None)).startswith("UNIMPLEMENTED")


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("spiffe://a/coordinator", "spiffe://a/coordinator", "spiffe://a/coordinator/0"),
        ("spiffe://a/*", "spiffe://a/coordinator", "spiffe://a/workers/coordinator"),
        ("spiffe://a/muster-*", "spiffe://a/muster-1", "spiffe://a/muster-"),
        ("spiffe://a/x.y", "spiffe://a/x.y", "spiffe://a/xzy"),
        ("spiffe://a/x", "spiffe://a/x", "spiffe://A/x"),
    ],
)
def test_a_pattern_of_uris_fits_names_of_its_own_parts(pattern: str, fits: str, does_not: str) -> None:
    assert Peer(pattern).matches([Name("dns", "w"), Name("uri", fits)])
    assert not Peer(pattern).matches([Name("uri", does_not)])
    assert not Peer(pattern).matches([])
    assert not Peer(pattern).matches([Name("dns", fits)])


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("*.muster.svc", "c-0.muster.svc", "a.c-0.muster.svc"),
        ("C-0.Muster.svc", "c-0.muster.svc", "c-0.muster.svc.evil"),
        ("c-*.muster", "c-12.muster", "c-.muster"),
    ],
)
def test_a_pattern_of_dns_names_fits_names_of_its_own_parts(pattern: str, fits: str, does_not: str) -> None:
    assert Peer(pattern).matches([Name("dns", fits)])
    assert not Peer(pattern).matches([Name("dns", does_not)])
    assert not Peer(pattern).matches([Name("uri", fits)])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("*", "'*' names everybody"),
        ("a,*.*", "'*.*' names everybody"),
        ("*://*", "'*://*' names everybody"),
        ("a b", "'a b' has characters other than visible ASCII"),
        ("x" * (LONGEST_PEER + 1), f"is longer than {LONGEST_PEER} characters"),
        (",".join(f"c-{number}" for number in range(MOST_PEERS + 1)), f"at most {MOST_PEERS} are allowed"),
    ],
)
def test_patterns_that_say_nothing_or_too_much_are_refused(
    text: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_INTERNAL_PEERS", text)
    with pytest.raises(SettingsError) as caught:
        load(InternalSettings)
    assert "MUSTER_INTERNAL_PEERS" in str(caught.value)
    assert problem in str(caught.value)


def test_the_longest_list_of_the_longest_names_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number:03}".ljust(LONGEST_PEER, "x") for number in range(MOST_PEERS)]
    monkeypatch.setenv("MUSTER_INTERNAL_PEERS", " , ".join(names))
    assert [peer.pattern for peer in load(InternalSettings).peers] == names


def test_peers_are_shown_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_INTERNAL_PEERS", "spiffe://a/b/*, 1000")
    (shown,) = [one for one in effective([load(InternalSettings)]) if one.name == "MUSTER_INTERNAL_PEERS"]
    assert shown.value == "spiffe://a/b/*,1000"
    monkeypatch.setenv("MUSTER_INTERNAL_PEERS", shown.value)
    assert [peer.pattern for peer in load(InternalSettings).peers] == ["spiffe://a/b/*", "1000"]


def test_peers_without_certificates_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_INTERNAL_PEERS", "spiffe://a/b")
    with pytest.raises(SettingsError) as caught:
        Trust.load()
    assert "MUSTER_INTERNAL_PEERS" in str(caught.value)
    assert "MUSTER_TLS_CA_FILE" in str(caught.value)
