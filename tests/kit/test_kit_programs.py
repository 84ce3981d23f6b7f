"""Programs of a folder: listed, run, and judged by how they end."""

from pathlib import Path

import pytest
from kit.programs import Program, command, programs_in, verdict

pytestmark = pytest.mark.cluster

PROGRAM = '''"""Attacks nothing.

More about it.
"""

from kit.programs import Broken, report, run

{constant}
async def main() -> None:
    report("seen")
    {body}


if __name__ == "__main__":
    run(main)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that Python finds."""
    tests = Path(__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{tests}")
    made = tmp_path / "attacks"
    made.mkdir()
    (made / "helper.py").write_text('"""No program."""\n')
    (made / "worker.py").write_text(
        '"""None either: a program starts it."""\nimport asyncio, sys\n\n'
        'if __name__ == "__main__":\n    asyncio.run(None, sys.argv[1])\n'
    )
    return made


def write(folder: Path, name: str, body: str, constant: str = "") -> None:
    (folder / f"{name}.py").write_text(PROGRAM.format(body=body, constant=constant))


def test_programs_are_listed_with_the_first_line_of_their_docstring(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "one", "return")
    assert command(folder, []) == 0
    assert capsys.readouterr().out.split() == ["one", "Attacks", "nothing."]


@pytest.mark.parametrize(
    ("body", "constant", "word", "code"),
    [
        ("return", "", "held ", 0),
        ("raise Broken('it went back')", "", "BROKEN ", 1),
        ("raise ValueError", "", "CRASHED ", 1),
        ("raise Broken('it went back')", 'STANDS_OPEN = "nobody has a name"\n', "open ", 0),
        ("return", 'STANDS_OPEN = "nobody has a name"\n', "HELD ", 1),
    ],
)
def test_a_program_is_judged_by_its_end(
    folder: Path, capfd: pytest.CaptureFixture[str], body: str, constant: str, word: str, code: int
) -> None:
    write(folder, "one", body, constant)
    assert command(folder, ["all"]) == code
    table = capfd.readouterr().out.rpartition("\n\n")[2]
    assert table.startswith(word)
    assert "seen" in table
    assert ("it went back" in table) is ("Broken" in body)
    assert ("nobody has a name" in table) is (word == "open ")


def test_arguments_after_two_dashes_reach_the_program(folder: Path) -> None:
    write(folder, "one", "import sys; assert sys.argv[1:] == ['--seed', '7']")
    assert command(folder, ["one", "--", "--seed", "7"]) == 0


def test_results_are_kept_and_only_what_could_not_judge_is_run_again(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(folder, "broken", "raise Broken('it went back')")
    write(folder, "crashed", "raise ValueError")
    write(folder, "held", "return")
    kept = ["--results", str(tmp_path / "results")]
    assert command(folder, ["all", *kept]) == 1
    before = capfd.readouterr().out.rpartition("\n\n")[2]
    for name in ("broken", "crashed", "held"):
        write(folder, name, "report('again')")
    with (tmp_path / "results").open("a") as file:
        file.write('\n{"name": "crashed", "co')  # where the command was ended
    assert command(folder, ["all", *kept]) == 1
    after = capfd.readouterr().out.rpartition("\n\n")[2].splitlines()
    assert [line.strip() for line in after if "again" in line] == ["again"]
    assert [line.split()[0] for line in before.splitlines() if "Attacks" in line] == [
        "BROKEN",
        "CRASHED",
        "held",
    ]
    assert [line.split()[0] for line in after if "Attacks" in line] == ["BROKEN", "held", "held"]


def test_what_could_not_judge_is_never_as_it_must_be() -> None:
    for stands_open in ("", "known"):
        assert verdict(Program("a", "b.a", "", stands_open), 2) == ("CRASHED", False)


def test_every_program_of_the_project_says_what_it_attacks() -> None:
    tests = Path(__file__).parents[1]
    for folder in ("safety", "abuse"):
        for program in programs_in(tests / folder).values():
            assert program.summary.endswith("."), program.name
