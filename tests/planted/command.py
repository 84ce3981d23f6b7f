"""Plants every bug, each alone in a copy of the repository, and says which test caught it.

First the tests that shall catch the bugs must pass without any. Then each bug is planted, and its tests run
until one fails; the one that docs/planted.md names runs first. Fails when a bug is not caught, or does not
fit the code any more, or a rule of docs/safety.md has none.

    ./x planted                  everything; writes docs/planted.md when all are caught
    ./x planted --only ID        one bug (may be repeated)
    ./x planted --rule GRP-03    the bugs that break a rule
    ./x planted --list           rules and bugs; plants nothing
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from planted.field import PLACES, Field, Verdict
from planted.plants import BadPlants, Plant, Plants, faults, layer_of, read_plants
from planted.rules import BadRules, Rule, read_rules
from planted.table import PAGE, page, read_catches, rows_missing


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
    """Writes docs/planted.md; of plants that were not tried it keeps what it says, which may be nothing."""
    known = _known() | {verdict.plant.id: verdict.caught_by for verdict in verdicts}
    PAGE.write_text(page(rules, found, known), "utf-8")
    for line in rows_missing(found, known):
        print(line)


def _known() -> dict[str, str]:
    return read_catches(PAGE.read_text("utf-8")) if PAGE.exists() else {}


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
    try:
        code = _run()
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _run() -> int:
    parser = argparse.ArgumentParser(prog="./x planted", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="only this bug")
    parser.add_argument(
        "--rule", action="append", default=[], metavar="RULE", help="only bugs that break this rule"
    )
    parser.add_argument("--list", action="store_true", help="show rules and bugs, and plant nothing")
    parser.add_argument(
        "--check",
        action="store_true",
        help="only look whether all bugs fit the code and have a row, and plant nothing",
    )
    parser.add_argument(
        "--all-layers", action="store_true", help="try the further layers of each bug as well"
    )
    parser.add_argument(
        "--jobs", type=int, default=PLACES, help=f"bugs tried at the same time (default: {PLACES})"
    )
    parser.add_argument("--no-write", action="store_true", help="leave docs/planted.md as it is")
    arguments = parser.parse_args()
    try:
        rules, found = read_rules(), read_plants()
        if arguments.list:
            print_list(rules, found)
            return 0
        plants = chosen(found, arguments.only, arguments.rule)
        wrong = faults(found, rules)
        rowless = rows_missing(found, _known())
    except (BadPlants, BadRules) as error:
        print(f"planted: {error}", file=sys.stderr)
        return 2
    everything = not (arguments.only or arguments.rule)
    if arguments.check or (everything and wrong):
        wrong += rowless if arguments.check else []
        for fault in wrong:
            print(f"FAULT  {fault}")
        print(f"\n{len(rules)} rules, {len(found.plants)} bugs, {len(wrong)} fault{'s' * (len(wrong) != 1)}")
        return 1 if wrong else 0
    with tempfile.TemporaryDirectory(prefix="muster-planted-") as folder:
        field = Field(Path(folder), max(1, min(arguments.jobs, len(plants))))
        print(f"running the tests of {len(plants)} bugs without any bug", flush=True)
        failing, problem = field.failing_without_bugs(plants)
        for test in failing:
            print(f"FAULT  {test} fails without any bug")
        if problem:
            print(f"FAULT  {problem}")
        checks = field.failing_checks(plants) if arguments.all_layers else []
        for check in checks:
            print(f"FAULT  {' '.join(check.run)} finds something without any bug")
        if problem or checks:
            return 1
        verdicts = field.try_all(plants, failing, _known(), all_layers=arguments.all_layers)
    print_totals(plants, verdicts, len({rule for plant in plants for rule in plant.rules}))
    if not all(verdict.good for verdict in verdicts):
        return 1
    if not arguments.no_write and not wrong:
        write_page(rules, found, verdicts)
    return 0
