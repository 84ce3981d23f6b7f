"""Members belong to the identities that joined, over real connections and after a take-over."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from coordinator.coordinator_cluster import SHARDS, Caller, MemoryCluster, owns
from coordinator.session_client import Session, stable
from kit.callers_by_header import NamedCallers
from muster_coordinator.coordinator import Coordinator
from muster_core import error_code
from muster_protos.muster.v1 import coordinator_pb2

pytestmark = pytest.mark.cluster

UNKNOWN = error_code.UNKNOWN_MEMBER_ID
GROUP = "g"
RULES = """
[[rule]]
who = ["owner", "thief"]
verbs = ["join", "commit", "read"]
groups = ["*"]

[[rule]]
who = ["*"]
verbs = ["describe"]
topics = ["*"]

[[rule]]
who = ["operator"]
verbs = ["admin"]
groups = ["*"]
"""


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    cluster = MemoryCluster()
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


async def leave(caller: Caller, **leaver: str) -> int:
    request = coordinator_pb2.LeaveGroupRequest(group_id=GROUP)
    request.members.add(**leaver)
    answer = await caller.stub.LeaveGroup(request, timeout=60)
    return int(answer.members[0].error_code)


async def refused_everything(
    cluster: MemoryCluster, coordinator: Coordinator, member: coordinator_pb2.JoinGroupResponse
) -> None:
    """Nothing that somebody else does in a member's name is done, in calls or on a stream."""
    for who in ("thief", ""):
        caller = cluster.caller(coordinator, who)
        assert (await caller.heartbeat(GROUP, member)).error_code == UNKNOWN
        assert (await caller.sync(GROUP, member)).error_code == UNKNOWN
        assert (await caller.join(GROUP, member.member_id)).error_code == UNKNOWN
        assert await caller.commit(GROUP, 9, member) == UNKNOWN
        assert await leave(caller, member_id=member.member_id) == UNKNOWN
        session = await Session(caller.channel).hello()
        assert (await session.attach(GROUP, member)).error_code == UNKNOWN
        beat = coordinator_pb2.HeartbeatRequest(
            group_id=GROUP, member_id=member.member_id, generation=member.generation
        )
        assert (await session.ask(heartbeat=beat)).heartbeat.error_code == UNKNOWN
        await session.close()


async def test_a_member_is_its_identitys_also_at_the_next_coordinator(cluster: MemoryCluster) -> None:
    trust = NamedCallers.with_rules(None)
    first = await cluster.add("c1", trust=trust)
    await owns(first, SHARDS)
    member = await stable(cluster.caller(first, "owner"), GROUP)
    await refused_everything(cluster, first, member)

    second = await cluster.add("c2", trust=trust)
    await first.drain_and_stop()
    await owns(second, SHARDS)
    await refused_everything(cluster, second, member)
    owner = cluster.caller(second, "owner")
    assert (await owner.heartbeat(GROUP, member)).error_code == 0
    assert await owner.commit(GROUP, 9, member) == 0
    session = await Session(owner.channel).hello()
    assert (await session.attach(GROUP, member)).error_code == 0
    assert not (await session.beat()).unheard
    await session.close()
    assert await leave(owner, member_id=member.member_id) == 0


async def test_who_administers_a_group_puts_members_of_others_out(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    file = tmp_path / "access.toml"
    file.write_text(RULES)
    coordinator = await cluster.add("c1", trust=NamedCallers.with_rules(file))
    await owns(coordinator, SHARDS)
    member = await stable(cluster.caller(coordinator, "owner"), GROUP, group_instance_id="i")
    thief, operator = (cluster.caller(coordinator, who) for who in ("thief", "operator"))
    assert await leave(thief, group_instance_id="i") == UNKNOWN
    assert await leave(thief, member_id=member.member_id, group_instance_id="i") == UNKNOWN
    assert await leave(operator, group_instance_id="i") == 0
    member = await stable(cluster.caller(coordinator, "owner"), GROUP)
    assert await leave(thief, member_id=member.member_id) == UNKNOWN
    assert await leave(operator, member_id=member.member_id) == 0
