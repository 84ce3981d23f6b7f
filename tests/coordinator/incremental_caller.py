"""Members of incremental groups that make plain calls to a coordinator."""

from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from coordinator.coordinator_cluster import Caller
from kit.lives.incremental_shard import held_in
from muster_core.error_code import ErrorCode
from muster_core.incremental.partitions import TopicPartition, by_topic
from muster_core.position import NOWHERE, Position
from muster_protos.muster.v1 import coordinator_pb2, incremental_pb2

JOIN, LEAVE, AWAY = 0, -1, -2


class IncrementalCaller:
    """A member whose requests name its join and what it has heard.

    Args:
        caller: makes the calls; may be put in the place of one to another coordinator.
        group_id: its group.
        fields: what each of its requests has besides.

    Attributes:
        owned: what it works on, with tokens.
        epoch: as it was told last.
    """

    def __init__(self, caller: Caller, group_id: str, **fields: Any) -> None:
        self.caller = caller
        self.group_id = group_id
        self.member_id = str(uuid4())
        self.epoch = 0
        self.owned: dict[TopicPartition, Position] = {}
        self._fields = fields
        self._process_id = uuid4().bytes
        self._seq = 0
        self._version = NOWHERE

    async def join(
        self, topics: Iterable[str] = ("t",), **fields: Any
    ) -> incremental_pb2.ConsumerGroupHeartbeatResponse:
        """Joins under a new number."""
        self._seq, self._version, self.owned = self._seq + 1, NOWHERE, {}
        names = incremental_pb2.ConsumerGroupHeartbeatRequest.TopicNames(names=topics)
        usual: dict[str, Any] = {"topics": names, "rebalance_timeout_ms": 30_000}
        return await self._ask(JOIN, (), **usual | fields)

    async def beat(self, **fields: Any) -> incremental_pb2.ConsumerGroupHeartbeatResponse:
        """Says that it lives and works on what it was given."""
        return await self._ask(self.epoch, self.owned, **fields)

    async def leave(self, epoch: int = LEAVE) -> incremental_pb2.ConsumerGroupHeartbeatResponse:
        """Leaves, for good or for a while."""
        return await self._ask(epoch, None)

    async def commit(self, offset: int, partition: TopicPartition, **fields: Any) -> ErrorCode:
        """Commits one offset; returns what became of it."""
        place = coordinator_pb2.OffsetCommitRequest.Partition(partition=partition[1], offset=offset)
        usual: dict[str, Any] = {"group_id": self.group_id, "member_id": self.member_id}
        request = coordinator_pb2.OffsetCommitRequest(
            **usual | self._secret() | {"member_epoch": self.epoch} | fields
        )
        request.topics.add(name=partition[0], partitions=[place])
        answer = await self.caller.stub.OffsetCommit(request, timeout=60)
        code: ErrorCode = answer.topics[0].partitions[0].error_code
        return code

    def _secret(self) -> dict[str, Any]:
        return {name: value for name, value in self._fields.items() if name == "member_secret"}

    async def _ask(
        self, epoch: int, owned: Iterable[TopicPartition] | None, **fields: Any
    ) -> incremental_pb2.ConsumerGroupHeartbeatResponse:
        usual: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": epoch,
            "member_seq": self._seq,
            "process_id": self._process_id,
            "version": self._version.to_proto(),
        }
        request = incremental_pb2.ConsumerGroupHeartbeatRequest(**usual | self._fields | fields)
        if owned is not None:
            request.owned.SetInParent()
            request.owned.topics.extend(by_topic(owned))
        answer: incremental_pb2.ConsumerGroupHeartbeatResponse = (
            await self.caller.stub.ConsumerGroupHeartbeat(request, timeout=60)
        )
        if not answer.error_code and epoch >= 0:
            self.epoch = answer.member_epoch
            if answer.HasField("assignment"):
                self._version, self.owned = Position.from_proto(answer.version), held_in(answer)
        return answer


async def settled(*members: IncrementalCaller) -> None:
    """Lets members make heartbeats until nothing moves any more."""
    for _ in range(2 * len(members) + 2):
        for member in members:
            assert not (await member.beat()).error_code
