"""A cluster whose processes present a token to each other: it works as others do, and strangers stay out."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import grpc
import muster
import pytest
from kit import forked
from kit.certificates import AUTHORITY, SERVER, WORKER, Certificates, uri
from kit.clusters.server_cluster import all_served
from kit.tokens import token_settings, write_token
from kit.waiting import until
from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_protos.muster.internal.v1 import coordinator_pb2_grpc as peer_pb2_grpc
from muster_protos.muster.v1 import common_pb2
from muster_runtime.rpc.trust.inside import LOOK_S
from muster_server.dev.cluster import DevCluster
from muster_server.dev.ports import LOOPBACK

pytestmark = pytest.mark.cluster


def tool(*arguments: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The command `muster`, with these settings."""
    environment = {**os.environ, "COLUMNS": "200", **settings}
    return forked.run([forked.MUSTER, *arguments], environment, timeout=120)


async def test_members_outlive_a_coordinator_and_metadata_where_calls_need_a_token(tmp_path: Path) -> None:
    """A take-over needs every internal call there is: leases, claims, loads, appends, the view."""
    settings = token_settings(tmp_path / "token")
    positions: list[int] = []

    async def work(p: muster.Partition) -> None:
        position = await p.committed() or 0
        while True:
            position += 1
            await p.commit(position)
            positions.append(p.generation)
            await asyncio.sleep(0.02)

    async with DevCluster(tmp_path / "cluster", coordinators=2, settings=settings) as cluster:
        stop = asyncio.Event()
        worker = asyncio.create_task(
            muster.arun(
                work,
                group="g",
                topic="t",
                partitions=1,
                servers=cluster.servers,
                stop=stop,
                disconnect_grace_ms=30_000,
            )
        )
        await until(lambda: len(positions) > 5, "commits")
        async with muster.Cluster(cluster.servers) as connection:
            owner = await connection.link("g").locate()
        (killed,) = [one for one in cluster.coordinators if one.address == owner]
        before = len(positions)
        await killed.kill()
        await until(lambda: len(positions) > before + 5, "commits through the other coordinator")
        assert len(set(positions)) == 1
        stop.set()
        await worker


@pytest.mark.slow
async def test_members_do_not_notice_that_the_token_is_replaced(tmp_path: Path) -> None:
    """Streams that the old one opened end with it, leases and logs among them, and are opened again."""
    settings = token_settings(tmp_path / "token")
    file = Path(settings["MUSTER_INTERNAL_TOKEN_FILE"])
    old, new = "o" * 40, "n" * 40
    write_token(file, old)
    seen: list[tuple[int, str]] = []
    wanted = [5]

    async def work(p: muster.Partition) -> None:
        position = await p.committed() or 0
        while True:
            position += 1
            await p.commit(position)
            seen.append((p.generation, p.token))
            await asyncio.sleep(0.02)

    async with DevCluster(tmp_path / "cluster", coordinators=2, settings=settings) as cluster:
        stop = asyncio.Event()
        worker = asyncio.create_task(
            muster.arun(work, group="g", topic="t", partitions=1, servers=cluster.servers, stop=stop)
        )
        await until(lambda: len(seen) > wanted[-1], "commits")
        for tokens in ((old, new), (new, old), (new,)):
            write_token(file, "\n".join(tokens))
            await asyncio.sleep(2 * LOOK_S)  # what has not ended by then goes on
            wanted.append(len(seen) + 5)
            await until(lambda: len(seen) > wanted[-1], "commits")
        assert len(set(seen)) == 1
        stop.set()
        await worker


