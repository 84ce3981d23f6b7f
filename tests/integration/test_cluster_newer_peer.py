"""Clients and services of this version beside peers of a later one, which send what nobody knows yet."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import muster
import pytest
from kit.clusters.newer_peer import UNKNOWN, NewerPeer, grow
from kit.clusters.server_cluster import FAST_GROUPS
from kit.waiting import until
from muster_protos.muster.v1 import discovery_pb2
from muster_server.dev.ports import LOOPBACK, free_ports
from muster_server.dev.redis_nodes import RedisNodes
from muster_server.dev.role_process import RoleProcess
from muster_server.initialise import initialise_log
from muster_server.verify.verifier import verify

pytestmark = pytest.mark.cluster

GROUP, TOPIC = "readers", "books"
PARTITIONS = [muster.TopicPartition(TOPIC, number) for number in range(4)]


@dataclass
class Cluster:
    """Real processes; between any two of them, and before the client, stands a later version."""

    nodes: RedisNodes
    peers: dict[str, NewerPeer]

    @property
    def servers(self) -> str:
        return self.peers["discovery"].address


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    ports = iter(free_ports(6))
    real = {role: next(ports) for role in ("metadata", "discovery", "coordinator")}
    peers = {role: NewerPeer(next(ports), f"{LOOPBACK}:{port}") for role, port in real.items()}
    nodes = RedisNodes(folder, 1)
    own = {
        "metadata": {"REDIS_URL": nodes.url},
        "discovery": {"METADATA": peers["metadata"].address},
        "coordinator": {
            "METADATA": peers["metadata"].address,
            "ADVERTISE": peers["coordinator"].address,
            "NODE_ID": "c",
        },
    }
    processes = []
    for role, port in real.items():
        settings = {**own[role], "LISTEN": f"{LOOPBACK}:{port}"}
        variables = {f"MUSTER_{role.upper()}_{name}": value for name, value in settings.items()}
        processes.append(RoleProcess(role, role, port, folder / "logs", {**FAST_GROUPS, **variables}))
    await nodes.start()
    await initialise_log(nodes.url, 2)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(nodes.stop)
        for process in processes:
            await stack.enter_async_context(peers[process.role])
            stack.push_async_callback(process.terminate)
            await process.start()
        yield Cluster(nodes, peers)


def test_every_message_grows_at_every_depth() -> None:
    answer = discovery_pb2.ListTopicsResponse(topics=[discovery_pb2.Topic(name="a"), discovery_pb2.Topic()])
    grow(answer)
    assert answer.SerializeToString().count(UNKNOWN) == 3
    assert discovery_pb2.ListTopicsResponse.FromString(answer.SerializeToString()).topics[0].name == "a"


CALLS: dict[Any, set[str]] = {
    "classic": {"JoinGroup", "SyncGroup", "Heartbeat"},
    "incremental": {"ConsumerGroupHeartbeat"},
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("protocol", CALLS)
async def test_members_and_services_pass_over_what_they_do_not_know(tmp_path: Path, protocol: Any) -> None:
    async with cluster(tmp_path) as running, muster.Cluster(running.servers) as client:
        await client.create_topic(TOPIC, 2)
        await client.alter_topic(TOPIC, len(PARTITIONS))
        streaming = muster.Member(client, group_id=GROUP, topics=TOPIC, protocol=protocol)
        await streaming.start()
        await until(lambda: len(streaming.partitions) == 4, "the first member has everything")
        await streaming.commit(dict.fromkeys(PARTITIONS, 7))
        calling = muster.Member(
            client,
            group_id=GROUP,
            topics=TOPIC,
            session=False,
            heartbeat_interval_ms=100,
            protocol=protocol,
        )
        await calling.start()
        await until(
            lambda: (len(streaming.partitions), len(calling.partitions)) == (2, 2), "both share the work"
        )
        assert all(calling.token(partition) for partition in calling.partitions)
        await calling.commit(dict.fromkeys(calling.partitions, 8))
        assert {at.offset for at in (await client.committed(GROUP)).values()} == {7, 8}
        await streaming.close("done")
        await until(lambda: len(calling.partitions) == 4, "the other one has everything again")
        assert (await client.describe_group(GROUP)).members[0].member_id == calling.member_id
        assert (await client.group_history(GROUP))[-1].cause.sentence
        await calling.close("done")
        await until(lambda: _is_empty(client), "the group is empty")
        await client.delete_group(GROUP)
        await client.delete_topic(TOPIC)
        report = verify(running.nodes.url)
        assert report.clean, report.evidence

    grown = {path: counts for peer in running.peers.values() for path, counts in peer.grown.items()}
    assert {path.rpartition("/")[2] for path, (there, back) in grown.items() if there and back} >= {
        *CALLS[protocol], "Session", "OffsetCommit", "DescribeGroups", "FindCoordinator",
        "CreateTopic", "Log", "Lease", "ReadLog", "Watch", "ChangeTopic",
    }  # fmt: skip


async def _is_empty(client: muster.Cluster) -> bool:
    return not (await client.describe_group(GROUP)).members
