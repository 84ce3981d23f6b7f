"""A leader keeps 9,000 partitions of a topic with a very long name: no record holds their tokens (LIM-01).

An assignment names the topic once, its record once for each partition that keeps an older token. With a name
of 1,000 characters that is more than a record may have, with one of 8,000 more than a message to the log.
What must hold: the leader is refused or served, and the shard serves its other groups, here and at the next
owner. Control: with a name of 100 characters the assignment is stored.
"""

from functools import partial

import grpc
from abuse.caller import name_of
from coordinator.coordinator_cluster import Caller, Coordinators, group_of, owns
from coordinator.real_cluster import on_one_node
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

SHARDS = 2
PARTITIONS = 9_000
CONTROL, *TOO_LONG = NAME_LENGTHS = (100, 1_000, 8_000)
BYSTANDER = group_of(0, len(NAME_LENGTHS), SHARDS)
ROUNDS = 2


async def main() -> None:
    async with on_one_node(SHARDS) as coordinators:
        await attack(coordinators)


async def attack(coordinators: Coordinators) -> None:
    first = await coordinators.add("c-1")
    await owns(first, SHARDS)
    caller = coordinators.caller(first)
    codes = [
        await keep_much(caller, group_of(0, number, SHARDS), "t" * length)
        for number, length in enumerate(NAME_LENGTHS)
    ]
    await serves(caller, "the first owner", 1)
    await first.abort()
    second = await coordinators.add("c-2")
    await owns(second, SHARDS)
    await serves(coordinators.caller(second), "the next owner", 2)
    names = [name_of(code) for code in codes]
    told = f"names of {NAME_LENGTHS} characters: the leader was answered {names}"
    if codes[0] != common_pb2.ERROR_CODE_NONE or common_pb2.ERROR_CODE_NONE in codes[1:]:
        raise Broken(told)
    report(told)


async def keep_much(caller: Caller, group_id: str, topic: str) -> int:
    """A member is given all partitions and keeps them; gives what it was answered at last."""
    all_of_it = common_pb2.TopicPartitions(topic=topic, partitions=range(PARTITIONS))
    assignment = common_pb2.Assignment(version=1, partitions=[all_of_it]).SerializeToString()
    member_id, code = "", 0
    for number in range(ROUNDS):
        subscription = common_pb2.Subscription(version=1, topics=[topic], keeps_owned=True)
        if number:
            subscription.owned_partitions.append(all_of_it)
        metadata = subscription.SerializeToString()
        joined = await caller.join(
            group_id, member_id, protocols=[coordinator_pb2.GroupProtocol(name="range", metadata=metadata)]
        )
        if joined.error_code:
            raise Broken(f"join {number} was answered {joined.error_code}: {joined.error_message}")
        member_id = joined.member_id
        entry = coordinator_pb2.SyncGroupRequest.Assignment(member_id=member_id, assignment=assignment)
        request = coordinator_pb2.SyncGroupRequest(
            group_id=group_id, member_id=member_id, generation=joined.generation, assignments=[entry]
        )
        try:
            code = await until(partial(synced, caller, request), "an answer to the leader") - 1
        except AssertionError as error:
            raise Broken(f"the leader of {group_id} is told again and again to try again: {error}") from error
    return code


async def synced(caller: Caller, request: coordinator_pb2.SyncGroupRequest) -> int:
    """What a leader is answered, plus one; 0: it is to try again, as the lease lapsed on a busy machine."""
    code: int = (await caller.stub.SyncGroup(request, timeout=30)).error_code
    return 0 if code == common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE else code + 1


async def serves(caller: Caller, who: str, offset: int) -> None:
    """Raises `Broken` unless another group of the shard can commit."""

    async def committed() -> bool:
        return await caller.commit(BYSTANDER, offset) == common_pb2.ERROR_CODE_NONE

    try:
        await until(committed, "a commit of a bystander")
    except (AssertionError, grpc.aio.AioRpcError) as error:
        raise Broken(f"{who} does not serve the shard's other groups: {error!r}") from error


if __name__ == "__main__":
    run(main)
