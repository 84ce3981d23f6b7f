"""Clients and services beside peers of another version, which send what nobody knows, or lack what is new."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import muster
import pytest
from google.protobuf.message import Message
from kit.clusters.other_peer import UNKNOWN, OtherPeer, every, grow
from kit.clusters.server_cluster import FAST_GROUPS
from kit.waiting import until
from muster._incremental.membership import Asked, Membership
from muster._reactions import Reaction
from muster_protos.muster.v1 import common_pb2, discovery_pb2
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
    """Real processes; between any two of them, and before the client, stands another version."""

    nodes: RedisNodes
    peers: dict[str, OtherPeer]

    @property
    def servers(self) -> str:
        return self.peers["discovery"].address


@asynccontextmanager
async def cluster(
    folder: Path, change: Callable[[Message], None] = grow, **settings: str
) -> AsyncIterator[Cluster]:
    ports = iter(free_ports(6))
    real = {role: next(ports) for role in ("metadata", "discovery", "coordinator")}
    peers = {role: OtherPeer(next(ports), f"{LOOPBACK}:{port}", change) for role, port in real.items()}
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
        of_role = {**own[role], "LISTEN": f"{LOOPBACK}:{port}"}
        variables = {f"MUSTER_{role.upper()}_{name}": value for name, value in of_role.items()}
        variables |= FAST_GROUPS | settings
        processes.append(RoleProcess(role, role, port, folder / "logs", variables))
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
    for message in every(answer):
        grow(message)
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

    passed = {path: counts for peer in running.peers.values() for path, counts in peer.passed.items()}
    assert {path.rpartition("/")[2] for path, (there, back) in passed.items() if there and back} >= {
        *CALLS[protocol], "Session", "OffsetCommit", "DescribeGroups", "FindCoordinator",
        "CreateTopic", "Log", "Lease", "ReadLog", "Watch", "ChangeTopic",
    }  # fmt: skip


async def _is_empty(client: muster.Cluster) -> bool:
    return not (await client.describe_group(GROUP)).members


LATER = ("awaits_owned", "classic_protocols")
"""Fields of incremental groups that came after the others."""


class Between:
    """What is between clients and the coordinator while one of the two does not know the later fields."""

    def __init__(self) -> None:
        self.is_older = True

    def change(self, message: Message) -> None:
        for name in LATER if self.is_older else ():
            if name in message.DESCRIPTOR.fields_by_name:
                message.ClearField(name)


def first_answers_are_lost(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The member of client `one` hears no answer to its join before what is returned is called."""
    is_heard = False
    hear = Membership.hear

    def lose(self: Membership, asked: Asked, *answer: Any) -> Reaction:
        is_lost = asked.joins and asked.request.client_id == "one" and not is_heard
        return Reaction.RETRY if is_lost else hear(self, asked, *answer)

    def end() -> None:
        nonlocal is_heard
        is_heard = True

    monkeypatch.setattr(Membership, "hear", lose)
    return end


@pytest.mark.timeout(300)
async def test_clients_and_a_coordinator_of_which_one_does_not_know_the_later_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INC-48 and INC-150: nobody who works is removed, or put out by a classic client.

    A field that is lost on the way is the same whichever side it is that does not know it.
    """
    between = Between()
    hear_answers = first_answers_are_lost(monkeypatch)
    settings = {"MUSTER_GROUP_CONVERT": "auto", "MUSTER_GROUP_CONVERT_AFTER_MS": "600000"}
    async with (
        cluster(tmp_path, between.change, **settings) as running,
        muster.Cluster(running.servers) as client,
    ):
        await client.create_topic(TOPIC, len(PARTITIONS))

        async def member(name: str, **own: Any) -> muster.Member:
            one = muster.Member(
                client, group_id=GROUP, topics=TOPIC, client_id=name, **{"rebalance_timeout_ms": 9_000, **own}
            )
            await one.start()
            return one

        async def refused(assignor: str) -> str:
            classic = await member("classic", protocol="classic", assignors=[assignor])
            with pytest.raises(muster.GroupError) as refusal:
                await classic.wait()
            return str(refusal.value)

        async def members() -> int:
            try:
                return len((await client.describe_group(GROUP)).members)
            except muster.GroupError:
                return 0

        one = await member("one")

        async def one_is_in() -> bool:
            return await members() == 1

        async def both_are_in() -> bool:
            return await members() == 2

        await until(one_is_in, "the coordinator has a member that has not heard of it")
        two = await member("two")
        await until(both_are_in, "something is taken from that member")
        hear_answers()
        await until(lambda: len(one.partitions) == len(two.partitions) == 2, "both share the work")
        causes = {generation.cause.kind for generation in await client.group_history(GROUP)}
        assert causes == {common_pb2.REBALANCE_CAUSE_KIND_MEMBER_JOINED}, "nobody was removed"
        tokens = {p: m.token(p) for m in (one, two) for p in m.partitions}
        for assignor in ("sticky", "range"):
            assert "did not say what it can use" in await refused(assignor)
        assert tokens == {p: m.token(p) for m in (one, two) for p in m.partitions}

        between.is_older = False
        three = await member("three")
        await until(lambda: len(three.partitions) > 0, "a member of this version has its share")
        assert "did not say what it can use" in await refused("range"), "the others still did not"
        for old in (one, two):
            await old.close("replaced")
        await until(lambda: len(three.partitions) == len(PARTITIONS), "one of this version has everything")
        kept = {p: three.token(p) for p in three.partitions}
        assert "could use none of sticky" in await refused("sticky")
        assert kept == {p: three.token(p) for p in three.partitions}
        four = await member("four", protocol="classic", assignors=["range"])
        await until(lambda: len(three.partitions) == len(four.partitions) == 2, "the group is classic again")
        await four.close("done")
        await three.close("done")
        report = verify(running.nodes.url)
        assert report.clean, report.evidence
