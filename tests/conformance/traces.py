"""Plays recorded scripts of group calls and compares the answers with those of a real Kafka broker.

A file of scripts is a JSON list. A script is `{seed, kind, steps, answers}`: step i is
`[operation, member, argument]`, `answers[i]` holds `[[call, answer], …]`, every answer that arrived after
step i was sent and before step i + 1 was; `call` is the number of the step that asked. A call without an
answer stays parked for ever.

Two properties of the recordings that are not in the scripts:

* The recorder listened for about 200 ms after each step, so each step lets that time pass (`settle_ms`).
  It is real time and therefore not exact: a script in which a time-out falls close to a step is also tried
  with a little more and a little less.
* A few scripts ran in a group that had been used before and was empty again. They are played in
  such a group.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.virtual_shard import STATE_NAMES, VirtualShard
from muster_core.config import GroupConfig
from muster_core.events import GroupRequest, GroupResponse
from muster_core.position import Position
from muster_protos.muster.log.v1 import records_pb2 as log
from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1 import coordinator_pb2 as pb

Answer = dict[str, Any]
Answers = dict[int, Answer]

VECTORS = Path(__file__).parent / "vectors" / "traces.json"
SETTLE_MS = 200
SETTLE_TOLERANCE_MS = 20
GROUP = "g"
BROKER = GroupConfig(
    min_session_timeout_ms=50, max_session_timeout_ms=60_000, initial_rebalance_delay_ms=0, max_size=4
)
"""The settings of the broker that was recorded."""

DIFFERENCES = {
    "replaced": "a parked call that the member replaced is answered 27; Kafka never answers it (JG-49)",
    "removed": "a member removed while parked in SyncGroup is answered 25; Kafka never answers it (LG-19)",
    "no group": "a refused first join makes no group; Kafka keeps an empty one (W23)",
    "skip assignment": "the take-over of a leader is answered as JoinGroup v9 does, with skip_assignment; the"
    " recording is of an older version (SM-08, SM-09)",
    "other leader": "any remaining member may lead; the recorded one is put first (JG-36, JG-37)",
    "used group": "the recorded group had been used before; so has ours",
    "timing": "a time-out falls close to a step: matches when each step takes a little more or less time",
}
"""The differences that a script may need, by name."""


@dataclass(frozen=True)
class Step:
    """One step: an operation of a member, by its label."""

    operation: str
    label: str
    argument: Any


@dataclass(frozen=True)
class Script:
    """A recorded script."""

    name: str
    steps: list[Step]
    answers: list[Answers]

    @property
    def answered(self) -> set[int]:
        """Calls that the broker ever answered."""
        return {call for answers in self.answers for call in answers}


@dataclass(frozen=True)
class Circumstances:
    """What a recording leaves open.

    Attributes:
        settle_ms: time that passes with each step.
        generation: generation of the empty group in which the script starts; 0: there is none.
        leaders: up to which step which label is first in line when leadership falls vacant.
    """

    settle_ms: int = SETTLE_MS
    generation: int = 0
    leaders: tuple[tuple[int, str], ...] = ()


@dataclass
class Verdict:
    """What comparing a script came to.

    Attributes:
        needed: differences by name; empty: the same answers in the same steps.
        step: where it differs in another way; None: nowhere.
        expected: what Kafka answered there.
        got: what Muster answered.
    """

    needed: Counter[str] = field(default_factory=Counter)
    step: int | None = None
    expected: Answers = field(default_factory=dict)
    got: Answers = field(default_factory=dict)

    @property
    def matches(self) -> bool:
        """Whether all differences have a name."""
        return self.step is None


def load(path: Path = VECTORS) -> list[Script]:
    """The scripts of a file.

    Raises:
        ValueError: it is not of the format.
    """
    try:
        return [_script(number, raw) for number, raw in enumerate(json.loads(path.read_text()))]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a file of scripts: {error!r}") from error


def _script(number: int, raw: Any) -> Script:
    answers = [{call: _sorted_members(answer) for call, answer in step} for step in raw["answers"]]
    steps = [Step(*step) for step in raw["steps"]]
    if len(steps) != len(answers):
        raise ValueError(f"script {number} has {len(steps)} steps and answers to {len(answers)}")
    return Script(f"{raw.get('kind', 'script')}-{raw.get('seed', number)}", steps, answers)


def _sorted_members(answer: Answer) -> Answer:
    if "leader" in answer or "state" in answer:
        return {**answer, "members": sorted(answer["members"], key=str)}
    return answer


# --- playing


class Seat:
    """What the member of a label remembers."""

    def __init__(self) -> None:
        self.member_id = ""
        self.generation = -1
        self.instance = ""
        self.members: list[str] = []


class Player:
    """Plays a script against a core in virtual time.

    Args:
        script: what to play.
        circumstances: what the recording leaves open.
    """

    def __init__(self, script: Script, circumstances: Circumstances) -> None:
        self.script = script
        self.circumstances = circumstances
        self.cluster = VirtualShard(BROKER, _used_group(circumstances.generation))
        self.seats: dict[str, Seat] = {}
        self.calls: dict[int, int] = {}
        self.names: dict[str, str] = {}

    def play(self) -> list[Answers]:
        """Plays all steps; returns the answers after each."""
        played = []
        for number, step in enumerate(self.script.steps):
            if step.operation == "wait":
                self.cluster.advance(step.argument)
            else:
                self._put_first(number)
                message = request_of(step, self.seats.setdefault(step.label, Seat()))
                self.calls[self.cluster.send(message)] = number
            self.cluster.advance(self.circumstances.settle_ms)
            played.append(self._collect())
        return [self._renamed(answers) for answers in played]

    def _put_first(self, number: int) -> None:
        """Which remaining member leads is left to the order in which the group holds its members."""
        for until, label in self.circumstances.leaders:
            group = self.cluster.shard.groups.get(GROUP)
            if number <= until and group is not None:
                ids = sorted(group.members, key=lambda member_id: self._label(member_id) != label)
                members = {member_id: group.members[member_id] for member_id in ids}
                group.members.clear()
                group.members.update(members)
                return

    def _label(self, member_id: str) -> str:
        held = [label for label, seat in self.seats.items() if seat.member_id == member_id]
        return held[0] if held else self.names.get(member_id, "").partition("#")[0]

    def _collect(self) -> Answers:
        answers: Answers = {}
        for call_id, message in sorted(self.cluster.answers.items()):
            number = self.calls[call_id]
            step = self.script.steps[number]
            if isinstance(message, pb.JoinGroupResponse):
                self._note_join(step.label, message)
            answers[number] = render(message)
        self.cluster.answers.clear()
        return answers

    def _note_join(self, label: str, answer: pb.JoinGroupResponse) -> None:
        seat = self.seats[label]
        if answer.member_id not in (*self.names, "", "stranger"):
            count = sum(name.startswith(f"{label}#") for name in self.names.values())
            self.names[answer.member_id] = f"{label}#{count + 1}"
        if answer.error_code in (0, 79):
            seat.member_id = answer.member_id
        if answer.error_code == 0:
            seat.generation = answer.generation
            seat.members = [] if answer.skip_assignment else [entry.member_id for entry in answer.members]

    def _renamed(self, value: Any) -> Any:
        if isinstance(value, str):
            for member_id, name in self.names.items():
                value = value.replace(member_id, name)
        elif isinstance(value, list):
            return [self._renamed(entry) for entry in value]
        elif isinstance(value, dict):
            return {key: _sorted_if_answer(self._renamed(entry)) for key, entry in value.items()}
        return value


def _sorted_if_answer(value: Any) -> Any:
    return _sorted_members(value) if isinstance(value, dict) and "members" in value else value


def _used_group(generation: int) -> list[tuple[Position, log.Record]]:
    if not generation:
        return []
    ended = log.GenerationStarted(group_id=GROUP, generation=generation, protocol_type="consumer")
    return [(Position(1, 2), log.Record(generation_started=ended))]


def request_of(step: Step, seat: Seat, group_id: str = GROUP) -> GroupRequest:
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
            return pb.JoinGroupRequest(
                **who,
                session_timeout_ms=argument["session"],
                rebalance_timeout_ms=argument["rebalance"],
                protocol_type=argument.get("type", "consumer"),
                protocols=[
                    pb.GroupProtocol(name=name, metadata=data.encode())
                    for name, data in argument["protocols"]
                ],
                client_id="c",
            )
        case "sync":
            plan = [
                pb.SyncGroupRequest.Assignment(member_id=key, assignment=f"{argument['plan']}-{key}".encode())
                for key in seat.members
            ]
            return pb.SyncGroupRequest(**who, assignments=plan)
        case "heartbeat":
            return pb.HeartbeatRequest(**who)
        case "leave":
            leaver = pb.LeaveGroupRequest.Member(
                member_id="" if seat.instance else member_id, group_instance_id=seat.instance
            )
            return pb.LeaveGroupRequest(group_id=group_id, members=[leaver])
        case "commit":
            if argument.get("simple"):
                who.update(member_id="", generation=-1)
            commit = pb.OffsetCommitRequest(**who)
            commit.topics.add(name="t").partitions.add(
                offset=argument["offset"], leader_epoch=-1, metadata="m"
            )
            return commit
        case "fetch":
            topics = [common_pb2.TopicPartitions(topic="t", partitions=[0])]
            return pb.OffsetFetchRequest(
                groups=[pb.OffsetFetchRequest.Group(group_id=group_id, topics=topics)]
            )
        case "describe":
            return pb.DescribeGroupsRequest(group_ids=[group_id])
    raise ValueError(f"unknown operation {step.operation!r}")


def render(message: GroupResponse) -> Answer:
    """An answer in the words of the recordings, with the ids as they are."""
    if isinstance(message, pb.JoinGroupResponse):
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
    if isinstance(message, pb.SyncGroupResponse):
        return {"error": message.error_code, "assignment": message.assignment.decode()}
    if isinstance(message, pb.HeartbeatResponse):
        return {"error": message.error_code}
    if isinstance(message, pb.LeaveGroupResponse):
        members = [
            [entry.member_id, entry.group_instance_id or None, entry.error_code] for entry in message.members
        ]
        return {"error": message.error_code, "members": members}
    if isinstance(message, pb.OffsetCommitResponse):
        return {"error": message.topics[0].partitions[0].error_code}
    if isinstance(message, pb.OffsetFetchResponse):
        group = message.groups[0]
        partition = group.topics[0].partitions[0]
        return {"error": group.error_code, "offset": partition.offset, "metadata": partition.metadata}
    assert isinstance(message, pb.DescribeGroupsResponse)
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


# --- comparing


def judge(script: Script) -> Verdict:
    """Plays a script under the circumstances that fit best; says what it needed."""
    first = _follow(script, Circumstances())
    if first.matches:
        return first
    for circumstances, name in _alternatives(script, first):
        verdict = _follow(script, circumstances)
        if verdict.matches:
            verdict.needed[name] += 1
            return verdict
    return first


def _alternatives(script: Script, first: Verdict) -> Iterator[tuple[Circumstances, str]]:
    used = _generation_before(script)
    if used:
        yield Circumstances(generation=used), "used group"
    for off_by in range(5, SETTLE_TOLERANCE_MS + 1, 5):
        for settle_ms in (SETTLE_MS - off_by, SETTLE_MS + off_by):
            yield Circumstances(settle_ms, 0), "timing"
            if used:
                yield Circumstances(settle_ms, used), "timing"


def _generation_before(script: Script) -> int:
    generations = [
        answer["generation"]
        for answers in script.answers
        for answer in answers.values()
        if answer.get("generation", -1) > 0
    ]
    return generations[0] - 1 if generations else 0


def _follow(script: Script, circumstances: Circumstances) -> Verdict:
    """Plays a script, and again whenever the recording says that another member took the lead."""
    leaders: tuple[tuple[int, str], ...] = ()
    while True:
        played = Player(
            script, Circumstances(circumstances.settle_ms, circumstances.generation, leaders)
        ).play()
        verdict = compare(script, played)
        if verdict.step is None or (leaders and verdict.step <= leaders[-1][0]):
            break
        recorded = _leader(verdict.expected)
        if not recorded or recorded == _leader(verdict.got):
            break
        leaders = (*leaders, (verdict.step, recorded.partition("#")[0]))
    verdict.needed["other leader"] += len(leaders)
    verdict.needed += Counter()
    return verdict


def _leader(answers: Answers) -> str:
    return next((answer["leader"] for answer in answers.values() if answer.get("leader")), "")


def compare(script: Script, played: list[Answers]) -> Verdict:
    """Compares answers step by step, up to the first difference without a name."""
    verdict = Verdict()
    answered = script.answered
    refused_first = False
    for number, (expected, got) in enumerate(zip(script.answers, played, strict=True)):
        verdict.expected, verdict.got = expected, got
        if expected.keys() - got.keys():
            verdict.step = number
            return verdict
        for call, answer in got.items():
            step = script.steps[call]
            recorded = expected.get(call)
            name: str | None = ""
            if recorded is None:
                name = None if call in answered else _unanswered(script, number, call, answer)
            elif recorded != answer:
                name = _named(step, recorded, answer, refused_first)
            if name is None:
                verdict.step = number
                return verdict
            if name:
                verdict.needed[name] += 1
            refused_first = refused_first or (step.operation == "join" and answer["error"] == 23)
    return verdict


def _unanswered(script: Script, number: int, call: int, answer: Answer) -> str | None:
    """The name of an answer that Kafka never gave."""
    asked, now = script.steps[call], script.steps[number]
    if asked.operation == now.operation and asked.label == now.label and answer["error"] == 27:
        return "replaced"
    return "removed" if asked.operation == "sync" and answer["error"] == 25 else None


def _named(step: Step, recorded: Answer, answer: Answer, refused_first: bool) -> str | None:
    """The name of a difference between two answers; None: it has none."""
    if answer.get("skip"):
        old = {key: value for key, value in answer.items() if key != "skip"}
        if {**old, "leader": recorded.get("leader"), "members": []} == recorded:
            return "skip assignment"
    if refused_first:
        never_made = {"error": 0, "state": "Dead", "type": "", "protocol": "", "members": []}
        if answer == never_made and recorded == {**never_made, "state": "Empty"}:
            return "no group"
        if step.operation == "commit" and (recorded["error"], answer["error"]) == (25, 22):
            return "no group"
    return None


def summary(verdicts: Sequence[Verdict]) -> str:
    """One line of totals, and one for each difference that was needed."""
    needed: Counter[str] = Counter()
    for verdict in verdicts:
        if verdict.matches:
            needed.update(verdict.needed)
    failed = sum(not verdict.matches for verdict in verdicts)
    plain = sum(verdict.matches and not verdict.needed for verdict in verdicts)
    lines = [
        f"{len(verdicts)} scripts: {plain} with the same answers in the same steps, "
        f"{len(verdicts) - plain - failed} with named differences, {failed} that differ"
    ]
    lines += [f"  {needed[name]:4} × {name}: {text}" for name, text in DIFFERENCES.items() if needed[name]]
    return "\n".join(lines)
