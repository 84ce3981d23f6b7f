"""Leaders of small groups hand in plans of a megabyte, which give a million partitions each.

Must hold: a plan that gives more partitions than it may is refused, and W does not notice.
"""

from collections.abc import Iterator
from itertools import islice

from abuse.caller import connection, groups_stub, join, name_of
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

GROUPS = 4
ROUNDS = 5
PLAN_BYTES = 1_000_000


def plan() -> bytes:
    """An assignment of as many partitions as fit: 128 of each topic take a byte each."""
    names = (chr(33 + number // 90) + chr(33 + number % 90) for number in range(90 * 90))
    entries = [common_pb2.TopicPartitions(topic=name, partitions=range(128)) for name in _some(names)]
    return common_pb2.Assignment(version=1, partitions=entries).SerializeToString()


def _some(names: Iterator[str]) -> Iterator[str]:
    return islice(names, PLAN_BYTES // 140)


async def attack(target: Target) -> str:
    groups = await target.groups(GROUPS, "plan")
    assignment = plan()
    said: set[str] = set()
    async with connection(target.owner) as channel:
        stub = groups_stub(channel)
        leaders: list[tuple[str, str, int]] = []
        for group_id in groups:
            request = join(group_id, session_timeout_ms=1_800_000)
            request.member_id = (await stub.JoinGroup(request, timeout=30)).member_id
            joined = await stub.JoinGroup(request, timeout=30)
            leaders.append((group_id, joined.member_id, joined.generation))
        begins()
        for _ in range(ROUNDS):
            for group_id, member_id, generation in leaders:
                sync = coordinator_pb2.SyncGroupRequest(
                    group_id=group_id, generation=generation, member_id=member_id
                )
                sync.assignments.add(member_id=member_id, assignment=assignment)
                answer = await stub.SyncGroup(sync, timeout=120)
                said.add(f"{name_of(answer.error_code)} {answer.error_message!r}")
    if not all(text.startswith("INVALID_REQUEST 'assignments: ") for text in said):
        raise Broken(f"plans of {len(assignment):,} bytes: {sorted(said)}")
    return f"{GROUPS * ROUNDS} plans of {len(assignment):,} bytes: {sorted(said)}"


if __name__ == "__main__":
    stage(attack)
