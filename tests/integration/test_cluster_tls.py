"""A cluster that speaks TLS only: the library, the CLI, and certificates that are renewed while it runs."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import muster
import pytest
from kit import forked
from kit.certificates import AUTHORITY, SERVER, WORKER, Certificates
from kit.waiting import until
from muster_server.dev.cluster import DevCluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on the path; install it"),
]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def cli(servers: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [forked.MUSTER, "topics", "list", "--servers", servers], {**os.environ, **settings}, timeout=120
    )


async def test_a_worker_outlives_its_certificate_and_its_coordinator(
    certificates: Certificates, tmp_path: Path
) -> None:
    """Both ends renew theirs; connections made after that work, and nobody rebalances."""
    files = muster.TlsFiles(
        certificates.certificate(AUTHORITY), certificates.certificate(WORKER), certificates.key(WORKER)
    )
    positions: dict[int, list[tuple[int, int]]] = {0: [], 1: []}

    async def work(p: muster.Partition) -> None:
        position = await p.committed() or 0
        while True:
            position += 1
            await p.commit(position)
            positions[p.number].append((p.generation, position))
            await asyncio.sleep(0.02)

    async with DevCluster(tmp_path, coordinators=2, settings=certificates.settings) as cluster:
        stop = asyncio.Event()
        fleet = asyncio.create_task(
            muster.arun(
                work,
                group="g",
                topic="t",
                partitions=2,
                servers=cluster.servers,
                credentials=files,
                stop=stop,
                disconnect_grace_ms=30_000,
            )
        )
        await until(lambda: all(positions.values()), "commits of both partitions")

        worker_only = {
            "MUSTER_TLS_CA_FILE": certificates.certificate(AUTHORITY),
            "MUSTER_TLS_CERT_FILE": certificates.certificate(WORKER),
            "MUSTER_TLS_KEY_FILE": certificates.key(WORKER),
        }
        listed = await asyncio.to_thread(cli, cluster.servers, worker_only)
        assert (listed.returncode, listed.stdout.split()[-2:]) == (0, ["t", "2"]), listed.stderr

        certificates.issue(SERVER, AUTHORITY)
        certificates.issue(WORKER, AUTHORITY)
        async with muster.Cluster(cluster.servers, credentials=files) as connection:
            group = await connection.describe_group("g")
            owner = await connection.link("g").locate()
        (killed,) = [one for one in cluster.coordinators if one.address == owner]
        before = {number: len(done) for number, done in positions.items()}
        await killed.kill()
        await until(
            lambda: all(len(done) > before[number] + 5 for number, done in positions.items()),
            "commits through the other coordinator",
        )
        assert {generation for done in positions.values() for generation, _ in done} == {group.generation}
        stop.set()
        await fleet
