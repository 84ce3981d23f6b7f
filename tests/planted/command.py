"""Plants every bug, one after the other, and says which test caught it.

First the tests that shall catch the bugs must pass without any. Then each bug is planted in a copy of the
repository, and its tests run until one fails. Fails when a bug is not caught, or does not fit the code any
more, or a rule of docs/safety.md has none.

    ./x planted                  everything; writes docs/planted.md when all are caught
    ./x planted --only ID        one bug (may be repeated)
    ./x planted --rule GRP-03    the bugs that break a rule
    ./x planted --list           rules and bugs; plants nothing
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from planted.ground import Ground, Outcome
from planted.plants import LAYERS, BadPlants, Check, Plant, Plants, faults, is_of, layer_of, read_plants
from planted.rules import BadRules, Rule, read_rules
from planted.table import PAGE, page, read_catches

PLANT_LIMIT_S = 300
CHECK_LIMIT_S = 900
UNPLANTED_LIMIT_S = 1_800
_REASON_LENGTH = 120


@dataclass(frozen=True)
class Verdict:
    """What came of a plant.

    Attributes:
        plant: the bug.
        caught_by: the test that saw it; empty: none.
        reason: what that test had to say.
        layers: the further layers that were tried → whether they saw it.
        broken: why it is not known; empty: it is.
    """

    plant: Plant
    caught_by: str = ""
    reason: str = ""
    layers: tuple[tuple[str, bool], ...] = ()
    broken: str = ""

    @property
    def good(self) -> bool:
        """Whether it was caught, by every layer that was tried."""
        return bool(self.caught_by) and not self.broken and all(saw for _, saw in self.layers)


class Field:
    """Some grounds on which plants are tried at the same time.

    Args:
        folder: for the copies.
        jobs: how many.
    """

    def __init__(self, folder: Path, jobs: int) -> None:
        self._jobs = jobs
        self._free: SimpleQueue[Ground] = SimpleQueue()
        for number in range(jobs):
            self._free.put(Ground(folder / str(number)))

    def failing_without_bugs(self, plants: Sequence[Plant]) -> tuple[list[str], list[str]]:
        """Tests that fail although no bug is planted; and why not all of them could be run."""
        tests = sorted({test for plant in plants for test in plant.tests})
        files = sorted({test.partition("::")[0] for test in tests})
        parts = [
            [test for test in tests if files.index(test.partition("::")[0]) % self._jobs == part]
            for part in range(self._jobs)
        ]
        with ThreadPoolExecutor(self._jobs) as threads:
            outcomes = list(threads.map(self._unplanted, filter(None, parts)))
        failing = [test for outcome in outcomes for test in outcome.failed]
        return failing, [outcome.broken for outcome in outcomes if outcome.broken]

    def _unplanted(self, tests: Sequence[str]) -> Outcome:
        ground = self._free.get()
        try:
            return ground.test(tests, UNPLANTED_LIMIT_S, first_failure_ends=False)
        finally:
            self._free.put(ground)

    def failing_checks(self, plants: Sequence[Plant]) -> list[Check]:
        """Commands of further layers that find something although no bug is planted."""
        checks = list(dict.fromkeys(check for plant in plants for check in plant.also))
        with ThreadPoolExecutor(self._jobs) as threads:
            outcomes = list(threads.map(self._unplanted_check, checks))
        return [check for check, outcome in zip(checks, outcomes, strict=True) if not outcome.passed]

    def _unplanted_check(self, check: Check) -> Outcome:
        ground = self._free.get()
        try:
            return ground.command(check.run, CHECK_LIMIT_S)
        finally:
            self._free.put(ground)

    def try_all(self, plants: Sequence[Plant], failing: Sequence[str], *, all_layers: bool) -> list[Verdict]:
        """Plants them, and prints each verdict when it is known.

        Args:
            plants: the bugs.
            failing: tests that fail without any; they catch nothing.
            all_layers: whether further layers are tried.
        """
        done = 0

        def attempt(plant: Plant) -> Verdict:
            nonlocal done
            began = time.monotonic()
            if any(is_of(test, named) for test in failing for named in plant.tests):
                verdict = Verdict(plant, broken="its tests fail without it")
            else:
                verdict = self._try(plant, all_layers=all_layers)
            done += 1
            seen = f"caught by {verdict.caught_by}" if verdict.good else "NOT CAUGHT"
            said = verdict.broken or verdict.reason
            print(f"[{done:3}/{len(plants)}] {time.monotonic() - began:5.1f} s  {plant.id}: {seen}")
            for line in [said[:_REASON_LENGTH], *(f"{layer}: {saw}" for layer, saw in verdict.layers)]:
                print(f"{'':20}{line}", flush=True)
            return verdict

        with ThreadPoolExecutor(self._jobs) as threads:
            return list(threads.map(attempt, plants))

    def _try(self, plant: Plant, *, all_layers: bool) -> Verdict:
        ground = self._free.get()
        try:
            with ground.with_bug(plant):
                outcome = ground.test(plant.tests, PLANT_LIMIT_S, first_failure_ends=True)
                caught_by = outcome.failed[0] if outcome.failed else ""
                layers = []
                for check in plant.also if all_layers else ():
                    seen = ground.command(check.run, CHECK_LIMIT_S)
                    layers.append((LAYERS[check.layer], bool(seen.failed)))
                return Verdict(plant, caught_by, outcome.reason, tuple(layers), outcome.broken)
        except BadPlants as error:
            return Verdict(plant, broken=str(error))
        finally:
            self._free.put(ground)


def chosen(found: Plants, only: Sequence[str], rule: Sequence[str]) -> list[Plant]:
    """The plants that were asked for.

    Raises:
        BadPlants: there is no such plant or rule.
    """
    for name in only:
        if name not in found.plants:
            raise BadPlants(f"there is no plant {name}")
    plants = [
        plant
        for plant in found.plants.values()
        if not (only or rule) or plant.id in only or set(rule) & set(plant.rules)
    ]
    if not plants:
        raise BadPlants(f"no plant breaks {', '.join(rule)}")
    return plants


def print_list(rules: dict[str, Rule], found: Plants) -> None:
    """All rules with their bugs."""
    for rule in rules.values():
        print(f"{rule.id}  {rule.text}")
        for plant in found.plants.values():
            if rule.id in plant.rules:
                print(f"        {plant.id}: {plant.bug} ({plant.layer})")


def write_page(rules: dict[str, Rule], found: Plants, verdicts: Sequence[Verdict]) -> None:
    """Writes docs/planted.md; of plants that were not tried it keeps what it says."""
    known = read_catches(PAGE.read_text("utf-8")) if PAGE.exists() else {}
    known |= {verdict.plant.id: verdict.caught_by for verdict in verdicts}
    if found.plants.keys() <= known.keys():
        PAGE.write_text(page(rules, found, known), "utf-8")
    else:
        untried = ", ".join(sorted(found.plants.keys() - known.keys()))
        print(f"docs/planted.md is not written: nothing is known of {untried}")


def print_totals(plants: Sequence[Plant], verdicts: Sequence[Verdict], rules: int) -> None:
    """Counts per layer, then one line."""
    layers: dict[str, int] = {}
    for verdict in verdicts:
        if verdict.caught_by:
            layer = layer_of(verdict.caught_by)
            layers[layer] = layers.get(layer, 0) + 1
        for layer, saw in verdict.layers:
            layers[layer] = layers.get(layer, 0) + saw
    print()
    for layer, count in sorted(layers.items(), key=lambda pair: -pair[1]):
        print(f"{layer:28}{count:4} caught")
    caught = sum(verdict.good for verdict in verdicts)
    print(f"\n{rules} rules, {len(plants)} bugs planted: {caught} caught, {len(plants) - caught} not caught")


def main() -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="./x planted", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="only this bug")
    parser.add_argument(
        "--rule", action="append", default=[], metavar="RULE", help="only bugs that break this rule"
    )
    parser.add_argument("--list", action="store_true", help="show rules and bugs, and plant nothing")
    parser.add_argument(
        "--check", action="store_true", help="only look whether all bugs fit the code, and plant nothing"
    )
    parser.add_argument(
        "--all-layers", action="store_true", help="try the further layers of each bug as well"
    )
    parser.add_argument("--jobs", type=int, default=2, help="bugs tried at the same time (default: 2)")
    parser.add_argument("--no-write", action="store_true", help="leave docs/planted.md as it is")
    arguments = parser.parse_args()
    try:
        rules, found = read_rules(), read_plants()
        if arguments.list:
            print_list(rules, found)
            return 0
        plants = chosen(found, arguments.only, arguments.rule)
        wrong = faults(found, rules)
    except (BadPlants, BadRules) as error:
        print(f"planted: {error}", file=sys.stderr)
        return 2
    everything = not (arguments.only or arguments.rule)
    if arguments.check or (everything and wrong):
        for fault in wrong:
            print(f"FAULT  {fault}")
        print(f"\n{len(rules)} rules, {len(found.plants)} bugs, {len(wrong)} fault{'s' * (len(wrong) != 1)}")
        return 1 if wrong else 0
    with tempfile.TemporaryDirectory(prefix="muster-planted-") as folder:
        field = Field(Path(folder), max(1, min(arguments.jobs, len(plants))))
        print(f"running the tests of {len(plants)} bugs without any bug", flush=True)
        failing, problems = field.failing_without_bugs(plants)
        for test in failing:
            print(f"FAULT  {test} fails without any bug")
        for problem in problems:
            print(f"FAULT  {problem}")
        checks = field.failing_checks(plants) if arguments.all_layers else []
        for check in checks:
            print(f"FAULT  {' '.join(check.run)} finds something without any bug")
        if problems or checks:
            return 1
        verdicts = field.try_all(plants, failing, all_layers=arguments.all_layers)
    print_totals(plants, verdicts, len({rule for plant in plants for rule in plant.rules}))
    if not all(verdict.good for verdict in verdicts):
        return 1
    if not arguments.no_write and not wrong:
        write_page(rules, found, verdicts)
    return 0
