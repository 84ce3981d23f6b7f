"""docs/failures.md says only what a scenario or a test keeps true, with the times that hold."""

import re
from collections.abc import Iterator
from pathlib import Path

from chaos.all_scenarios import SCENARIOS
from muster import MemberConfig
from muster_runtime.setting_facts import facts
from muster_server.roles import settings_classes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "failures.md").read_text()


def rows(heading: str) -> Iterator[list[str]]:
    """The cells of each row of the table below a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    for line in lines[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def keepers() -> Iterator[str]:
    """What keeps the failures of the page true: numbers of scenarios, and files of tests."""
    failures = list(rows("Who notices, and after how long"))
    assert len(failures) > 20
    for failure in failures:
        yield from failure[-1].split(", ")


def test_each_failure_names_its_scenarios_or_a_test() -> None:
    for keeper in keepers():
        assert keeper in SCENARIOS or any((ROOT / "tests").rglob(keeper.strip("`"))), keeper


def test_each_scenario_is_a_failure_of_the_table() -> None:
    assert SCENARIOS.keys() <= set(keepers())


def test_times_are_the_defaults() -> None:
    defaults = {fact.name: fact.default for one in settings_classes() for fact in facts(one)}
    member = MemberConfig()
    defaults |= {name: str(getattr(member, name)) for name in ("disconnect_grace_ms", "session_timeout_ms")}
    margin_ms = int(defaults["MUSTER_COORDINATOR_LEASE_MARGIN_MS"])
    told = re.findall(r"([\d.]+) s \(`(\w+)`\)", PAGE)
    assert len(told) >= 6
    for seconds, name in told:
        assert int(float(seconds) * 1_000) == int(defaults[name]), name
    assert f"{(int(defaults['MUSTER_METADATA_LEASE_MS']) - margin_ms) / 1000:g} s, then" in PAGE


def test_each_line_about_the_log_and_topics_names_tests_that_exist() -> None:
    files = list((ROOT / "tests").glob("*/test_*.py"))
    tests = "\n".join(path.read_text() for path in files)
    lines = [*rows("What happens to the log"), *rows("Topics that are deleted and created again")]
    assert len(lines) > 15
    for line in lines:
        for name in re.findall(r"`(test_\w+)(?:\.py|…(?:\[\d\])?)?`", line[-1]):
            known = f"def {name}" in tests or any(path.stem == name for path in files)
            assert known, f"{line[0]}: there is no test that begins with {name}"
