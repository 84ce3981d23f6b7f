"""What the leader of a group hands in: who is to own what."""

from collections.abc import Iterable, Sequence
from itertools import chain

from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1.coordinator_pb2 import SyncGroupRequest

from muster_core.state.published import TopicPartition, partitions_of, read_assignment

_NOTHING: Sequence[common_pb2.TopicPartitions] = ()


class Plan:
    """The assignments of a generation; those that are published ones are read here, once.

    Args:
        request: the leader's call.

    Attributes:
        assignments: bytes by member id.
        partitions: how many partitions are given, as far as the bytes are published assignments.
    """

    def __init__(self, request: SyncGroupRequest) -> None:
        self.assignments: dict[str, bytes] = {}
        self.partitions = 0
        self._given: dict[str, Sequence[common_pb2.TopicPartitions]] = {}
        for entry in request.assignments:
            message = read_assignment(entry.assignment)
            given = _NOTHING if message is None else message.partitions
            self.assignments[entry.member_id] = entry.assignment
            self._given[entry.member_id] = given
            for topic in given:
                self.partitions += len(topic.partitions)

    def given(self, member_id: str) -> Sequence[common_pb2.TopicPartitions]:
        """What a member is given; nothing where its bytes are foreign."""
        return self._given.get(member_id, _NOTHING)

    def topics(self, member_ids: Iterable[str]) -> set[str]:
        """The topics of which members are given partitions."""
        return {entry.topic for member_id in member_ids for entry in self.given(member_id)}

    def given_twice(self, member_ids: Iterable[str]) -> TopicPartition | None:
        """A partition that two members are given, or one twice; None: there is none."""
        given = [self.given(member_id) for member_id in member_ids]
        if len(set(chain.from_iterable(map(partitions_of, given)))) == self.partitions:
            return None
        seen: set[TopicPartition] = set()
        for partition in chain.from_iterable(map(partitions_of, given)):
            if partition in seen:
                return partition
            seen.add(partition)
        return None
