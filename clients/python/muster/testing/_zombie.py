"""Who was stopped, lost its partition, and writes on."""

from collections.abc import Iterable, Mapping

from muster_protos.muster.v1 import coordinator_pb2

from muster._cluster.cluster import Cluster
from muster._cluster.fetching import fetch_committed
from muster._errors import CommitFailed, code_name
from muster._values import Committed, TopicPartition

_TIMEOUT_MS = 30_000


class FormerOwner:
    """A member that is no member any more and does not know. What it asks for, a coordinator answers.

    Args:
        cluster: a connection.
        group_id: the group.
        member_id: of the former member.
        generation: in which it owned the partition.
        token: that it had then.
        is_incremental: whether the group is an incremental one, in which commits name tokens.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        group_id: str,
        member_id: str,
        generation: int,
        token: str,
        is_incremental: bool = False,
    ) -> None:
        self.group_id = group_id
        self.generation = generation
        self._link = cluster.link(group_id)
        self.member_id = member_id
        self._token = token
        self._is_incremental = is_incremental

    def token(self, partition: TopicPartition) -> str:
        """The old token."""
        return self._token

    async def committed(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Committed]:
        """What is committed now."""
        return await fetch_committed(
            self._link, partitions, request_timeout_ms=_TIMEOUT_MS, give_up_after_ms=_TIMEOUT_MS
        )

    def report_owned(self, ends: Mapping[TopicPartition, int], tokens: Mapping[TopicPartition, str]) -> None:
        """Says nothing: it owns nothing any more."""

    async def commit_owned(
        self, offsets: Mapping[TopicPartition, Committed], tokens: Mapping[TopicPartition, str]
    ) -> None:
        """Asks the coordinator to commit.

        Raises:
            CommitFailed: it refuses, as it should.
        """
        for where, position in offsets.items():
            entry = coordinator_pb2.OffsetCommitRequest.Partition(
                partition=where.number, offset=position.offset, metadata=position.metadata
            )
            if self._is_incremental:
                epoch, offset = self._token.split("-")
                entry.token.epoch, entry.token.offset = int(epoch), int(offset)
            topic = coordinator_pb2.OffsetCommitRequest.Topic(name=where.topic, partitions=[entry])
            request = coordinator_pb2.OffsetCommitRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                generation=self.generation,
                topics=[topic],
            )
            outcome = await self._link.call(
                request, coordinator_pb2.OffsetCommitResponse, timeout_ms=_TIMEOUT_MS
            )
            if outcome.code:
                raise CommitFailed([where], code_name(outcome.code))
