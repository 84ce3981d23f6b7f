"""Two groups get half a million offsets each, which go one by one, with their topic, or with the group.

Must hold: whatever goes at a time, and however it was put in order before, W does not notice.
"""

import random
from functools import partial
from typing import Any

from abuse.caller import admitted, commit, connection, groups_stub, name_of
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, discovery_pb2, discovery_pb2_grpc

TOPICS = 5
PARTITIONS = 100_000
AT_ONCE = 10_000
PAGE = 1_000


async def attack(target: Target) -> str:
    whole, bare = await target.groups(2, "deleted")
    names = [f"deleted-{number}" for number in range(TOPICS)]
    async with connection(target.owner) as channel, connection(target.servers) as servers:
        stub, topics = groups_stub(channel), discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(servers)
        for name in names:
            topic = discovery_pb2.Topic(name=name, partitions=PARTITIONS)
            await _well(topics.CreateTopic(discovery_pb2.CreateTopicRequest(topic=topic), timeout=60))
        for group in (whole, bare):
            await fill(stub, group, names)
        begins()
        for group in (whole, bare):
            if (first := await page(stub, group)) != list(range(PAGE)):
                raise Broken(f"the first page has {first[:5]}…")
        numbers = random.Random(1).sample(range(PARTITIONS), AT_ONCE // TOPICS)
        some = [common_pb2.TopicPartitions(topic=name, partitions=numbers) for name in names]
        await stub.OffsetDelete(coordinator_pb2.OffsetDeleteRequest(group_id=whole, topics=some), timeout=60)
        gone = frozenset(numbers)
        left = [number for number in range(2 * PAGE) if number not in gone][:PAGE]
        if await page(stub, whole) != left:
            raise Broken("a page after OffsetDelete has other partitions than are left")
        answer = await stub.DeleteGroups(coordinator_pb2.DeleteGroupsRequest(group_ids=[whole]), timeout=60)
        if answer.results[0].error_code:
            raise Broken(f"DeleteGroups was answered {name_of(answer.results[0].error_code)}")
        for name in names:
            await _well(topics.DeleteTopic(discovery_pb2.DeleteTopicRequest(name=name), timeout=60))
        for group in (whole, bare):
            if await page(stub, group):
                raise Broken(f"{group} has offsets of what was deleted")
    return f"two groups with {TOPICS * PARTITIONS:,} offsets came and went"


async def _well(asking: Any) -> None:
    answer = await asking
    if answer.error_code:
        raise Broken(f"a topic was not changed: {name_of(answer.error_code)} {answer.error_message}")


async def fill(stub: Any, group: str, names: list[str]) -> None:
    """Commits in all partitions, in no order."""
    everything = [(name, number) for name in names for number in range(PARTITIONS)]
    random.Random(group).shuffle(everything)
    for begin in range(0, len(everything), AT_ONCE):
        request = commit(group, [], topics=[])
        topics = {name: request.topics.add(name=name) for name in names}
        for name, number in everything[begin : begin + AT_ONCE]:
            topics[name].partitions.add(partition=number, offset=1)
        await admitted(partial(stub.OffsetCommit, request, timeout=60))


async def page(stub: Any, group: str) -> list[int]:
    """Partitions of the first page of a group's offsets."""
    request = coordinator_pb2.OffsetFetchRequest()
    request.groups.add(group_id=group, limit=PAGE)
    found = (await admitted(partial(stub.OffsetFetch, request, timeout=60))).groups[0]
    return [one.partition for topic in found.topics for one in topic.partitions]


if __name__ == "__main__":
    stage(attack, coordinator_mb=1_500)
