#!/usr/bin/env python3
"""Changes the core in small ways, one at a time, and counts how many of them the tests notice.

The changes are those of cosmic-ray, and some more: a statement that only has an effect is left out, a state
is another one, and the tables and sets of states lose, gain or mix up their members. No file is written: the
tests are collected and run once, then a process forked for each change swaps the changed function in and runs
the tests that reach it, quick and narrow ones first, until one fails or 6 CPU seconds have passed. So most
changes cost milliseconds, and the checkout is left alone.

Results are kept in build/mutation/results.json: a noticed change while its file stays as it is, a survivor
while the tests do too. A run that was interrupted goes on where it was. Changes that nobody could notice are
listed, each with its reason, in tests/mutation/equivalent.toml, and are not counted.

    ./x mutate [FILES] [--sample N] [--seed S] [--minimum PERCENT] [--jobs N] [--quick] [--fresh]
"""

import argparse
import hashlib
import json
import sys
import tomllib
from collections import Counter
from pathlib import Path

from mutation.changes import Change, changes_of
from mutation.trial import file_of, run

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = ROOT / "tests/mutation/equivalent.toml"
RESULTS = ROOT / "build/mutation/results.json"
STATE_MACHINE = (
    "group_state", "purgatory", "timing_wheel", "delayed", "rebalance", "joins", "syncs", "leaves", "streams",
    "protocols",
)  # fmt: skip
MINIMUM_PERCENT = 95.0


def key(change: Change) -> str:
    """Names a change as long as its line stays as it is, wherever that line moves."""
    return f"{change.file}: {change.before} -> {change.after}"


def equivalents() -> dict[str, str]:
    """The changes that no test can notice, with the reason."""
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["change"]
    return {f"{row['file']}: {row['before']} -> {row['after']}": row["reason"] for row in listed}


def fingerprint(*paths: Path) -> str:
    """Names what files hold."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Results:
    """What is known of changes: that a test noticed them stays true while their file stays as it is."""

    def __init__(self, fresh: bool) -> None:
        self._tests = fingerprint(*sorted((ROOT / "tests").glob("co*/*.py")))
        known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() and not fresh else {}
        self._known: dict[str, str] = known

    def _key(self, change: Change) -> str:
        return f"{change.file} {change.operator} {change.occurrence} {fingerprint(file_of(change.file))}"

    def get(self, change: Change) -> str | None:
        """The outcome; None: never tried."""
        outcome = self._known.get(self._key(change))
        return outcome if outcome != f"survived {self._tests}" else "survived"

    def known(self, change: Change) -> bool:
        """Whether it need not be tried."""
        return not (self.get(change) or "survived ").startswith("survived ")

    def note(self, change: Change, outcome: str) -> None:
        """Keeps an outcome."""
        self._known[self._key(change)] = f"survived {self._tests}" if outcome == "survived" else outcome
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(self._known, indent=0), encoding="utf-8")


def report(changes: list[Change], results: Results, reasons: dict[str, str]) -> float:
    """Prints the table and the survivors; returns the score in percent."""
    counts: dict[str, Counter[str]] = {}
    survivors = []
    for change in changes:
        outcome = results.get(change) or "unknown"
        if outcome == "survived" and key(change) in reasons:
            outcome = "equivalent"
        counts.setdefault(change.file, Counter())[outcome] += 1
        if outcome == "survived":
            survivors.append(change)
    for change in survivors:
        print(f"survived: {change.file}:{change.line}\n    {change.before}\n    {change.after}")
    print(f"{'file':<20}{'changes':>9}{'noticed':>9}{'survived':>10}{'equivalent':>12}{'score':>9}")
    total: Counter[str] = Counter()
    for file, row in counts.items():
        total += row
        print(_line(file, row))
    print(_line("all", total))
    return _score(total)


def _noticed(row: Counter[str]) -> int:
    return row["failed"] + row["time-out"]


def _score(row: Counter[str]) -> float:
    return 100 * _noticed(row) / max(1, _noticed(row) + row["survived"])


def _line(name: str, row: Counter[str]) -> str:
    return (
        f"{name:<20}{row.total():>9}{_noticed(row):>9}{row['survived']:>10}{row['equivalent']:>12}"
        f"{_score(row):>7.1f} %"
    )


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="./x mutate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", default=STATE_MACHINE, help="names of muster_core's files")
    parser.add_argument("--sample", type=int, default=0, help="places to change in each file; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample")
    parser.add_argument("--minimum", type=float, default=MINIMUM_PERCENT, help="score below which it fails")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--quick", action="store_true", help="without recorded scripts and random lives")
    parser.add_argument("--fresh", action="store_true", help="forget what is known")
    arguments = parser.parse_args()
    chosen: list[Change] = []
    for name in arguments.files:
        found = changes_of(file_of(f"{Path(name).stem}.py"), arguments.sample, arguments.seed)
        print(f"{Path(name).stem}.py: {len(found)} changes", flush=True)
        chosen += found
    if arguments.sample:
        print(f"drawn with --sample {arguments.sample} --seed {arguments.seed}")
    results = Results(arguments.fresh)
    todo = [change for change in chosen if not results.known(change)]
    print(f"{len(chosen)} changes, {len(todo)} to try")
    if todo and not run(todo, arguments.jobs, arguments.quick, results.note):
        print("the tests cannot be collected")
        return 2
    score = report(chosen, results, equivalents())
    if score < arguments.minimum:
        print(f"the score is below {arguments.minimum} %")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