async def test_operators_commands_present_the_token_too(tmp_path: Path) -> None:
    settings = token_settings(tmp_path / "token")
    folder = str(tmp_path / "cluster")
    async with DevCluster(tmp_path / "cluster", coordinators=1, settings=settings) as cluster:
        await all_served(cluster.servers)
        doctor = await asyncio.to_thread(tool, "doctor", "--data", folder, settings=settings)
        assert doctor.returncode == 0, doctor.stdout
        listed = await asyncio.to_thread(tool, "features", "list", "--data", folder, settings=settings)
        assert listed.returncode == 0, listed.stderr

        doctor = await asyncio.to_thread(tool, "doctor", "--data", folder, settings={})
        assert doctor.returncode == 1
        assert "the call has no token of the cluster" in doctor.stdout
        assert "MUSTER_INTERNAL_TOKEN_FILE must name a file with a token" in doctor.stdout
        listed = await asyncio.to_thread(tool, "features", "list", "--data", folder, settings={})
        assert listed.returncode == 2
        assert "refuses: muster.internal.v1.MetadataService/ListFeatures is for" in listed.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on the path; install it")
async def test_a_cluster_whose_processes_are_known_by_their_certificates(tmp_path: Path) -> None:
    """Hand-overs, leases and commands work; a worker's certificate opens no internal call."""
    certificates = Certificates(tmp_path / "certificates")
    certificates.issue_with_uris()
    settings = {**certificates.settings, "MUSTER_INTERNAL_PEERS": uri(SERVER)}
    files = muster.TlsFiles(
        certificates.certificate(AUTHORITY), certificates.certificate(WORKER), certificates.key(WORKER)
    )
    folder = tmp_path / "cluster"
    async with DevCluster(folder, coordinators=2, settings=settings) as cluster:
        async with muster.Cluster(cluster.servers, credentials=files) as connection:
            await connection.create_topic("t", 2)

            async def shared() -> bool:
                described = await connection.describe()
                owners = {owner.node_id for owner in described.shards if owner.serving}
                return len(owners) == 2 and all(owner.serving for owner in described.shards)

            await until(shared, "two coordinators serve all shards")
        first = cluster.coordinators[0]
        assert await first.terminate() == 0
        assert "shards_released" not in first.process.log.read_text("utf-8")
        assert "shard_handed_over" in first.process.log.read_text("utf-8")

        as_worker = {
            "MUSTER_TLS_CA_FILE": certificates.certificate(AUTHORITY),
            "MUSTER_TLS_CERT_FILE": certificates.certificate(WORKER),
            "MUSTER_TLS_KEY_FILE": certificates.key(WORKER),
        }
        arguments = ("features", "list", "--data", str(folder))
        listed = await asyncio.to_thread(tool, *arguments, settings=certificates.settings)
        assert listed.returncode == 0, listed.stderr
        listed = await asyncio.to_thread(tool, *arguments, settings=as_worker)
        assert listed.returncode == 2
        assert "the caller's certificate is not one of a peer" in listed.stderr
        doctor = await asyncio.to_thread(tool, "doctor", "--data", str(folder), settings=as_worker)
        assert "its MUSTER_INTERNAL_PEERS lists" in doctor.stdout


async def test_a_coordinator_of_a_new_cluster_answers_clients_no_internal_call(tmp_path: Path) -> None:
    """Who connects as clients do cannot ask for shards; `muster doctor` asks in the right place."""
    async with DevCluster(tmp_path, coordinators=1) as cluster:
        (coordinator,) = cluster.coordinators
        for address, code in (
            (coordinator.address, grpc.StatusCode.UNIMPLEMENTED),
            (f"{LOOPBACK}:{cluster.internal_ports[coordinator.name]}", grpc.StatusCode.OK),
        ):
            async with grpc.aio.insecure_channel(address) as channel:
                stub: Any = peer_pb2_grpc.CoordinatorPeerServiceStub(channel)
                call = stub.RequestHandoff(
                    peer_pb2.RequestHandoffRequest(
                        successor=common_pb2.Coordinator(node_id="stranger", host="192.0.2.1", port=9)
                    ),
                    timeout=60,
                )
                assert await call.code() is code
        doctor = await asyncio.to_thread(tool, "doctor", "--data", str(tmp_path), "-o", "json", settings={})
        findings = json.loads(doctor.stdout)["findings"]
        assert [one["result"] for one in findings if one["check"] == "versions"] == ["ok"], doctor.stdout
        assert [one["result"] for one in findings if one["check"] == "groups"] == ["ok"], doctor.stdout
        assert [one["result"] for one in findings if one["check"] == "clocks"] == ["ok"], doctor.stdout
