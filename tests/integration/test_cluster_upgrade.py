"""This version and the one before, side by side: an upgrade and a rollback under load, process by process."""

import asyncio
import os
import sys
from pathlib import Path

import muster
import pytest
from kit.server_cluster import FAST_GROUPS
from kit.two_versions import SteadyMembers, TwoVersions, history_problem
from kit.waiting import until
from muster_server.verify.verifier import verify

GROUP, MEMBERS = "steady", 4
SETTINGS = {
    **FAST_GROUPS,
    # Each version loads from snapshots that the other one took, and from logs that it trimmed.
    "MUSTER_SHARD_LOG_SNAPSHOT_RECORDS": "100",
    "MUSTER_SHARD_LOG_RETENTION_MS": "3000",
}
VERIFY = """
import sys
from muster_server.verify.verifier import verify
sys.exit(not verify(sys.argv[1]).clean)
"""


@pytest.mark.timeout(600)
async def test_upgrade_and_rollback_under_load(tmp_path: Path) -> None:
    if history_problem():
        pytest.skip(history_problem())
    async with TwoVersions(tmp_path, SETTINGS) as cluster:
        async with muster.Cluster(cluster.servers) as client:
            await client.create_topic(GROUP, MEMBERS)
            async with (
                SteadyMembers(cluster.servers, GROUP, cluster.previous, 0, MEMBERS // 2) as old,
                SteadyMembers(cluster.servers, GROUP, "", MEMBERS // 2, MEMBERS // 2) as new,
            ):
                fleet = (old, new)
                await until(
                    lambda: (
                        len({*old.generations.values(), *new.generations.values()}) == 1
                        and len(old.commits) + len(new.commits) == MEMBERS
                    ),
                    "members of both versions share the work",
                    60,
                )
                began = old.rebalances + new.rebalances
                for slot in cluster.slots:
                    await slot.run(new=True)
                    await asyncio.gather(*(members.go_on() for members in fleet))
                for slot in reversed(cluster.slots):
                    await slot.run(new=False)
                    await asyncio.gather(*(members.go_on() for members in fleet))
                assert old.rebalances + new.rebalances == began
            offsets = await client.committed(GROUP)
            assert len(offsets) == MEMBERS
        report = verify(cluster.nodes.url)
        assert report.clean, report.evidence
        assert report.kinds["snapshot"] > 0
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            VERIFY,
            cluster.nodes.url,
            env={**os.environ, "PYTHONPATH": cluster.previous},
        )
        assert await process.wait() == 0
