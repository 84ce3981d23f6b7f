"""The audit trail of real processes, kept in the log: it is known though who answered was killed."""

import asyncio
import json
import subprocess
from pathlib import Path

import muster
import pytest
from kit import forked
from kit.clusters.server_cluster import running
from kit.waiting import until
from muster_runtime.rpc.trust.trust import Trust
from muster_server.access import trail
from muster_server.dev.cluster import Description

pytestmark = pytest.mark.cluster


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run([forked.MUSTER, "access", "trail", "--data", str(folder), *arguments], timeout=120)


async def test_what_was_done_is_in_the_trail_though_its_coordinator_and_a_node_were_killed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "cluster"
    async with running(folder, redis_nodes=3, coordinators=2) as cluster:
        addresses = Description.read(folder).metadata.split(",")

        async def told(action: str) -> list[trail.TrailEvent]:
            return await trail.read(addresses, Trust.load(), trail.Wanted(verb=action))

        ran = asyncio.Event()

        async def work(p: muster.Partition) -> None:
            await p.commit(1)
            ran.set()
            await asyncio.Event().wait()

        worker = asyncio.create_task(
            muster.arun(work, group="orders", topic="orders", partitions=1, servers=cluster.servers)
        )
        async with asyncio.timeout(60):
            await ran.wait()
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        async with muster.Cluster(cluster.servers) as client:
            await client.delete_group("orders")
            with pytest.raises(muster.MusterError):
                await client.delete_group("never-was-there")
            await client.delete_topic("orders")

        async def kept() -> bool:
            return bool(await told("DeleteGroups")) and bool(await told("DeleteTopic"))

        await until(kept, "what was done is kept")
        (deleted,) = [event for event in await told("DeleteGroups") if event.outcome == "done"]
        assert list(deleted.what) == ["group:orders"]
        role, name = deleted.server.split()
        assert role == "coordinator"

        await cluster.coordinator(name).kill()
        assert cluster.nodes is not None
        await cluster.nodes[0].kill()
        assert deleted in await told("DeleteGroups")
        (topic,) = await told("DeleteTopic")
        assert topic.server.startswith("discovery ")

        lines = (await asyncio.to_thread(command, folder, "--json", "--since", "1h")).stdout.splitlines()
        found = {json.loads(line)["id"]: json.loads(line) for line in lines}
        assert found[deleted.event_id.hex()]["what"] == ["group:orders"]
        shown = await asyncio.to_thread(command, folder, "--verb", "deletetopic")
        assert "topic:orders" in shown.stdout
        assert "group:orders" not in shown.stdout
        wrong = await asyncio.to_thread(command, folder, "--since", "yesterday")
        assert (wrong.returncode, "--since" in wrong.stderr) == (2, True)
