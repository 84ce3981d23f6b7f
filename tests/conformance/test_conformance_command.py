"""The command behind `./x conformance` sees each fault that it is there for."""

import sys
from pathlib import Path

import pytest
from conformance.command import INCREMENTAL_ROWS, RowTests, judge_rows, main, read_rows


def faults(tmp_path: Path, rows: str, tests: dict[str, list[str]], passed: set[str]) -> list[str]:
    path = tmp_path / "rows.toml"
    path.write_text(f'[XY]\ntitle = "x"\ncount = 2\n{rows}')
    ran = RowTests()
    ran.tests.update(tests)
    ran.passed |= passed
    return judge_rows([read_rows(path)], ran)


GOOD = 'XY-01 = ["covered", "a"]\nXY-02 = ["differs", "b", "because"]'
NAMES = '[differences]\nwakes = "a release wakes who waits"'


@pytest.mark.parametrize(
    ("rows", "tests", "passed", "fault"),
    [
        (GOOD, {"XY-01": ["t"]}, {"t"}, None),
        ('XY-01 = ["covered", "a"]', {"XY-01": ["t"]}, {"t"}, "XY-02 has no verdict"),
        (GOOD.replace("differs", "perhaps"), {"XY-01": ["t"]}, {"t"}, "XY-02 has no verdict: 'perhaps'"),
        (GOOD.replace(', "because"', ""), {"XY-01": ["t"]}, {"t"}, "XY-02 is differs and has no reason"),
        (
            GOOD + '\nXY-03 = ["covered", "c"]',
            {"XY-01": ["t"], "XY-03": ["t"]},
            {"t"},
            "XY-03 is not a row of",
        ),
        (GOOD, {}, set(), "XY-01 is covered by no test: a"),
        (GOOD, {"XY-01": ["t"], "ZZ-01": ["u"]}, {"t", "u"}, "u carries ZZ-01, which is no row"),
        (GOOD, {"XY-01": ["t"]}, set(), "XY-01: t did not run"),
        (GOOD, {"XY-01": ["t"], "XY-02": ["u"]}, {"t"}, "XY-02: u did not run"),
        (f"{GOOD}\n{NAMES}", {"XY-01": ["t"]}, {"t"}, "XY-02 differs by no name of the table of differences"),
        (
            f"{GOOD}\n{NAMES}".replace("because", "because: of that"),
            {"XY-01": ["t"]},
            {"t"},
            "XY-02 differs by no name",
        ),
        (f"{GOOD}\n{NAMES}".replace("because", "wakes: of that"), {"XY-01": ["t"]}, {"t"}, None),
    ],
)
def test_faults_are_found(
    tmp_path: Path,
    rows: str,
    tests: dict[str, list[str]],
    passed: set[str],
    fault: str | None,
) -> None:
    found = faults(tmp_path, rows, tests, passed)
    assert found == [] if fault is None else len(found) == 1
    assert all(fault is not None and line.startswith(fault) for line in found)


def test_the_list_itself_is_whole() -> None:
    rows = read_rows()
    assert rows.faults == []
    assert (len(rows.rows), len(rows.groups)) == (486, 26)
    assert sum(row.verdict == "not applicable" for row in rows.rows.values()) <= 62


def test_the_list_of_incremental_groups_is_whole() -> None:
    rows = read_rows(INCREMENTAL_ROWS)
    assert rows.faults == []
    assert (len(rows.rows), len(rows.groups)) == (348, 18)
    assert rows.differences.keys() == {
        "wakes",
        "versions",
        "timers",
        "commits",
        "statics",
        "names",
        "bounds",
    }


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[", b"1", b"[1]", b'[{"seed": 1}]'])
def test_a_file_without_scripts_is_named_in_one_line(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "traces.json"
    path.write_bytes(text)
    monkeypatch.setattr(sys, "argv", ["conformance", "--traces", str(path)])
    assert main() == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"conformance: {path} is not a file of scripts: ")
    assert told.err.count("\n") == 1
