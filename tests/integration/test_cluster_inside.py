"""A cluster whose processes present a token to each other: it works as others do, and strangers stay out."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import muster
import pytest
from kit.tokens import token_settings
from kit.waiting import until
from muster_server.dev.cluster import DevCluster

pytestmark = pytest.mark.cluster


def tool(*arguments: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The command `muster`, with these settings."""
    return subprocess.run(
        [sys.executable, "-c", "from muster.cli import main; main()", *arguments],
        env={**os.environ, "COLUMNS": "200", **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


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


async def test_operators_commands_present_the_token_too(tmp_path: Path) -> None:
    settings = token_settings(tmp_path / "token")
    folder = str(tmp_path / "cluster")
    async with DevCluster(tmp_path / "cluster", coordinators=1, settings=settings):
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
