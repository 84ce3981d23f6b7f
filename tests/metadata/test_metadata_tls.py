"""The log on servers that want TLS with client certificates, and a user with the least rights."""

import asyncio
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kit.metadata.metadata_instances import (
    CONTAINER_IMAGE,
    ContainerNode,
    ContainerNodes,
    MetadataCluster,
    Writer,
    docker_problem,
    fast,
    metadata_cluster,
    records,
)  # fmt: skip
from kit.waiting import until
from muster_metadata.nodes.addresses import place_of, split_urls
from muster_metadata.nodes.problem import NOT_REACHED_YET
from muster_metadata.operator.initialise import InitialiseError, initialise
from muster_metadata.operator.replacement import Replacement
from muster_metadata.server import MetadataServer
from muster_metadata.settings import MetadataSettings
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.settings import load
from muster_server.dev.ports import free_ports
from muster_server.nodes.survey import survey
from muster_server.verify.verifier import verify

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.containers,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on the path; install it"),
]

RIGHTS = "~muster:* +@read +@write +@scripting +@connection -@dangerous +info +config|get +acl|getuser +time"
"""What docs/failures.md says that the user needs."""

PATIENT: dict[str, Any] = {
    "poll_ms": 300, "step_timeout_ms": 3_000, "claim_timeout_ms": 10_000, "rebuild_delay_ms": 6_000,
}  # fmt: skip
"""Making a connection costs more with TLS; the tests run beside others."""

CONFIGURATION = """
port 0
tls-port 6379
tls-auth-clients yes
tls-cert-file /tls/node.pem
tls-key-file /tls/node.key
tls-ca-cert-file /tls/ca.pem
appendonly yes
save ""
maxmemory-policy noeviction
user default off ~* &* +@all
user muster on >{password} {rights}
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and a certificate of its for the servers and the clients."""
    folder = tmp_path_factory.mktemp("certificates")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    for name in ("ca", "other"):
        subprocess.run(
            ["openssl", "req", "-x509", *curve, "-subj", f"/CN={name}", "-keyout", folder / f"{name}.key",
             "-out", folder / f"{name}.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
    subprocess.run(
        ["openssl", "req", "-x509", *curve, *names, "-CA", folder / "ca.pem", "-CAkey", folder / "ca.key",
         "-keyout", folder / "node.key", "-out", folder / "node.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)
    return folder


class TlsNode(ContainerNode):
    """Real Redis that speaks TLS alone, to those with a certificate and a password."""

    def __init__(self, folder: Path, password: str) -> None:
        from testcontainers.core.container import DockerContainer

        super().__init__()
        self._folder, self._password = folder, password
        self.port = free_ports(1)[0]
        configuration = folder / f"{password}.conf"
        configuration.write_text(CONFIGURATION.format(password=password, rights=RIGHTS))
        configuration.chmod(0o644)
        self._container = (
            DockerContainer(CONTAINER_IMAGE)
            .with_bind_ports(6379, self.port)
            .with_volume_mapping(str(folder), "/tls", "ro")
            .with_command(f"redis-server /tls/{configuration.name}")
        )

    @property
    def url(self) -> str:
        return tls_url(self._folder, f"muster:{self._password}", f"127.0.0.1:{self.port}")


def tls_url(folder: Path, user: str, places: str, ca: str = "ca.pem", certificate: str = "node") -> str:
    options = f"ssl_ca_certs={folder / ca}"
    if certificate:
        options += f"&ssl_certfile={folder / certificate}.pem&ssl_keyfile={folder / certificate}.key"
    return f"rediss://{user}@{places}?{options}"


class TlsNodes(ContainerNodes):
    """Three of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.password = folder, secrets.token_hex(8)
        self._nodes: list[ContainerNode] = [TlsNode(folder, self.password) for _ in range(3)]

    @property
    def places(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self._nodes)

    @property
    def url(self) -> str:
        return tls_url(self.folder, f"muster:{self.password}", self.places)

    @contextmanager
    def more(self) -> Iterator[TlsNode]:
        node = TlsNode(self.folder, self.password)
        self._nodes.append(node)
        yield node


@pytest.fixture
async def cluster(certificates: Path, tmp_path: Path) -> AsyncIterator[MetadataCluster]:
    if problem := docker_problem():
        pytest.skip(problem)
    nodes = TlsNodes(certificates)
    async with metadata_cluster(tmp_path, 3, nodes=nodes, **PATIENT) as running:
        yield running


async def test_log_over_tls_survives_a_node_and_its_replacement(cluster: MetadataCluster) -> None:
    nodes = cluster.nodes
    assert isinstance(nodes, TlsNodes)
    writer = Writer(0)
    assert (await writer.claim(cluster[0])).outcome == metadata_pb2.LOG_OUTCOME_OK
    for number in range(20):
        assert (await writer.append(cluster[0], b"w:%d" % number)).outcome == metadata_pb2.LOG_OUTCOME_OK
    await nodes[1].kill()
    assert (await writer.append(cluster[0], b"w:without")).outcome == metadata_pb2.LOG_OUTCOME_OK
    urls, old = nodes.url, f"127.0.0.1:{nodes[1].port}"
    with nodes.more() as new:
        await new.start()
        async with Replacement(
            urls, old, place_of(new.url), step_timeout_ms=3_000, rebuild_delay_ms=6_000
        ) as work:
            await work.run(await work.plan())
        after = urls.replace(old, place_of(new.url))
        await nodes[0].kill()
        assert (await writer.append(cluster[0], b"w:with")).outcome == metadata_pb2.LOG_OUTCOME_OK
        assert records(await cluster[0].read(0, writer)) == writer.acknowledged
        await nodes[0].start()
        await until(lambda: complete(cluster, len(writer.acknowledged) + 2), "all nodes have the log")
        await until(lambda: healthy(after), "no node has a problem")
        found = await survey(after)
        assert found.nodes[0].server.startswith("redis 8")
        broken = (await asyncio.to_thread(verify, after)).broken
        assert not {"L1", "L5", "L6", "L6n"} & set(broken), "all nodes hold the same, whole"


async def healthy(urls: str) -> bool:
    return not any(node.problems for node in (await survey(urls)).nodes)


async def complete(cluster: MetadataCluster, entries: int) -> bool:
    found = await cluster[0].describe(0)
    return all(replica.entries >= entries for replica in found)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"user": "muster:wrong"}, "it refuses the credentials"),
        ({"ca": "other.pem"}, "its certificate is not accepted: "),
        ({"certificate": ""}, "it refuses this TLS connection"),
    ],
    ids=["password", "authority", "client_certificate"],
)
async def test_what_a_server_does_not_accept_is_said(
    cluster: MetadataCluster, change: dict[str, str], sentence: str
) -> None:
    nodes = cluster.nodes
    assert isinstance(nodes, TlsNodes)
    settings = {"user": f"muster:{nodes.password}", "places": nodes.places} | change
    with pytest.raises(InitialiseError, match=sentence) as refused:
        await initialise(tls_url(nodes.folder, **settings), 4, connect_timeout_ms=10_000)
    assert nodes.password not in str(refused.value)
    plain = f"redis://muster:{nodes.password}@{split_urls(nodes.url)[0].rpartition('@')[2].partition('?')[0]}"
    server = MetadataServer(load(MetadataSettings, redis_url=plain, listen="127.0.0.1:0", **fast()))
    await server.start()
    await until(lambda: server.metadata.quorum.nodes[0].tables.problem != NOT_REACHED_YET, "tried")
    assert not server.metadata.ready.is_set()
    await server.stop(0)
