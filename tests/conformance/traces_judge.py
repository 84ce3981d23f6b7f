"""Plays scripts in virtual time and compares the answers with the recorded ones.

Two properties of the recordings that are not in the scripts:

* The recorder listened for about 200 ms after each step, so each step lets that time pass (`settle_ms`).
  It is real time and therefore not exact: a script in which a time-out falls close to a step is also tried
  with a little more and a little less.
* A few scripts ran in a group that had been used before and was empty again. They are played in
  such a group.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from conformance.traces import BROKER, Answer, Answers, Script, Step
from conformance.traces_calls import Cast
from kit.lives.virtual_shard import VirtualShard
from muster_core import error_code
from muster_core.position import Position
from muster_core.state.members.member import Member
from muster_protos.muster.log.v1 import records_pb2

SETTLE_MS = 200
SETTLE_TOLERANCE_MS = 20
GROUP = "g"

DIFFERENCES = {
    "replaced": "a parked call that the member replaced is answered 27; Kafka never answers it (JG-49)",
    "removed": "a member removed while parked in SyncGroup is answered 25; Kafka never answers it (LG-19)",
    "no group": "a refused first join makes no group; Kafka keeps an empty one (W23)",
    "newcomer": "a commit of a member parked in its first join is answered 22; Kafka takes it",
    "skip assignment": "the take-over of a leader is answered as JoinGroup v9 does, with skip_assignment; the"
    " recording is of an older version (SM-08, SM-09)",
    "other leader": "any remaining member may lead; the recorded one is put first (JG-36, JG-37)",
    "used group": "the recorded group had been used before; so has ours",
    "timing": "a time-out falls close to a step: matches when each step takes a little more or less time",
}
"""The differences that a script may need, by name."""


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


class VirtualPlayer:
    """Plays a script against a core in virtual time.

    Args:
        script: what to play.
        circumstances: what the recording leaves open.
    """

    def __init__(self, script: Script, circumstances: Circumstances) -> None:
        self._script = script
        self._circumstances = circumstances
        self._cluster = VirtualShard(BROKER, _used_group(circumstances.generation))
        self._cast = Cast(script, GROUP)
        self._calls: dict[int, int] = {}

    def play(self) -> list[Answers]:
        """Plays all steps; returns the answers after each."""
        cluster = self._cluster
        played = []
        for number, step in enumerate(self._script.steps):
            if step.operation == "wait":
                cluster.advance(step.argument)
            else:
                self._put_first(number)
                self._calls[cluster.send(self._cast.request(number))] = number
            cluster.advance(self._circumstances.settle_ms)
            answers = {self._calls[call]: answer for call, answer in cluster.answers.items()}
            played.append(self._cast.hear(answers))
            cluster.answers.clear()
        return [self._cast.renamed(answers) for answers in played]

    def _put_first(self, number: int) -> None:
        """Which remaining member leads is left to the order in which the group holds its members."""
        group = self._cluster.shard.groups.get(GROUP)
        label = next((label for until, label in self._circumstances.leaders if number <= until), "")
        if group is not None and label:
            members = sorted(group.members.values(), key=lambda member: self._label(member) != label)
            group.members.clear()
            group.members.update((member.member_id, member) for member in members)

    def _label(self, member: Member) -> str:
        parked = self._calls.get(member.join_call or 0)
        return self._cast.label(member.member_id) if parked is None else self._script.steps[parked].label


def _used_group(generation: int) -> list[tuple[Position, records_pb2.Record]]:
    if not generation:
        return []
    ended = records_pb2.GenerationStarted(group_id=GROUP, generation=generation, protocol_type="consumer")
    return [(Position(1, 2), records_pb2.Record(generation_started=ended))]


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
    used = generation_before(script)
    if used:
        yield Circumstances(generation=used), "used group"
    for off_by in range(5, SETTLE_TOLERANCE_MS + 1, 5):
        for settle_ms in (SETTLE_MS - off_by, SETTLE_MS + off_by):
            yield Circumstances(settle_ms, 0), "timing"
            if used:
                yield Circumstances(settle_ms, used), "timing"


def generation_before(script: Script) -> int:
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
        played = VirtualPlayer(script, replace(circumstances, leaders=leaders)).play()
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
    newcomers: set[str] = set()  # labels whose present member id was in no generation yet
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
                name = _named(step, recorded, answer, refused_first, step.label in newcomers)
            if name is None:
                verdict.step = number
                return verdict
            if name:
                verdict.needed[name] += 1
            if step.operation == "join":
                refused_first = refused_first or answer["error"] == error_code.INCONSISTENT_GROUP_PROTOCOL
                if answer["error"] == error_code.MEMBER_ID_REQUIRED:
                    newcomers.add(step.label)
                elif answer["error"] == 0:
                    newcomers.discard(step.label)
    return verdict


def _unanswered(script: Script, number: int, call: int, answer: Answer) -> str | None:
    """The name of an answer that Kafka never gave."""
    asked, now = script.steps[call], script.steps[number]
    if (
        asked.operation == now.operation
        and asked.label == now.label
        and answer["error"] == error_code.REBALANCE_IN_PROGRESS
    ):
        return "replaced"
    return (
        "removed" if asked.operation == "sync" and answer["error"] == error_code.UNKNOWN_MEMBER_ID else None
    )


def _named(step: Step, recorded: Answer, answer: Answer, refused_first: bool, newcomer: bool) -> str | None:
    """The name of a difference between two answers; None: it has none."""
    if (
        newcomer
        and step.operation == "commit"
        and (recorded["error"], answer["error"]) == (error_code.NONE, error_code.ILLEGAL_GENERATION)
    ):
        return "newcomer"
    if answer.get("skip"):
        old = {key: value for key, value in answer.items() if key != "skip"}
        if {**old, "leader": recorded.get("leader"), "members": []} == recorded:
            return "skip assignment"
    if refused_first:
        never_made = {"error": 0, "state": "Dead", "type": "", "protocol": "", "members": []}
        if answer == never_made and recorded == {**never_made, "state": "Empty"}:
            return "no group"
        if step.operation == "commit" and (recorded["error"], answer["error"]) == (
            error_code.UNKNOWN_MEMBER_ID,
            error_code.ILLEGAL_GENERATION,
        ):
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
