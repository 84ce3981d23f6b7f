"""The assignor `uniform` alone, as a coordinator has it computed by the process of its own."""

import gc
import time
from dataclasses import dataclass

from muster_coordinator.assignment.answers import answer_to
from muster_coordinator.assignment.lines import AnswerReader, lines_of_answer, lines_of_work, work_of
from muster_core.events import Assign, Assigned
from muster_core.incremental.candidate import Candidate
from muster_core.incremental.targets.target import Question

from rebalancing.balance import fewest_moves


@dataclass(frozen=True)
class Uniform:
    """What one join to a large group takes, CPU ms.

    Attributes:
        aside_ms: in the process of its own: reading the question, computing, writing the answer.
        assignor_ms: of that the assignor, and what it changes.
        loop_ms: on the coordinator's loop, in many turns: writing the question and reading the answer.
        turn_ms: the longest turn of those, a line each.
        moved: partitions that change owner.
        fewest: how many have to.
    """

    aside_ms: float
    assignor_ms: float
    loop_ms: float
    turn_ms: float
    moved: int
    fewest: int


def uniform(members: int, partitions: int) -> Uniform:
    """One member joins so many that share so many partitions."""
    share, extras = divmod(partitions, members)
    begin, candidates = 0, {}
    for number in range(members + 1):
        end = begin + (share + (number < extras) if number < members else 0)
        before = frozenset(("topic", partition) for partition in range(begin, end))
        # the id of who joins is among the others, as a drawn one is
        name = f"{number:08}-7d1c-4f0b-8c1e-0123456789ab" if number < members else f"{members // 2:08}-f"
        candidates[name] = Candidate(name, "", "", frozenset({"topic"}), before)
        begin = end
    work = Assign("group", 1, "uniform", Question(candidates, {"topic": list(range(partitions))}, True, True))
    gc.collect()
    turns = []
    lines = []
    writer = lines_of_work(work)
    while True:
        began_s = time.process_time()
        line = next(writer, None)
        turns.append(time.process_time() - began_s)
        if line is None:
            break
        lines.append(line)
    began_s = time.process_time()
    asked = work_of(lines)
    read_s = time.process_time()
    answer = answer_to(asked)
    assigned_s = time.process_time()
    assert isinstance(answer, Assigned)
    answers = list(lines_of_answer(answer))
    ended_s = time.process_time()
    reader = AnswerReader()
    for line in answers:
        turn_s = time.process_time()
        reader.take(line)
        turns.append(time.process_time() - turn_s)
    assert reader.answer() == answer
    moved = sum(len(change.gets) for change in (answer.changes or {}).values())
    shares = {name: len(one.before) for name, one in candidates.items()}
    return Uniform(
        (ended_s - began_s) * 1e3,
        (assigned_s - read_s) * 1e3,
        sum(turns) * 1e3,
        max(turns) * 1e3,
        moved,
        fewest_moves(shares, members + 1),
    )
