"""Members that do exactly what a scenario says, over unary calls: no retries, no background work."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, TypeVar

import grpc
from chaos.history import Recorder
from muster_protos.muster.v1 import (
    common_pb2,
    coordinator_pb2,
    coordinator_pb2_grpc,
    discovery_pb2,
    discovery_pb2_grpc,
)
from muster_runtime.rpc.channels import CHANNEL_OPTIONS

T = TypeVar("T")
RETRIABLE = frozenset(
    {
        common_pb2.ERROR_CODE_NOT_COORDINATOR,
        common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE,
        common_pb2.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS,
    }
)
WITHIN_SECONDS = 30.0
REBALANCING = common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS


class Wire:
    """Connections to one cluster for one scenario; an async context manager."""

    def __init__(self, servers: str, history: Recorder) -> None:
        self._servers = servers.split(",")
        self.history = history
        self._channels: list[grpc.aio.Channel] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels))

    def channel(self, address: str) -> grpc.aio.Channel:
        """A connection of its own."""
        options = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        self._channels.append(grpc.aio.insecure_channel(address, options=options))
        return self._channels[-1]

    async def find(self, group: str, above_epoch: int = 0) -> common_pb2.Coordinator:
        """The group's coordinator, of an epoch above another, once there is one."""
        deadline = time.monotonic() + WITHIN_SECONDS
        while True:
            for server in self._servers:
                stub: Any = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(self.channel(server))
                request = discovery_pb2.FindCoordinatorRequest(group_ids=[group])
                try:
                    answer = (await stub.FindCoordinator(request, timeout=2)).results[0]
                except grpc.aio.AioRpcError:
                    continue
                if answer.error_code == 0 and answer.coordinator.shard_epoch > above_epoch:
                    found: common_pb2.Coordinator = answer.coordinator
                    return found
            assert time.monotonic() < deadline, f"nobody became the coordinator of {group}"
            await asyncio.sleep(0.05)

    def member(self, group: str, name: str, **settings: Any) -> "RawMember":
        """A member that has not joined."""
        return RawMember(self, group, name, **settings)


