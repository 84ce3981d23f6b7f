"""Scripts of group calls with what a real Kafka broker answered to each: the format of their files.

A file of scripts is a JSON list. A script is `{seed, kind, steps, answers}`: step i is
`[operation, member, argument]`, `answers[i]` holds `[[call, answer], …]`, every answer that arrived after
step i was sent and before step i + 1 was; `call` is the number of the step that asked. A call without an
answer stays parked for ever.

* A member has a label (`a`). Ids that the broker made for it are written `a#1`, `a#2`, … in order. A member
  uses the id that its last join with error 0 or 79 gave it, and the generation that its last join with error
  0 gave it (-1 before).
* `"gen": -1` or `1` in an argument is added to that generation. `"stranger": true` sends the member id
  `stranger`, `"fresh": true` sends none. `instance` is kept for the member's later calls.
* The leader of a member's last join sends `<plan>-<member id>` for every member that it saw.
* `wait` lets so many ms pass.

`./x record-traces` writes such files, `./x conformance --traces FILE` plays them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster_core.config import GroupConfig

Answer = dict[str, Any]
Answers = dict[int, Answer]

VECTORS = Path(__file__).parent / "vectors"
BROKER = GroupConfig(
    min_session_timeout_ms=50, max_session_timeout_ms=60_000, initial_rebalance_delay_ms=0, max_size=4
)
"""The settings of the broker that was recorded."""


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
    def kind(self) -> str:
        """What sort of script it is."""
        return self.name.partition("-")[0]

    @property
    def answered(self) -> set[int]:
        """Calls that the broker ever answered."""
        return {call for answers in self.answers for call in answers}


def load(path: Path | None = None) -> list[Script]:
    """The scripts of a file; without one, all that belong to the project.

    Raises:
        ValueError: it is not of the format.
    """
    if path is None:
        return [script for each in sorted(VECTORS.glob("traces*.json")) for script in load(each)]
    listed = read(path)
    try:
        return [_script(number, raw) for number, raw in enumerate(listed)]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a file of scripts: {error!r}") from error


def read(path: Path) -> Any:
    """What is in a file of scripts of either kind.

    Raises:
        ValueError: it is no JSON.
        OSError: it cannot be read.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a file of scripts: {error}") from error


def save(path: Path, scripts: Sequence[Script]) -> None:
    """Writes a file of scripts, one to a line."""
    lines = []
    for script in scripts:
        kind, _, seed = script.name.partition("-")
        raw = {
            "seed": int(seed),
            "kind": kind,
            "steps": [[step.operation, step.label, step.argument] for step in script.steps],
            "answers": [[[call, answer] for call, answer in answers.items()] for answers in script.answers],
        }
        lines.append(json.dumps(raw, separators=(",", ":")))
    path.write_text("[" + ",\n".join(lines) + "]\n")


def _script(number: int, raw: Any) -> Script:
    answers = [{call: sorted_members(answer) for call, answer in step} for step in raw["answers"]]
    steps = [Step(*step) for step in raw["steps"]]
    if len(steps) != len(answers):
        raise ValueError(f"script {number} has {len(steps)} steps and answers to {len(answers)}")
    return Script(f"{raw.get('kind', 'script')}-{raw.get('seed', number)}", steps, answers)


def sorted_members(answer: Answer) -> Answer:
    """An answer with the members of a group in the order of the recordings."""
    if "leader" in answer or "state" in answer:
        return {**answer, "members": sorted(answer["members"], key=str)}
    return answer
