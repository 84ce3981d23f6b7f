"""Processes that fork children and get signals, in groups of both kinds, on real servers."""

import asyncio
import os
import sys
from pathlib import Path

import muster
import pytest
from client.test_client_run import CHILDREN
from kit.clusters.server_cluster import all_served, running

pytestmark = pytest.mark.cluster


async def test_children_are_stopped_without_their_worker_and_the_worker_by_its_own(tmp_path: Path) -> None:
    """SES-34, SES-46, SES-47: each with a SIGTERM of its own; the worker has left its group when it ends."""
    async with running(tmp_path, redis_nodes=1, coordinators=1) as cluster:
        await all_served(cluster.servers)
        environment = {
            name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"
        }

        async def outcome(protocol: str) -> tuple[list[str], int | None]:
            program = CHILDREN.replace('group="g"', f'group="{protocol}", protocol="{protocol}"')
            assert program != CHILDREN
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", program, cluster.servers),
                env=environment,
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                out, _ = await asyncio.wait_for(process.communicate(), 240)
            finally:
                if process.returncode is None:
                    process.kill()
            return out.decode().splitlines(), process.returncode

        kinds = ("classic", "incremental")
        outcomes = await asyncio.gather(*map(outcome, kinds))
        assert outcomes == [(["{(0, -15)} False", "stopped in order"], 0)] * 2
        async with muster.Cluster(cluster.servers) as connection:
            groups = {group.group_id: group for group in await connection.list_groups()}
            assert {groups[kind].type for kind in kinds} == {"classic", "consumer"}
            for kind in kinds:
                assert not (await connection.describe_group(kind)).members, "nobody waits for its session"
                stored = await connection.committed(kind)
                assert stored[muster.TopicPartition("t", 0)].offset == 20
