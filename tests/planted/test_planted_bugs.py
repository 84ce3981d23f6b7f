"""The planted bugs fit rules, code and tests; a few of them are really planted."""

import dataclasses
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kit.machine import CORES, ports_of
from planted.command import main
from planted.field import in_places
from planted.ground import Ground
from planted.plants import BadPlants, Plant, Plants, faults, planted, read_plants
from planted.rules import ROOT, BadRules, read_rules
from planted.table import PAGE, is_current, page, read_catches, rows_missing

SAMPLE = ("life-is-the-session", "promise-goes-back")
HARMLESS = Plant(
    id="harmless",
    rules=("TIM-01",),
    bug="none",
    file="services/core/muster_core/clock.py",
    old="handed in, never read",
    new="handed in, and never read",
    tests=("runtime/test_runtime_clock.py",),
)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("planted") / "ground", ports_of(0, 1))


@pytest.mark.slow
def test_every_rule_has_a_bug_and_every_bug_fits() -> None:
    assert faults(read_plants(), read_rules()) == []


def test_the_page_is_current() -> None:
    assert is_current(PAGE.read_text("utf-8"), read_rules(), read_plants()), "run ./x planted"


@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_bug_is_caught(ground: Ground, name: str) -> None:
    plant = read_plants().plants[name]
    file = ROOT / plant.file
    before = file.read_text("utf-8")
    with ground.with_bug(plant):
        outcome = ground.test(plant.tests, 120, first_failure_ends=True)
    assert not outcome.broken
    assert outcome.failed[0].startswith(plant.tests[0])
    assert file.read_text("utf-8") == before, "bugs are planted in a copy"


@pytest.mark.long
def test_the_command_plants_and_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "sync-answered-before-the-log"
    monkeypatch.setattr("sys.argv", ["planted", "--only", name, "--no-write", "--jobs", "1"])
    assert main() == 0
    told = capsys.readouterr().out
    assert f"{name}: caught by core/test_core_stories.py::test_the_assignment_is_stored" in told
    assert told.endswith("1 rules, 1 bugs planted: 1 caught, 0 not caught\n")
    for arguments, code, words in [
        (["--only", "nothing"], 2, "there is no plant nothing"),
        (["--rule", "NOT-99"], 2, "no plant breaks NOT-99"),
        (["--check"], 0, "0 faults"),
        (["--list", "--rule", "GRP-02"], 0, "sync-answered-before-the-log: SyncGroup is answered while"),
    ]:
        monkeypatch.setattr("sys.argv", ["planted", *arguments])
        assert main() == code
        assert words in "".join(capsys.readouterr())


@pytest.mark.long
def test_a_change_that_breaks_nothing_is_not_caught(ground: Ground) -> None:
    with ground.with_bug(HARMLESS):
        assert ground.test(HARMLESS.tests, 120, first_failure_ends=True).passed


@pytest.mark.long
def test_a_bug_that_only_breaks_the_import_shows_nothing(ground: Ground) -> None:
    with ground.with_bug(dataclasses.replace(HARMLESS, old="import NamedTuple", new="import Named")):
        outcome = ground.test(("core/test_core_golden.py",), 120, first_failure_ends=True)
    assert outcome.broken.startswith("pytest ended with")
    assert not outcome.failed


def test_of_plants_that_compute_only_as_many_run_at_once_as_there_are_cores() -> None:
    computing = [dataclasses.replace(HARMLESS, id=f"computing-{number}") for number in range(2 * CORES)]
    waiting = [dataclasses.replace(HARMLESS, id=f"waiting-{number}") for number in range(3 * CORES)]
    running: set[str] = set()
    most = {"computing": 0, "all": 0}
    full = threading.Barrier(CORES + 2)

    def attempt(plant: Plant) -> str:
        running.add(plant.id)
        most["computing"] = max(most["computing"], sum(name in running for name in names))
        most["all"] = max(most["all"], len(running))
        if plant in (*computing[:CORES], *waiting[:2]):
            full.wait(60)
        running.remove(plant.id)
        return plant.id

    names = {plant.id for plant in computing}
    tried = in_places(attempt, computing, waiting, CORES + 2)
    assert sorted(tried) == sorted(plant.id for plant in (*computing, *waiting))
    assert most["computing"] == CORES
    assert most["all"] == CORES + 2


