"""Operators' commands that name a wrong port, or speak another TLS than the process that they ask."""

import os
import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from kit import forked
from kit.certificates import OTHER_AUTHORITY, Certificates
from muster_server.dev.cluster import DevCluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on the path; install it"),
]

TRAIL, FEATURES = ("access", "trail"), ("features", "list")


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cluster(
    issued: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[DevCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    async with DevCluster(folder, coordinators=1, settings=issued.settings) as one:
        yield one


async def ask(*arguments: str, **settings: str) -> tuple[int, str]:
    """Runs a command; its exit code, and what it says."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
    done = await forked.run_beside(["muster", *arguments], {**clean, "COLUMNS": "200", **settings})
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("command", [TRAIL, FEATURES], ids=" ".join)
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ((), "the server speaks TLS, and this client does not (MUSTER_TLS_CA_FILE)"),
        (("MUSTER_TLS_CA_FILE",), "it may ask for a client certificate (MUSTER_TLS_CERT_FILE"),
    ],
    ids=["plain", "no certificate"],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_what_keeps_a_command_from_metadata_is_said(
    cluster: DevCluster, issued: Certificates, command: tuple[str, ...], settings: tuple[str, ...], says: str
) -> None:
    address = cluster.metadata[0].address
    code, told = await ask(
        *command, "--metadata", address, **{name: issued.settings[name] for name in settings}
    )
    assert code == 2
    assert f"metadata at {address}" in told
    assert says in told
    assert "failed to connect" not in told


@pytest.mark.parametrize("command", [TRAIL, FEATURES], ids=" ".join)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_port_that_is_no_metadata_is_named(
    cluster: DevCluster, issued: Certificates, command: tuple[str, ...]
) -> None:
    for address in (cluster.servers, cluster.coordinators[0].address):
        code, told = await ask(*command, "--metadata", address, **issued.settings)
        assert code == 2
        assert f"metadata at {address}" in told
        assert "it is no metadata" in told


@pytest.mark.asyncio(loop_scope="module")
async def test_doctor_says_what_keeps_it_from_a_process(cluster: DevCluster, issued: Certificates) -> None:
    _, told = await ask("doctor", "--servers", cluster.servers)
    assert "the server speaks TLS, and this client does not" in told
    strange = {**issued.settings, "MUSTER_TLS_CA_FILE": issued.certificate(OTHER_AUTHORITY)}
    _, told = await ask("doctor", "--servers", cluster.servers, **strange)
    assert "the server's certificate is not trusted (MUSTER_TLS_CA_FILE)" in told
