"""What a caller or a prefix has in all at a coordinator, also after loads and deletions (LIM-61, LIM-62)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pytest
from coordinator.coordinator_cluster import Caller, Coordinators, group_of, kill, owns
from coordinator.incremental_caller import IncrementalCaller
from coordinator.real_cluster import on_one_node
from coordinator.session_client import Session, call, stable
from coordinator.test_coordinator_quotas import EXHAUSTED, OFF, commit, status
from kit.callers_by_header import NamedCallers
from kit.waiting import until
from muster_coordinator.log.loader import Loader
from muster_coordinator.log.log_image import LogImage
from muster_coordinator.shard.phase import Phase
from muster_core import error_code
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, quotas_pb2, quotas_pb2_grpc
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest
from muster_runtime.rpc.quotas import QuotaSettings

pytestmark = pytest.mark.cluster

SHARDS = 4
OK = grpc.StatusCode.OK
OF_PREFIX = """
[[quota]]
groups = "g"
total_groups = 3
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_coordinator.api.counted_groups.LOOK_EVERY_S", 0.05)
    monkeypatch.setattr("muster_coordinator.api.counted_groups._GONE_S", 2.0)


@pytest.fixture
async def coordinators() -> AsyncIterator[Coordinators]:
    async with on_one_node(SHARDS) as running:
        yield running


async def serving(coordinators: Coordinators, name: str = "a", **limits: Any) -> list[Caller]:
    """A coordinator that serves all shards; calls in the name of two callers and of nobody."""
    quotas = QuotaSettings.model_validate({**OFF, **limits})
    coordinator = await coordinators.add(name, quotas=quotas, trust=NamedCallers.with_rules(None))
    await owns(coordinator, SHARDS)
    return [coordinators.caller(coordinator, who) for who in ("one", "other", "")]


