"""A real Kafka as judge: recorded scripts of group calls, played in virtual time."""

from pathlib import Path

import pytest
from conformance import traces, traces_judge
from conformance.traces import Script, Step
from muster_core.error_code import MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID

SCRIPTS = traces.load()


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.name for script in SCRIPTS])
def test_answers_as_kafka_does(script: Script) -> None:
    verdict = traces_judge.judge(script)
    assert verdict.matches, f"step {verdict.step}: Kafka {verdict.expected}, Muster {verdict.got}"


def _join(**argument: object) -> Step:
    given = {"session": 60_000, "rebalance": 60_000, "protocols": [["range", "m"]], **argument}
    return Step("join", "a", given)


def _joined(**answer: object) -> traces.Answer:
    whole = {"error": 0, "generation": 1, "protocol": "range", "leader": "a#1", "member": "a#1"}
    return {**whole, "members": [["a#1", None, "m"]], **answer}


TOLD = _joined(error=MEMBER_ID_REQUIRED, generation=-1, protocol="", leader="", members=[])


@pytest.mark.parametrize(
    "wrong",
    [
        {1: _joined(generation=0)},
        {1: _joined(leader="b#1")},
        {1: _joined(protocol="sticky")},
        {1: _joined(error=UNKNOWN_MEMBER_ID)},
        {},
        {0: TOLD, 1: _joined()},
    ],
    ids=["generation", "leader", "protocol", "error", "parked", "answered twice"],
)
def test_the_judge_sees_what_is_different(wrong: traces.Answers) -> None:
    steps = [_join(), _join(), Step("heartbeat", "a", {})]
    right = Script("right", steps, [{0: TOLD}, {1: _joined()}, {2: {"error": 0}}])
    assert traces_judge.judge(right).matches
    verdict = traces_judge.judge(Script("wrong", steps, [right.answers[0], wrong, right.answers[2]]))
    assert verdict.step == 1
    assert not verdict.matches


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "traces.json"
    path.write_text('[{"steps": [["heartbeat", "a", {}]], "answers": []}]')
    with pytest.raises(ValueError, match="script 0 has 1 steps and answers to 0"):
        traces.load(path)
