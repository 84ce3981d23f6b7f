"""Scripts of calls of incremental groups with what a real Kafka broker answered, and a player in virtual
time.

A script: `{seed, kind, flavour, session, interval, steps, answers}`. Step i is `[operation, who,
argument]`; `answers[i]` is `[[i, answer]]`, or empty after `wait` and `topic`: no call is ever parked.
Every value is spelled out as it was sent, so a player remembers nothing. What is absent was not sent.

* `heartbeat`: `epoch`, `instance`, `rack`, `rebalance` (ms), `topics`, `regex`, `assignor`, `owned` (topic
  → partitions).
* `commit`, `fetch`: `epoch`, `topic`, `partition`, `offset`. `describe`: nothing.
* `topic`: topic `g` gets so many partitions; 0: it is deleted. `wait`: so many ms pass.
* `id` and `group` take the place of the member's label and of the group's name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.traces import read
from kit.lives.server_assignors import SERVER_ASSIGNORS, Re2Expressions, answer_to
from kit.lives.virtual_shard import VirtualShard
from muster_core.catalog import Catalog
from muster_core.config import GroupConfig
from muster_core.events import GroupRequest, GroupResponse, TopicsChanged
from muster_core.features import ALL_FEATURES, Feature
from muster_core.protocol.room import Room
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, incremental_pb2

Answer = dict[str, Any]

VECTORS = Path(__file__).parent / "vectors" / "incremental.json"
DIFFERENCES: dict[str, str] = {}
"""The differences that a script may need, by name: none."""

GROUP = "g"
MAX_SIZE = 4
TOPICS = {"t": 4, "u": 2}
"""Topics that every script finds, and their partitions."""
_GROWING = "g"


@dataclass(frozen=True)
class Step:
    """One step: an operation of a member, by its label."""

    operation: str
    label: str
    argument: Any


@dataclass(frozen=True)
class IncrementalScript:
    """A recorded script.

    Attributes:
        name: kind and seed.
        session_ms: session of the members.
        interval_ms: between their heartbeats.
        growing: partitions of topic `g` at the start; 0: there is none.
        steps: what is done.
        answers: what Kafka answered to each step; None: it was no call.
    """

    name: str
    session_ms: int
    interval_ms: int
    growing: int
    steps: list[Step]
    answers: list[Answer | None]


def holds(path: Path) -> bool:
    """Whether the scripts of a file are of incremental groups.

    Raises:
        ValueError: it is no JSON.
    """
    raw = read(path)
    scripts = raw if isinstance(raw, list) else []
    return bool(scripts) and all(
        isinstance(one, dict) and {"flavour", "interval"} <= one.keys() for one in scripts
    )


def load(path: Path = VECTORS) -> list[IncrementalScript]:
    """The scripts of a file; without one, those that belong to the project.

    Raises:
        ValueError: it is not of the format.
    """
    listed = read(path)
    try:
        return [script_of(number, raw) for number, raw in enumerate(listed)]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a file of scripts: {error!r}") from error


def script_of(number: int, raw: Any) -> IncrementalScript:
    """A script of a file.

    Raises:
        KeyError, TypeError, ValueError: it is not of the format.
    """
    steps = [Step(*step) for step in raw["steps"]]
    answers: list[Answer | None] = [None] * len(steps)
    if len(raw["answers"]) != len(steps):
        raise ValueError(f"script {number} has {len(steps)} steps and answers to {len(raw['answers'])}")
    for place, given in enumerate(raw["answers"]):
        for call, answer in given:
            if call != place:
                raise ValueError(f"script {number} has an answer to call {call} at step {place}")
            answers[place] = answer
    name = f"{raw['kind']}-{raw['flavour']}-{raw['seed']}"
    return IncrementalScript(name, raw["session"], raw["interval"], raw.get("g") or 0, steps, answers)


class IncrementalPlayer:
    """Plays a script against a core in virtual time.

    Args:
        script: what to play.
        step_ms: how long each step takes.
    """

    def __init__(self, script: IncrementalScript, step_ms: int = 0) -> None:
        self._script = script
        self._step_ms = step_ms
        config = GroupConfig(
            incremental_session_timeout_ms=script.session_ms,
            incremental_heartbeat_interval_ms=script.interval_ms,
            max_size=MAX_SIZE,
        )
        self.cluster = VirtualShard(config, features=ALL_FEATURES | {Feature.INCREMENTAL_GROUPS})
        self.cluster.shard.live_in(Room(assignors=SERVER_ASSIGNORS, expressions=Re2Expressions()))
        self.cluster.works = answer_to
        self._catalog_offset = 2
        self._incarnations = {"t": 1, "u": 2}
        self._deletions: dict[str, int] = {}
        self._partitions = dict(TOPICS)
        self._tell_catalog(frozenset(TOPICS))
        if script.growing:
            self._grow(script.growing)

    def play(self) -> list[Answer | None]:
        """Plays all steps; returns the answer to each."""
        return [self._play(step) for step in self._script.steps]

    def _play(self, step: Step) -> Answer | None:
        if self._step_ms:
            self.cluster.advance(self._step_ms)
        if step.operation == "wait":
            self.cluster.advance(step.argument)
        elif step.operation == "topic":
            self._grow(step.argument["partitions"])
        else:
            return render(self.cluster.ask(request_of(step)))
        return None

    def _grow(self, partitions: int) -> None:
        self._catalog_offset += 1
        if partitions == 0:
            self._partitions.pop(_GROWING, None)
            self._incarnations.pop(_GROWING, None)
            self._deletions[_GROWING] = self._catalog_offset
        else:
            self._incarnations.setdefault(_GROWING, self._catalog_offset)
            self._partitions[_GROWING] = partitions
        self._tell_catalog(frozenset({_GROWING}))

    def _tell_catalog(self, changed: frozenset[str]) -> None:
        catalog = Catalog(
            self._catalog_offset, dict(self._partitions), dict(self._deletions), dict(self._incarnations)
        )
        self.cluster.feed(TopicsChanged(changed, catalog=catalog))


def request_of(step: Step, group_id: str = GROUP) -> GroupRequest:
    """The call that a step makes, to a group unless it names another one."""
    argument: Mapping[str, Any] = step.argument
    group_id = argument.get("group", group_id)
    member_id = argument.get("id", step.label)
    if step.operation == "heartbeat":
        return _heartbeat(group_id, member_id, argument)
    if step.operation == "commit":
        commit = coordinator_pb2.OffsetCommitRequest(
            group_id=group_id, member_id=member_id or "", member_epoch=argument["epoch"]
        )
        commit.topics.add(name=argument["topic"]).partitions.add(
            partition=argument["partition"], offset=argument["offset"], leader_epoch=-1, metadata="m"
        )
        return commit
    if step.operation == "fetch":
        fetch = coordinator_pb2.OffsetFetchRequest()
        asked = fetch.groups.add(group_id=group_id, member_id=member_id, member_epoch=argument["epoch"])
        asked.topics.add(topic=argument["topic"], partitions=[argument["partition"]])
        return fetch
    if step.operation == "describe":
        return incremental_pb2.ConsumerGroupDescribeRequest(group_ids=[group_id])
    raise ValueError(f"unknown operation {step.operation!r}")


def _heartbeat(
    group_id: str, member_id: str, argument: Mapping[str, Any]
) -> incremental_pb2.ConsumerGroupHeartbeatRequest:
    request = incremental_pb2.ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=member_id,
        member_epoch=argument["epoch"],
        group_instance_id=argument.get("instance"),
        rack_id=argument.get("rack"),
        rebalance_timeout_ms=argument.get("rebalance"),
        topic_regex=argument.get("regex"),
        server_assignor=argument.get("assignor"),
    )
    if "topics" in argument:
        request.topics.names.extend(argument["topics"])
        request.topics.SetInParent()
    if "owned" in argument:
        request.owned.SetInParent()
        for topic, numbers in argument["owned"].items():
            request.owned.topics.add(topic=topic, partitions=numbers)
    return request


def render(message: GroupResponse) -> Answer:
    """An answer in the words of the recordings."""
    if isinstance(message, incremental_pb2.ConsumerGroupHeartbeatResponse):
        return _render_heartbeat(message)
    if isinstance(message, coordinator_pb2.OffsetCommitResponse):
        return {"error": message.topics[0].partitions[0].error_code}
    if isinstance(message, coordinator_pb2.OffsetFetchResponse):
        group = message.groups[0]
        if group.error_code:
            return {"error": group.error_code}
        partition = group.topics[0].partitions[0]
        return {"error": 0, "offset": partition.offset, "metadata": partition.metadata}
    assert isinstance(message, incremental_pb2.ConsumerGroupDescribeResponse)
    described = message.groups[0]
    if described.error_code:
        return {"error": described.error_code}
    return {
        "error": 0,
        "state": described.state,
        "epoch": described.group_epoch,
        "assignmentEpoch": described.assignment_epoch,
        "assignor": described.server_assignor,
        "members": {member.member_id: _render_member(member) for member in described.members},
    }


def _render_heartbeat(message: incremental_pb2.ConsumerGroupHeartbeatResponse) -> Answer:
    if message.error_code:
        return {"error": message.error_code}
    answer: Answer = {
        "error": 0,
        "member": message.member_id,
        "epoch": message.member_epoch,
        "interval": message.heartbeat_interval_ms,
    }
    if message.HasField("assignment"):
        given: dict[str, list[int]] = {}
        for some in message.assignment.given:
            given.setdefault(some.topic, []).extend(some.partitions)
        answer["assignment"] = {topic: sorted(numbers) for topic, numbers in given.items()}
    return answer


def _render_member(member: incremental_pb2.ConsumerGroupDescribeResponse.Member) -> Answer:
    answer: Answer = {
        "epoch": member.member_epoch,
        "topics": list(member.topics),
        "assignment": _by_name(member.assigned),
        "target": _by_name(member.target),
    }
    said = {"instance": member.group_instance_id, "rack": member.rack_id, "regex": member.topic_regex}
    return answer | {key: value for key, value in said.items() if value}


def _by_name(topics: Any) -> dict[str, list[int]]:
    entries: list[common_pb2.TopicPartitions] = list(topics)
    return {entry.topic: list(entry.partitions) for entry in entries}


@dataclass(frozen=True)
class IncrementalVerdict:
    """What comparing a script came to.

    Attributes:
        needed: name of the difference that it needs; empty: none.
        step: where it differs in another way; None: nowhere.
        expected: what Kafka answered there.
        got: what Muster answered.
    """

    needed: str = ""
    step: int | None = None
    expected: Answer | None = None
    got: Answer | None = None

    @property
    def matches(self) -> bool:
        """Whether all differences have a name."""
        return self.step is None


def judge(script: IncrementalScript) -> IncrementalVerdict:
    """Plays a script in virtual time; says where it differs first."""
    return compare(script, IncrementalPlayer(script).play())


def compare(script: IncrementalScript, played: Sequence[Answer | None]) -> IncrementalVerdict:
    """Says where the answers to the steps of a script differ first."""
    for number, (expected, got) in enumerate(zip(script.answers, played, strict=True)):
        if expected != got:
            return IncrementalVerdict("", number, expected, got)
    return IncrementalVerdict()


def summary(verdicts: Sequence[IncrementalVerdict]) -> str:
    """One line of totals, and one for each difference that was needed."""
    failed = sum(not verdict.matches for verdict in verdicts)
    needed = [verdict.needed for verdict in verdicts if verdict.needed]
    same = len(verdicts) - failed - len(needed)
    lines = [
        f"{len(verdicts)} scripts of incremental groups: {same} with the same answers in the same steps, "
        f"{len(needed)} with named differences, {failed} that differ"
    ]
    for name, text in DIFFERENCES.items():
        if name in needed:
            lines.append(f"  {needed.count(name):4} × {name}: {text}")
    return "\n".join(lines)
