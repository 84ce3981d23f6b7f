"""The golden stories of three consumers, told to the core in virtual time."""

import pytest
from kit.lives.story import STORIES, Step, deal, read
from kit.lives.virtual_shard import STATE_NAMES, VirtualMember, VirtualShard
from muster_protos.muster.v1 import common_pb2, coordinator_pb2


class Teller:
    """Plays the members of a story."""

    def __init__(self) -> None:
        self.cluster = VirtualShard()
        self.members: dict[str, VirtualMember] = {}
        self.leader = ""

    def name(self, member_id: str) -> str:
        return next(
            (name for name, member in self.members.items() if member.member_id == member_id), member_id
        )

    def do_join(self, *names: str) -> list[str]:
        for name in names:
            self.members.setdefault(name, VirtualMember(self.cluster, name)).join()
        return [f"{name} waits" for name in names if self.members[name].is_parked]

    def do_delay(self) -> list[str]:
        delay_ms = self.cluster.config.initial_rebalance_delay_ms
        while any(member.is_parked for member in self.members.values()):
            self.cluster.advance(delay_ms)
        return []

    def do_joined(self, *names: str) -> list[str]:
        lines = []
        for name in names:
            answer = self.members[name].joined()
            self.leader = self.name(answer.leader)
            line = f"{name}: generation {answer.generation}, leader {self.leader}"
            if answer.members:
                line += f", members {' '.join(sorted(self.name(m.member_id) for m in answer.members))}"
            lines.append(line)
        return lines

    def do_sync(self, *names: str) -> list[str]:
        assert names[-1] == self.leader
        parts = {name: " ".join(map(str, given)) for name, given in deal(list(names)).items()}
        plan = {self.members[name].member_id: text.encode() for name, text in parts.items()}
        for name in names:
            self.members[name].sync(plan if name == self.leader else None)
        return [f"{name}: {self.members[name].synced().assignment.decode()}" for name in sorted(names)]

    def do_heartbeat(self, *names: str) -> list[str]:
        return [f"{name}: {_code(self.members[name].heartbeat())}" for name in names]

    def do_leave(self, *names: str) -> list[str]:
        return [f"{name}: {_code(self.members[name].leave())}" for name in names]

    def do_group(self) -> list[str]:
        group = self.cluster.describe()
        members = " ".join(sorted(self.name(member.member_id) for member in group.members))
        return [f"{STATE_NAMES[group.state]}, generation {group.generation}: {members}".strip()]

    def do_history(self) -> list[str]:
        answer = self.cluster.ask(coordinator_pb2.GroupHistoryRequest(group_id="g"))
        assert isinstance(answer, coordinator_pb2.GroupHistoryResponse)
        return [
            f"generation {one.generation}: "
            f"{common_pb2.RebalanceCauseKind.Name(one.cause.kind).removeprefix('REBALANCE_CAUSE_KIND_')}, "
            f"members {' '.join(sorted(self.name(member.member_id) for member in one.members))}"
            for one in answer.generations
        ]

    def tell(self, step: Step) -> None:
        output = getattr(self, f"do_{step.command}")(*step.names)
        if step.expected:
            assert output == list(step.expected), str(step)


def _code(code: int) -> str:
    return common_pb2.ErrorCode.Name(common_pb2.ErrorCode.ValueType(code)).removeprefix("ERROR_CODE_")


@pytest.mark.parametrize("story", STORIES)
def test_story(story: str) -> None:
    teller = Teller()
    for step in read(story):
        teller.tell(step)