def test_a_list_that_nobody_reads_to_its_end_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "planted", "--list"]
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


def test_faults_are_found() -> None:
    rules = {rule.id: rule for rule in read_rules().values() if rule.id == "TIM-01"}
    wrong = [
        (HARMLESS, []),
        (dataclasses.replace(HARMLESS, old="nowhere"), ["is stale: its old text stands not in"]),
        (dataclasses.replace(HARMLESS, old="ms"), ["is stale: its old text stands"]),
        (dataclasses.replace(HARMLESS, file="nothing.py"), ["names the file nothing.py, which is none"]),
        (dataclasses.replace(HARMLESS, tests=("core/x.py::test_y",)), ["names the test core/x.py::test_y"]),
        (dataclasses.replace(HARMLESS, rules=("NOT-01",)), ["names the rule NOT-01", "rule TIM-01 has no"]),
    ]
    for plant, expected in wrong:
        found = faults(Plants({plant.id: plant}), rules)
        assert len(found) == len(expected), found
        assert all(words in fault for words, fault in zip(expected, found, strict=True)), found
    with pytest.raises(BadPlants, match="stands 2 times"):
        planted(dataclasses.replace(HARMLESS, old="x"), "x x")


def test_bad_files_are_named(tmp_path: Path) -> None:
    entry = '[[plant]]\nid="a"\nrules=["R"]\nbug="b"\nfile="f"\nold="o"\nnew="{new}"\ntests=["core/t.py"]\n'
    for text, words in [
        (entry.format(new="o"), "it needs rules, tests, and a change"),
        (entry.format(new="n") + "more=1\n", "unknown keys"),
        (entry.format(new="n") + entry.format(new="n"), "two plants of this id"),
        (entry.format(new="n").replace("core/", "elsewhere/"), "in none of the folders"),
    ]:
        (tmp_path / "x.toml").write_text(text)
        with pytest.raises(BadPlants, match=words):
            read_plants(tmp_path)
    rules = tmp_path / "safety.md"
    rules.write_text("## S\n\n* `ABC-01` One\n  rule.\n* `ABC-02` Two.\n\nMore.\n")
    assert [(rule.id, rule.section, rule.text) for rule in read_rules(rules).values()] == [
        ("ABC-01", "S", "One rule."),
        ("ABC-02", "S", "Two."),
    ]
    rules.write_text("* `ABC-01` One.\n* `ABC-01` Two.\n")
    with pytest.raises(BadRules, match="ABC-01 is the id of two rules"):
        read_rules(rules)


def test_the_page_says_what_caught_what() -> None:
    rules, found = read_rules(), read_plants()
    catches = {plant.id: plant.tests[0] for plant in found.plants.values()}
    text = page(rules, found, catches)
    assert read_catches(text) == catches
    assert is_current(text, rules, found)
    assert not is_current(text.replace("GRP-01", "GRP-02", 1), rules, found)
    first = next(iter(found.plants))
    assert not is_current(page(rules, found, catches | {first: "core/another.py::test"}), rules, found)


def test_a_page_without_some_rows_has_the_others_and_says_which_are_missing() -> None:
    rules, found = read_rules(), read_plants()
    catches = {plant.id: plant.tests[0] for plant in found.plants.values()}
    assert rows_missing(found, catches) == []
    first, second, *_ = found.plants
    fewer = {name: test for name, test in catches.items() if name != first} | {
        second: "core/another.py::test"
    }
    text = page(rules, found, fewer)
    assert read_catches(text) == fewer
    assert not is_current(text, rules, found)
    told = rows_missing(found, fewer)
    assert [line.partition(": ")[2] for line in told] == [
        f"./x planted --only {name}" for name in (first, second)
    ]
