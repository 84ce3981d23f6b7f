"""`./x chaos`: faults on a cluster of real processes under load, and what histories and log say then."""

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path

from chaos.all_scenarios import SCENARIOS
from chaos.arena import Size
from chaos.kinds import KINDS
from chaos.run import Result, run
from chaos.scenario import CLUSTER_SETTINGS, Scenario

SMALL = {"groups": 6, "members": 4, "processes": 2}


def say(text: str) -> None:
    """One line, at once."""
    print(text, flush=True)


def chosen(only: str) -> list[Scenario]:
    """Scenarios by number, in the order of the list.

    Raises:
        SystemExit: a number is unknown.
    """
    everything = sorted(SCENARIOS.values(), key=_place)
    if not only:
        return everything
    wanted = [number.strip() for number in only.split(",")]
    unknown = [number for number in wanted if number not in SCENARIOS]
    if unknown:
        raise SystemExit(f"chaos: there is no scenario {unknown[0]!r}; `./x chaos --list` shows all")
    return [scenario for scenario in everything if scenario.number in wanted]


def _place(scenario: Scenario) -> tuple[int, str]:
    """Numbers first."""
    digits = "".join(filter(str.isdigit, scenario.number))
    return (int(digits) if digits else 1_000, scenario.number)


async def run_all(scenarios: list[Scenario], folder: Path, size: Size, per_cluster: int) -> list[Result]:
    """A new cluster after so many scenarios, so that a log is checked while it is short."""
    parts = []
    for kind in CLUSTER_SETTINGS:
        of_kind = [scenario for scenario in scenarios if scenario.cluster == kind]
        parts += [of_kind[first : first + per_cluster] for first in range(0, len(of_kind), per_cluster)]
    results = []
    for number, part in enumerate(parts, 1):
        say(f"cluster {number}, {part[0].cluster}: scenarios {', '.join(one.number for one in part)}")
        results.append(await run(part, folder / f"cluster-{number}", size, say))
    return results


def main() -> int:
    """Exit code 0: everything held."""
    parser = argparse.ArgumentParser(prog="./x chaos", description=__doc__)
    parser.add_argument("--only", default="", metavar="NUMBERS", help="these scenarios alone, e.g. 7,12")
    parser.add_argument("--list", action="store_true", help="show the scenarios")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave histories, logs and data there")
    parser.add_argument("--small", action="store_true", help="6 groups of 4 members instead of 30 of 10")
    parser.add_argument("--groups", choices=KINDS, default="both", help="kinds of the load's groups")
    parser.add_argument("--per-cluster", type=int, default=10, metavar="N", help="a new cluster after N")
    arguments = parser.parse_args()
    if arguments.list:
        for scenario in chosen(""):
            say(f"{scenario.number:>3}  {scenario.what}")
        return 0
    scenarios = chosen(arguments.only)
    logging.getLogger("muster").setLevel(logging.ERROR)  # that servers are away is the point
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="muster-chaos-"))
    began = time.monotonic()
    size = Size(**(SMALL if arguments.small else {}), kinds=KINDS[arguments.groups])
    results = asyncio.run(run_all(scenarios, folder.resolve(), size, arguments.per_cluster))
    say(f"\n{'':>3}  {'fault':<66} {'verdict':<7}{'longest':>8} {'reb.':>4}   evidence")
    for result in results:
        for verdict in result.verdicts:
            say(verdict.row())
    good = all(result.good for result in results)
    if arguments.keep is None and good:
        shutil.rmtree(folder, ignore_errors=True)
    elif arguments.keep is None:
        say(f"histories and logs: {folder}")
    verdicts = [verdict for result in results for verdict in result.verdicts]
    violations = [violation for result in results for violation in result.final]
    total = Result(
        verdicts,
        violations,
        sum(result.acknowledged for result in results),
        sum(result.entries for result in results),
        time.monotonic() - began,
    )
    say(total.totals())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
