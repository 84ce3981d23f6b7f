"""What groups take of a process, beside what a shard counts that they hold.

python -m kit.logs.measured_holdings KIND      bytes taken, bytes counted
"""

import gc
import sys
from pathlib import Path

from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core.config import GroupConfig
from muster_core.events import Effects
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

_LONG_MS = 1_000_000
_PAGE_BYTES = 4_096


def _offsets(shard: VirtualShard) -> None:
    for topic in range(50):
        request = coordinator_pb2.OffsetCommitRequest(group_id="g", generation=-1)
        entry = request.topics.add(name=f"topic-{topic}")
        for number in range(1_000):
            entry.partitions.add(partition=number, offset=1_000_000_000 + number, metadata=f"{number}" * 5)
        shard.ask(request)


def _ids(shard: VirtualShard) -> None:
    for number in range(20_000):
        shard.ask(VirtualMember(shard, f"worker-{number}").join_request())


def _members(shard: VirtualShard) -> None:
    members = [VirtualMember(shard, f"worker-{number}") for number in range(3_000)]
    for number, member in enumerate(members):
        member.protocols = [("range", b"%05d" % number * 40)]
        member.session_timeout_ms = member.rebalance_timeout_ms = _LONG_MS
        answer = shard.ask(member.join_request())
        assert isinstance(answer, coordinator_pb2.JoinGroupResponse)
        member.member_id = answer.member_id
    for member in members:
        shard.send(member.join_request())
    shard.advance(10)
    _assign(shard, "g", b"x" * 50)


def _groups(shard: VirtualShard) -> None:
    for number in range(1_500):
        member = VirtualMember(shard, "worker", f"group-{number}", instance="i")
        member.session_timeout_ms = member.rebalance_timeout_ms = _LONG_MS
        shard.send(member.join_request())
        shard.advance(1)
        _assign(shard, member.group, _plan(range(4)))


def _generations(shard: VirtualShard) -> None:
    for number in range(50):
        member = VirtualMember(shard, "worker", f"group-{number}", instance="i")
        member.session_timeout_ms = member.rebalance_timeout_ms = _LONG_MS
        for generation in range(60):
            member.protocols = [("range", b"%d" % generation)]
            shard.send(member.join_request())
            shard.advance(1)
            member.member_id = shard.shard.groups[member.group].leader
            _assign(shard, member.group, _plan(range(generation % 2, 20, 2)))


def _partitions(shard: VirtualShard) -> None:
    member = VirtualMember(shard, "worker", instance="i")
    member.session_timeout_ms = _LONG_MS
    shard.send(member.join_request())
    shard.advance(1)
    _assign(shard, "g", _plan(range(200_000)))
    shard.advance(1_000)  # it is gone through in turns


def _plan(partitions: range) -> bytes:
    topics = [common_pb2.TopicPartitions(topic="t", partitions=partitions)]
    return common_pb2.Assignment(version=1, partitions=topics).SerializeToString()


def _assign(shard: VirtualShard, group_id: str, assignment: bytes) -> None:
    group = shard.shard.groups[group_id]
    request = coordinator_pb2.SyncGroupRequest(
        group_id=group_id, member_id=group.leader, generation=group.generation
    )
    if group.members[group.leader].is_static:
        request.group_instance_id = group.members[group.leader].group_instance_id
    for member_id in group.members:
        request.assignments.add(member_id=member_id, assignment=assignment)
    shard.send(request)


KINDS = {
    "offsets": _offsets,
    "ids": _ids,
    "members": _members,
    "groups": _groups,
    "generations": _generations,
    "partitions": _partitions,
}


class _Forgetful(VirtualShard):
    """Keeps nothing of what it was told or has told, but the shard."""

    def _carry_out(self, effects: Effects) -> None:
        super()._carry_out(effects)
        del self.log[:-1], self.appends[:], self.pushes[:]


def _taken_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def main(kind: str) -> None:
    """Fills a shard and prints both."""
    shard = _Forgetful(GroupConfig(initial_rebalance_delay_ms=0, max_pending_members=1_000_000))
    before = _taken_bytes()
    KINDS[kind](shard)
    shard.answers.clear()
    shard.answered.clear()
    print(_taken_bytes() - before, shard.shard.held_bytes)


if __name__ == "__main__":
    main(sys.argv[1])
