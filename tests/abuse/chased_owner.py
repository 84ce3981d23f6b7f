"""A client fetches 9,000 offsets again and again with short deadlines, and follows its group to each owner.

Must hold: answers are cut short when their caller is gone, a group that is named 300 times is refused, and no
coordinator loses its lease over it, so there is nobody to follow.
"""

import time

import grpc
from abuse.caller import GROUPS, commit, connection, groups_stub, raw
from abuse.lab import Target, begins, find, stage
from kit.programs import Broken
from muster_protos.muster.v1 import coordinator_pb2

PARTITIONS = 9_000
REPEATED = 300
CHASED_S = 15.0
DEADLINES_S = (0.02, 0.1, 1.0)
AT_AN_OWNER = 4


async def attack(target: Target) -> str:
    [group_id] = await target.groups(1, "chase")
    async with connection(target.owner) as channel:
        partitions = [
            coordinator_pb2.OffsetCommitRequest.Partition(partition=n, offset=1) for n in range(PARTITIONS)
        ]
        await groups_stub(channel).OffsetCommit(commit(group_id, partitions), timeout=30)
    group = coordinator_pb2.OffsetFetchRequest.Group(group_id=group_id)
    once = coordinator_pb2.OffsetFetchRequest(groups=[group]).SerializeToString()
    repeated = coordinator_pb2.OffsetFetchRequest(groups=[group] * REPEATED).SerializeToString()
    begins()
    ends_s = time.monotonic() + CHASED_S
    owners: set[str] = set()
    answers = cut = refused = 0
    while time.monotonic() < ends_s:
        owner = await find(target.servers, group_id)
        owners.add(owner)
        async with connection(owner) as channel:
            for deadline_s in DEADLINES_S * AT_AN_OWNER:
                status, body, text = await raw(channel, GROUPS + "OffsetFetch", once, timeout_s=deadline_s)
                answers += status is grpc.StatusCode.OK
                cut += status is grpc.StatusCode.DEADLINE_EXCEEDED
                status, body, text = await raw(channel, GROUPS + "OffsetFetch", repeated)
                if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "MUSTER_QUOTA" in text:
                    continue  # what was fetched before counts
                if status is not grpc.StatusCode.INVALID_ARGUMENT or "twice" not in text:
                    raise Broken(f"{REPEATED} times one group: {status.name} {text!r}, {len(body):,} bytes")
                refused += 1
    if len(owners) > 1:
        raise Broken(f"the group was moved while it was fetched: {sorted(owners)}")
    return (
        f"{answers} fetches answered, {cut} given up by their caller, {refused} with a repeated group refused"
    )


if __name__ == "__main__":
    stage(attack, coordinator_mb=400)