class RawMember:
    """One member of one group.

    Attributes:
        member_id: as the coordinator gave it.
        generation: of the last answered join; -1: none.
        leader: whether it leads that generation.
        members: ids of all members of it, if it leads.
    """

    def __init__(
        self,
        wire: Wire,
        group: str,
        name: str,
        *,
        instance: str = "",
        session_ms: int = 20_000,
        rebalance_ms: int = 10_000,
        metadata: bytes = b"m",
    ) -> None:
        self.group, self.name = group, name
        self.member_id, self.generation, self.leader = "", -1, False
        self.members: tuple[str, ...] = ()
        self.instance = instance
        self._wire = wire
        self._session_ms, self._rebalance_ms, self._metadata = session_ms, rebalance_ms, metadata
        self._request_id = uuid.uuid4().hex
        self._commits = 0
        self._address = ""
        self._stub: Any = None

    async def go_to(self, coordinator: common_pb2.Coordinator) -> None:
        """Speaks to that coordinator from now on, over a new connection."""
        self._address = f"{coordinator.host}:{coordinator.port}"
        self._stub = coordinator_pb2_grpc.GroupCoordinatorServiceStub(self._wire.channel(self._address))

    def share(self, other: "RawMember") -> None:
        """Speaks over the connection of another member."""
        self._address, self._stub = other._address, other._stub

    def change(self) -> None:
        """Gives it something new to say: else only a leader's join begins a rebalance."""
        self._metadata += b"'"

    async def join(self, timeout: float = WITHIN_SECONDS) -> int:
        """One join, its second step included; gives the error code."""
        request = coordinator_pb2.JoinGroupRequest(
            group_id=self.group,
            member_id=self.member_id,
            group_instance_id=self.instance,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=self._rebalance_ms,
            protocol_type="chaos",
            protocols=[coordinator_pb2.GroupProtocol(name="plain", metadata=self._metadata)],
            client_id=self.name,
            request_id=self._request_id,
        )
        answer = await self._stub.JoinGroup(request, timeout=timeout)
        if answer.error_code == common_pb2.ERROR_CODE_MEMBER_ID_REQUIRED:
            self.member_id = request.member_id = answer.member_id
            answer = await self._stub.JoinGroup(request, timeout=timeout)
        if answer.error_code == common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID:
            self.member_id = ""  # it was given out and not used before a fail-over: asked for again
            return await self.join(timeout)
        if answer.error_code == 0:
            self.member_id, self.generation = answer.member_id, answer.generation
            self.leader = answer.leader == answer.member_id
            self.members = tuple(member.member_id for member in answer.members)
            if not self.instance:  # a static member's successor leads the same generation under another id
                self._wire.history.note(
                    "joined", g=self.group, gen=self.generation, m=self.member_id, leader=answer.leader
                )
        return int(answer.error_code)

    async def sync(
        self, assignments: Mapping[str, bytes] | None = None, timeout: float = WITHIN_SECONDS
    ) -> coordinator_pb2.SyncGroupResponse:
        """One SyncGroup of the present generation."""
        request = coordinator_pb2.SyncGroupRequest(
            group_id=self.group,
            generation=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            assignments=[
                coordinator_pb2.SyncGroupRequest.Assignment(member_id=member, assignment=data)
                for member, data in (assignments or {}).items()
            ],
        )
        answer: coordinator_pb2.SyncGroupResponse = await self._stub.SyncGroup(request, timeout=timeout)
        if answer.error_code == 0:
            self._wire.history.note(
                "synced", g=self.group, gen=self.generation, m=self.member_id, bytes=answer.assignment.hex()
            )
        return answer

    async def heartbeat(self, timeout: float = 2.0) -> int:
        """One heartbeat; gives the error code."""
        request = coordinator_pb2.HeartbeatRequest(
            group_id=self.group,
            generation=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        return int((await self._stub.Heartbeat(request, timeout=timeout)).error_code)

    async def commit(self, topic: str, value: int, timeout: float = 5.0) -> int:
        """One commit of partition 0 of a topic; gives the error code."""
        self._commits += 1
        request = coordinator_pb2.OffsetCommitRequest(
            group_id=self.group,
            generation=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            member_seq=self._commits,
            topics=[
                coordinator_pb2.OffsetCommitRequest.Topic(
                    name=topic,
                    partitions=[
                        coordinator_pb2.OffsetCommitRequest.Partition(
                            partition=0, offset=value, leader_epoch=-1
                        )
                    ],
                )
            ],
        )
        answer = await self._stub.OffsetCommit(request, timeout=timeout)
        return int(answer.topics[0].partitions[0].error_code)

    async def leave(self) -> None:
        """Leaves the group, at whoever is the coordinator."""
        request = coordinator_pb2.LeaveGroupRequest(
            group_id=self.group, members=[coordinator_pb2.LeaveGroupRequest.Member(member_id=self.member_id)]
        )

        async def call() -> coordinator_pb2.LeaveGroupResponse:
            answer: coordinator_pb2.LeaveGroupResponse = await self._stub.LeaveGroup(request, timeout=5)
            return answer

        await self.until_answered(call, lambda answer: int(answer.error_code))

    async def until_answered(self, call: Callable[[], Awaitable[T]], code: Callable[[T], int]) -> T:
        """Repeats a call, at whoever is the coordinator, until it has an outcome of the group."""
        deadline = time.monotonic() + WITHIN_SECONDS
        while True:
            try:
                answer = await call()
                if code(answer) not in RETRIABLE:
                    return answer
            except grpc.aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise
            assert time.monotonic() < deadline, f"{self.group}: no outcome within {WITHIN_SECONDS:g} s"
            await asyncio.sleep(0.05)
            await self.go_to(await self._wire.find(self.group))

    async def rejoin(self) -> int:
        """Joins until there is an outcome."""
        return await self.until_answered(self.join, int)

    async def resync(
        self, assignments: Mapping[str, bytes] | None = None
    ) -> coordinator_pb2.SyncGroupResponse:
        """Syncs until there is an outcome.

        A coordinator that loads answers a sync as Kafka does: REBALANCE_IN_PROGRESS. That is none.
        """

        def code(answer: coordinator_pb2.SyncGroupResponse) -> int:
            loading = answer.error_code == REBALANCING and "loading" in answer.error_message
            return int(common_pb2.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS if loading else answer.error_code)

        return await self.until_answered(lambda: self.sync(assignments), code)


def assignments_for(members: tuple[str, ...], label: str) -> dict[str, bytes]:
    """Different bytes for every member."""
    return {member: f"{label} {member}".encode() for member in members}


async def all_joined(members: list[RawMember]) -> int:
    """Brings all of them into one new generation that nobody has synced; gives its number."""
    while True:
        await _join_together(members)
        if len({member.generation for member in members}) == 1:
            return members[0].generation


async def _join_together(members: list[RawMember]) -> None:
    """All join; who is answered early heartbeats, and joins again when a later one begins another round."""
    joined: set[str] = set()

    async def enter(member: RawMember) -> None:
        member.change()
        code = await member.rejoin()
        assert not code, f"the join was answered {code}"
        joined.add(member.name)
        while len(joined) < len(members):
            await asyncio.sleep(0.1)
            if await member.until_answered(member.heartbeat, int):
                code = await member.rejoin()
                assert not code, f"the join was answered {code}"

    await asyncio.gather(*(enter(member) for member in members))


async def stable(members: list[RawMember], label: str) -> int:
    """Brings all of them into one generation with assignments; gives its number."""
    while True:
        generation = await all_joined(members)
        leader = next(member for member in members if member.leader)
        given = assignments_for(leader.members, label)
        answers = await asyncio.gather(*(m.resync(given if m.leader else None) for m in members))
        if all(answer.error_code == 0 for answer in answers) and len(given) == len(members):
            return generation
