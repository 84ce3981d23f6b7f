"""Says which of Kafka's behaviours Muster has, and lets a recorded Kafka judge it.

Reads the rows of classic groups (tests/conformance/rows.toml) and of incremental ones
(tests/conformance/incremental/rows.toml), runs the tests that carry their ids (`@pytest.mark.row`) and plays
the recorded scripts. Fails when a row has no verdict, a covered row has no test, a row of incremental groups
differs by no name of their table of differences, a test carries an id that is no row, such a test does not
pass, or a script differs in a way that has no name.

    ./x conformance                 the table, counts per group, the scripts, one line of totals
    ./x conformance --brief         the same without the table
    ./x conformance --traces FILE   only the scripts of a file, of classic or of incremental groups, in
                                    virtual time
    ./x conformance --traces FILE --grpc [N]
                                    besides, N of them (or all that can be) over real gRPC on processes
"""

import argparse
import asyncio
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conformance import traces, traces_grpc, traces_incremental, traces_incremental_grpc, traces_judge
from conformance.traces import Script
from conformance.traces_incremental import IncrementalScript, IncrementalVerdict
from conformance.traces_judge import Verdict

HERE = Path(__file__).resolve().parent
ROWS = HERE / "rows.toml"
INCREMENTAL_ROWS = HERE / "incremental" / "rows.toml"
REFERENCES: Mapping[str, Path] = {"classic groups": ROWS, "incremental groups": INCREMENTAL_ROWS}
"""What Kafka does with each kind of group."""
VERDICTS = ("covered", "differs", "not applicable")


@dataclass(frozen=True)
class Row:
    """One behaviour."""

    id: str
    verdict: str
    text: str
    reason: str = ""


@dataclass
class Rows:
    """The list of behaviours, and what is wrong with it.

    Attributes:
        rows: by id.
        groups: titles, by the prefix of their ids.
        differences: what may differ, by the name with which the reason of such a row begins; empty: each row
            has a reason of its own.
        faults: what is wrong.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    differences: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def read_rows(path: Path = ROWS) -> Rows:
    """Reads the list and checks that every row has a verdict, and a reason where it needs one."""
    found = Rows()
    tables = tomllib.loads(path.read_text())
    found.differences = tables.pop("differences", {})
    for group, table in tables.items():
        found.groups[group] = table.pop("title")
        expected = [f"{group}-{number:02d}" for number in range(1, table.pop("count") + 1)]
        found.faults += [f"{row_id} has no verdict" for row_id in expected if row_id not in table]
        found.faults += [
            f"{row_id} is not a row of group {group}" for row_id in table if row_id not in expected
        ]
        for row_id, entry in table.items():
            row = found.rows[row_id] = Row(row_id, *entry)
            if row.verdict not in VERDICTS:
                found.faults.append(f"{row_id} has no verdict: {row.verdict!r}")
            if (row.verdict == "covered") is bool(row.reason):
                found.faults.append(f"{row_id} is {row.verdict} and has {'a' if row.reason else 'no'} reason")
            if row.verdict == "differs" and found.differences and difference_of(row) not in found.differences:
                found.faults.append(f"{row_id} differs by no name of the table of differences: {row.reason}")
    return found


def difference_of(row: Row) -> str:
    """The name with which the reason of a row begins; empty: it begins with none."""
    name, colon, _ = row.reason.partition(": ")
    return name if colon else ""


class RowTests:
    """A plugin of pytest: runs the tests that carry ids and remembers how they went."""

    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = defaultdict(list)
        self.failed: dict[str, str] = {}
        self.passed: set[str] = set()
        self.errors: list[str] = []

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keeps the tests that carry an id."""
        carrying = []
        for item in items:
            ids = [str(row_id) for mark in item.iter_markers("row") for row_id in mark.args]
            for row_id in ids:
                self.tests[row_id].append(item.nodeid)
            if ids:
                carrying.append(item)
        config.hook.pytest_deselected(items=[item for item in items if item not in set(carrying)])
        items[:] = carrying

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be read hides its tests."""
        if report.failed:
            self.errors.append(f"{report.nodeid} cannot be collected")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A skipped test has shown nothing."""
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)
        elif not report.passed:
            self.failed[report.nodeid] = "was skipped" if report.skipped else "failed"


