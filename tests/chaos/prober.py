"""A process that asks every coordinator all the time, whoever owns the group, and notes who answers what.

    python -m chaos.prober FOLDER GROUP... -- NODE=ADDRESS...

It has one member in each group, over unary calls, with a heartbeat to each coordinator five times a second
and a read of what is committed twice a second; the member commits once a second. Answers carry the epoch of
who gave them: an OK of a deposed owner shows.
"""

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import grpc
import uvloop
from chaos.history import Recorder
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, coordinator_pb2_grpc
from muster_runtime.rpc.channels import CHANNEL_OPTIONS

HEARTBEAT_SECONDS, FETCH_SECONDS, COMMIT_SECONDS = 0.2, 0.5, 1.0
TIMEOUT_SECONDS = 5.0
TOPIC = "probe"


class Probe:
    """One group."""

    def __init__(self, group: str, stubs: dict[str, Any], history: Recorder) -> None:
        self.group = group
        self._stubs = stubs
        self._history = history
        self._member_id, self._generation = "", -1
        self._commits = 0
        self._owner = next(iter(stubs))

    async def run(self) -> None:
        """Asks for ever."""
        await self._join()
        asking = [self._heartbeats(node) for node in self._stubs] + [self._fetches(n) for n in self._stubs]
        await asyncio.gather(self._commit_on(), *asking)

    async def _join(self) -> None:
        request = coordinator_pb2.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=1_000,
            protocol_type="chaos",
            protocols=[coordinator_pb2.GroupProtocol(name="plain", metadata=b"m")],
            request_id=f"{self.group}-{random.random()}",
        )
        while True:
            for node, stub in self._stubs.items():
                try:
                    answer = await stub.JoinGroup(request, timeout=10)
                    if answer.error_code == common_pb2.ERROR_CODE_MEMBER_ID_REQUIRED:
                        request.member_id = answer.member_id
                        answer = await stub.JoinGroup(request, timeout=10)
                    if answer.error_code:
                        continue
                    synced = await stub.SyncGroup(
                        coordinator_pb2.SyncGroupRequest(
                            group_id=self.group, generation=answer.generation, member_id=answer.member_id
                        ),
                        timeout=10,
                    )
                except grpc.aio.AioRpcError:
                    continue
                if synced.error_code == 0:
                    self._member_id, self._generation = answer.member_id, answer.generation
                    self._owner, self._commits = node, 0
                    return
            await asyncio.sleep(0.2)

    async def _heartbeats(self, node: str) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS * random.uniform(0.8, 1.2))
            request = coordinator_pb2.HeartbeatRequest(
                group_id=self.group, generation=self._generation, member_id=self._member_id
            )
            operation = self._history.invoke("heartbeat", g=self.group, node=node)
            answer = await self._ask(node, "Heartbeat", request, operation)
            if answer is not None:
                self._end(node, operation, answer.error_code, answer.shard_epoch)

    async def _fetches(self, node: str) -> None:
        request = coordinator_pb2.OffsetFetchRequest(
            groups=[
                coordinator_pb2.OffsetFetchRequest.Group(
                    group_id=self.group, topics=[common_pb2.TopicPartitions(topic=TOPIC, partitions=[0])]
                )
            ]
        )
        while True:
            await asyncio.sleep(FETCH_SECONDS * random.uniform(0.8, 1.2))
            operation = self._history.invoke("fetch", g=self.group, node=node, ps=[0])
            answer = await self._ask(node, "OffsetFetch", request, operation)
            if answer is not None:
                group = answer.groups[0]
                code = group.error_code
                values = {}
                if code == 0:
                    found = group.topics[0].partitions[0]
                    code, values = found.error_code, {"0": found.offset}
                self._end(node, operation, code, group.shard_epoch, vs=values)

    async def _commit_on(self) -> None:
        value = -1
        while True:
            await asyncio.sleep(COMMIT_SECONDS * random.uniform(0.8, 1.2))
            value += 1
            self._commits += 1
            request = coordinator_pb2.OffsetCommitRequest(
                group_id=self.group,
                generation=self._generation,
                member_id=self._member_id,
                member_seq=self._commits,
                topics=[
                    coordinator_pb2.OffsetCommitRequest.Topic(
                        name=TOPIC,
                        partitions=[
                            coordinator_pb2.OffsetCommitRequest.Partition(
                                partition=0, offset=value, leader_epoch=-1
                            )
                        ],
                    )
                ],
            )
            operation = self._history.invoke("commit", g=self.group, p=0, v=value, m=self._member_id)
            answer = await self._ask(self._owner, "OffsetCommit", request, operation)
            if answer is None:
                continue
            code = answer.topics[0].partitions[0].error_code
            self._history.end("fail" if code else "ok", operation, epoch=answer.shard_epoch, code=code)
            if code in (common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID, common_pb2.ERROR_CODE_ILLEGAL_GENERATION):
                await self._join()

    async def _ask(self, node: str, method: str, request: Any, operation: str) -> Any:
        try:
            return await getattr(self._stubs[node], method)(request, timeout=TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._history.end("info", operation, why=error.code().name)
            return None

    def _end(self, node: str, operation: str, code: int, epoch: int, **fields: object) -> None:
        self._history.end("fail" if code else "ok", operation, epoch=epoch, code=code, **fields)
        if not code:
            self._owner = node


async def main(folder: str, *rest: str) -> None:
    """Runs until standard input ends."""
    groups = rest[: rest.index("--")]
    addresses = dict(pair.split("=") for pair in rest[rest.index("--") + 1 :])
    history = Recorder(Path(folder) / "prober.jsonl", "prober")
    channels = {
        node: grpc.aio.insecure_channel(address, options=list(CHANNEL_OPTIONS))
        for node, address in addresses.items()
    }
    stubs: dict[str, Any] = {
        node: coordinator_pb2_grpc.GroupCoordinatorServiceStub(channel) for node, channel in channels.items()
    }
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    probes = [asyncio.create_task(Probe(group, stubs, history).run()) for group in groups]
    await reader.read()
    for probe in probes:
        probe.cancel()
    await asyncio.gather(*probes, return_exceptions=True)
    await asyncio.gather(*(channel.close() for channel in channels.values()))


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
