"""Raw members of incremental groups on session streams."""

import asyncio
from typing import Any

from coordinator.coordinator_cluster import Caller
from coordinator.session_client import Session
from kit.lives.incremental_shard import held_in
from kit.waiting import until
from muster_core.incremental.partitions import TopicPartition, by_topic
from muster_core.position import NOWHERE, Position
from muster_protos.muster.v1 import session_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


class StreamCaller:
    """A member that works on what it is told to, and acknowledges by itself.

    Attributes:
        owned: what it works on, with tokens.
        stopped: what it has given up so far.
        fenced: how its membership ended; None: it has not heard that.
        session: its stream.
    """

    def __init__(self, group_id: str, topic: str, member_id: str) -> None:
        self.group_id = group_id
        self.topic = topic
        self.member_id = member_id
        self.owned: dict[TopicPartition, Position] = {}
        self.stopped: set[TopicPartition] = set()
        self.fenced: session_pb2.Fenced | None = None
        self.session: Session
        self._connection = 0
        self._heard = 0
        self._epoch = 0
        self._seq = 0
        self._version = NOWHERE
        self._reading: asyncio.Task[None] | None = None

    async def join(self, caller: Caller) -> ConsumerGroupHeartbeatResponse:
        """Joins by a stream of its own."""
        await self._connect(caller)
        return await self._begin(self.joining())

    def joining(self) -> ConsumerGroupHeartbeatRequest:
        """What it joins anew with."""
        self._seq, self._version, self.owned = self._seq + 1, NOWHERE, {}
        request = self._request(0)
        request.topics.names.append(self.topic)
        request.rebalance_timeout_ms = 30_000
        request.owned.SetInParent()
        return request

    async def resume(self, caller: Caller) -> ConsumerGroupHeartbeatResponse:
        """Goes on by another stream."""
        await self._connect(caller)
        return await self._begin(self._report())

    async def leave(self) -> ConsumerGroupHeartbeatResponse:
        """Leaves for good."""
        return await self.ask(self._request(-1))

    async def ask(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        """Makes a call on the stream."""
        reply = await self.session.ask(consumer_group_heartbeat=request, connection=self._connection)
        assert reply.WhichOneof("response") == "consumer_group_heartbeat", reply
        answer: ConsumerGroupHeartbeatResponse = reply.consumer_group_heartbeat
        return answer

    async def has(self, count: int) -> None:
        """Waits until it works on so many partitions."""
        await until(lambda: len(self.owned) == count)

    async def close(self) -> None:
        """Ends its stream without a word."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
            await self.session.close()

    async def _connect(self, caller: Caller) -> None:
        await self.close()
        self._connection += 1
        self.session = await Session(caller.channel).hello()

    async def _begin(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        answer = await self.ask(request)
        if not answer.error_code:
            self._hear(answer)
            await self.session.until(lambda: self.session.said("attach_result"))
            self._reading = asyncio.create_task(self._read())
        return answer

    async def _read(self) -> None:
        self._heard = 0
        while True:
            for frame in await self.session.until(lambda: self.session.frames[self._heard :]):
                self._heard += 1
                await self._handle(frame)

    async def _handle(self, frame: session_pb2.ServerFrame) -> None:
        match frame.WhichOneof("kind"):
            case "member_news" if frame.member_news.response.member_id == self.member_id:
                if frame.member_news.member_seq == self._seq and self._hear(frame.member_news.response):
                    self._hear(await self.ask(self._report()))
            case "fenced" if frame.fenced.member_seq == self._seq:
                self.fenced, self.owned = frame.fenced, {}

    def _hear(self, answer: ConsumerGroupHeartbeatResponse) -> bool:
        """Does what an answer says, unless it knows better; returns whether it did."""
        version = Position.from_proto(answer.version)
        if answer.error_code or version < self._version or not answer.HasField("assignment"):
            return False
        owned = held_in(answer)
        self.stopped |= {one for one, token in self.owned.items() if owned.get(one) != token}
        self.owned, self._version, self._epoch = owned, version, answer.member_epoch
        return True

    def _request(self, epoch: int) -> ConsumerGroupHeartbeatRequest:
        version: Any = self._version.to_proto()
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            member_seq=self._seq,
            process_id=self.member_id.encode().ljust(16, b"."),
            version=version,
        )

    def _report(self) -> ConsumerGroupHeartbeatRequest:
        request = self._request(max(self._epoch, 1))
        request.owned.SetInParent()
        request.owned.topics.extend(by_topic(self.owned))
        return request
