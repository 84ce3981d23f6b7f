"""Raw members of incremental groups, many to a stream: what the coordinator itself can do."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

import grpc
from muster_core.position import NOWHERE, Position
from muster_protos.muster.v1 import session_pb2, session_pb2_grpc
from muster_protos.muster.v1.common_pb2 import ErrorCode, TopicPartitions
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from muster_runtime.rpc.channels import CHANNEL_OPTIONS

BEAT_S = 0.5
PATIENCE_S = 600.0
AGAIN_S = 0.1
UNSURE = {ErrorCode.ERROR_CODE_COORDINATOR_NOT_AVAILABLE, ErrorCode.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS}
"""On a machine that is too busy a coordinator may be late with its lease: who is told so asks again."""


class RawMember:
    """A member that works on what it is told to, and gives back at once what it is told to.

    Args:
        group: the group, and its topic.
        member_id: its id.
        stream: its stream.
    """

    def __init__(self, group: "RawGroup", member_id: str, stream: "Stream") -> None:
        self.member_id = member_id
        self.owned: dict[int, Position] = {}
        self._group = group
        self._stream = stream
        self._version = NOWHERE
        self._epoch = 0
        self._last = self._request(0)

    def join(self) -> None:
        """Joins; `RawGroup` sees what comes of it."""
        self._call(self._joining())

    def _joining(self) -> ConsumerGroupHeartbeatRequest:
        request = self._request(0)
        request.topics.names.append(self._group.group)
        request.rebalance_timeout_ms = 60_000
        request.owned.SetInParent()
        return request

    def _call(self, request: ConsumerGroupHeartbeatRequest) -> None:
        self._last = request
        self._stream.call(request)

    def leave(self) -> None:
        """Leaves for good."""
        self._call(self._request(-1))

    def hear(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        """Takes an answer, asked for or not; acknowledges a new list."""
        if answer.error_code in UNSURE:
            asyncio.get_running_loop().call_later(AGAIN_S, self._call, self._last)
            return
        assert not answer.error_code, answer
        version = Position.from_proto(answer.version)
        if version < self._version or not answer.HasField("assignment"):
            return
        owned = {
            number: Position.from_proto(given.token)
            for given in answer.assignment.given
            for number in given.partitions
        }
        gives_back = any(owned.get(number) != token for number, token in self.owned.items())
        self._group.resized(len(self.owned), len(owned))
        self.owned, self._version, self._epoch = owned, version, answer.member_epoch
        if gives_back:
            report = self._request(self._epoch)
            report.owned.SetInParent()
            if owned:
                report.owned.topics.append(TopicPartitions(topic=self._group.group, partitions=sorted(owned)))
            self._call(report)

    def _request(self, epoch: int) -> ConsumerGroupHeartbeatRequest:
        version: Any = self._version.to_proto()
        return ConsumerGroupHeartbeatRequest(
            group_id=self._group.group,
            member_id=self.member_id,
            member_epoch=epoch,
            member_seq=1,
            process_id=self.member_id.encode()[-16:].ljust(16, b"."),
            version=version,
        )


class Stream:
    """A session stream with a channel of its own.

    Args:
        address: of the coordinator.
        members: all of the group, by id.
        news: frames that told a member something, by member.
    """

    def __init__(self, address: str, members: dict[str, RawMember], news: Counter[str]) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=list(CHANNEL_OPTIONS))
        stub: Any = session_pb2_grpc.GroupSessionServiceStub(self._channel)
        self._call = stub.Session()
        self._members = members
        self._news = news
        self._calls: dict[int, str] = {}
        self._last = 0
        self._unsent: list[session_pb2.ClientFrame] = [
            session_pb2.ClientFrame(
                hello=session_pb2.Hello(client_id="bench", beat_interval_ms=round(BEAT_S * 1e3))
            )
        ]
        self._wake = asyncio.Event()
        self._wake.set()
        self._tasks = [asyncio.create_task(run()) for run in (self._write, self._read, self._beat)]

    def call(self, request: ConsumerGroupHeartbeatRequest) -> None:
        """Makes a call for a member."""
        self._last += 1
        self._calls[self._last] = request.member_id
        call = session_pb2.Call(call_id=self._last, connection=1, consumer_group_heartbeat=request)
        self._send(session_pb2.ClientFrame(call=call))

    def _send(self, frame: session_pb2.ClientFrame) -> None:
        self._unsent.append(frame)
        self._wake.set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            frames, self._unsent = self._unsent, []
            await self._call.write(session_pb2.SessionRequest(frames=frames))

    async def _read(self) -> None:
        while (message := await self._call.read()) is not grpc.aio.EOF:
            for frame in message.frames:
                match frame.WhichOneof("kind"):
                    case "reply":
                        member = self._calls.pop(frame.reply.call_id)
                        assert frame.reply.WhichOneof("response") == "consumer_group_heartbeat", frame
                        if frame.reply.consumer_group_heartbeat.member_epoch >= 0:
                            self._members[member].hear(frame.reply.consumer_group_heartbeat)
                    case "member_news":
                        member = frame.member_news.response.member_id
                        self._news[member] += 1
                        self._members[member].hear(frame.member_news.response)
                    case "beat_ack" | "attach_result":
                        pass
                    case kind:
                        raise AssertionError(f"{kind}: {frame}")

    async def _beat(self) -> None:
        number = 0
        while True:
            await asyncio.sleep(BEAT_S)
            number += 1
            self._send(session_pb2.ClientFrame(beat=session_pb2.Beat(number=number)))

    async def close(self) -> None:
        """Breaks it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._call.cancel()
        await self._channel.close()

    def check(self) -> None:
        """Raises what a task of it ended with."""
        for task in self._tasks:
            if task.done():
                task.result()
                raise AssertionError("the coordinator has ended a stream")