async def commits(caller: Caller, number: int, begin: int = 0) -> list[grpc.StatusCode]:
    """Commits in groups with names of their own."""
    names = [group_of(shard % SHARDS, shard // SHARDS) for shard in range(begin, begin + number)]
    return [await status(caller.commit(name, 1)) for name in names]


async def shown(caller: Caller, quota: str = "total_groups") -> dict[str, tuple[int, int]]:
    """What callers and prefixes have in all, and how often each was refused for that."""
    stub: Any = quotas_pb2_grpc.QuotaServiceStub(caller.channel)
    answer = await stub.DescribeQuotas(quotas_pb2.DescribeQuotasRequest(), timeout=60)
    return {
        one.name: (use.used, use.refused) for one in answer.callers for use in one.uses if use.quota == quota
    }


async def commits_in(caller: Caller, group_id: str, *numbers: int) -> grpc.StatusCode:
    """Commits in partitions of a topic, together."""
    request = commit(group_id, 1)
    del request.topics[0].partitions[:]
    for number in numbers:
        request.topics[0].partitions.add(partition=number, offset=7)
    return await status(caller.stub.OffsetCommit(request, timeout=60))


async def test_a_caller_has_so_many_groups_and_goes_on_in_those(coordinators: Coordinators) -> None:
    one, other, _ = await serving(coordinators, total_groups=3)
    assert await commits(one, 4) == [OK, OK, OK, EXHAUSTED]
    with pytest.raises(grpc.aio.AioRpcError, match="one has the quota of 3 groups in all") as refused:
        await one.join(group_of(0, 9))
    assert "MUSTER_QUOTA_TOTAL_GROUPS" in (refused.value.details() or "")
    assert dict(refused.value.trailing_metadata() or ())["grpc-retry-pushback-ms"]
    assert await commits(one, 3) == [OK] * 3, "in those that there are"
    assert await commits(other, 1, begin=3) == [OK]
    assert await commits(one, 1, begin=3) == [OK], "in one that another caller began"
    session = await Session(one.channel).hello()
    reply = await session.ask(offset_commit=commit(group_of(0, 9), 1))
    assert reply.refused.status == EXHAUSTED.value[0]
    await session.close()
    assert (await shown(one)).items() >= {"one": (3, 3), "other": (1, 0)}.items()


async def test_a_commit_that_names_an_epoch_begins_a_group_too(coordinators: Coordinators) -> None:
    one, *_ = await serving(coordinators, total_groups=1)
    for number, outcome in enumerate((OK, EXHAUSTED)):
        request = commit(group_of(number), 1)
        request.generation, request.member_epoch = 0, -1
        assert await status(one.stub.OffsetCommit(request, timeout=60)) == outcome
    assert (await shown(one))["one"] == (1, 1)


async def test_what_is_deleted_leaves_room_and_what_never_was_takes_none(coordinators: Coordinators) -> None:
    one, *_ = await serving(coordinators, total_groups=2)
    assert await commits(one, 3) == [OK, OK, EXHAUSTED]
    await one.stub.DeleteGroups(
        coordinator_pb2.DeleteGroupsRequest(group_ids=[group_of(0), group_of(1)]), timeout=60
    )

    async def has(groups: int) -> bool:
        return (await shown(one))["one"][0] == groups

    await until(partial(has, 0), "room after groups were deleted")
    assert await commits(one, 1, begin=2) == [OK]
    refused = commit(group_of(3), 1)
    refused.topics[0].partitions[0].metadata = "m" * 5_000  # more than may be: nothing is made
    await one.stub.OffsetCommit(refused, timeout=60)
    await until(partial(has, 1), "nothing counts that never was")


async def test_a_group_that_is_made_again_at_once_still_counts(coordinators: Coordinators) -> None:
    """Both calls are on their way together: the second comes while the group is there."""
    one, *_ = await serving(coordinators, total_groups=2)

    async def has(groups: int) -> bool:
        return (await shown(one))["one"][0] == groups

    for there, name in enumerate((group_of(0, 0), group_of(0, 1))):
        found: list[Any] = []
        while found != [(error_code.NONE, 2)]:  # else the commit came before the deletion
            await until(partial(has, there), "room for the group")
            assert await one.commit(name, 1) == error_code.NONE
            delete = coordinator_pb2.DeleteGroupsRequest(group_ids=[name])
            _, code = await asyncio.gather(one.stub.DeleteGroups(delete, timeout=60), one.commit(name, 2))
            assert code == error_code.NONE
            found = await one.fetch(name)
    await asyncio.sleep(3)  # more than a group may be missing
    assert (await shown(one))["one"] == (2, 0)
    assert await one.fetch(group_of(0, 0), group_of(0, 1)) == [(error_code.NONE, 2)] * 2
    assert await commits(one, 1, begin=4 * 2) == [EXHAUSTED]


async def test_groups_of_a_prefix_count_whoever_began_them_also_after_a_load(
    coordinators: Coordinators, tmp_path: Path
) -> None:
    (tmp_path / "quotas.toml").write_text(OF_PREFIX)
    one, other, _ = await serving(coordinators, file=tmp_path / "quotas.toml")
    assert await commits(one, 2) + await commits(other, 2, begin=2) == [OK, OK, OK, EXHAUSTED]
    assert await other.commit("another", 1) == error_code.NONE

    await kill(coordinators.running[0])
    one, other, _ = await serving(coordinators, "b", file=tmp_path / "quotas.toml")

    async def counted() -> bool:
        return (await shown(one)).get("g") == (3, 0)

    await until(counted, "what was loaded counts")
    assert await commits(one, 4) == [OK, OK, OK, EXHAUSTED]

    (tmp_path / "quotas.toml").write_text(OF_PREFIX.replace("3", "5"))

    async def has_room() -> bool:
        return await commits(one, 1, begin=3) == [OK]

    await until(has_room, "the changed quota")
    await until(lambda: _counts(one, 4), "all count again")
    assert await commits(one, 2, begin=4) == [OK, EXHAUSTED]


async def _counts(caller: Caller, number: int) -> bool:
    return (await shown(caller))["g"][0] == number


async def test_a_loaded_group_counts_for_its_first_member(coordinators: Coordinators) -> None:
    one, _, nobody = await serving(coordinators, total_groups=2)
    await stable(one, group_of(0))
    await stable(nobody, group_of(1))
    assert await commits(one, 1, begin=2) == [OK]
    assert await commits(one, 1, begin=3) == [EXHAUSTED]

    await kill(coordinators.running[0])
    one, _, nobody = await serving(coordinators, "b", total_groups=2)

    async def counted() -> bool:
        await commits(nobody, 1, begin=1)  # who did not call lately is not shown
        await commits(one, 1)
        return (await shown(one)).items() >= {"one": (1, 0), "127.0.0.1": (1, 0)}.items()

    await until(counted, "groups with members count for them, one without for nobody")


async def test_the_groups_of_a_caller_have_so_many_members_of_either_kind(coordinators: Coordinators) -> None:
    one, other, _ = await serving(coordinators, total_members=2)
    classic = await stable(one, group_of(0))
    incremental = IncrementalCaller(one, group_of(1))
    assert not (await incremental.join()).error_code
    with pytest.raises(grpc.aio.AioRpcError, match="one has the quota of 2 members of its groups") as refused:
        await one.join(group_of(2))
    assert "MUSTER_QUOTA_TOTAL_MEMBERS" in (refused.value.details() or "")
    assert dict(refused.value.trailing_metadata() or ())["grpc-retry-pushback-ms"]
    assert await status(IncrementalCaller(other, group_of(1)).join()) == EXHAUSTED, "a group counts for one"
    assert await status(other.join(group_of(0), group_instance_id="i")) == EXHAUSTED
    assert not (await IncrementalCaller(other, group_of(2)).join()).error_code, "its own"

    assert not (await incremental.beat()).error_code
    assert not (await incremental.join()).error_code, "a member joins anew"
    assert not (await one.join(group_of(0), classic.member_id)).error_code
    assert (await shown(one, "total_members"))["one"] == (2, 3)
    await incremental.leave()
    assert not (await one.join(group_of(3))).error_code, "there is room at once"
    assert await status(incremental.join()) == EXHAUSTED


async def test_the_groups_of_a_caller_have_so_many_committed_partitions(coordinators: Coordinators) -> None:
    one, other, _ = await serving(coordinators, total_partitions=3)
    assert await commits_in(one, group_of(0), 0, 1, 2, 3) == EXHAUSTED, "nothing of it was done"
    assert await commits_in(one, group_of(0), 0, 1) == OK
    assert await commits_in(one, group_of(1), 0) == OK
    with pytest.raises(grpc.aio.AioRpcError, match="3 committed partitions of its groups in all") as refused:
        await one.commit(group_of(2), 1)
    assert "MUSTER_QUOTA_TOTAL_PARTITIONS" in (refused.value.details() or "")
    assert await commits_in(one, group_of(0), 0, 1) == OK, "where it has them"
    assert await commits_in(other, group_of(0), 0, 5) == EXHAUSTED, "a group counts for one"
    assert await commits_in(other, group_of(2), 0, 1, 2) == OK, "its own"
    assert await shown(one, "total_partitions") == {"one": (3, 3), "other": (3, 0)}

    gone = common_pb2.TopicPartitions(topic="t", partitions=[1])
    await one.stub.OffsetDelete(
        coordinator_pb2.OffsetDeleteRequest(group_id=group_of(0), topics=[gone]), timeout=60
    )
    assert await commits_in(one, group_of(1), 7) == OK, "there is room at once"
    await one.stub.DeleteGroups(coordinator_pb2.DeleteGroupsRequest(group_ids=[group_of(1)]), timeout=60)
    assert await commits_in(one, group_of(0), 8, 9) == OK


async def test_calls_at_the_same_time_bring_no_more_than_one_after_the_other(
    coordinators: Coordinators, tmp_path: Path
) -> None:
    """Also in groups of several shards, and where the caller and the prefix have totals."""
    (tmp_path / "quotas.toml").write_text(OF_PREFIX.replace("total_groups = 3", "total_partitions = 6"))
    one, *_ = await serving(coordinators, total_members=3, file=tmp_path / "quotas.toml")
    session = await Session(one.channel).hello()
    joins = [join_of(group_of(number % 2)) for number in range(20)]
    commits = [commit(group_of(2 + number % 2), 1) for number in range(20)]
    for number, request in enumerate(commits):
        request.topics[0].partitions[0].partition = number
    frames = [
        call(number, consumer_group_heartbeat=one, connection=number) for number, one in enumerate(joins, 1)
    ]
    await session.send(*frames, *(call(number, offset_commit=one) for number, one in enumerate(commits, 21)))
    replies = await session.until(lambda: len(session.said("reply")) == 40 and session.said("reply"))
    well = Counter(reply.WhichOneof("response") for reply in replies)
    assert well == {"consumer_group_heartbeat": 3, "offset_commit": 6, "refused": 31}
    assert (await shown(one, "total_members"))["one"][0] == 3
    assert (await shown(one, "total_partitions"))["g"][0] == 6
    await session.close()


async def test_calls_that_wait_for_a_load_count_when_that_is_over(
    coordinators: Coordinators, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LIM-61, LIM-62: nobody knew when they came what there is, so nothing of them counted."""
    one, *_ = await serving(coordinators)
    assert await commits_in(one, group_of(0), 0, 1) == OK
    await kill(coordinators.running[0])
    go_on, load = asyncio.Event(), Loader.load

    async def slow(loader: Loader, image: LogImage, *rest: Any) -> None:
        if image.shard == 0:
            await go_on.wait()
        await load(loader, image, *rest)

    monkeypatch.setattr(Loader, "load", slow)
    quotas = QuotaSettings.model_validate({**OFF, "total_groups": 3, "total_partitions": 5})
    again = await coordinators.add(
        "b", quotas=quotas, trust=NamedCallers.with_rules(None), load_wait_ms=5_000
    )
    await until(lambda: 0 in again.shards and again.shards[0].phase is Phase.LOADING, "a load")
    one = coordinators.caller(again, "one")
    asked = [commits_in(one, group_of(0, index), index % 2, 2 + index % 2) for index in range(10)]
    session = await Session(one.channel).hello()
    await session.send(
        *(call(number, offset_commit=commit(group_of(0, 100 + number), 1)) for number in range(1, 6))
    )
    waiting = asyncio.gather(*asked)
    await asyncio.sleep(0.5)
    go_on.set()
    outcomes = Counter(await waiting)
    replies = await session.until(lambda: len(session.said("reply")) == 5 and session.said("reply"))
    outcomes.update(EXHAUSTED if reply.WhichOneof("response") == "refused" else OK for reply in replies)
    await session.close()
    assert outcomes[OK] + outcomes[EXHAUSTED] == 15
    assert outcomes[OK] <= 4, "three that are new, and the one that nobody has begun now"
    assert 1 <= (await shown(one))["one"][0] <= 3
    assert (await shown(one, "total_partitions"))["one"][0] <= 5


async def test_members_that_wait_for_a_join_phase_count_once(coordinators: Coordinators) -> None:
    one, *_ = await serving(coordinators, total_members=3)
    first = await stable(one, group_of(0))
    others = [asyncio.ensure_future(one.join(group_of(0), group_instance_id=name)) for name in "xy"]

    async def are_there() -> bool:
        return (await shown(one, "total_members"))["one"][0] == 3

    await until(are_there, "they wait for the first member")
    assert not any(task.done() for task in others)
    assert await status(one.join(group_of(1))) == EXHAUSTED
    leaving = coordinator_pb2.LeaveGroupRequest.Member(member_id=first.member_id)
    await one.stub.LeaveGroup(
        coordinator_pb2.LeaveGroupRequest(group_id=group_of(0), members=[leaving]), timeout=60
    )
    assert not any(answer.error_code for answer in await asyncio.gather(*others))
    assert not (await one.join(group_of(1))).error_code, "there is room for one"
    assert await status(one.join(group_of(1), group_instance_id="z")) == EXHAUSTED


def join_of(group_id: str) -> ConsumerGroupHeartbeatRequest:
    """A join of a new member of an incremental group."""
    request = ConsumerGroupHeartbeatRequest(group_id=group_id, member_id=str(uuid4()), member_seq=1)
    request.process_id, request.rebalance_timeout_ms = uuid4().bytes, 30_000
    request.topics.names.append("t")
    request.owned.SetInParent()
    return request


async def test_members_and_partitions_of_a_prefix_count_also_after_a_load(
    coordinators: Coordinators, tmp_path: Path
) -> None:
    file = tmp_path / "quotas.toml"
    file.write_text(OF_PREFIX.replace("total_groups = 3", "total_members = 2\ntotal_partitions = 2"))
    one, other, _ = await serving(coordinators, file=file)
    await stable(one, group_of(0))
    assert not (await IncrementalCaller(other, group_of(1)).join()).error_code
    assert await commits_in(one, group_of(2), 0, 1) == OK

    async def refused_at_both() -> bool:
        joined = await status(IncrementalCaller(one, group_of(3)).join())
        return (joined, await commits_in(other, group_of(3), 0)) == (EXHAUSTED, EXHAUSTED)

    assert await refused_at_both()
    assert not (await IncrementalCaller(other, "another").join()).error_code

    await kill(coordinators.running[0])
    one, other, _ = await serving(coordinators, "b", file=file)
    await until(lambda: _has(one, "total_members", (2, 0)), "members that were loaded count")
    await until(lambda: _has(one, "total_partitions", (2, 0)), "partitions that were loaded count")
    assert await refused_at_both()


async def _has(caller: Caller, quota: str, expected: tuple[int, int]) -> bool:
    return (await shown(caller, quota)).get("g") == expected
