"""The golden stories of three consumers, over gRPC against a cluster of real processes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from kit.clusters.server_cluster import find, running
from kit.lives.story import STORIES, Step, deal, read
from kit.waiting import until, until_equal
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, coordinator_pb2_grpc

pytestmark = [pytest.mark.cluster, pytest.mark.quick]

TIMEOUT_SECONDS = 30.0
DELAY_MS = "1500"


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[str]:
    settings = {"MUSTER_GROUP_INITIAL_REBALANCE_DELAY_MS": DELAY_MS}
    async with running(tmp_path, redis_nodes=1, coordinators=1, settings=settings) as cluster:
        yield cluster.servers


class Teller:
    """Plays the members of a story, each with plain calls."""

    def __init__(
        self, group: str, coordinator: "coordinator_pb2_grpc.GroupCoordinatorServiceAsyncStub"
    ) -> None:
        self.group = group
        self.stub = coordinator
        self.ids: dict[str, str] = {}
        self.generation = -1
        self.leader = ""
        self.joining: dict[str, asyncio.Task[coordinator_pb2.JoinGroupResponse]] = {}

    def name(self, member_id: str) -> str:
        return next((name for name, known in self.ids.items() if known == member_id), member_id)

    async def tell(self, step: Step) -> None:
        do = getattr(self, f"do_{step.command}")
        if step.command == "group":
            await until_equal(do, list(step.expected), str(step))
            return
        output = await do(*step.names)
        if step.expected:
            assert output == list(step.expected), str(step)

    async def do_join(self, *names: str) -> list[str]:
        for name in names:
            request = coordinator_pb2.JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                protocol_type="consumer",
                protocols=[coordinator_pb2.GroupProtocol(name="range", metadata=b"m")],
                client_id=name,
                member_id=self.ids.get(name, ""),
            )
            if name not in self.ids:
                first = await self.stub.JoinGroup(request, timeout=TIMEOUT_SECONDS)
                assert first.error_code == common_pb2.ERROR_CODE_MEMBER_ID_REQUIRED
                request.member_id = self.ids[name] = first.member_id
            self.joining[name] = asyncio.ensure_future(self._join(request))
            await self._until_heard(name)
        return [f"{name} waits" for name in names if not self.joining[name].done()]

    async def _join(self, request: coordinator_pb2.JoinGroupRequest) -> coordinator_pb2.JoinGroupResponse:
        return await self.stub.JoinGroup(request, timeout=TIMEOUT_SECONDS)

    async def _until_heard(self, name: str) -> None:
        """The coordinator has the join: the member waits, or was answered."""

        async def heard() -> bool:
            members = {member.member_id: member for member in (await self._describe()).members}
            mine = members.get(self.ids[name])
            waits = mine is not None and mine.session_remaining_ms == -1
            return waits or self.joining[name].done()

        await until(heard, f"{name} is heard of")

    async def do_delay(self) -> list[str]:
        await asyncio.wait(self.joining.values(), timeout=TIMEOUT_SECONDS)
        return []

    async def do_joined(self, *names: str) -> list[str]:
        lines = []
        for name in names:
            answer = await self.joining.pop(name)
            assert answer.error_code == 0, answer
            self.generation, self.leader = answer.generation, self.name(answer.leader)
            line = f"{name}: generation {answer.generation}, leader {self.leader}"
            if answer.members:
                line += f", members {' '.join(sorted(self.name(m.member_id) for m in answer.members))}"
            lines.append(line)
        return lines

    async def do_sync(self, *names: str) -> list[str]:
        assert names[-1] == self.leader
        parts = {name: " ".join(map(str, given)) for name, given in deal(list(names)).items()}
        calls = {}
        for name in names:
            request = coordinator_pb2.SyncGroupRequest(
                group_id=self.group, generation=self.generation, member_id=self.ids[name]
            )
            if name == self.leader:
                for other, text in parts.items():
                    request.assignments.add(member_id=self.ids[other], assignment=text.encode())
            calls[name] = asyncio.ensure_future(self._sync(request))
        lines = []
        for name, call in sorted(calls.items()):
            answer = await call
            assert answer.error_code == 0, answer
            lines.append(f"{name}: {answer.assignment.decode()}")
        return lines

    async def _sync(self, request: coordinator_pb2.SyncGroupRequest) -> coordinator_pb2.SyncGroupResponse:
        return await self.stub.SyncGroup(request, timeout=TIMEOUT_SECONDS)

    async def do_heartbeat(self, *names: str) -> list[str]:
        lines = []
        for name in names:
            request = coordinator_pb2.HeartbeatRequest(
                group_id=self.group, generation=self.generation, member_id=self.ids[name]
            )
            answer = await self.stub.Heartbeat(request, timeout=TIMEOUT_SECONDS)
            lines.append(f"{name}: {_code(answer.error_code)}")
        return lines

    async def do_leave(self, *names: str) -> list[str]:
        request = coordinator_pb2.LeaveGroupRequest(group_id=self.group)
        for name in names:
            request.members.add(member_id=self.ids[name])
        answer = await self.stub.LeaveGroup(request, timeout=TIMEOUT_SECONDS)
        return [
            f"{name}: {_code(member.error_code)}" for name, member in zip(names, answer.members, strict=True)
        ]

    async def do_group(self) -> list[str]:
        group = await self._describe()
        words = coordinator_pb2.GroupState.Name(group.state).removeprefix("GROUP_STATE_").split("_")
        members = " ".join(sorted(self.name(member.member_id) for member in group.members))
        return [f"{''.join(map(str.capitalize, words))}, generation {group.generation}: {members}".strip()]

    async def do_history(self) -> list[str]:
        answer = await self.stub.GroupHistory(
            coordinator_pb2.GroupHistoryRequest(group_id=self.group), timeout=5
        )
        return [
            f"generation {one.generation}: "
            f"{common_pb2.RebalanceCauseKind.Name(one.cause.kind).removeprefix('REBALANCE_CAUSE_KIND_')}, "
            f"members {' '.join(sorted(self.name(member.member_id) for member in one.members))}"
            for one in answer.generations
        ]

    async def _describe(self) -> coordinator_pb2.DescribeGroupsResponse.Group:
        answer = await self.stub.DescribeGroups(
            coordinator_pb2.DescribeGroupsRequest(group_ids=[self.group]), timeout=TIMEOUT_SECONDS
        )
        return answer.groups[0]


def _code(code: int) -> str:
    return common_pb2.ErrorCode.Name(common_pb2.ErrorCode.ValueType(code)).removeprefix("ERROR_CODE_")


async def test_the_stories(servers: str) -> None:
    """All on one cluster, each in a group of its own."""
    assert STORIES == ["one_by_one", "one_then_two", "three_at_once"]
    for story in STORIES:
        async with grpc.aio.insecure_channel(await find(servers, story)) as channel:
            stub: coordinator_pb2_grpc.GroupCoordinatorServiceAsyncStub = (
                coordinator_pb2_grpc.GroupCoordinatorServiceStub(channel)
            )
            teller = Teller(story, stub)
            for step in read(story):
                await teller.tell(step)