class RawGroup:
    """All members of a group.

    Args:
        address: of the coordinator.
        group: the group, and its topic.
        partitions: of the topic.
        streams: how many the members share.

    Attributes:
        members: by id.
        news: frames that told a member something that it did not ask for, by member.
    """

    def __init__(self, address: str, group: str, partitions: int, streams: int) -> None:
        self.group = group
        self.partitions = partitions
        self.members: dict[str, RawMember] = {}
        self.news: Counter[str] = Counter()
        self._sizes: Counter[int] = Counter()
        self._changed = asyncio.Event()
        self._streams: Sequence[Stream] = [Stream(address, self.members, self.news) for _ in range(streams)]

    async def __aenter__(self) -> Self:
        await asyncio.sleep(1.0)  # the streams are there
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(stream.close() for stream in self._streams))

    def add(self, count: int) -> None:
        """So many members join at once."""
        added = []
        for _ in range(count):
            number = len(self.members)
            stream = self._streams[number % len(self._streams)]
            added.append(RawMember(self, f"raw-{number:012}", stream))
            self.members[added[-1].member_id] = added[-1]
            self._sizes[0] += 1
        for member in added:
            member.join()

    def remove_newest(self) -> None:
        """The newest member leaves."""
        _, member = self.members.popitem()
        self.resized(len(member.owned), 0)
        self._sizes[0] -= 1
        member.leave()

    def resized(self, before: int, now: int) -> None:
        """A member has another number of partitions."""
        self._sizes[before] -= 1
        self._sizes[now] += 1
        self._changed.set()

    async def balanced(self) -> int:
        """Waits until all run everything, in shares that differ by one at most; returns when, ns."""
        least, extras = divmod(self.partitions, len(self.members))
        shares = Counter({least: len(self.members) - extras, least + 1: extras})
        async with asyncio.timeout(PATIENCE_S):
            while +self._sizes != +shares:
                self._changed.clear()
                try:
                    async with asyncio.timeout(1):
                        await self._changed.wait()
                except TimeoutError:
                    for stream in self._streams:
                        stream.check()
        return time.monotonic_ns()
