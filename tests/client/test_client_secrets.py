"""What a member proves itself with: drawn for it, and the same with each of its calls."""

from collections import Counter

import pytest
from client.client_scripted import Break
from client.test_client_session import World, worlds
from kit.waiting import until
from muster import CommitFailed, Committed, MemberState
from muster._standing.seat import Caller
from muster_protos.limits import MEMBER_SECRET_MIN_BYTES
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2

pytestmark = pytest.mark.cluster

UNKNOWN = common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID
WITH_A_SECRET = ("JoinGroup", "SyncGroup", "Attach", "Heartbeat", "OffsetCommit")


def brought(world: World, group: str) -> dict[str, set[bytes]]:
    """The secrets that came with the calls for a group, by kind of call."""
    found: dict[str, set[bytes]] = {}
    for coordinator in (world.a, world.b):
        for method, request in coordinator.seen:
            if method in WITH_A_SECRET and request.group_id == group:
                found.setdefault(method, set()).add(request.member_secret)
            elif method == "LeaveGroup" and request.group_id == group:
                found.setdefault(method, set()).update(one.member_secret for one in request.members)
    return found


async def test_a_member_brings_its_secret_with_each_call() -> None:
    async with worlds() as world:
        member = await world.join()
        (partition,) = tuple(member.partitions)[:1]
        await member.commit({partition: Committed(1)})
        await world.a.until("Beat")
        # It was put out: it joins anew, under another id.
        world.a.script["OffsetCommit"].append(_refused)
        joins = len(world.a.requests("JoinGroup"))
        with pytest.raises(CommitFailed):
            await member.commit({partition: Committed(2)})
        await world.a.until("JoinGroup", joins + 1)
        await until(lambda: member.state is MemberState.STABLE and bool(member.partitions))
        await member.close()
        found = brought(world, "g")
    assert set(found) >= {"JoinGroup", "SyncGroup", "Attach", "OffsetCommit", "LeaveGroup"}
    (secret,) = set.union(*found.values())
    assert len(secret) >= MEMBER_SECRET_MIN_BYTES == 16


def _refused(request: coordinator_pb2.OffsetCommitRequest) -> coordinator_pb2.OffsetCommitResponse:
    answer = coordinator_pb2.OffsetCommitResponse()
    for topic in request.topics:
        partitions = answer.topics.add(name=topic.name).partitions
        for entry in topic.partitions:
            partitions.add(partition=entry.partition, error_code=UNKNOWN)
    return answer


async def test_a_retry_of_a_join_brings_the_same_secret() -> None:
    async with worlds() as world:
        world.a.script["JoinGroup"].extend([_an_id, lambda _: _broken()])
        await world.join()
        joins = world.a.requests("JoinGroup")
        assert len(joins) >= 3
        assert [bool(join.member_id) for join in joins[:3]] == [False, True, True]
        assert len({join.request_id for join in joins}) == 1
        assert len({join.member_secret for join in joins}) == 1
        assert joins[0].member_secret


def _an_id(_: object) -> coordinator_pb2.JoinGroupResponse:
    return coordinator_pb2.JoinGroupResponse(
        error_code=common_pb2.ERROR_CODE_MEMBER_ID_REQUIRED, member_id="given", shard_epoch=1
    )


def _broken() -> None:
    raise Break


async def test_heartbeat_calls_bring_it_where_there_is_no_stream() -> None:
    async with worlds() as world:
        world.a.script["Attach"].append(_no_room)
        await world.join()
        await world.a.until("Heartbeat")
        found = brought(world, "g")
    assert found["Heartbeat"] == found["JoinGroup"]


def _no_room(_: object) -> session_pb2.AttachResult:
    return session_pb2.AttachResult(error_code=common_pb2.ERROR_CODE_INVALID_REQUEST, shard_epoch=1)


async def test_each_member_has_a_secret_of_its_own() -> None:
    async with worlds() as world:
        for group in ("g", "h"):
            await world.join(group)
        mine, other = (brought(world, group)["JoinGroup"] for group in ("g", "h"))
    assert mine
    assert not mine & other


def test_secrets_are_drawn_and_never_shown() -> None:
    callers = [Caller("g") for _ in range(100)]
    secrets = [caller.secret for caller in callers]
    assert max(Counter(secrets).values()) == 1
    assert len(set(b"".join(secrets))) > 200, "all bytes occur"
    for caller in callers:
        assert repr(caller.secret) not in repr(caller)
