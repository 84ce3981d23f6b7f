"""A commit waits for a log that is silent, and is retried before and after it was given up (GRP-31).

A real core in virtual time. Each of the three calls must be answered: the retry that came too late for the
wait of the first one as well.
"""

from kit.lives.virtual_shard import VirtualMember, VirtualShard, settled
from kit.programs import Broken, report, run
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

TRIED_MS = (0, 1_000, 5_500)
PATIENCE_MS = 600_000
STEP_MS = 500
RETRIABLE = common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE


async def main() -> None:
    """Three tries of one commit, and when each was answered."""
    shard = VirtualShard()
    [member] = settled(shard, "m")
    shard.auto_ack = False
    began_ms = shard.now_ms
    calls = []
    for tried_ms in TRIED_MS:
        shard.advance(began_ms + tried_ms - shard.now_ms)
        calls.append(shard.send(member.commit_request(1, seq=1)))
    answered_ms = [await_answer(shard, member, call) - began_ms for call in calls]
    codes = [code_of(shard, call) for call in calls]
    if codes != [RETRIABLE] * len(calls):
        raise Broken(f"tries of a commit that is not stored were answered {codes}")
    report(f"tries after {TRIED_MS} ms were answered by {answered_ms} ms, all to be retried")


def await_answer(shard: VirtualShard, member: VirtualMember, call: int) -> int:
    """Lets time pass until a call is answered; gives the virtual time."""
    waited_ms = 0
    while shard.is_parked(call):
        if waited_ms >= PATIENCE_MS:
            raise Broken(f"a retry of an overdue commit was not answered within {PATIENCE_MS // 1_000} s")
        shard.advance(STEP_MS)
        member.heartbeat()
        waited_ms += STEP_MS
    return shard.now_ms


def code_of(shard: VirtualShard, call: int) -> int:
    """What a commit was answered."""
    answer = shard.answer(call)
    assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code


if __name__ == "__main__":
    run(main)