def judge_rows(lists: Sequence[Rows], ran: RowTests) -> list[str]:
    """What is wrong between the lists and the tests."""
    rows = [row for each in lists for row in each.rows.values()]
    known = {row.id for row in rows}
    faults = [*(fault for each in lists for fault in each.faults), *ran.errors]
    faults += [
        f"{row.id} is covered by no test: {row.text}"
        for row in rows
        if row.verdict == "covered" and not ran.tests.get(row.id)
    ]
    for row_id, tests in sorted(ran.tests.items()):
        if row_id not in known:
            faults.append(f"{tests[0]} carries {row_id}, which is no row")
            continue
        faults += [
            f"{row_id}: {test} {ran.failed.get(test, 'did not run')}"
            for test in tests
            if test not in ran.passed
        ]
    return faults


def print_table(rows: Rows, ran: RowTests) -> None:
    """Every row with its verdict and how many tests carry it."""
    for group, title in rows.groups.items():
        print(f"\n{group}  {title}")
        for row in rows.rows.values():
            if row.id.startswith(f"{group}-"):
                count = len(ran.tests.get(row.id, ()))
                tests = f"{count} test{'s' if count != 1 else ''}" if count else ""
                print(f"  {row.id}  {row.verdict:14}  {tests:9}  {row.text}")
                if row.reason:
                    print(f"{'':37}{row.reason}")


def print_counts(kind: str, rows: Rows) -> Counter[str]:
    """Counts per group, and how many rows each name of the table of differences has; returns the totals."""
    totals: Counter[str] = Counter()
    print(f"\n{kind:44}{'rows':>6}{'covered':>9}{'differs':>9}{'not applicable':>16}")
    for group, title in rows.groups.items():
        counts = Counter(row.verdict for row in rows.rows.values() if row.id.startswith(f"{group}-"))
        totals += counts
        print(f"{group}  {title:40}{counts.total():>6}" + _columns(counts))
    print(f"{'':44}{totals.total():>6}" + _columns(totals))
    by_name = Counter(difference_of(row) for row in rows.rows.values() if row.verdict == "differs")
    for name, text in rows.differences.items():
        print(f"  {by_name[name]:4} × {name}: {text}")
    return totals


def _columns(counts: Counter[str]) -> str:
    return "".join(f"{counts[verdict]:>{width}}" for verdict, width in zip(VERDICTS, (9, 9, 16), strict=True))


def run_traces(path: Path | None) -> tuple[int, int, list[str]]:
    """Plays scripts; returns how many there are, how many needed a named difference, and what differs.

    A file has scripts of one kind of group; without one, those of both that belong to the project are played.
    """
    if path is None:
        classic, incremental = run_classic_traces(None), run_incremental_traces(traces_incremental.VECTORS)
        return classic[0] + incremental[0], classic[1] + incremental[1], [*classic[2], *incremental[2]]
    return run_incremental_traces(path) if traces_incremental.holds(path) else run_classic_traces(path)


def run_incremental_traces(path: Path) -> tuple[int, int, list[str]]:
    """As `run_traces`, of incremental groups."""
    scripts = traces_incremental.load(path)
    verdicts = [traces_incremental.judge(script) for script in scripts]
    print(f"\nin virtual time: {traces_incremental.summary(verdicts)}")
    return (
        len(scripts),
        sum(bool(verdict.needed) for verdict in verdicts),
        _differences(scripts, verdicts),
    )


def run_classic_traces(path: Path | None) -> tuple[int, int, list[str]]:
    """As `run_traces`, of classic groups."""
    scripts = traces.load(path)
    verdicts = [traces_judge.judge(script) for script in scripts]
    print(f"\nin virtual time: {traces_judge.summary(verdicts)}")
    named = sum(verdict.matches and bool(verdict.needed) for verdict in verdicts)
    return len(scripts), named, _differences(scripts, verdicts)


