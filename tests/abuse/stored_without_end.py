"""One client commits 4 KiB of metadata for each of 500 partitions at a time, and never stops.

That is as much as the log takes of a commit (`MUSTER_GROUP_COMMIT_MAX_BYTES`); now and then it asks for more.

Must hold: it ends at the bound of a group (`MUSTER_GROUP_MAX_OFFSET_BYTES`), before the memory of a
coordinator or of the log's nodes does.
"""

from functools import partial

from abuse.caller import admitted, commit, connection, groups_stub, name_of
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

PARTITIONS = 500
TOO_MANY = 900
METADATA = "m" * 4_096
TOO_MUCH_MB = 300
"""The default bound is 256 MiB."""


async def attack(target: Target) -> str:
    [group_id] = await target.groups(1, "endless")
    begins()
    stored_bytes = calls = 0
    async with connection(target.owner) as channel:
        while stored_bytes < TOO_MUCH_MB << 20:
            calls += 1
            is_too_large = calls % 10 == 0
            first = stored_bytes // len(METADATA)
            partitions = [
                coordinator_pb2.OffsetCommitRequest.Partition(partition=number, offset=1, metadata=METADATA)
                for number in range(first, first + (TOO_MANY if is_too_large else PARTITIONS))
            ]
            request = commit(group_id, partitions)
            answer = await admitted(partial(groups_stub(channel).OffsetCommit, request, timeout=30), 60)
            code = answer.topics[0].partitions[0].error_code
            if is_too_large:
                if code != common_pb2.ERROR_CODE_INVALID_COMMIT_OFFSET_SIZE:
                    raise Broken(f"{TOO_MANY} partitions at a time were answered {name_of(code)}")
            elif code:
                return f"after {stored_bytes >> 20} MB a commit was answered {name_of(code)}"
            else:
                stored_bytes += PARTITIONS * len(METADATA)
    raise Broken(f"a caller stored {stored_bytes >> 20} MB in one group, and might go on")


if __name__ == "__main__":
    stage(attack, coordinator_mb=1_500, in_memory=True)
