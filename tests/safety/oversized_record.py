"""Five commits of 10,000 topics, then a deletion, then an expiry: no record could name what goes.

Calls within all documented limits must not fail a shard: the groups go, and the shard serves its other groups
here and at the next owner.
"""

from coordinator.coordinator_cluster import Caller, Coordinators, group_of, owns
from coordinator.real_cluster import on_one_node
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_coordinator.coordinator import Coordinator
from muster_coordinator.settings import GroupSettings
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

SHARDS = 2
COMMITS = 5
TOPICS = 9_999
DELETED, EXPIRED, BYSTANDER = (group_of(0, number, SHARDS) for number in range(3))
RETRIABLE = {common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE}  # the lease, on a machine that is busy
DONE = -1
RETENTION = GroupSettings(
    initial_rebalance_delay_ms=0, offsets_retention_ms=1_000, retention_check_interval_ms=2_000
)


async def main() -> None:
    async with on_one_node(SHARDS) as coordinators:
        await attack(coordinators)


async def attack(coordinators: Coordinators) -> None:
    first = await coordinators.add("c-1")
    await owns(first, SHARDS)
    caller = coordinators.caller(first)
    await commit_many(caller, DELETED)
    await delete(caller)
    await commit_many(caller, EXPIRED)
    await serves(caller, "the first owner", 1)
    await first.abort()

    second = await coordinators.add("c-2", group=RETENTION)
    await owns(second, SHARDS)
    caller = coordinators.caller(second)
    await serves(caller, "the next owner", 2)
    await until(lambda: not second.shards[0].serving or is_gone(second, EXPIRED), "the expiry")
    await serves(caller, "the next owner after the expiry", 3)
    if second.shards[0].phase.value != "serving":
        raise Broken(f"the shard is {second.shards[0].phase.value}")
    report(f"{COMMITS * TOPICS} offsets were deleted, as many expired, and the shard was served on")


async def delete(caller: Caller) -> None:
    """Deletes the first group; tries again as long as it is told to."""

    async def again() -> int:
        answer = await caller.stub.DeleteGroups(
            coordinator_pb2.DeleteGroupsRequest(group_ids=[DELETED]), timeout=60
        )
        code: int = answer.results[0].error_code
        return 0 if code in RETRIABLE else code or DONE

    code = await until(again, "an answer to the deletion")
    if code not in (DONE, common_pb2.ERROR_CODE_GROUP_ID_NOT_FOUND):  # not found: the first try landed
        raise Broken(f"the deletion was answered {code}")


async def commit_many(caller: Caller, group_id: str) -> None:
    for number in range(COMMITS):
        request = coordinator_pb2.OffsetCommitRequest(group_id=group_id, generation=-1)
        for index in range(TOPICS):
            request.topics.add(name=f"{number}-{index}-".ljust(200, "x")).partitions.add(offset=1)

        async def again(request: coordinator_pb2.OffsetCommitRequest = request) -> bool:
            answer = await caller.stub.OffsetCommit(request, timeout=60)
            return bool(answer.topics[0].partitions[0].error_code == common_pb2.ERROR_CODE_NONE)

        await until(again, "a commit of many topics")


async def serves(caller: Caller, who: str, offset: int) -> None:
    async def committed() -> bool:
        return await caller.commit(BYSTANDER, offset) == common_pb2.ERROR_CODE_NONE

    try:
        await until(committed, "a commit of a bystander")
    except Exception as error:
        raise Broken(f"{who} does not serve the shard's other groups: {error!r}") from error


def is_gone(coordinator: Coordinator, group_id: str) -> bool:
    core = coordinator.shards[0].core
    return core is not None and group_id not in core.groups


if __name__ == "__main__":
    run(main)
