"""One group gets 100,000 offsets and 40 MB of metadata, and is fetched whole again and again.

Must hold: what is too large for an answer is refused with the limit, pages give everything once, and neither
the commits nor the fetches keep W from its work.
"""

import time

import grpc
from abuse.caller import GROUPS, commit, connection, groups_stub, raw_when_admitted
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import coordinator_pb2

PARTITIONS = 100_000
AT_ONCE = 10_000
LONG = 9_900
LONG_AT_ONCE = 450
METADATA = "m" * 4_096
FETCHED_S = 10.0
PAGE = 1_000


async def attack(target: Target) -> str:
    many, long = await target.groups(2, "offsets")
    partition = coordinator_pb2.OffsetCommitRequest.Partition
    async with connection(target.owner) as channel:
        stub = groups_stub(channel)
        begins()
        for first in range(0, PARTITIONS, AT_ONCE):
            offsets = [partition(partition=n, offset=1) for n in range(first, first + AT_ONCE)]
            await stub.OffsetCommit(commit(many, offsets), timeout=30)
        for first in range(0, LONG, LONG_AT_ONCE):
            numbers = range(first, first + LONG_AT_ONCE)
            offsets = [partition(partition=n, offset=1, metadata=METADATA) for n in numbers]
            await stub.OffsetCommit(commit(long, offsets), timeout=30)
        fetched = await fetch_whole(channel, long, many)
        seen = await pages(channel, long)
    if seen != list(range(LONG)):
        raise Broken(f"pages gave {len(seen)} offsets of {LONG}, {len(set(seen))} of them different")
    return f"{PARTITIONS + LONG:,} offsets, {fetched}, all {LONG:,} long ones in pages"


async def fetch_whole(channel: grpc.aio.Channel, long: str, many: str) -> str:
    """Asks for all offsets of each group, one call at a time."""
    refused = answered = 0
    ends_s = time.monotonic() + FETCHED_S
    while time.monotonic() < ends_s:
        status, _, text = await raw_when_admitted(
            channel, GROUPS + "OffsetFetch", asks(long).SerializeToString(), timeout_s=60
        )
        if status is not grpc.StatusCode.INVALID_ARGUMENT or "bytes" not in text:
            raise Broken(f"40 MB of offsets were answered {status.name} {text!r}")
        refused += 1
        status, body, text = await raw_when_admitted(
            channel, GROUPS + "OffsetFetch", asks(many).SerializeToString(), timeout_s=60
        )
        if status is not grpc.StatusCode.OK:
            raise Broken(f"{PARTITIONS:,} small offsets were answered {status.name} {text!r}")
        found = coordinator_pb2.OffsetFetchResponse.FromString(body).groups[0].topics
        if sum(len(topic.partitions) for topic in found) != PARTITIONS:
            raise Broken("an answer lacks offsets")
        answered += 1
    return f"the large ones refused {refused} times, the small ones fetched {answered} times"


async def pages(channel: grpc.aio.Channel, group_id: str) -> list[int]:
    """The partitions of a group's offsets, a page at a time."""
    found: list[int] = []
    request = asks(group_id)
    request.groups[0].limit = PAGE
    while True:
        status, body, text = await raw_when_admitted(
            channel, GROUPS + "OffsetFetch", request.SerializeToString(), timeout_s=60
        )
        if status is not grpc.StatusCode.OK:
            raise Broken(f"a page was answered {status.name} {text!r}")
        group = coordinator_pb2.OffsetFetchResponse.FromString(body).groups[0]
        found += [partition.partition for topic in group.topics for partition in topic.partitions]
        if not group.more:
            return found
        request.groups[0].after_topic = group.topics[-1].name
        request.groups[0].after_partition = found[-1]


def asks(group_id: str) -> coordinator_pb2.OffsetFetchRequest:
    """For all offsets of a group."""
    return coordinator_pb2.OffsetFetchRequest(
        groups=[coordinator_pb2.OffsetFetchRequest.Group(group_id=group_id)]
    )


if __name__ == "__main__":
    stage(attack, coordinator_mb=700, in_memory=True)
