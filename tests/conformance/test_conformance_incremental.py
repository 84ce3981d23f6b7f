"""A real Kafka 4.1 as judge of incremental groups: recorded scripts, played in virtual time."""

from dataclasses import replace
from pathlib import Path

import pytest
from conformance import command, traces_incremental
from conformance.traces_incremental import IncrementalScript

SCRIPTS = traces_incremental.load()


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.name for script in SCRIPTS])
def test_answers_as_kafka_does(script: IncrementalScript) -> None:
    verdict = traces_incremental.judge(script)
    assert verdict.matches, f"step {verdict.step}: Kafka {verdict.expected}, Muster {verdict.got}"


@pytest.mark.slow
def test_only_scripts_with_expressions_need_a_difference() -> None:
    for script in SCRIPTS:
        named = any(step.operation == "heartbeat" and step.argument.get("regex") for step in script.steps)
        assert named or not traces_incremental.judge(script).needed, script.name


def test_the_judge_sees_what_is_different() -> None:
    script = next(script for script in SCRIPTS if script.name.startswith("plain"))
    wrong = [None if answer is None else answer | {"epoch": -9} for answer in script.answers]
    verdict = traces_incremental.judge(replace(script, answers=wrong))
    assert verdict.step == 0
    assert not verdict.matches


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "traces.json"
    path.write_text('[{"steps": [["describe", "", {}]], "answers": []}]')
    with pytest.raises(ValueError, match="script 0 has 1 steps and answers to 0"):
        traces_incremental.load(path)


@pytest.mark.slow
def test_the_command_tells_the_kinds_of_file_apart(capsys: pytest.CaptureFixture[str]) -> None:
    count, named, different = command.run_traces(traces_incremental.VECTORS)
    assert (count, different) == (len(SCRIPTS), [])
    assert named == 0
    assert "scripts of incremental groups" in capsys.readouterr().out