def run_traces_on_processes(path: Path | None, count: int | None) -> list[str]:
    """Plays so many scripts over real gRPC on processes, or the usual sample; returns what differs."""
    if path is None:
        return _classic_on_processes(None, count) + _incremental_on_processes(
            traces_incremental.VECTORS, count
        )
    play = _incremental_on_processes if traces_incremental.holds(path) else _classic_on_processes
    return play(path, count)


def _classic_on_processes(path: Path | None, count: int | None) -> list[str]:
    chosen, passed_over = traces_grpc.sample(traces.load(path), count or traces_grpc.SAMPLE)
    with TemporaryDirectory() as folder:
        played = asyncio.run(traces_grpc.play_on_processes(Path(folder), chosen))
    faults = []
    for way, verdicts in played.items():
        print(f"\non processes, by {way}: {traces_judge.summary(verdicts)}")
        faults += _differences([each.script for each in chosen], verdicts, f", by {way}")
    _print_passed_over(passed_over)
    return faults


def _incremental_on_processes(path: Path, count: int | None) -> list[str]:
    scripts = traces_incremental.load(path)
    chosen, passed_over = traces_incremental_grpc.sample(scripts, count or traces_incremental_grpc.SAMPLE)
    with TemporaryDirectory() as folder:
        verdicts = asyncio.run(traces_incremental_grpc.play_on_processes(Path(folder), chosen))
    print(f"\non processes, by unary calls: {traces_incremental.summary(verdicts)}")
    _print_passed_over(passed_over)
    return _differences(chosen, verdicts, ", by unary calls")


def _print_passed_over(passed_over: Counter[str]) -> None:
    for reason, number in passed_over.items():
        print(f"  {number:4} passed over: {reason}")


def _differences(
    scripts: Sequence[Script | IncrementalScript],
    verdicts: Sequence[Verdict | IncrementalVerdict],
    where: str = "",
) -> list[str]:
    return [
        f"script {script.name}, step {verdict.step} ({script.steps[verdict.step]}){where}:\n"
        f"    Kafka answered {verdict.expected}\n    Muster answered {verdict.got}"
        for script, verdict in zip(scripts, verdicts, strict=True)
        if verdict.step is not None
    ]


def run_tests() -> RowTests:
    """Runs the tests that carry ids."""
    ran = RowTests()
    with redirect_stdout(StringIO()):
        pytest.main(["-q", "--rootdir", str(HERE.parents[1]), str(HERE.parent)], plugins=[ran])
    return ran


def main() -> int:
    """Prints the report; returns the exit code."""
    parser = argparse.ArgumentParser(prog="./x conformance", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--traces", type=Path, metavar="FILE", help="only play the scripts of this file")
    parser.add_argument(
        "--grpc",
        type=int,
        nargs="?",
        const=sys.maxsize,
        metavar="N",
        help="play N of the scripts on processes too, by unary calls and on a session stream; without N: all",
    )
    parser.add_argument("--brief", action="store_true", help="leave the table of rows out")
    arguments = parser.parse_args()
    try:
        count, named, faults = 0, 0, list[str]()
        totals: dict[str, Counter[str]] = {}
        if arguments.traces is None:
            lists, ran = {kind: read_rows(path) for kind, path in REFERENCES.items()}, run_tests()
            for rows in () if arguments.brief else lists.values():
                print_table(rows, ran)
            totals = {kind: print_counts(kind, rows) for kind, rows in lists.items()}
            faults += judge_rows(list(lists.values()), ran)
        count, named, different = run_traces(arguments.traces)
        faults += different
        if arguments.grpc is not None or arguments.traces is None:
            faults += run_traces_on_processes(arguments.traces, arguments.grpc)
    except (OSError, ValueError) as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    for fault in faults:
        print(f"FAULT  {fault}")
    line = (
        f"{count} scripts: {count - len(different)} as Kafka answered ({named} with named differences), "
        f"{len(different)} not; {len(faults)} fault{'s' * (len(faults) != 1)}"
    )
    for kind, counts in totals.items():
        print(
            f"\n{kind}: {counts.total()} rows: {counts['covered']} covered, {counts['differs']} differ, "
            f"{counts['not applicable']} not applicable",
            end="",
        )
    print(f"\n{line}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
