"""The calls of a script as messages, and the answers in the words of the recordings."""

from typing import Any

from conformance.traces import Answer, Answers, Script, Step, sorted_members
from kit.lives.virtual_shard import STATE_NAMES
from muster_core import error_code
from muster_core.events import GroupRequest, GroupResponse
from muster_protos.muster.v1 import common_pb2, coordinator_pb2


class Seat:
    """What the member of a label remembers."""

    def __init__(self) -> None:
        self.member_id = ""
        self.generation = -1
        self.instance = ""
        self.members: list[str] = []


class Cast:
    """The members of a script while it is played: what each remembers, and the names of their ids.

    Args:
        script: what they play.
        group_id: in which group.
    """

    def __init__(self, script: Script, group_id: str) -> None:
        self._script = script
        self._group_id = group_id
        self._seats: dict[str, Seat] = {}
        self._names: dict[str, str] = {}

    def request(self, number: int) -> GroupRequest:
        """The call that a step makes."""
        step = self._script.steps[number]
        return request_of(step, self._seats.setdefault(step.label, Seat()), self._group_id)

    def hear(self, answers: dict[int, GroupResponse]) -> Answers:
        """Takes answers to calls, by number of the step; returns them with the ids as they are."""
        heard: Answers = {}
        for number, message in sorted(answers.items()):
            if isinstance(message, coordinator_pb2.JoinGroupResponse):
                self._note_join(self._script.steps[number].label, message)
            heard[number] = render(message)
        return heard

    def renamed(self, answers: Answers) -> Answers:
        """Answers in which every id has its name."""
        return {number: self._renamed_answer(answer) for number, answer in answers.items()}

    def label(self, member_id: str) -> str:
        """Whose id it is."""
        held = [label for label, seat in self._seats.items() if seat.member_id == member_id]
        return held[0] if held else self._names.get(member_id, "").partition("#")[0]

    def _note_join(self, label: str, answer: coordinator_pb2.JoinGroupResponse) -> None:
        seat = self._seats[label]
        if answer.member_id not in (*self._names, "", "stranger"):
            count = sum(name.startswith(f"{label}#") for name in self._names.values())
            self._names[answer.member_id] = f"{label}#{count + 1}"
        if answer.error_code in (error_code.NONE, error_code.MEMBER_ID_REQUIRED):
            seat.member_id = answer.member_id
        if answer.error_code == 0:
            seat.generation = answer.generation
            seat.members = [] if answer.skip_assignment else [entry.member_id for entry in answer.members]

    def _renamed_answer(self, answer: Answer) -> Answer:
        return sorted_members({key: self._renamed(value) for key, value in answer.items()})

    def _renamed(self, value: Any) -> Any:
        if isinstance(value, str):
            for member_id, name in self._names.items():
                value = value.replace(member_id, name)
        elif isinstance(value, list):
            return [self._renamed(entry) for entry in value]
        return value


def request_of(step: Step, seat: Seat, group_id: str) -> GroupRequest:
    """The call that a step makes."""
    argument = step.argument
    if argument.get("instance"):
        seat.instance = argument["instance"]
    member_id = "stranger" if argument.get("stranger") else "" if argument.get("fresh") else seat.member_id
    who = {
        "group_id": group_id,
        "member_id": member_id,
        "group_instance_id": seat.instance,
        "generation": seat.generation + argument.get("gen", 0),
    }
    match step.operation:
        case "join":
            del who["generation"]
            return coordinator_pb2.JoinGroupRequest(
                **who,
                session_timeout_ms=argument["session"],
                rebalance_timeout_ms=argument["rebalance"],
                protocol_type=argument.get("type", "consumer"),
                protocols=[
                    coordinator_pb2.GroupProtocol(name=name, metadata=data.encode())
                    for name, data in argument["protocols"]
                ],
                client_id="c",
            )
        case "sync":
            plan = [
                coordinator_pb2.SyncGroupRequest.Assignment(
                    member_id=key, assignment=f"{argument['plan']}-{key}".encode()
                )
                for key in seat.members
            ]
            return coordinator_pb2.SyncGroupRequest(**who, assignments=plan)
        case "heartbeat":
            return coordinator_pb2.HeartbeatRequest(**who)
        case "leave":
            leaver = coordinator_pb2.LeaveGroupRequest.Member(
                member_id="" if seat.instance else member_id, group_instance_id=seat.instance
            )
            return coordinator_pb2.LeaveGroupRequest(group_id=group_id, members=[leaver])
        case "commit":
            if argument.get("simple"):
                who.update(member_id="", generation=-1)
            commit = coordinator_pb2.OffsetCommitRequest(**who)
            commit.topics.add(name="t").partitions.add(
                offset=argument["offset"], leader_epoch=-1, metadata="m"
            )
            return commit
        case "fetch":
            topics = [common_pb2.TopicPartitions(topic="t", partitions=[0])]
            return coordinator_pb2.OffsetFetchRequest(
                groups=[coordinator_pb2.OffsetFetchRequest.Group(group_id=group_id, topics=topics)]
            )
        case "describe":
            return coordinator_pb2.DescribeGroupsRequest(group_ids=[group_id])
    raise ValueError(f"unknown operation {step.operation!r}")


def render(message: GroupResponse) -> Answer:
    """An answer in the words of the recordings, with the ids as they are."""
    if isinstance(message, coordinator_pb2.JoinGroupResponse):
        return {
            "error": message.error_code,
            "generation": message.generation,
            "protocol": message.protocol_name,
            "leader": message.leader,
            "member": message.member_id,
            "members": [
                [entry.member_id, entry.group_instance_id or None, entry.metadata.decode()]
                for entry in message.members
            ],
            **({"skip": True} if message.skip_assignment else {}),
        }
    if isinstance(message, coordinator_pb2.SyncGroupResponse):
        return {"error": message.error_code, "assignment": message.assignment.decode()}
    if isinstance(message, coordinator_pb2.HeartbeatResponse):
        return {"error": message.error_code}
    if isinstance(message, coordinator_pb2.LeaveGroupResponse):
        members = [
            [entry.member_id, entry.group_instance_id or None, entry.error_code] for entry in message.members
        ]
        return {"error": message.error_code, "members": members}
    if isinstance(message, coordinator_pb2.OffsetCommitResponse):
        return {"error": message.topics[0].partitions[0].error_code}
    if isinstance(message, coordinator_pb2.OffsetFetchResponse):
        group = message.groups[0]
        if not group.topics:
            return {"error": group.error_code}
        partition = group.topics[0].partitions[0]
        return {"error": group.error_code, "offset": partition.offset, "metadata": partition.metadata}
    assert isinstance(message, coordinator_pb2.DescribeGroupsResponse)
    described = message.groups[0]
    return {
        "error": described.error_code,
        "state": STATE_NAMES[described.state],
        "type": described.protocol_type,
        "protocol": described.protocol_name,
        "members": [
            [
                entry.member_id,
                entry.group_instance_id or None,
                None,
                entry.metadata.decode(),
                entry.assignment.decode(),
            ]
            for entry in described.members
        ],
    }
